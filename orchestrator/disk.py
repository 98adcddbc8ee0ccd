"""A disk that is full: noticed wherever it is met, and told in one line."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import OrchestratorError

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
