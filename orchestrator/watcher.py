"""Ends what a killed command leaves behind; run as a script of its own, beside the command, by `watched`.

After its driver's SIGKILL, Ray's agents live on for a minute. This process waits at the end of a pipe that the driver
holds: if the driver dies without a word, it kills those that came from it and are still there. It needs `/proc`, and
does nothing where there is none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GRACE_S = 5.0
"""Time for the processes to end by themselves."""
_PROC = Path("/proc")


@contextmanager
def watched() -> Iterator[None]:
    """All that has come from this process so far ends soon after it, however it ends inside this block."""
    if not (_PROC / "self" / "stat").exists():
        yield
        return
    known = [[pid, started] for pid, (_, started) in _descendants(os.getpid()).items()]
    command = [sys.executable, "-I", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(known) + "\n")
            process.stdin.flush()
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                process.stdin.write("well\n")
                process.stdin.close()


def _descendants(pid: int) -> dict[int, tuple[int, int]]:
    """Process id → (parent, start time in clock ticks since boot) of all that come from a process."""
    everyone = {}
    for path in _PROC.iterdir():
        if path.name.isdigit():
            with suppress(OSError, ValueError):
                everyone[int(path.name)] = _stat(int(path.name))
    found: dict[int, tuple[int, int]] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child, stat in everyone.items():
            if stat[0] == parent and child not in found:
                found[child] = stat
                waiting.append(child)
    return found


def _stat(pid: int) -> tuple[int, int]:
    """Parent and start time; raises OSError if there is no such process."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), int(fields[19])


def main() -> None:
    """Wait for the driver's word, or its death."""
    known = json.loads(sys.stdin.readline() or "[]")
    if sys.stdin.readline():
        return
    time.sleep(GRACE_S)
    for pid, started in known:
        with suppress(OSError, ValueError):
            if _stat(pid)[1] == started:  # and no other process that took its number
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
