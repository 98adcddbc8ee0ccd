"""Schedules: which datapoint stands at which position of a stream; pure functions of (spec, seed, position)."""

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
"""(position, task): once `position` datapoints are consumed, the stream has left `task` and its evaluation is due."""


@dataclass(frozen=True)
class Schedule(ABC):
    """How the training points of a store's tasks follow one another. Subclasses are frozen dataclasses of options.

    Whatever the schedule, a stream is as long as the store has training points. Only where `has_boundaries` is true
    may a learner be told when tasks begin and end.
    """

    name: ClassVar[str]
    has_boundaries: ClassVar[bool] = False

    @abstractmethod
    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """The training row at each position.

        Args:
            sizes: int64 [tasks], training points of each task; the rows of a task follow one another.
            seed: the stream's seed.

        Returns:
            int64 [length].

        Raises:
            OptionError: the schedule does not fit tasks of these sizes.
        """

    @abstractmethod
    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """Where tasks are left, in order of position; the last one is the stream's end."""


@dataclass(frozen=True)
class Sequential(Schedule):
    """One task after the other with sharp changes, as in the paper.

    >>> sizes = np.array([2, 3])
    >>> Sequential().rows(sizes, seed=0).tolist(), Sequential().ends(sizes, seed=0)
    ([0, 1, 2, 3, 4], [(2, 0), (5, 1)])
    """

    name: ClassVar[str] = "sequential"
    has_boundaries: ClassVar[bool] = True

    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """Every row once, in the order of the table."""
        return np.arange(int(sizes.sum()), dtype=np.int64)

    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """The cumulative sizes."""
        return [(int(position), task) for task, position in enumerate(np.cumsum(sizes))]


@dataclass(frozen=True)
class Gradual(Schedule):
    """Neighbouring tasks mix over a window, so that the boundary is nowhere; every training point comes once.

    In a window of w positions (an odd one counts as one less) the i-th shows the later task with probability
    (i + 1/2) / w. The k-th position before the middle and the k-th behind it exchange their points with the probability
    that this asks for; since the ramp is symmetric, one draw serves both, and no point is lost or shown twice.
    """

    name: ClassVar[str] = "gradual"

    window: int = number(100, "positions over which two neighbouring tasks mix", ge=2)

    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """The sequential order, with mirrored positions exchanged around each boundary."""
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
        """Where the mixing passes one half: the cumulative sizes."""
        return Sequential().ends(sizes, seed)


@dataclass(frozen=True)
class Markov(Schedule):
    """At each position the task changes with probability `hazard`, to any other task with equal probability.

    It begins in task 0. A task goes on where it was left; one that has shown all its points begins again.
    """

    name: ClassVar[str] = "markov"

    hazard: float = number(0.01, "probability that the task changes at a position", gt=0, le=1)

    def _tasks(self, sizes: Sizes, seed: int) -> npt.NDArray[np.int64]:
        length, tasks = int(sizes.sum()), len(sizes)
        draw = generator(seed, "schedule/markov")
        change = draw.random(length) < self.hazard
        change[0] = False
        step = draw.integers(1, tasks, size=length) if tasks > 1 else np.zeros(length, dtype=np.int64)
        turned: npt.NDArray[np.int64] = np.cumsum(np.where(change, step, 0)) % tasks
        return turned

    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """The next point of each position's task, counted round."""
        task = self._tasks(sizes, seed)
        order = np.argsort(task, kind="stable")
        visits = np.bincount(task, minlength=len(sizes))
        nth = np.empty(len(task), dtype=np.int64)
        nth[order] = np.arange(len(task)) - np.repeat(np.cumsum(visits) - visits, visits)
        rows: Rows = (np.cumsum(sizes) - sizes)[task] + nth % sizes[task]
        return rows

    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """Every change point, with the task that was left, and the stream's end."""
        task = self._tasks(sizes, seed)
        last = [*np.flatnonzero(task[1:] != task[:-1]).tolist(), len(task) - 1]
        return [(position + 1, int(task[position])) for position in last]


@dataclass(frozen=True)
class Recurring(Schedule):
    """Tasks come back: the stream goes round all tasks `visits` times, each visit with the next part of their points.

    >>> Recurring(visits=2).rows(np.array([2, 4]), seed=0).tolist()
    [0, 2, 3, 1, 4, 5]
    """

    name: ClassVar[str] = "recurring"

    visits: int = number(2, "how often each task is visited", ge=1)

    def _parts(self, sizes: Sizes) -> list[tuple[int, int, int]]:
        """(task, first row, row behind the last) of each visit, in order."""
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
        """Every row once, visit by visit."""
        return np.concatenate([np.arange(first, last, dtype=np.int64) for _, first, last in self._parts(sizes)])

    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """The end of every visit."""
        parts = self._parts(sizes)
        positions = np.cumsum([last - first for _, first, last in parts])
        return [(int(position), task) for position, (task, _, _) in zip(positions, parts, strict=True)]


@dataclass(frozen=True)
class HeldBack(Schedule):
    """Any schedule over all tasks but the first few, which no learner meets in the stream.

    A method that wants to be meta-trained beforehand is shown those (`Stream.first_tasks`); for all the others they do
    not exist. Tasks keep their numbers: the first one met is `tasks`.
    """

    schedule: Schedule
    tasks: int

    @property
    def name(self) -> str:  # type: ignore[override]
        """The schedule's own name."""
        return self.schedule.name

    @property
    def has_boundaries(self) -> bool:  # type: ignore[override]
        """The schedule's own."""
        return self.schedule.has_boundaries

    def rows(self, sizes: Sizes, seed: int) -> Rows:
        """The schedule's rows, behind those of the tasks held back."""
        if self.tasks >= len(sizes):
            raise OptionError(fault("stream.held_back", f"must be below the number of tasks, {len(sizes)}", self.tasks))
        return self.schedule.rows(sizes[self.tasks :], seed) + int(sizes[: self.tasks].sum())

    def ends(self, sizes: Sizes, seed: int) -> Ends:
        """The schedule's ends."""
        return [(position, task + self.tasks) for position, task in self.schedule.ends(sizes[self.tasks :], seed)]


def schedules() -> dict[str, type[Schedule]]:
    """Every schedule, by name."""
    return {kind.name: kind for kind in (Sequential, Gradual, Markov, Recurring)}
