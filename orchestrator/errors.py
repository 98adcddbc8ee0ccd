"""What goes wrong in `orchestrator`: one base exception, one line per fault, every fault at once."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class OrchestratorError(Exception):
    """Base of every error that a user can cause.

    Args:
        faults: one complete line each; `str(error)` is these lines.
    """

    exit_code = 2

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.faults: tuple[str, ...] = faults

    def __str__(self) -> str:
        return "\n".join(self.faults)


class ConfigError(OrchestratorError):
    """A sweep's configuration that is not one: file, dotted key, rule, value and remedy in each line."""


def fault(file: str, key: str, rule: str, got: object = ..., remedy: str = "") -> str:
    """One line about one wrong value.

    >>> fault("mine.yaml", "learners[0].bta1", "unknown key", 0.01, "did you mean beta1?")
    'mine.yaml: learners[0].bta1: unknown key (got 0.01); did you mean beta1?'
    """
    line = f"{file}: {key}: {rule}" if key else f"{file}: {rule}"
    if got is not ...:
        line += f" (got {got})"
    if remedy:
        line += f"; {remedy}"
    return " ".join(line.split())


_WORDS = ("No space left on device", "disk is full", "Disk quota exceeded")


class DiskFullError(OrchestratorError):
    """There is no room for a file. What was written before is whole, and the sweep can go on once there is.

    ``resume``: the command for that, None if the sweep was not begun, or where it is not known.
    """

    exit_code = 130
    resume: str | None = None


def is_full(error: BaseException | None) -> bool:
    """Whether a full disk, or a used-up quota, is behind an exception.

    PyTorch, SQLite, Arrow and Ray raise others in its place, which carry it along, or its words.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(error, DiskFullError) or any(words in str(error) for words in _WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def full_line(path: Path) -> str:
    """Where there is no room, how much there is, and what to do."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    return f"{path}: the disk is full ({shutil.disk_usage(there).free:,} bytes free); make room there"


@contextmanager
def told_when_full(path: Path) -> Iterator[None]:
    """Whatever a full disk comes to in this block is a `DiskFullError` of one line that names `path`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DiskFullError) or not is_full(error):
            raise
        raise DiskFullError(full_line(path)) from None
