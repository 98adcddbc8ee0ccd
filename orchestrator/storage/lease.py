"""One command at a time runs a sweep whose results lie at an address, whichever machine it is on.

Each machine has a file of its own there, which a running sweep writes again every now and then: whoever finds another's
waits for a sign of life, and goes on where there is none. Ages are by the clock of the place, not by any machine's.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import ConfigError, fault
from orchestrator.storage.remote_folder import FAILURES, Place, reached

RENEW_S, STALE_S, POLL_S = 20.0, 90.0, 2.0
"""Between two writings of a claim; the age at which it counts no more; between two looks at another's."""
PREFIX = ".running-"
_NAME = ".machine"
"""In the copy of the sweep's folder: the name of this machine's claims, for it to take its own over at once."""


@contextmanager
def claimed(address: str, local: Path, tell: Callable[[str], None] = print) -> Iterator[None]:
    """No other machine runs this sweep inside this block.

    Args:
        address: of the sweep's folder.
        local: its copy here, which the caller has locked.
        tell: is given a line if another machine has to be waited for.

    Raises:
        ConfigError: another machine runs it; or the address cannot be written.
    """
    known = local / _NAME
    name = known.read_text() if known.is_file() else PREFIX + secrets.token_hex(8)
    known.write_text(name)
    claim = local / name
    claim.write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
    with reached(address):
        place = Place(address)
        place.put(claim)
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEW_S):
            with suppress(*FAILURES):  # out of reach for a while: then the next time
                place.put(claim)

    renewing = threading.Thread(target=renew, name="claim", daemon=True)
    renewing.start()
    try:
        with reached(address):
            _await_others(place, name, tell)
        yield
    finally:
        over.set()
        renewing.join(STALE_S)  # or it could write the claim after its end
        with suppress(*FAILURES):
            place.remove(name)


def _await_others(place: Place, name: str, tell: Callable[[str], None]) -> None:
    """Come back once no other machine's claim is younger than `STALE_S`; raise as soon as one is written again."""
    seen = _others(place, name)
    for key in seen:
        waiting = f"a sign of it is waited for, {STALE_S:g} s at most"
        tell(f"{place.shown}: {_holder(place, key)} has begun this sweep; {waiting}")
    while others := _others(place, name):
        for key, written in others.items():
            if seen.get(key) != written:
                remedy = f"wait for it, or stop it; if it is gone, delete {place.shown}/{key}"
                rule = "one command at a time runs a sweep"
                raise ConfigError(fault(place.shown, "", rule, _holder(place, key), remedy))
        time.sleep(POLL_S)


def _others(place: Place, name: str) -> dict[str, int]:
    """The claims of other machines that are not stale, and when they were written. Ours is written again and again, so
    the newest of all says when it is now."""
    written = {key: int(info.mtime_ns or 0) for key, info in place.listing().items() if key.startswith(PREFIX)}
    now = max(written.values(), default=0)
    return {key: at for key, at in written.items() if key != name and now - at < STALE_S * 1e9}


def _holder(place: Place, name: str) -> str:
    try:
        said = json.loads(place.read(name))
        return f"process {said['process']} on {said['host']}"
    except (*FAILURES, KeyError, TypeError):  # it is ending just now
        return "another machine"
