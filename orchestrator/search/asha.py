"""Asynchronous successive halving (Li et al., 2020, "A System for Massively Parallel Hyperparameter Tuning")."""

import math
from collections.abc import Mapping, Sequence

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

    def stopped(self, batches: int, objectives: Mapping[str, float]) -> set[str]:
        """The keys of the trials that stop, of those that report after `batches` batches.

        Trials that report together are judged together: each counts for the others.

        Args:
            objectives: trial's key → its objective, lower is better.
        """
        rung, judged = self._rung(batches), dict[str, float]()
        for key, value in objectives.items():
            unjudged = self._unjudged.pop(key, None)
            if rung is not None and (key not in rung or rung is unjudged):
                judged[key] = value if math.isfinite(value) else math.inf
        if rung is None:
            return set()
        rung.update(judged)
        return {key for key, value in judged.items() if math.isinf(value) or value > self._limit(rung, key)}

    def should_stop(self, key: str, batches: int, value: float) -> bool:
        """Whether the trial `key`, which reports alone, stops; see `stopped`."""
        return bool(self.stopped(batches, {key: value}))

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

    def _limit(self, rung: Mapping[str, float], key: str) -> float:
        """The highest objective with which the trial `key` continues from a rung."""
        others = [objective for other, objective in rung.items() if other != key]
        if not others:
            return math.inf
        # Infinite values would interpolate to NaN; the largest float sorts as they do.
        values = np.minimum(others, np.finfo(float).max)
        return float(np.percentile(values, 100 / self._reduction))
