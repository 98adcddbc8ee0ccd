"""Where the protocol's datapoints come from: a stack of streams, one per seed, addressed by position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from orchestrator.errors import OrchestratorError
from streams.schedule import Ends, HeldBack, Schedule
from streams.store.task_store import TaskStore
from streams.stream import Datapoints, Stream


@dataclass(frozen=True)
class Stack:
    """Datapoints of R seeds: ``image_ids`` int32 [R, B, V], ``labels`` int64 [R, B]. No task."""

    image_ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """What a stack of streams is like: ``length`` of all seeds; each seed's ``ends``; tasks held back."""

    length: int
    ends: list[Ends]
    has_boundaries: bool
    held_back: int = 0


class Source(Protocol):
    """A stack of streams. Both kinds, `StoreSource` and `actors.ActorSource`, give the same datapoints."""

    def shape(self) -> Shape:
        """Lengths and ends of tasks; for the protocol alone."""

    def read(self, start: int, count: int) -> Stack:
        """The datapoints at positions start … start+count−1 of every seed, fewer at the end."""

    def held_out(self, tasks: list[int], split: str) -> list[Datapoints]:
        """For each seed the held-out points of one of its tasks."""

    def first_tasks(self, count: int) -> Stack:
        """All training points of each seed's first tasks, task after task: those that the schedule holds back."""


class StoreSource:
    """Reads straight from a mapped store; what `StreamActor` does for others."""

    def __init__(self, store: TaskStore, seeds: list[int], schedule: Schedule) -> None:
        self._streams = [Stream(store, seed, schedule) for seed in seeds]

    def shape(self) -> Shape:
        lengths = {stream.length for stream in self._streams}
        if len(lengths) != 1:
            raise OrchestratorError(f"stream: all seeds must have equally many datapoints (got {sorted(lengths)})")
        schedule = self._streams[0].schedule
        held_back = schedule.tasks if isinstance(schedule, HeldBack) else 0
        return Shape(lengths.pop(), [stream.ends for stream in self._streams], schedule.has_boundaries, held_back)

    def read(self, start: int, count: int) -> Stack:
        return _stacked([stream.read(start, count) for stream in self._streams])

    def held_out(self, tasks: list[int], split: str) -> list[Datapoints]:
        return [stream.held_out(task, split) for stream, task in zip(self._streams, tasks, strict=True)]

    def first_tasks(self, count: int) -> Stack:
        return _stacked([stream.first_tasks(count) for stream in self._streams])


def _stacked(parts: list[Datapoints]) -> Stack:
    return Stack(np.stack([part.image_ids for part in parts]), np.stack([part.labels for part in parts]))
