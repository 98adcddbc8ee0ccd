"""The cache folder of a node, and the locks under which one process fills it for all."""

import os
from pathlib import Path

from filelock import FileLock

VARIABLE = "FOML_CACHE"


def cache_folder() -> Path:
    """`$FOML_CACHE` or `~/.cache/foml-orchestrator`, for built stores, copies of remote stores, and downloads."""
    value = os.environ.get(VARIABLE)
    return Path(value).expanduser().absolute() if value else Path.home() / ".cache" / "foml-orchestrator"


def locked(folder: Path) -> FileLock:
    """The lock of `folder`, a file beside it; `with` waits for it, and the end of its holder's process releases it.

    On a network file system without `flock`, the lock is the file's existence, and outlives a killed holder.
    """
    return FileLock(folder.parent / f".{folder.name}.lock")
