"""Progress of a running sweep: finished trials, the error of each trial so far, and an estimate of the time left.

`Progress` holds the state of every trial. It prints a line every few seconds, unless a `Screen` displays the state.
"""

import heapq
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from orchestrator.plan.fate import Ending
from orchestrator.plan.plan import Plan
from streams.store.canonical_json import canonical

INTERVAL = 5.0
"""Seconds between two lines."""
WINDOW = 60.0
"""Seconds over which the throughput is averaged."""


class State(StrEnum):
    """The state of a trial, by the word that is displayed."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


_STATES = {Ending.FINISHED: State.DONE, Ending.FAILED: State.FAILED, Ending.STOPPED: State.STOPPED}


@dataclass
class TrialState:
    """The state of a trial.

    Attributes:
        label: of its configuration.
        configuration: the configuration's hash.
        seeds: its stack.
        batch_size: datapoints per batch.
        batches: batches learned.
        total: batches of the stream; 0 before the first result.
        error: the objective so far; NaN if a seed diverged.
        state: its state.
        seconds: spent on learning since the command started.
        learned: batches learned since the command started.
        started: the time at which it took its slot.
        first: the time of its first result since the command started, and its batches then.
        last: the same of its last result.
        startup: seconds from taking its slot to the first batch.
        values: the objective of each seed so far.
        memory: bytes that its actor holds.
        gpu_memory: bytes that its actor holds on GPUs.
    """

    label: str
    configuration: str
    seeds: tuple[int, ...]
    batch_size: int = 1
    batches: int = 0
    total: int = 0
    error: float | None = None
    state: State = State.WAITING
    seconds: float = 0.0
    learned: int = 0
    started: float | None = None
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None
    startup: float | None = None
    values: tuple[float, ...] = ()
    memory: int | None = None
    gpu_memory: int = 0

    @property
    def pace(self) -> float | None:
        """Seconds per batch between the first and the last result; with one result, as the actor measured it.

        The former includes checkpoints, the transfer of results, and the load of other trials.
        """
        if self.first is not None and self.last is not None and self.last[1] > self.first[1]:
            return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])
        return self.seconds / self.learned if self.learned else None

    @property
    def share(self) -> float:
        """The share of the stream that is learned."""
        return 1.0 if self.state is State.DONE else self.batches / self.total if self.total else 0.0


class Progress:
    """The state of a sweep's trials, printed as a line every few seconds.

    Args:
        plan: of the sweep.
        slots: the number of trials that run simultaneously.
        out: where lines are printed; standard error if None.
        clock: returns seconds.

    Attributes:
        write: prints a line.
        periodic: whether the state is printed every few seconds.
    """

    def __init__(self, plan: Plan, slots: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._plan = plan
        self._states: dict[str, TrialState] = {}
        self._kinds: dict[str, tuple[str, ...]] = {}
        self._slots, self._out, self._clock = max(1, slots), out or sys.stderr, clock
        self._started = self._printed = clock()
        self._learned: deque[tuple[float, int]] = deque()
        self.write: Callable[[str], None] = lambda text: print(text, file=self._out, flush=True)
        self.periodic = True

    def set_slots(self, slots: int) -> None:
        """Change the number of trials that run simultaneously, by which the time left is estimated."""
        self._slots = max(1, slots)

    def say(self, text: str) -> None:
        """Print a line immediately."""
        self.write(text)

    @property
    def name(self) -> str:
        """The sweep's."""
        return self._plan.name

    @property
    def size(self) -> int:
        """The number of trials of the whole plan."""
        return self._plan.size

    @property
    def seconds(self) -> float:
        """Since the first trial started."""
        return self._clock() - self._started

    @property
    def trials(self) -> list[TrialState]:
        """The state of every trial that is planned or was sampled."""
        return list(self._trials.values())

    @property
    def _trials(self) -> dict[str, TrialState]:
        for trial in self._plan.trials[len(self._states) :]:
            configuration = trial.configuration
            state = TrialState(configuration.label, configuration.hash, tuple(trial.seeds), configuration.batch_size)
            options = {key: value for key, value in configuration.options.items() if not isinstance(value, float)}
            self._kinds[trial.key] = (canonical([configuration.learner, options]), configuration.learner, ANY)
            self._states.setdefault(trial.key, state)  # atomic: a screen's thread reads the states, too
        return self._states

    def ended_before(self, key: str, ending: Ending) -> None:
        """A trial had ended before the command started."""
        self._trials[key].state = _STATES[ending]

    def started(self, key: str) -> None:
        """A trial took a slot."""
        trial = self._trials[key]
        trial.state, trial.started, trial.first, trial.last = State.RUNNING, self._clock(), None, None

    def paused(self, key: str) -> None:
        """A trial gave its slot up and will continue."""
        self._trials[key].state = State.WAITING

    def actor_died(self, key: str, reason: str) -> None:
        """A trial's actor died, and another one will continue from the last chunk."""
        self.paused(key)
        self.say(f"{self._trials[key].label} ({key}): its actor died, another resumes from its last chunk: {reason}")

    def advanced(self, key: str, batches: int, total: int, learned: int, seconds: float, error: float | None) -> None:
        """A chunk of `learned` batches took `seconds`; the trial has learned `batches` of `total`."""
        trial = self._trials[key]
        trial.batches, trial.total, trial.error = batches, total, error if error is not None else trial.error
        trial.learned, trial.seconds = trial.learned + learned, trial.seconds + seconds
        now = self._clock()
        if learned:
            trial.last = (now, batches)
            if trial.first is None:
                trial.first = trial.last
                if trial.started is not None:
                    trial.startup = max(0.0, now - trial.started - seconds)
        while self._learned and self._learned[0][0] < now - WINDOW:
            self._learned.popleft()
        self._learned.append((now, learned * trial.batch_size * len(trial.seeds)))
        if self.periodic and now - self._printed >= INTERVAL:
            self._printed = now
            self.say(self.line())

    def measured(self, key: str, values: Sequence[float], memory: int | None = None, gpu_memory: int = 0) -> None:
        """The objective of each seed of a trial so far, and the bytes that its actor holds."""
        trial = self._trials[key]
        trial.values = tuple(values) or trial.values
        trial.memory, trial.gpu_memory = memory, gpu_memory

    def ended(self, key: str, ending: Ending) -> None:
        """A trial finished, failed, or was stopped by the scheduler."""
        self._trials[key].state = _STATES[ending]
        if self.periodic:
            self.say(self.line())

    def datapoints_per_second(self) -> float | None:
        """The datapoints of all seeds learned in the last minute, per second; None before the first chunk."""
        now, span = self._clock(), min(WINDOW, self.seconds)
        learned = list(self._learned)
        return sum(count for at, count in learned if at > now - WINDOW) / span if learned and span > 0 else None

    def line(self) -> str:
        """The state of the sweep in one line."""
        trials = self._trials.values()
        counts = {state: sum(trial.state is state for trial in trials) for state in State}
        parts = [f"[{clock_time(self.seconds)}] {counts[State.DONE]}/{self._plan.size} trials done"]
        parts[0] += "".join(f", {counts[state]} {state}" for state in (State.FAILED, State.STOPPED) if counts[state])
        parts.append(self.eta())
        for trial in trials:
            if trial.state is State.RUNNING and trial.total:
                parts.append(f"{trial.label}: {_error(trial.error)} at {100 * trial.batches // trial.total} %")
        return " · ".join(parts)

    def eta(self) -> str:
        """The estimate of the time left, as text."""
        seconds = self.seconds_left()
        return f"ETA {'–' if seconds is None else clock_time(seconds)}"

    def seconds_left(self) -> float | None:
        """The estimate of the time until the last trial ends; see the function `seconds_left`."""
        trials = self._trials
        total = max((trial.total for trial in trials.values()), default=0)
        works = []
        for key, trial in trials.items():
            is_open = trial.state in (State.WAITING, State.RUNNING)
            batches = (trial.total or total) - trial.batches if is_open else 0
            works.append(Work(self._kinds[key], batches, trial.pace, trial.state is State.RUNNING))
        works += [Work((ANY,), total)] * (self._plan.size - len(trials))  # trials that are not sampled yet
        startups = [trial.startup for trial in trials.values() if trial.startup is not None]
        # The shortest, not the mean: the first trials also wait for their worker processes to start.
        return seconds_left(works, self._slots, min(startups, default=0.0))


