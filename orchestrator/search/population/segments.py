"""What a member of a population is told of its way so far and of where to pause: plain data, on its way to an actor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Stage:
    """From batch `at` on a member has these `values`; `donor` names the folder whose state it begins with, "" for its
    own. `marks`: what its curves have at that batch."""

    at: int
    values: dict[str, Any]
    donor: str = ""
    marks: dict[str, float] | None = None


@dataclass(frozen=True)
class Leg:
    """The next part of a member's way: on to batch `until`, where it pauses, or the stream is over.

    ``stages``: all so far, the first at batch 0; the last one is this leg's, and begins at its `start`. ``metric``: of
    the sweep's objective. ``ways``: of all whose state may be needed for it, the stages at which values changed.
    """

    stages: tuple[Stage, ...]
    until: int
    metric: str
    ways: Mapping[str, tuple[Stage, ...]] = field(default_factory=dict)

    @property
    def start(self) -> int:
        return self.stages[-1].at

    @property
    def kept(self) -> tuple[int, ...]:
        """The batches after which a chunk file is kept: others copy from there, and may have to do it again."""
        return tuple(stage.at for stage in self.stages[-2:])

    def stage(self, batches: int) -> Stage:
        """The stage that a member is in after so many batches."""
        return max((stage for stage in self.stages if stage.at <= batches), key=lambda stage: stage.at)

    def next_stop(self, batches: int) -> int:
        """How many batches from there to the next stage's begin, or to the end of the leg."""
        return min(stop for stop in (*(stage.at for stage in self.stages), self.until) if stop > batches) - batches
