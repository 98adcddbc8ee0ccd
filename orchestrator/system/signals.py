"""Stopping a sweep before its end: Ctrl-C, SIGTERM, a terminal that is gone (SIGHUP), or too many failures."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = "interrupted"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Whether a sweep is to stop, and why.

    ``requested``: set once it is; trials then end with the chunk they are in. ``reason``: `INTERRUPTED`, or a sentence.
    ``interrupted``: whether that came from outside, by a signal or the loss of Ray: the trials can do nothing for it.
    ``signal``: the last that came.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.reason = ""
        self.interrupted = False
        self.signal: int | None = None
        self._say: Callable[[str], None] | None = None
        self._terminals = [number for number in range(3) if os.isatty(number)]

    def request(self, reason: str, interrupted: bool = False) -> None:
        """Stop with the chunks in flight; the first reason counts."""
        if not self.requested.is_set():
            self.reason, self.interrupted = reason, interrupted
            self.requested.set()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Inside this block Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, or, while trials run, ask first.

        A SIGHUP that was ignored (`nohup`) stays so. Signals belong to the main thread; in another one this does
        nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            if number != signal.SIGHUP or before[number] != signal.SIG_IGN:
                signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def gracefully(self, say: Callable[[str], None]) -> Iterator[None]:
        """Trials run inside this block: the first signal asks them to stop, the second raises KeyboardInterrupt."""
        self._say = say
        try:
            yield
        finally:
            self._say = None

    def _handle(self, number: int, frame: Any) -> None:
        self.signal = number
        for terminal in self._terminals:
            if not os.isatty(terminal):  # it is gone: every further word there would be an error
                _silence(terminal)
        if self._say is None or self.requested.is_set():
            self.request(INTERRUPTED, interrupted=True)
            raise KeyboardInterrupt
        self.request(INTERRUPTED, interrupted=True)
        self._say("stopping: the chunks in flight are finished and kept (once more to stop at once)")


def _silence(terminal: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, terminal)
    os.close(nowhere)
