"""The cache folder of a node, and locks that make several processes do a thing once."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "FOML_CACHE"


def cache_folder() -> Path:
    """`$FOML_CACHE`, or `~/.cache/foml-orchestrator`. Holds built stores, copies of remote ones, and downloads."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "foml-orchestrator"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` (a file beside it), waiting for whoever holds it. A killed process frees its lock."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder.parent / f".{folder.name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
