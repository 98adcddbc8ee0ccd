"""How long what is left of a sweep will take, from what has been learned so far. Pure: numbers in, seconds out."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

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
