"""The processes that this process started; as a script, the watcher that kills them when their driver is killed.

After a SIGKILL of the driver, Ray's agents run for another minute. The watcher waits at the end of a pipe that the
driver holds, and kills the driver's descendants if the pipe closes without a word.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

GRACE_S = 5.0
"""Seconds for the processes to end before they are killed."""
_DONE = "done"


@contextmanager
def watched() -> Iterator[None]:
    """Processes started before the block end soon after this process if it is killed inside the block."""
    processes = [process.pid for process in descendants()]
    command = [sys.executable, "-P", __file__]  # a bare script: needs no package on its path but psutil
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True) as watcher:
        assert watcher.stdin is not None
        with suppress(BrokenPipeError):
            watcher.stdin.write(json.dumps(processes) + "\n")
            watcher.stdin.flush()
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                watcher.stdin.write(f"{_DONE}\n")
                watcher.stdin.close()


def descendants() -> list[psutil.Process]:
    """The children of this process, their children, and so on."""
    return psutil.Process().children(recursive=True)


def started_at(process: int) -> float | None:
    """The time at which the process of this id started, in seconds since the epoch; None if there is none."""
    try:
        return psutil.Process(process).create_time()
    except psutil.Error:
        return None


def is_alive(process: psutil.Process) -> bool:
    """Whether the process is running (zombies excluded)."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def command_line(process: psutil.Process) -> str:
    """The words of a process's command, separated by spaces; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def kill_descendants() -> None:
    """Kill all descendants of this process except its watcher."""
    for process in descendants():
        if __file__ not in command_line(process):
            with suppress(psutil.Error):
                process.kill()


def end_tree(pid: int) -> None:
    """End a process and its descendants: SIGTERM, and after `GRACE_S` seconds SIGKILL."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(processes, GRACE_S)[1]:
        with suppress(psutil.Error):
            process.kill()


def main() -> None:
    """Wait until the driver is done or dead."""
    processes = []
    for pid in json.loads(sys.stdin.readline() or "[]"):
        with suppress(psutil.Error):
            processes.append(psutil.Process(pid))  # keeps the start time: a later process of this id is not killed
    if sys.stdin.readline():
        return
    time.sleep(GRACE_S)
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    main()
