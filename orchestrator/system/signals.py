"""Graceful shutdown of a sweep: on Ctrl-C, SIGTERM, a closed terminal (SIGHUP), or too many failures."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = "interrupted"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Whether a sweep must stop, and why.

    Attributes:
        requested: whether the sweep must stop; each running trial then stops after its current chunk. A plain attribute
            and no `threading.Event`: the signal handler sets it, and would wait forever for an event's lock that the
            interrupted code holds.
        reason: `INTERRUPTED` or a sentence; empty while no stop is requested.
        interrupted: whether a signal, a full disk or the loss of Ray is the cause, rather than the trials.
        signal: number of the last signal received, None if there was none.
    """

    def __init__(self) -> None:
        self.requested = False
        self.reason = ""
        self.interrupted = False
        self.signal: int | None = None
        self._report: Callable[[str], None] | None = None
        self._terminals = [number for number in range(3) if os.isatty(number)]

    def request(self, reason: str, interrupted: bool = False) -> None:
        """Request a stop after the chunks in flight; the first reason is kept."""
        if not self.requested:
            self.reason, self.interrupted = reason, interrupted
            self.requested = True

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Turn Ctrl-C, SIGTERM and SIGHUP inside the block into KeyboardInterrupt, and into a stop request first while
        trials run.

        A SIGHUP that was ignored (`nohup`) stays ignored. A KeyboardInterrupt raised where Python ignores exceptions (a
        finalizer, a callback of a weak reference) is raised again a moment later. Outside the main thread, which alone
        can handle signals, the block changes nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        report_unraisable, sys.unraisablehook = sys.unraisablehook, self._raise_later(sys.unraisablehook)
        for number in SIGNALS:
            if number != signal.SIGHUP or before[number] != signal.SIG_IGN:
                signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            sys.unraisablehook = report_unraisable

    @contextmanager
    def gracefully(self, report: Callable[[str], None]) -> Iterator[None]:
        """Inside the block the first signal requests a stop and reports it; the second raises KeyboardInterrupt."""
        self._report = report
        try:
            yield
        finally:
            self._report = None

    def _handle(self, number: int, frame: Any) -> None:
        self.signal = number
        for terminal in self._terminals:
            if not os.isatty(terminal):  # it was closed: any further output to it would raise
                _silence(terminal)
        report = None if self.requested else self._report
        self.request(INTERRUPTED, interrupted=True)
        if report is None:
            raise KeyboardInterrupt
        report("stopping: the chunks in flight are finished and kept (a second signal stops immediately)")

    def _raise_later(self, otherwise: Callable[[Any], Any]) -> Callable[[Any], None]:
        """A hook for exceptions that Python ignores: it repeats the signal of a KeyboardInterrupt, from another thread,
        since inside the hook the exception would be ignored again."""

        def hook(ignored: Any) -> None:
            if not issubclass(ignored.exc_type, KeyboardInterrupt) or self.signal is None:
                otherwise(ignored)
                return
            again = threading.Timer(0.01, os.kill, (os.getpid(), self.signal))
            again.daemon = True
            again.start()

        return hook


def _silence(terminal: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, terminal)
    os.close(null)
