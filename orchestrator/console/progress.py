"""What a running sweep tells: trials done, each one's error so far, and an estimate of the time left.

`Progress` knows how every trial stands. It prints a plain line every few seconds, unless a screen (`screen.py`) shows
what it knows.
"""

from __future__ import annotations

import heapq
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from orchestrator.plan.plan import Plan
from streams.store.canonical_json import canonical

INTERVAL = 5.0
"""Seconds between two lines."""
WINDOW = 60.0
"""Seconds that throughput is a mean over."""


@dataclass
class TrialState:
    """How a trial stands. ``values``: the objective of each of its seeds so far. ``memory``, ``gpu_memory``: bytes."""

    label: str
    configuration: str
    seeds: tuple[int, ...]
    batch_size: int = 1
    batches: int = 0
    total: int = 0
    error: float | None = None
    state: str = "waiting"  # waiting, running, done, failed, stopped
    seconds: float = 0.0
    """Spent learning, in this run of the command."""
    learned: int = 0
    """Batches learned in this run of the command."""
    began: float | None = None
    """When it took its slot; ``first``, ``last``: its first and last result of this run, and the batches by then."""
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None
    start: float | None = None
    """Seconds from its slot to the first batch."""
    values: tuple[float, ...] = ()
    memory: int | None = None
    gpu_memory: int = 0

    @property
    def pace(self) -> float | None:
        """Seconds per batch by the clock, from its first to its last result; as its actor says while there is but one.

        The clock has more in it: checkpoints, results on their way, other trials that take the processor.
        """
        if self.first is not None and self.last is not None and self.last[1] > self.first[1]:
            return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])
        return self.seconds / self.learned if self.learned else None


