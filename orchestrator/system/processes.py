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
    known = [[pid, started] for pid, (_, started, _) in descendants(os.getpid()).items()]
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


def descendants(pid: int) -> dict[int, tuple[int, int, str]]:
    """Process id → (parent, start time in clock ticks since boot, state) of all that come from a process.

    Empty where there is no `/proc`.
    """
    everyone = {}
    for path in _PROC.iterdir() if _PROC.is_dir() else ():
        if path.name.isdigit():
            with suppress(OSError, ValueError):
                everyone[int(path.name)] = _stat(int(path.name))
    found: dict[int, tuple[int, int, str]] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child, stat in everyone.items():
            if stat[0] == parent and child not in found:
                found[child] = stat
                waiting.append(child)
    return found


def _stat(pid: int) -> tuple[int, int, str]:
    """Parent, start time, state; raises OSError if there is no such process."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), int(fields[19]), fields[0]


def lives(pid: int) -> bool:
    """Whether there is such a process, and it is not one that has ended and waits to be buried."""
    try:
        return _stat(pid)[2] not in "ZX"
    except (OSError, ValueError):
        return False


def command_of(pid: int) -> str:
    """A process's command line; empty if there is none."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def end_descendants() -> None:
    """Kill all that have come from this process, but for a watcher."""
    for pid in descendants(os.getpid()):
        if __file__ not in command_of(pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


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
