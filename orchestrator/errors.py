"""Errors that a user can cause, one line per fault, and the exit codes of the commands."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from streams.errors import UserError
from streams.errors import fault as fault_at


class ExitCode(IntEnum):
    """Exit codes of `python -m orchestrator.sweep` (see `EXIT_CODES`); the other commands use the first three."""

    SUCCESS = 0
    SOME_FAILED = 1
    BAD_INPUT = 2
    NOTHING_USABLE = 3
    OVER_BUDGET = 4
    INTERRUPTED = 130
    """A signal, a full disk or the loss of Ray stopped the sweep."""


EXIT_CODES: dict[int, str] = {
    ExitCode.SUCCESS: "success",
    ExitCode.SOME_FAILED: "some configurations failed; each is named",
    ExitCode.BAD_INPUT: "bad input, one line per fault; nothing was started",
    ExitCode.NOTHING_USABLE: "no configuration finished with every seed",
    ExitCode.OVER_BUDGET: "the budget was reached before all trials had ended",
    ExitCode.INTERRUPTED: "interrupted; the same command resumes the sweep",
}


class OrchestratorError(UserError):
    """Base of every error that a user of `orchestrator` can cause."""


class ConfigError(OrchestratorError):
    """A sweep's configuration is invalid: each line has file, dotted key, rule, value and remedy."""


def fault(file: str, key: str, rule: str, got: object = ..., remedy: str = "") -> str:
    """One line about one wrong value of a file.

    >>> fault("mine.yaml", "learners[0].bta1", "unknown key", 0.01, "did you mean beta1?")
    'mine.yaml: learners[0].bta1: unknown key (got 0.01); did you mean beta1?'
    """
    return fault_at(f"{file}: {key}" if key else file, rule, got, remedy)


_MESSAGES = ("No space left on device", "disk is full", "Disk quota exceeded")


class DiskFullError(OrchestratorError):
    """The disk is full; files written before are complete, and the sweep can be resumed when there is room.

    Attributes:
        resume: the command that resumes the sweep; None if the sweep was not started or the command is not known.
    """

    exit_code = ExitCode.INTERRUPTED
    resume: str | None = None


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk, or a used-up quota, caused an exception.

    PyTorch, SQLite, Arrow and Ray raise exceptions of their own, which chain the cause or quote its message.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(error, DiskFullError) or any(message in str(error) for message in _MESSAGES):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_full_line(path: Path) -> str:
    """One line: the path, the free bytes of its disk, and the remedy."""
    return f"{path}: the disk is full ({shutil.disk_usage(existing(path)).free:,} bytes free); make room there"


def existing(path: Path) -> Path:
    """The path, or its closest parent that exists; what is in a folder that may not be searched does not."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))  # `Path.exists` may raise


@contextmanager
def disk_full_as_error(path: Path) -> Iterator[None]:
    """Raise `DiskFullError` with one line that names `path` for any exception in the block that a full disk caused."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DiskFullError) or not is_disk_full(error):
            raise
        raise DiskFullError(disk_full_line(path)) from None
