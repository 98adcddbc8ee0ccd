"""Notices that the Ray which a sweep runs on is gone, where Ray itself would keep the driver waiting.

Without its control service (GCS), calls into Ray do not come back; after a minute Ray ends the whole process, with runs
left RUNNING and a line about itself. Without its raylet, a machine that is a cluster of its own starts no more actors,
and Tune waits for them for ever.
"""

from __future__ import annotations

import gc
import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

import psutil

from orchestrator.system.processes import command_line, descendants, is_alive

LOOK_S = 0.5
LOCAL_S, CLUSTER_S = 2.0, 40.0
"""For how long it must be gone. On a cluster the network may fail, and a control service may come back."""


@contextmanager
def guarded(local: bool, lost: Callable[[str], None]) -> Iterator[None]:
    """If Ray goes inside this block, `lost` is called with what was seen, in a thread of its own, and has to end the
    process: whoever is in the block may never come out of it, and does not if `lost` was called before it could.
    """
    import ray

    address = ray.get_runtime_context().gcs_address
    raylets = [process for process in descendants() if "/raylet/raylet" in command_line(process)] if local else []
    left, who = threading.Event(), threading.Lock()

    def watch() -> None:
        seen, reason = 0.0, ""
        while not left.wait(LOOK_S):
            reason = _missing(address, raylets)
            seen = seen + LOOK_S if reason else 0.0
            if seen >= (LOCAL_S if local else CLUSTER_S) and who.acquire(blocking=False):
                lost(reason)

    threading.Thread(target=watch, name="ray-health", daemon=True).start()
    try:
        yield
    finally:
        left.set()
        if not who.acquire(blocking=False):
            threading.Event().wait()  # the process is being ended


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside this block, in which Ray is shut down, no thread collects garbage; what there is, is collected before.

    An object reference that another thread destroys while Ray's core goes (the thread of MLflow's writer, say, in which
    a collection happens to begin) makes Ray end the process, with exit code 1 and without a result.
    """
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _missing(address: str, raylets: list[psutil.Process]) -> str:
    """What is not there; empty if all is."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        return f"Ray's control service at {address} is gone ({error.strerror or error})"
    return "" if all(is_alive(process) for process in raylets) else "this machine's raylet is gone"


class _Log(io.TextIOBase):
    """A file that is made once there is something to write, and that nobody stumbles over: the disk may be full."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> int:
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(text)
        return len(text)


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Inside this block standard output, where Ray prints on dead actors and machines, is this file."""
    with redirect_stdout(_Log(path)):
        yield
