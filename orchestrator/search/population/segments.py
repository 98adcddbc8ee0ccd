"""The segments sent to a population member's actor: hyper-parameters, copied states, next pause."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import OrchestratorError
from orchestrator.storage.chunk_files import Chunk


class LostStateError(OrchestratorError):
    """A member whose chunk files, or those of the parent that it copies, no longer exist: it leaves the population."""


@dataclass(frozen=True)
class Segment:
    """A part of the stream that a member trains with one set of values.

    Attributes:
        start: the batch at which the segment starts.
        values: option → value.
        parent: key of the member whose state the segment starts with, "" for the member's own state.
        marks: curve → value that the curve has at `start`.
    """

    start: int
    values: dict[str, Any]
    parent: str = ""
    marks: dict[str, float] | None = None


@dataclass(frozen=True)
class SegmentPlan:
    """The segments of a member so far, of which the last is to be trained.

    Attributes:
        segments: in order; the first starts at batch 0.
        stop: the batch at which the member pauses, or the end of the stream.
        metric: of the sweep's objective.
    """

    segments: tuple[Segment, ...]
    stop: int
    metric: str

    @property
    def start(self) -> int:
        """The batch at which the last segment starts."""
        return self.segments[-1].start

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """The batches after which chunk files are kept, because other members copy from them."""
        return tuple(segment.start for segment in self.segments[-2:])

    @property
    def parents(self) -> set[str]:
        """Keys of the members whose states the segments start with."""
        return {segment.parent for segment in self.segments if segment.parent}

    def segment(self, batches: int) -> Segment:
        """The segment of a member after `batches` batches."""
        return max((each for each in self.segments if each.start <= batches), key=lambda each: each.start)

    def since_copy(self, batches: int) -> int:
        """The number of batches after the member's last copy, or after the start of the stream if there is none."""
        return batches - max((each.start for each in self.segments if each.parent and each.start <= batches), default=0)

    def next_stop(self, batches: int) -> int:
        """The number of batches from `batches` to the start of the next segment, or to the pause."""
        return min(stop for stop in (*(each.start for each in self.segments), self.stop) if stop > batches) - batches

    def copied_state(self, done: Chunk | None, load: Callable[[str, int], Chunk | None]) -> dict[str, Any] | None:
        """The parent's state with which a member continues, or None if it continues with its own.

        Args:
            done: the member's newest intact chunk.
            load: the newest intact chunk of a member (by key) of at most n batches.

        Raises:
            LostStateError: the member has completed a generation and has no intact chunk file; or the parent's chunk
                file no longer exists, because the member has fallen back by more than two generations.
        """
        if done is None:
            if len(self.segments) > 1:
                raise LostStateError("all its chunk files are missing or damaged: it leaves the population")
            return None
        segment = self.segment(done.batches)
        if not segment.parent or segment.start != done.batches:
            return None
        parent = load(segment.parent, segment.start)
        if parent is None or parent.batches != segment.start:
            which = f"the state of its parent {segment.parent} at batch {segment.start}"
            raise LostStateError(f"{which} is missing or damaged: it leaves the population")
        return parent.state
