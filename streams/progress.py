"""Progress of a build: one line that changes on a terminal, a line every ten seconds in a log."""

import sys
import time
from typing import TextIO


class ProgressLine:
    """Prints `what done/total percent ETA`, at most four times a second on a terminal, every ten seconds elsewhere.

    Args:
        out: the text stream; standard error by default.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._live = self._out.isatty()
        self._pause = 0.25 if self._live else 10.0
        self._what = ""
        self._started = self._printed = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._started, self._printed = what, now, now - self._pause if self._live else now
        finished = done >= total
        if not finished and now - self._printed < self._pause:
            return
        self._printed = now
        line = f"{what}: {done:,}/{total:,}"
        if not finished and done:
            line += f" ({done / total:.0%}, {format_seconds((now - self._started) / done * (total - done))} left)"
        elif finished:
            line += f" in {format_seconds(now - self._started)}"
        self._out.write(f"\r\x1b[K{line}" + ("\n" if finished else "") if self._live else f"{line}\n")
        self._out.flush()


def format_seconds(seconds: float) -> str:
    """A duration in seconds, minutes or hours.

    >>> format_seconds(4.2), format_seconds(95), format_seconds(7300)
    ('4 s', '1 min 35 s', '2 h 01 min')
    """
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
