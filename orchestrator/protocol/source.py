"""The source of the protocol's datapoints: the streams of a stack of seeds, addressed by position."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from orchestrator.errors import OrchestratorError
from streams.schedule import Ends, HeldBack, Schedule
from streams.store.task_store import TaskStore
from streams.stream import Datapoints, Stream


@dataclass(frozen=True)
class StackedDatapoints:
    """Equally many datapoints of each of R seeds, without their tasks.

    Attributes:
        image_ids: int32 [R, B, V].
        labels: int64 [R, B].
    """

    image_ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class StreamShape:
    """The length of a stack of streams and the positions of their tasks.

    Attributes:
        length: datapoints of each seed.
        ends: for each seed the end of each task and its number.
        nominal_tasks: the number of tasks from which learners receive their updates per batch; unlike the number of
            ends, it does not depend on the seeds.
        has_boundaries: whether tasks have sharp ends, which all seeds share.
        held_back: tasks that are not in the stream, for pretraining.
    """

    length: int
    ends: list[Ends]
    nominal_tasks: int
    has_boundaries: bool
    held_back: int = 0


class StreamSource(Protocol):
    """A stack of streams; all implementations return the same datapoints."""

    def shape(self) -> StreamShape:
        """Lengths and ends of tasks, which the protocol knows and a learner does not."""

    def read(self, start: int, count: int) -> StackedDatapoints:
        """The datapoints at positions start … start+count−1 of each seed, fewer at the end."""

    def held_out(self, tasks: list[int], split: str) -> list[Datapoints]:
        """For each seed, the held-out datapoints of one of its tasks."""

    def first_tasks(self, count: int) -> StackedDatapoints:
        """All training datapoints of each seed's first tasks, which the schedule holds back, task after task."""


class StoreSource:
    """Reads from a mapped task store."""

    def __init__(self, store: TaskStore, seeds: list[int], schedule: Schedule) -> None:
        self._streams = [Stream(store, seed, schedule) for seed in seeds]

    def shape(self) -> StreamShape:
        lengths = {stream.length for stream in self._streams}
        if len(lengths) != 1:
            raise OrchestratorError(f"stream: all seeds must have equally many datapoints (got {sorted(lengths)})")
        schedule = self._streams[0].schedule
        held_back = schedule.tasks if isinstance(schedule, HeldBack) else 0
        ends = [stream.ends for stream in self._streams]
        # A learner receives `begin_task` and `end_task` once for all seeds.
        shared = len({tuple(position for position, _ in of_seed) for of_seed in ends}) == 1
        nominal = max(stream.nominal_tasks for stream in self._streams)
        return StreamShape(lengths.pop(), ends, nominal, schedule.has_boundaries and shared, held_back)

    def read(self, start: int, count: int) -> StackedDatapoints:
        return _stacked([stream.read(start, count) for stream in self._streams])

    def held_out(self, tasks: list[int], split: str) -> list[Datapoints]:
        return [stream.held_out(task, split) for stream, task in zip(self._streams, tasks, strict=True)]

    def first_tasks(self, count: int) -> StackedDatapoints:
        return _stacked([stream.first_tasks(count) for stream in self._streams])


def _stacked(parts: list[Datapoints]) -> StackedDatapoints:
    return StackedDatapoints(np.stack([part.image_ids for part in parts]), np.stack([part.labels for part in parts]))
