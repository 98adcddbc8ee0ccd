"""Notices that Ray has died, where Ray itself would keep the driver waiting.

Without its control service (GCS), calls into Ray do not return; after a while Ray terminates the process, and MLflow's
runs stay RUNNING. Without its raylet, a local Ray starts no more actors, and Tune waits for them forever.
"""

import gc
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

import psutil

from orchestrator.system.processes import command_line, descendants, is_alive
from streams.errors import masked

LOOK_S = 0.5
LOCAL_S, CLUSTER_S = 2.0, 40.0
"""Seconds without an answer until Ray is dead. On a cluster the network may fail, or a control service restart."""
LOOKS = 4
"""The least number of looks without an answer: on a busy machine, a single one may take longer than `LOCAL_S`."""


@contextmanager
def guarded(local: bool, on_ray_lost: Callable[[str], None]) -> Iterator[None]:
    """If Ray dies inside this block, `on_ray_lost` is called in another thread and must terminate the process.

    The block may wait for Ray forever; once `on_ray_lost` is called, the block does not return.

    Args:
        local: whether Ray's processes were started by this one.
        on_ray_lost: called with the reason.
    """
    import ray  # after `prepare_environment`

    address = ray.get_runtime_context().gcs_address
    raylets = [process for process in descendants() if "/raylet/raylet" in command_line(process)] if local else []
    ended, claim = threading.Event(), threading.Lock()  # the thread that acquires `claim` decides

    def watch() -> None:
        reason = _death(lambda: _failure(address, raylets), ended, LOCAL_S if local else CLUSTER_S)
        if reason and claim.acquire(blocking=False):
            on_ray_lost(reason)

    threading.Thread(target=watch, name="ray-health", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        if not claim.acquire(blocking=False):
            threading.Event().wait()  # `on_ray_lost` is terminating the process


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Collect garbage, and turn the collector off inside this block, in which Ray is shut down.

    If another thread (MLflow's writer, say) collects an object reference meanwhile, Ray terminates the process with
    exit code 1 and without a result.
    """
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _death(failure: Callable[[], str], ended: threading.Event, limit: float) -> str:
    """Wait until Ray has been dead for `limit` seconds, and return the reason; empty once `ended` is set.

    Time is measured, as a look takes seconds if the host drops packets.

    Args:
        failure: returns which part of Ray is dead; empty if none.
        ended: ends the wait.
        limit: seconds.
    """
    looks, since = 0, 0.0
    while not ended.wait(LOOK_S):
        start = time.monotonic()
        reason = failure()
        looks, since = (looks + 1, since if looks else start) if reason else (0, 0.0)
        if looks >= LOOKS and time.monotonic() - since >= limit:
            return reason
    return ""


def _failure(address: str, raylets: list[psutil.Process]) -> str:
    """Which part of Ray is dead; empty if none."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        return f"Ray's control service at {address} is gone ({error.strerror or error})"
    return "" if all(is_alive(process) for process in raylets) else "this machine's raylet is gone"


class _Log(io.TextIOBase):
    """A file that is created by the first write; errors are ignored, as the disk may be full."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> int:
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(masked(text))
        return len(text)


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Inside this block standard output, where Ray reports dead actors and nodes, is appended to this file."""
    with redirect_stdout(_Log(path)):
        yield
