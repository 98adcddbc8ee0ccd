"""Access rights that hold for root too."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_VERSION, _OVERRIDE, _READ_SEARCH = 0x20080522, 1 << 1, 1 << 2
"""Of Linux's `capset`, and the capabilities by which root ignores the rights of files."""
_GET_SECUREBITS, _SET_SECUREBITS, _NO_FIXUP = 27, 28, 1 << 2
"""Of Linux's `prctl`; with the last one, `os.access` too answers without these capabilities."""


@contextmanager
def denied(path: Path) -> Iterator[None]:
    """No user has any right to a file or folder in this block.

    Root loses, in the calling thread, the capabilities that ignore rights.
    """
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with _without_capabilities():
            yield
    finally:
        path.chmod(mode)


@contextmanager
def _without_capabilities() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root has every right")
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    before = sets[0]
    sets[0] &= ~(_OVERRIDE | _READ_SEARCH)
    bits = libc.prctl(_GET_SECUREBITS, 0, 0, 0, 0)
    assert libc.capset(header, sets) == 0 == libc.prctl(_SET_SECUREBITS, bits | _NO_FIXUP, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SET_SECUREBITS, bits, 0, 0, 0)
        sets[0] = before
        assert libc.capset(header, sets) == 0
