"""Stopping a sweep before its end: Ctrl-C, SIGTERM, or too many failures."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = "interrupted"


class Halt:
    """Whether a sweep is to stop, and why.

    ``asked``: set once it is; trials then end with the chunk they are in. ``reason``: `INTERRUPTED`, or a sentence.
    ``interrupted``: whether that came from outside, by a signal or the loss of Ray: the trials can do nothing for it.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.reason = ""
        self.interrupted = False
        self._say: Callable[[str], None] | None = None

    def ask(self, reason: str, interrupted: bool = False) -> None:
        """Stop with the chunks in flight; the first reason counts."""
        if not self.asked.is_set():
            self.reason, self.interrupted = reason, interrupted
            self.asked.set()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Inside this block Ctrl-C and SIGTERM raise KeyboardInterrupt, or, while trials run, ask first.

        Signals belong to the main thread; in another one this does nothing.
        """
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.take_signals()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)

    def take_signals(self) -> None:
        """Handle them from now on: Ray puts a handler of its own in place when it starts."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._handle)

    @contextmanager
    def gently(self, say: Callable[[str], None]) -> Iterator[None]:
        """Trials run inside this block: the first signal asks them to stop, the second raises KeyboardInterrupt."""
        self.take_signals()
        self._say = say
        try:
            yield
        finally:
            self._say = None

    def _handle(self, number: int, frame: Any) -> None:
        if self._say is None or self.asked.is_set():
            self.ask(INTERRUPTED, interrupted=True)
            raise KeyboardInterrupt
        self.ask(INTERRUPTED, interrupted=True)
        self._say("stopping: the chunks in flight are finished and kept (once more to stop at once)")
