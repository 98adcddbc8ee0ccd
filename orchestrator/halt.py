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
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.reason = ""
        self._say: Callable[[str], None] | None = None

    @property
    def interrupted(self) -> bool:
        return self.asked.is_set() and self.reason == INTERRUPTED

    def ask(self, reason: str) -> None:
        """Stop with the chunks in flight; the first reason counts."""
        if not self.asked.is_set():
            self.reason = reason
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
            self.ask(INTERRUPTED)
            raise KeyboardInterrupt
        self.ask(INTERRUPTED)
        self._say("stopping: the chunks in flight are finished and kept (once more to stop at once)")
