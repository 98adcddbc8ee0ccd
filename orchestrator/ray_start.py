"""Starting Ray so that signals stay with whoever handles them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orchestrator.errors import OrchestratorError
from orchestrator.halt import SIGNALS


def start_ray(address: str | None) -> None:
    """Start a Ray on this machine, or connect to the cluster at `address`; signals that come meanwhile wait for it.

    Raises:
        OrchestratorError: no cluster answers there.
        KeyboardInterrupt: by whoever handles the signal that came; Ray is to be shut down.
    """
    with held_back(), _no_handler_of_rays():
        _init(address)


def _init(address: str | None) -> None:
    import ray

    quiet = {"namespace": "foml-orchestrator", "logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        rule = "must name a running cluster"
        raise OrchestratorError(f"RAY_ADDRESS: {rule} (got {address}); start it, or use --local") from error


@contextmanager
def held_back() -> Iterator[None]:
    """Around the start of Ray, which does not survive being interrupted: a signal that comes inside is delivered at the
    end, a second one at once. Only those that somebody handles.

    What is started inside never hears of a SIGHUP, as it inherits that; else Ray's processes would end with the
    terminal, and no chunk could be finished. (Ray sees to it itself that they hear of no Ctrl-C.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    came: list[int] = []

    def later(number: int, frame: Any) -> None:
        came.append(number)
        if len(came) > 1:
            before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, later)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        before[signal.Signals(came[0])](came[0], None)


@contextmanager
def _no_handler_of_rays() -> Iterator[None]:
    """Inside this block Ray puts no handler of SIGTERM in place if there is one: it would end the process at once."""
    from ray._private import utils

    if not callable(signal.getsignal(signal.SIGTERM)):
        yield
        return
    own, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = own
