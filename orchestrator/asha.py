"""Asynchronous successive halving (Li et al., 2020, "A System for Massively Parallel Hyperparameter Tuning")."""

from __future__ import annotations

import math
from collections.abc import Iterable

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
        at = max(1, first)
        while at < total:
            self._rungs.append((at, {}))
            at *= reduction

    def stops(self, key: str, batches: int, value: float) -> bool:
        """Whether the trial `key`, whose objective is `value` (lower is better) after so many batches, is to stop."""
        if not math.isfinite(value):
            value = math.inf
        for at, reached in reversed(self._rungs):
            if batches >= at and key not in reached:
                limit = self._limit(reached)
                reached[key] = value
                return value > limit or math.isinf(value)
            if batches >= at:
                return False
        return False

    def replay(self, key: str, reports: Iterable[tuple[int, float]]) -> None:
        """What a trial had reported, in order, before this search was taken up again."""
        for batches, value in reports:
            self.stops(key, batches, value)

    def _limit(self, reached: dict[str, float]) -> float:
        if not reached:
            return math.inf
        # Infinite values would interpolate to NaN; the largest float sorts as they do.
        values = np.minimum(list(reached.values()), np.finfo(float).max)
        return float(np.percentile(values, 100 / self._reduction))