def _error(error: float | None) -> str:
    if error is None:
        return "error –"
    return "diverged" if math.isnan(error) else f"error {error:.3f}"


def clock_time(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any.

    >>> clock_time(75), clock_time(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


ANY = ""
"""The kind of every trial."""


@dataclass(frozen=True)
class Work:
    """The remaining work of a trial.

    Attributes:
        kinds: the kinds whose mean pace the trial has until it has its own, the most specific first.
        left: batches still to learn; 0 if it has ended.
        pace: seconds per batch; None before its first chunk.
        running: whether it has a slot now.
    """

    kinds: tuple[str, ...]
    left: int
    pace: float | None = None
    running: bool = False


def seconds_left(works: Sequence[Work], slots: int, start: float = 0.0) -> float | None:
    """Seconds until the last trial ends; None before the first chunk.

    Every open trial learns at its own pace, or else at the mean pace of its most specific kind that has one. Waiting
    trials take, in order, the slot that is free first, and need `start` seconds to start.

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
    mean = {kind: sum(of_kind) / len(of_kind) for kind, of_kind in paces.items()}
    overall = sum(mean.values()) / len(mean)

    def duration(work: Work) -> float:
        pace = work.pace
        if pace is None:
            pace = next((mean[kind] for kind in work.kinds if kind in mean), overall)
        return work.left * pace

    free = [duration(work) for work in works if work.running and work.left]
    free += [0.0] * (slots - len(free))
    heapq.heapify(free)
    for work in works:
        if work.left and not work.running:
            heapq.heapreplace(free, free[0] + start + duration(work))
    return max(free)
