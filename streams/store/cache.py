"""The cache folder of a node, and locks that make several processes do a thing once."""

import os
from pathlib import Path

from filelock import FileLock

VARIABLE = "FOML_CACHE"


def cache_folder() -> Path:
    """`$FOML_CACHE`, or `~/.cache/foml-orchestrator`. Holds built stores, copies of remote ones, and downloads."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "foml-orchestrator"


def locked(folder: Path) -> FileLock:
    """The lock of `folder`, a file beside it, for `with`. It waits for the holder, whose death releases it.

    On a network file system without `flock`, the lock is the file's existence, and outlives a killed holder.
    """
    return FileLock(folder.parent / f".{folder.name}.lock")
