"""The state that a member of a population copies from another, a donor: on disk, or learned again. No Ray in here.

A donor keeps its chunk of a round's end for two rounds. Whoever copied it earlier and has lost all chunks of its own
begins anew, and needs that state once more. It follows from the donor's way: from its newest chunk before, or from the
state that the donor itself had copied, and so on back, to the first batch if need be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.protocol.online import OnlineProtocol
from orchestrator.search.population.segments import Stage
from orchestrator.storage.trial_files import Chunk


def state_of(
    member: str,
    at: int,
    ways: Mapping[str, Sequence[Stage]],
    newest: Callable[[str, int], Chunk | None],
    made: Callable[[dict[str, Any]], OnlineProtocol],
    tell: Callable[[str], None],
    chunk_batches: int,
) -> dict[str, Any]:
    """The state of a member's protocol after `at` batches, before it copied another there itself.

    Args:
        member: its key.
        ways: key → the stages at whose beginnings values changed, the first at batch 0; of the member, of those whom it
            had copied, and so on.
        newest: the newest whole chunk of a member (key), of at most so many batches.
        made: a protocol at batch 0 whose learner has these values.
        tell: is given a line, before anything is learned again.
        chunk_batches: batches that are learned at once.
    """
    to_learn: list[tuple[Stage, int]] = []  # from a stage, or from a chunk later in it, to a batch; the last one first
    whose, stop = member, at
    while (chunk := newest(whose, stop)) is None or chunk.batches < stop:
        stage = max((stage for stage in ways[whose] if stage.at < stop), key=lambda stage: stage.at)
        to_learn.append((stage, stop))
        if not stage.donor or (chunk is not None and chunk.batches > stage.at):
            break
        whose, stop = stage.donor, stage.at
    state: dict[str, Any] = {} if chunk is None else chunk.state
    curves = None if chunk is None else chunk.curves
    if to_learn:
        since = "the beginning" if chunk is None else f"batch {chunk.batches}"
        tell(f"the state of {member} at batch {at} is on disk no more: learned again from {since} of {whose} on")
    for stage, stop in reversed(to_learn):
        run = made(stage.values)
        if curves is not None:
            (run.load_with_new_options if curves.batches == stage.at else run.load_state_dict)(state, curves)
        while run.batches < stop:
            run.advance(min(chunk_batches, stop - run.batches))
        state, curves = run.state_dict(), run.curves
    return state
