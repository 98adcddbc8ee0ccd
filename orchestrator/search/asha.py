"""Asynchronous successive halving (Li et al., 2020, "A System for Massively Parallel Hyperparameter Tuning")."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


class Asha:
    """Which trials are not worth going on with.

    Rungs are at `first`, `first` · η, `first` · η², … batches. A trial that reaches a rung goes on if it is among the
    best 1/η of those that have reached it so far, and a trial that is not finite never does.

    Args:
        first: batches before the first rung.
        reduction: η.
        total: batches of the whole stream; a rung there or later would stop nobody.
    """

    def __init__(self, first: int, reduction: int, total: int) -> None:
        self._reduction = reduction
        self._rungs: list[tuple[int, dict[str, float]]] = []
        self._unsure: dict[str, dict[str, float]] = {}  # trial → the rung at which it may not have been judged
        at = max(1, first)
        while at < total:
            self._rungs.append((at, {}))
            at *= reduction

    def stops(self, key: str, batches: int, value: float) -> bool:
        """Whether the trial `key`, whose objective is `value` (lower is better) after so many batches, is to stop."""
        reached, unsure = self._rung(batches), self._unsure.pop(key, None)
        if reached is None or (key in reached and reached is not unsure):
            return False
        if not math.isfinite(value):
            value = math.inf
        limit = self._limit([objective for other, objective in reached.items() if other != key])
        reached[key] = value
        return value > limit or math.isinf(value)

    def replay(self, key: str, reports: Sequence[tuple[int, float]], ended: bool) -> None:
        """What a trial had reported, in order, before this search was taken up again.

        Of a trial that has not `ended`, nobody knows whether its last report was judged: the driver may have died
        after the chunk was written and before its result came. If that report brought it to a rung, others are measured
        against it there, but the trial itself is judged at this rung by its next report, if need be once more.
        """
        for number, (batches, value) in enumerate(reports, 1):
            reached = self._rung(batches)
            new = reached is not None and key not in reached
            self.stops(key, batches, value)
            if reached is not None and new and not ended and number == len(reports):
                self._unsure[key] = reached

    def _rung(self, batches: int) -> dict[str, float] | None:
        """The trials that have reached the highest rung of those up to here, and their objectives there."""
        return next((reached for at, reached in reversed(self._rungs) if batches >= at), None)

    def _limit(self, others: list[float]) -> float:
        if not others:
            return math.inf
        # Infinite values would interpolate to NaN; the largest float sorts as they do.
        values = np.minimum(others, np.finfo(float).max)
        return float(np.percentile(values, 100 / self._reduction))
