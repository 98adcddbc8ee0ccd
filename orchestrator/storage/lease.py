"""The lease of a sweep whose results are at an address: one command at a time runs it, on any machine.

Each machine has a lease file at the address, which a running sweep renews periodically. A command that finds the lease
of another machine waits for its renewal, and continues if there is none. A command that was suspended, or could not
reach the address, until another one has taken the sweep over does not renew its lease, and must stop. Ages are measured
by the clock of the address, not of a machine.
"""

import json
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import ConfigError, fault
from orchestrator.storage import atomic
from orchestrator.storage.remote_folder import FAILURES, RemoteFolder, address_faults

RENEW_S, EXPIRY_S, POLL_S = 20.0, 90.0, 2.0
"""Seconds between renewals of a lease; after which it expires; between two looks at the leases of others."""
PREFIX = ".running-"
_NAME = ".machine"
"""The file in the local copy of the sweep's folder that holds the name of this machine's lease, so that a machine
resumes its own sweep immediately."""


@contextmanager
def hold_lease(
    address: str,
    local: Path,
    report: Callable[[str], None] = print,
    stop: Callable[[str], object] = lambda reason: None,
) -> Iterator[None]:
    """Hold the lease of a sweep, renewed by a thread, and delete it at the end.

    Args:
        address: of the sweep's folder.
        local: the local copy of that folder, which the caller has locked.
        report: receives a line if the command waits for another machine's lease, and if another machine has taken the
            sweep over.
        stop: is then called with the same line, in the thread.

    Raises:
        ConfigError: another machine runs the sweep; or the address cannot be written.
    """
    name_file = local / _NAME
    name = name_file.read_text() if name_file.is_file() else PREFIX + secrets.token_hex(8)
    atomic.write(name_file, name)
    lease = local / name
    atomic.write(lease, json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
    with address_faults(address):
        remote = RemoteFolder(address)
        remote.put(lease)
    over = threading.Event()

    def renew() -> None:
        previous = math.inf
        while not over.wait(RENEW_S):
            with suppress(*FAILURES):  # temporarily unreachable: try again in the next round
                previous, reason = _look(remote, name, previous)
                if not reason:
                    remote.put(lease)
                    # The process may have been suspended since that look, or the upload slow. A machine that took the
                    # sweep over meanwhile compared its own lease with the one that was just replaced.
                    previous, reason = _look(remote, name, previous)
                if reason:
                    report(reason)
                    stop(reason)
                    return

    renewal = threading.Thread(target=renew, name="lease", daemon=True)
    renewal.start()
    try:
        with address_faults(address):
            _await_others(remote, name, report)
        yield
    finally:
        over.set()
        renewal.join(EXPIRY_S)  # or the thread could write the lease after its deletion
        with suppress(*FAILURES):
            remote.remove(name)


def taken_over(address: str, local: Path) -> str:
    """Why the command on this machine must stop, if another machine has taken its sweep over; else empty.

    Args:
        address: of the sweep's folder.
        local: the local copy of that folder.
    """
    return _look(RemoteFolder(address), (local / _NAME).read_text())[1]


def _look(remote: RemoteFolder, name: str, previous: float = math.inf) -> tuple[int, str]:
    """The time in ns of this machine's lease, and why its command must stop if another machine has taken over.

    Args:
        previous: this time at the previous look; another machine may have compared its own with it since.
    """
    written = _written(remote)
    latest = written.get(name, 0)  # 0: someone has deleted it, which is also how a command is declared dead
    for key, at in _others(written, name).items():
        if at - min(latest, previous) >= EXPIRY_S * 1e9:  # else it waits for the renewal of this one
            reason = f"this command was suspended, or did not reach the address, for more than {EXPIRY_S:g} s"
            return latest, f"{remote.shown}: {_holder(remote, key)} has taken over this sweep, as {reason}"
    return latest, ""


def _await_others(remote: RemoteFolder, name: str, report: Callable[[str], None]) -> None:
    """Return once the leases of all other machines have expired; raise as soon as one is renewed."""
    before = _others(_written(remote), name)
    for key in before:
        wait = f"waiting for a renewal of its lease, {EXPIRY_S:g} s at most"
        report(f"{remote.shown}: {_holder(remote, key)} has started this sweep; {wait}")
    while others := _others(_written(remote), name):
        for key, written in others.items():
            if before.get(key) != written:
                remedy = f"wait for it, or stop it; if it no longer runs, delete {remote.shown}/{key}"
                rule = "one command at a time runs a sweep"
                raise ConfigError(fault(remote.shown, "", rule, _holder(remote, key), remedy))
        time.sleep(POLL_S)


def _others(written: dict[str, int], name: str) -> dict[str, int]:
    """The unexpired ones of these leases that are of other machines.

    This machine's lease is renewed meanwhile, so the newest time of all is the present by the clock of the address.
    """
    now = max(written.values(), default=0)
    return {key: at for key, at in written.items() if key != name and now - at < EXPIRY_S * 1e9}


def _written(remote: RemoteFolder) -> dict[str, int]:
    """All leases: name → time of writing in ns."""
    return {key: int(info.mtime_ns or 0) for key, info in remote.listing().items() if key.startswith(PREFIX)}


def _holder(remote: RemoteFolder, name: str) -> str:
    try:
        content = json.loads(remote.read(name))
        return f"process {content['process']} on {content['host']}"
    except (*FAILURES, KeyError, TypeError):  # the holder is deleting its lease
        return "another machine"
