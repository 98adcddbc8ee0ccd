"""Asynchronous successive halving (Li et al., 2020, "A System for Massively Parallel Hyperparameter Tuning")."""

import math
from collections.abc import Sequence

import numpy as np


class Asha:
    """Decides which trials stop early.

    Rungs are at `first`, `first` · η, `first` · η², … batches. A trial that reaches a rung continues if it is among
    the best 1/η of the trials that have reached it so far. A trial whose objective is not finite always stops.

    Args:
        first: batches before the first rung.
        reduction: η.
        total: batches of the whole stream; rungs at its end or later are left out.
    """

    def __init__(self, first: int, reduction: int, total: int) -> None:
        self._reduction = reduction
        self._rungs: list[tuple[int, dict[str, float]]] = []
        self._unjudged: dict[str, dict[str, float]] = {}  # trial → the rung at which it may not have been judged
        at = max(1, first)
        while at < total:
            self._rungs.append((at, {}))
            at *= reduction

    @property
    def rungs(self) -> tuple[int, ...]:
        """The batches at which trials are judged."""
        return tuple(at for at, _ in self._rungs)

    def should_stop(self, key: str, batches: int, value: float) -> bool:
        """Whether the trial `key`, whose objective after `batches` batches is `value` (lower is better), stops."""
        rung, unjudged = self._rung(batches), self._unjudged.pop(key, None)
        if rung is None or (key in rung and rung is not unjudged):
            return False
        if not math.isfinite(value):
            value = math.inf
        limit = self._limit([objective for other, objective in rung.items() if other != key])
        rung[key] = value
        return value > limit or math.isinf(value)

    def replay(self, key: str, reports: Sequence[tuple[int, float]], ended: bool) -> None:
        """Restore what a trial reported before this search was resumed.

        The last report of a trial that has not `ended` may not have been judged: the driver may have died after the
        chunk was written and before its result arrived. If that report reached a rung, it counts there for the other
        trials, and the trial itself is judged at this rung by its next report, possibly for the second time.

        Args:
            reports: (batches, objective) in order.
        """
        for number, (batches, value) in enumerate(reports, 1):
            rung = self._rung(batches)
            is_new = rung is not None and key not in rung
            self.should_stop(key, batches, value)
            if rung is not None and is_new and not ended and number == len(reports):
                self._unjudged[key] = rung

    def _rung(self, batches: int) -> dict[str, float] | None:
        """The highest rung at or below `batches`: trial → its objective there."""
        return next((rung for at, rung in reversed(self._rungs) if batches >= at), None)

    def _limit(self, others: list[float]) -> float:
        if not others:
            return math.inf
        # Infinite values would interpolate to NaN; the largest float sorts as they do.
        values = np.minimum(others, np.finfo(float).max)
        return float(np.percentile(values, 100 / self._reduction))
