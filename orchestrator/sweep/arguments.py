"""The words of the sweep command, and which of them go together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.console.progress import Progress
from orchestrator.errors import ExitCode
from streams.progress import ProgressLine

if TYPE_CHECKING:
    from orchestrator.sweep.result import SweepResult


import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    """Refuses in a document too, where `as_json`."""

    as_json = False

    def error(self, message: str) -> NoReturn:
        if self.as_json:
            from orchestrator.report.json_document import document  # pandas comes with it

            print(document(None, ExitCode.BAD_INPUT, problems=[message]), flush=True)
        super().error(message)


def read(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, `file` (None if none is named) and `overrides`, the `key=value` words. Words that do not go together
    end the process as a bad option does.

    Args:
        argv: the words; those of this process if None.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    parser = _Parser(
        prog="python -m orchestrator.sweep", description="Run a sweep; the quickstart if no FILE is given."
    )
    parser.add_argument("words", nargs="*", metavar="FILE or key=value", help="a sweep's YAML, and changes to it")
    parser.add_argument("--plan", action="store_true", help="print the trials and their cost, and start nothing")
    parser.add_argument("--local", action="store_true", help="start a Ray of our own, whatever RAY_ADDRESS says")
    parser.add_argument("--resume", metavar="NAME", help="go on with a sweep that was begun before")
    parser.add_argument("--rerun", action="store_true", help="forget earlier results of this sweep")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="run it on the cluster of this file for `ray up`")
    parser.add_argument("--detach", action="store_true", help="with --cluster: come back once it runs there")
    parser.add_argument("--attach", metavar="NAME", help="with --cluster: follow a sweep that runs there")
    parser.add_argument("--quiet", action="store_true", help="errors and the final line alone")
    parser.add_argument("--json", action="store_true", help="the result as one JSON document on standard output")
    parser.as_json = any(len(word) > 2 and "--json".startswith(word) for word in given)  # shortened, too
    arguments = parser.parse_intermixed_args(given)  # words may stand before and after options
    files = [word for word in arguments.words if "=" not in word]
    if arguments.resume is not None and (files or arguments.plan or arguments.rerun):
        parser.error("--resume takes the sweep from its folder: no FILE, --plan or --rerun beside it")
    if arguments.cluster is None and (arguments.detach or arguments.attach):
        parser.error("--detach and --attach go with --cluster FILE")
    if arguments.cluster is not None and (arguments.local or arguments.plan or arguments.resume):
        allowed = "FILE, key=value, --rerun, --detach, --attach, --json or --quiet"
        parser.error(f"--cluster goes with {allowed}; it resumes what was begun")
    if arguments.attach and (arguments.words or arguments.detach or arguments.rerun):
        parser.error("--attach takes no other words")
    if len(files) > 1:
        parser.error(f"one sweep at a time (got {', '.join(files)})")
    arguments.file = files[0] if files else None
    arguments.overrides = [word for word in arguments.words if "=" in word]
    return arguments


@dataclass(frozen=True)
class Telling:
    """What goes to standard error besides errors; nothing if `quiet`.

    ``at_loss``: who is given the result where the process ends without coming back; see `run_sweep`.
    """

    quiet: bool = False
    at_loss: Callable[[SweepResult], None] | None = None

    def say(self, line: str) -> None:
        """One line."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def building(self) -> Callable[[str, int, int], None]:
        """What a task store that is being built tells."""
        return _nothing if self.quiet else ProgressLine()

    @contextmanager
    def following(self, progress: Progress, metric: str, before: Callable[[], None] | None = None) -> Iterator[None]:
        """Inside this block the progress is seen: on a screen where there is a terminal.

        Args:
            progress: of the sweep.
            metric: the objective's name.
            before: called once by a screen, to be told of trials that had ended before.
        """
        if self.quiet:
            progress.tell, progress.lines = _unheard, False
            yield
        elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            from orchestrator.console.screen import Screen

            with Screen(progress, metric, before=before):
                yield
        else:
            yield


def _nothing(what: str, done: int, total: int) -> None:
    """For whoever tells of a build."""


def _unheard(line: str) -> None:
    """For whoever has a line to say."""