class Progress:
    """Plain lines, one every few seconds; `out` is standard error unless said otherwise.

    ``tell``: what prints a line. ``lines``: whether lines come by themselves. ``size``: trials of the whole plan.
    """

    def __init__(self, plan: Plan, slots: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._plan = plan
        self._known: dict[str, TrialState] = {}
        self._kinds: dict[str, tuple[str, ...]] = {}
        self._slots, self._out, self._clock = max(1, slots), out or sys.stderr, clock
        self._started = self._told = clock()
        self._learned: deque[tuple[float, int]] = deque()
        self.tell: Callable[[str], None] = lambda text: print(text, file=self._out, flush=True)
        self.lines = True

    def say(self, text: str) -> None:
        """One line, at once."""
        self.tell(text)

    @property
    def name(self) -> str:
        """The sweep's."""
        return self._plan.name

    @property
    def size(self) -> int:
        return self._plan.size

    @property
    def seconds(self) -> float:
        """Since the trials began."""
        return self._clock() - self._started

    @property
    def trials(self) -> list[TrialState]:
        """Every trial that is planned or was drawn, as it stands."""
        return list(self._trials.values())

    @property
    def _trials(self) -> dict[str, TrialState]:
        for trial in self._plan.trials[len(self._known) :]:
            configuration = trial.configuration
            state = TrialState(configuration.label, configuration.hash, tuple(trial.seeds), configuration.batch_size)
            whole = {key: value for key, value in configuration.options.items() if not isinstance(value, float)}
            self._kinds[trial.key] = (canonical([configuration.learner, whole]), configuration.learner, ANY)
            self._known.setdefault(trial.key, state)  # a screen's thread looks here, too
        return self._known

    def already(self, key: str, how: str = "done") -> None:
        """The trial had ended before the command began."""
        self._trials[key].state = how

    def started(self, key: str) -> None:
        trial = self._trials[key]
        trial.state, trial.began, trial.first, trial.last = "running", self._clock(), None, None

    def paused(self, key: str) -> None:
        """The trial waits for others, and will go on."""
        self._trials[key].state = "waiting"

    def advanced(self, key: str, batches: int, total: int, learned: int, seconds: float, error: float | None) -> None:
        """A chunk of `learned` batches took `seconds`; the trial is at `batches` of `total`."""
        trial = self._trials[key]
        trial.batches, trial.total, trial.error = batches, total, error if error is not None else trial.error
        trial.learned, trial.seconds = trial.learned + learned, trial.seconds + seconds
        now = self._clock()
        if learned:
            trial.last = (now, batches)
            if trial.first is None:
                trial.first = trial.last
                if trial.began is not None:
                    trial.start = max(0.0, now - trial.began - seconds)
        while self._learned and self._learned[0][0] < now - WINDOW:
            self._learned.popleft()
        self._learned.append((now, learned * trial.batch_size * len(trial.seeds)))
        if self.lines and now - self._told >= INTERVAL:
            self._told = now
            self.say(self.line())

    def measured(self, key: str, values: Sequence[float], memory: int | None = None, gpu_memory: int = 0) -> None:
        """The objective of each seed of a trial as it stands, and the bytes that its actor holds."""
        trial = self._trials[key]
        trial.values = tuple(values) or trial.values
        trial.memory, trial.gpu_memory = memory, gpu_memory

    def datapoints_per_second(self) -> float | None:
        """Learned in the last minute, a datapoint of each seed counting as one; None before the first chunk."""
        now, span = self._clock(), min(WINDOW, self.seconds)
        learned = list(self._learned)
        return sum(count for at, count in learned if at > now - WINDOW) / span if learned and span > 0 else None

    def again(self, key: str, reason: str) -> None:
        """The trial's actor died, and another will go on from the last chunk."""
        self.say(f"{self._trials[key].label} ({key}): its actor died, another goes on from its last chunk: {reason}")

    def ended(self, key: str, how: str) -> None:
        """`how`: done, failed, or stopped by the scheduler."""
        self._trials[key].state = how
        if self.lines:
            self.say(self.line())

    def line(self) -> str:
        """The state of things in one line."""
        trials = self._trials.values()
        done = sum(trial.state == "done" for trial in trials)
        parts = [f"[{clock_time(self.seconds)}] {done}/{self._plan.size} trials done"]
        for state in ("failed", "stopped"):
            if count := sum(trial.state == state for trial in trials):
                parts[0] += f", {count} {state}"
        left = self.seconds_left()
        parts.append(f"ETA {'–' if left is None else clock_time(left)}")
        for trial in trials:
            if trial.state == "running" and trial.total:
                parts.append(f"{trial.label}: {_told(trial.error)} at {100 * trial.batches // trial.total} %")
        return " · ".join(parts)

    def seconds_left(self) -> float | None:
        """Estimate of the time until the last trial is over; see `eta`."""
        trials = self._trials
        total = max((trial.total for trial in trials.values()), default=0)
        works = [
            Work(
                self._kinds[key],
                (trial.total or total) - trial.batches if trial.state in ("waiting", "running") else 0,
                trial.pace,
                trial.state == "running",
            )
            for key, trial in trials.items()
        ]
        works += [Work((ANY,), total)] * (self._plan.size - len(trials))  # those that are still to be drawn
        starts = [trial.start for trial in trials.values() if trial.start is not None]
        # Not the mean: the first ones wait for their processes, the others find them there.
        return seconds_left(works, self._slots, min(starts, default=0.0))


def _told(error: float | None) -> str:
    """NaN: of one seed at least."""
    if error is None:
        return "error –"
    return "diverged" if math.isnan(error) else f"error {error:.3f}"


def clock_time(seconds: float) -> str:
    """Minutes and seconds, and hours if there are any.

    >>> clock_time(75), clock_time(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


ANY = ""
"""The kind that every trial is of."""


@dataclass(frozen=True)
class Work:
    """One trial.

    ``kinds``: whose pace it is expected to have as long as it has none of its own, from the most alike to the least.
    ``left``: batches still to learn, 0 if it has ended. ``pace``: seconds per batch, None before its first chunk.
    ``running``: whether it has a slot now.
    """

    kinds: tuple[str, ...]
    left: int
    pace: float | None = None
    running: bool = False


def seconds_left(works: Sequence[Work], slots: int, start: float = 0.0) -> float | None:
    """Seconds until the last trial is over, None as long as nothing was learned.

    Every open trial learns at its own pace, or at the mean pace of those most like it. The running ones keep their
    slots, and the others take, in their order, the slot that is free first, and `start` seconds to begin.

    >>> seconds_left([Work(("foml", ANY), 10, 0.5, True), Work(("foml", ANY), 20)], 1)
    15.0
    """
    paces: dict[str, list[float]] = {}
    for work in works:
        if work.pace is not None:
            for kind in work.kinds:
                paces.setdefault(kind, []).append(work.pace)
    if not paces:
        return None
    mean = {kind: sum(known) / len(known) for kind, known in paces.items()}
    overall = sum(mean.values()) / len(mean)

    def takes(work: Work) -> float:
        pace = work.pace
        if pace is None:
            pace = next((mean[kind] for kind in work.kinds if kind in mean), overall)
        return work.left * pace

    free = [takes(work) for work in works if work.running and work.left]
    free += [0.0] * (slots - len(free))
    heapq.heapify(free)
    for work in works:
        if work.left and not work.running:
            heapq.heapreplace(free, free[0] + start + takes(work))
    return max(free)
