"""The command lines of `streams` and `orchestrator`: one form of help, of usage errors, and of exit codes."""

import argparse
import atexit
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, NoReturn, ParamSpec

from streams.errors import UserError, masked

Arguments = ParamSpec("Arguments")

INTERRUPTED = 130
EXIT_CODES = {0: "success", 2: "bad input, one line per fault", INTERRUPTED: "interrupted"}


class CommandLine(argparse.ArgumentParser):
    """The parser of one command.

    Positional arguments may stand before, between and after options. Help ends with the exit codes, and states the
    default of each option that has one. A usage error is one line on standard error, and exit code 2.

    Args:
        prog: what the user typed: `python -m streams.build`, or `foml build` (see `main` of each command).
        description: what the command does, one sentence.
        exit_codes: the meaning of each exit code.
    """

    def __init__(self, prog: str, description: str, exit_codes: Mapping[int, str] = EXIT_CODES) -> None:
        lines = [f"  {code:<5}{meaning}" for code, meaning in exit_codes.items()]
        epilog = "\n".join(["exit codes:", *lines])
        super().__init__(prog=prog, description=description, epilog=epilog, formatter_class=_Help)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The arguments as attributes of a namespace."""
        return self.parse_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print a usage error and exit."""
        self.exit(2, f"{self.prog}: error: {masked(message)}; see {self.prog} --help\n")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the epilog, and appends the defaults of options."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        without: tuple[object, ...] = (None, False, [], argparse.SUPPRESS)
        if action.option_strings and action.default not in without and "default" not in text:
            text += " (default: %(default)s)"
        return text


def command(main: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """Decorate a command's `main`: an error that the user can cause is printed, and its exit code returned."""

    @wraps(main)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> int:
        try:
            return main(*args, **options)
        except UserError as error:
            print(error, file=sys.stderr)
            return int(error.exit_code)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED

    return run


def set_up_if_command(*packages: str) -> None:
    """Call `set_up_command` in a process of `python -m` and a module of these packages, and only there."""
    words = sys.orig_argv
    if "-m" in words and words[words.index("-m") + 1 :][0].partition(".")[0] in packages:
        set_up_command()


def set_up_command() -> None:
    """Set this process up as a command, before it imports what takes seconds.

    A KeyboardInterrupt that no code handles ends it in one line and with exit code 130, also while modules are
    imported, and after the command has handled a first Ctrl-C.

    Garbage is collected less often, and not again when the process ends, which would take more than a second.
    """
    sys.excepthook = _exception_hook
    collect_less_garbage()
    atexit.register(gc.freeze)


def collect_less_garbage() -> None:
    """Let this process search for garbage once per 10,000 new objects, instead of 700.

    The modules of torch, Ray and MLflow are hundreds of thousands of objects that stay until the end; with Python's
    settings, searching them takes a second while they are imported.
    """
    gc.set_threshold(10_000)


def _exception_hook(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        return sys.__excepthook__(kind, error, at)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a terminal or a pipe that is closed
            stream.flush()
    with suppress(OSError, ValueError):
        print("interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)  # Python would end itself by the signal instead
