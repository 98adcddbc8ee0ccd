"""Schedules: the order of a stream's datapoints, as pure functions of (options, seed, position)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from streams.errors import OptionError, fault
from streams.randomness import generator
from streams.recipe import number

Sizes = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Ends = list[tuple[int, int]]
"""(position, task): after `position` datapoints the stream leaves `task`, which is evaluated then."""


@dataclass(frozen=True)
class Schedule(ABC):
    """The order of the training points of a store; a subclass is a frozen dataclass of options.

    Under every schedule the length of a stream is the number of training points of the store.

    Attributes:
        name: the schedule's name in YAML.
        has_boundaries: whether learners may use the starts and ends of tasks.
    """

    name: ClassVar[str]
    has_boundaries: ClassVar[bool] = False

    @abstractmethod
    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """The training row at each position.

        Args:
            sizes: int64 [tasks], training points of each task, whose rows are contiguous.
            seed: the stream's seed.

        Returns:
            int64 [length].

        Raises:
            OptionError: the schedule does not fit tasks of these sizes.
        """

    @abstractmethod
    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """The positions where tasks end, ascending; the last one is the end of the stream."""

    def nominal_tasks(self, sizes: Sizes) -> int:
        """The number of ends, or its expectation where it depends on the seed.

        Learners' updates per batch follow from it. It is the same for all seeds, so that the results of a seed do not
        depend on the other seeds of a stack. A subclass whose number of ends depends on the seed overrides this; for
        others it is that of any seed.
        """
        return len(self.ends(sizes, 0))


@dataclass(frozen=True)
class Sequential(Schedule):
    """One task after the other with sharp boundaries, as in the paper.

    >>> sizes = np.array([2, 3])
    >>> Sequential().rows(sizes, seed=0).tolist(), Sequential().ends(sizes, seed=0)
    ([0, 1, 2, 3, 4], [(2, 0), (5, 1)])
    """

    name: ClassVar[str] = "sequential"
    has_boundaries: ClassVar[bool] = True

    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """Each row once, in the order of the table."""
        return np.arange(int(sizes.sum()), dtype=np.int64)

    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """The cumulative sizes."""
        return [(int(position), task) for task, position in enumerate(np.cumsum(sizes))]


@dataclass(frozen=True)
class Gradual(Schedule):
    """Neighbouring tasks mix over a window instead of a sharp boundary; each training point occurs once.

    In a window of w positions (w is rounded down to an even number) position i shows the later task with probability
    (i + 1/2) / w. To this end the k-th positions before and behind the middle exchange their points with probability
    (w/2 - k - 1/2) / w, k = 0, 1, ...: the ramp is symmetric, so that one draw serves both positions.
    """

    name: ClassVar[str] = "gradual"

    window: int = number(100, "positions over which two neighbouring tasks mix", ge=2)

    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """The sequential order, with exchanges of mirrored positions around each boundary."""
        half = self.window // 2
        if half > sizes.min() // 2:
            rule = f"must be at most the number of training points of the smallest task, {sizes.min()}"
            raise OptionError(fault("gradual.window", rule, self.window))
        rows = np.arange(int(sizes.sum()), dtype=np.int64)
        middles = np.cumsum(sizes)[:-1]
        away = np.arange(half)
        exchange = generator(seed, "schedule/gradual").random((len(middles), half)) < (half - away - 0.5) / (2 * half)
        before, behind = middles[:, None] - 1 - away, middles[:, None] + away
        rows[before[exchange]], rows[behind[exchange]] = behind[exchange], before[exchange]
        return rows

    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """The middles of the windows, which are the cumulative sizes."""
        return Sequential().ends(sizes, seed)


@dataclass(frozen=True)
class Markov(Schedule):
    """At each position the task changes with probability `hazard`, to any other task with equal probability.

    The stream starts in task 0. A task that returns resumes at its next point, and restarts after its last one.
    """

    name: ClassVar[str] = "markov"

    hazard: float = number(0.01, "probability that the task changes at a position", gt=0, le=1)

    def _tasks(self, sizes: Sizes, seed: int) -> npt.NDArray[np.int64]:
        length, tasks = int(sizes.sum()), len(sizes)
        rng = generator(seed, "schedule/markov")
        change = rng.random(length) < self.hazard
        change[0] = False
        step = rng.integers(1, tasks, size=length) if tasks > 1 else np.zeros(length, dtype=np.int64)
        task: npt.NDArray[np.int64] = np.cumsum(np.where(change, step, 0)) % tasks
        return task

    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """The next point of the task at each position, modulo the task's size."""
        task = self._tasks(sizes, seed)
        order = np.argsort(task, kind="stable")
        visits = np.bincount(task, minlength=len(sizes))
        nth = np.empty(len(task), dtype=np.int64)
        nth[order] = np.arange(len(task)) - np.repeat(np.cumsum(visits) - visits, visits)
        rows: Rows = (np.cumsum(sizes) - sizes)[task] + nth % sizes[task]
        return rows

    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """Each change of task, with the task before it, and the end of the stream."""
        task = self._tasks(sizes, seed)
        last = [*np.flatnonzero(task[1:] != task[:-1]).tolist(), len(task) - 1]
        return [(position + 1, int(task[position])) for position in last]

    def nominal_tasks(self, sizes: Sizes) -> int:
        """The expected number of visits, 1 + hazard · (positions - 1), rounded."""
        return 1 + (round(self.hazard * (int(sizes.sum()) - 1)) if len(sizes) > 1 else 0)


