"""Streams, read by position: `read(start, count)` is pure, so that a restarted reader gets the same datapoints."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from streams.recipe import SPLITS, TRAIN
from streams.schedule import Ends, Schedule, Sequential
from streams.store.task_store import TaskStore


@dataclass(frozen=True)
class Datapoints:
    """B datapoints.

    Attributes:
        image_ids: int32 [B, V].
        labels: int64 [B].
        tasks: int32 [B], the true task (0 is the first of the stream); for metrics, not for learners.
    """

    image_ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


class Stream:
    """The datapoints of one seed of a store, in the order of a schedule.

    Args:
        store: an open store.
        seed: one of its seeds.
        schedule: the order of tasks; `Sequential` by default.

    Raises:
        StoreError: the store does not have this seed.
        OptionError: the schedule does not fit the sizes of the store's tasks.
    """

    def __init__(self, store: TaskStore, seed: int, schedule: Schedule | None = None) -> None:
        self.store = store
        self.seed = seed
        self.schedule: Schedule = Sequential() if schedule is None else schedule
        self._table = store.table(seed)
        self._sizes = np.diff(self._table.starts[TRAIN])
        self._rows = self.schedule.rows(self._sizes, seed)

    @property
    def length(self) -> int:
        """Number of datapoints in the stream."""
        return len(self._rows)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self._sizes)

    @property
    def nominal_tasks(self) -> int:
        """The number of tasks that the schedule visits, the same for each seed: see `Schedule.nominal_tasks`."""
        return self.schedule.nominal_tasks(self._sizes)

    @property
    def has_boundaries(self) -> bool:
        """Whether one task ends before the next starts, so that learners may use the boundaries."""
        return self.schedule.has_boundaries

    @cached_property
    def ends(self) -> Ends:
        """(position, task): after `position` datapoints, `task` is evaluated on held-out data."""
        return self.schedule.ends(self._sizes, self.seed)

    def read(self, start: int, count: int) -> Datapoints:
        """The datapoints at positions start .. start+count-1, fewer at the stream's end.

        A pure function of (store, schedule, seed, start).

        Raises:
            ValueError: start is negative or beyond the end, or count is negative.
        """
        if not 0 <= start <= self.length or count < 0:
            raise ValueError(
                f"0 <= start <= {self.length} and 0 <= count must hold, but got start={start}, count={count}"
            )
        return self._at(self._rows[start : start + count])

    def held_out(self, task: int, split: str = "validation") -> Datapoints:
        """The points of a task in a held-out split, `validation` or `test`; no task of the seed trains on their images.

        Raises:
            ValueError: the task or split does not exist.
        """
        if not 0 <= task < self.tasks or split not in SPLITS or split == "train":
            rule = f"0 <= task < {self.tasks} and split in ('validation', 'test')"
            raise ValueError(f"{rule} must hold, but got task={task}, split={split!r}")
        first, last = self._table.starts[SPLITS[split], task : task + 2]
        return self._at(np.arange(first, last))

    def first_tasks(self, count: int) -> Datapoints:
        """The training points of the store's first tasks, task by task (see `schedule.HeldBack`).

        Raises:
            ValueError: `count` is negative or above the number of tasks.
        """
        if not 0 <= count <= self.tasks:
            raise ValueError(f"0 <= count <= {self.tasks} must hold, but got count={count}")
        return self._at(np.arange(int(self._sizes[:count].sum())))

    def _at(self, rows: npt.NDArray[np.int64]) -> Datapoints:
        table = self._table
        return Datapoints(table.image_ids[rows], table.label[rows].astype(np.int64), table.task[rows])

    def __reduce__(self) -> tuple[type["Stream"], tuple[TaskStore, int, Schedule]]:
        return Stream, (self.store, self.seed, self.schedule)
