"""What a running sweep tells: trials done, each one's error so far, and an estimate of the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from orchestrator.plan import Plan

INTERVAL = 5.0
"""Seconds between two lines."""


@dataclass
class _Trial:
    label: str
    batches: int = 0
    total: int = 0
    error: float | None = None
    state: str = "waiting"  # waiting, running, done, failed, stopped
    seconds: float = 0.0
    """Spent learning, in this run of the command."""
    learned: int = 0
    """Batches learned in this run of the command."""


class Progress:
    """Plain lines, one every few seconds; `out` is standard error unless said otherwise."""

    def __init__(self, plan: Plan, slots: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._plan = plan
        self._known: dict[str, _Trial] = {}
        self._slots, self._out, self._clock = max(1, slots), out or sys.stderr, clock
        self._started = self._told = clock()

    def say(self, text: str) -> None:
        """One line, at once."""
        print(text, file=self._out, flush=True)

    @property
    def _trials(self) -> dict[str, _Trial]:
        """Every trial of the plan, those too that were drawn since."""
        for trial in self._plan.trials[len(self._known) :]:
            self._known[trial.key] = _Trial(trial.configuration.label)
        return self._known

    def already(self, key: str, how: str = "done") -> None:
        """The trial had ended before the command began."""
        self._trials[key].state = how

    def started(self, key: str) -> None:
        self._trials[key].state = "running"

    def advanced(self, key: str, batches: int, total: int, learned: int, seconds: float, error: float | None) -> None:
        """A chunk of `learned` batches took `seconds`; the trial is at `batches` of `total`."""
        trial = self._trials[key]
        trial.batches, trial.total, trial.error = batches, total, error if error is not None else trial.error
        trial.learned, trial.seconds = trial.learned + learned, trial.seconds + seconds
        now = self._clock()
        if now - self._told >= INTERVAL:
            self._told = now
            self.say(self.line())

    def again(self, key: str, reason: str) -> None:
        """The trial's actor died, and another will go on from the last chunk."""
        self.say(f"{self._trials[key].label} ({key}): its actor died, another goes on from its last chunk: {reason}")

    def ended(self, key: str, how: str) -> None:
        """`how`: done, failed, or stopped by the scheduler."""
        self._trials[key].state = how
        self.say(self.line())

    def line(self) -> str:
        """The state of things in one line."""
        trials = self._trials.values()
        done = sum(trial.state == "done" for trial in trials)
        parts = [f"[{_clock(self._clock() - self._started)}] {done}/{self._plan.size} trials done"]
        for state in ("failed", "stopped"):
            if count := sum(trial.state == state for trial in trials):
                parts[0] += f", {count} {state}"
        left = self.seconds_left()
        parts.append(f"ETA {'–' if left is None else _clock(left)}")
        for trial in trials:
            if trial.state == "running" and trial.total:
                error = "–" if trial.error is None else f"{trial.error:.3f}"
                parts.append(f"{trial.label}: error {error} at {100 * trial.batches // trial.total} %")
        return " · ".join(parts)

    def seconds_left(self) -> float | None:
        """Estimate: what each open trial still has to learn, at its own pace (or the mean pace of the others)."""
        paces = {key: t.seconds / t.learned for key, t in self._trials.items() if t.learned}
        if not paces:
            return None
        mean_pace = sum(paces.values()) / len(paces)
        total = max(trial.total for trial in self._trials.values())
        rest = [
            paces.get(key, mean_pace) * ((trial.total or total) - trial.batches)
            for key, trial in self._trials.items()
            if trial.state in ("waiting", "running")
        ]
        rest += [mean_pace * total] * (self._plan.size - len(self._trials))  # those that are still to be drawn
        return max(sum(rest) / self._slots, max(rest, default=0.0))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