@dataclass(frozen=True)
class Recurring(Schedule):
    """The stream visits all tasks `visits` times in turn, each time with the next part of their points.

    >>> Recurring(visits=2).rows(np.array([2, 4]), seed=0).tolist()
    [0, 2, 3, 1, 4, 5]
    """

    name: ClassVar[str] = "recurring"

    visits: int = number(2, "visits to each task", ge=1)

    def _parts(self, sizes: Sizes) -> list[tuple[int, int, int]]:
        """(task, first row, row after the last) of each visit, in order."""
        if self.visits > sizes.min():
            rule = f"must be at most the number of training points of the smallest task, {sizes.min()}"
            raise OptionError(fault("recurring.visits", rule, self.visits))
        firsts = np.cumsum(sizes) - sizes
        return [
            (task, int(first + size * visit // self.visits), int(first + size * (visit + 1) // self.visits))
            for visit in range(self.visits)
            for task, (first, size) in enumerate(zip(firsts, sizes, strict=True))
        ]

    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """Each row once, visit by visit."""
        return np.concatenate([np.arange(first, last, dtype=np.int64) for _, first, last in self._parts(sizes)])

    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """The end of each visit."""
        parts = self._parts(sizes)
        positions = np.cumsum([last - first for _, first, last in parts])
        return [(int(position), task) for position, (task, _, _) in zip(positions, parts, strict=True)]


@dataclass(frozen=True)
class HeldBack(Schedule):
    """A schedule over all tasks but the first ones, which are held back from the stream.

    Methods that meta-train before the stream use the tasks held back (`Stream.first_tasks`); other methods never see
    them. Tasks keep their numbers, so that the stream starts with task number `tasks`.

    Attributes:
        schedule: the order of the other tasks.
        tasks: the number of tasks held back.
    """

    schedule: Schedule
    tasks: int

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of `schedule`."""
        return self.schedule.name

    @property
    def has_boundaries(self) -> bool:  # type: ignore[override]
        """That of `schedule`."""
        return self.schedule.has_boundaries

    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """The rows of `schedule`, shifted by those of the tasks held back."""
        if self.tasks >= len(sizes):
            raise OptionError(fault("stream.held_back", f"must be below the number of tasks, {len(sizes)}", self.tasks))
        return self.schedule.rows(sizes[self.tasks :], seed) + int(sizes[: self.tasks].sum())

    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """The ends of `schedule`, with the tasks' own numbers."""
        return [(position, task + self.tasks) for position, task in self.schedule.ends(sizes[self.tasks :], seed)]

    def nominal_tasks(self, sizes: Sizes) -> int:
        """That of `schedule` on the other tasks."""
        return self.schedule.nominal_tasks(sizes[self.tasks :])


def schedules() -> dict[str, type[Schedule]]:
    """Every schedule, by name."""
    return {kind.name: kind for kind in (Sequential, Gradual, Markov, Recurring)}
