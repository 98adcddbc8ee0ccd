"""Objectives of a sweep: ready metrics of the curves, and functions of the user's own."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.errors import OrchestratorError
from orchestrator.protocol import metrics
from orchestrator.protocol.curves import Curves

STANDARD = ("cumulative_error", "validation_error", "online_error")
"""Objectives that follow from the points that every sweep has in MLflow."""


class ObjectiveError(OrchestratorError):
    """A function of the user's own cannot be imported, raises, or returns something else than one number a seed."""


@dataclass(frozen=True)
class ObjectiveMetric:
    """A sweep's objective, computed from curves; the fields are those of `objective` in a sweep's YAML.

    Attributes:
        metric: a ready one; None if there is a function.
        mode: `min` or `max`.
        last: the tasks at the end that the error is averaged over; None for the metric's own definition.
        error: the threshold of `points_to`.
        function: the import path of a function of the curves.
        batch_size: datapoints per batch.
    """

    metric: str | None = "cumulative_error"
    mode: str = "min"
    last: int | None = None
    error: float | None = None
    function: str | None = None
    batch_size: int = 10

    @classmethod
    def of(cls, objective: Mapping[str, Any], batch_size: int) -> ObjectiveMetric:
        """The objective that a resolved sweep describes."""
        return cls(**({"metric": None} if "function" in objective else {}) | dict(objective), batch_size=batch_size)

    @property
    def name(self) -> str:
        """The name in tables and in MLflow.

        >>> ObjectiveMetric("validation_error", last=10).name, ObjectiveMetric("points_to", error=0.3).name
        ('validation_error_last_10', 'points_to_0.3')
        """
        if self.function is not None:
            return self.function
        last = "" if self.last is None else f"_last_{self.last}"
        error = "" if self.error is None else f"_{self.error:g}"
        return f"{self.metric}{last}{error}"

    @property
    def is_standard(self) -> bool:
        """Whether it is one of `STANDARD` as it is."""
        return self.name in STANDARD

    @property
    def sign(self) -> int:
        """The factor with which lower is better."""
        return -1 if self.mode == "max" else 1

    def __call__(self, curves: Curves, until: int | None = None) -> np.ndarray | None:
        """The objective of each seed [R] after `until` batches, or after all of them.

        A seed that has diverged by then has NaN. The result is None while another seed has no value yet.

        Args:
            curves: from batch 0 on.

        Raises:
            ObjectiveError: from a function of the user's own.
        """
        if self.is_standard:
            return metrics.objective(curves, self.name, until)
        if until is not None and until < curves.batches:
            curves = curves.until(until)
        if not curves.batches:
            return None
        over = np.array([metrics.diverged_at(curves, seed) >= 0 for seed in range(len(curves.seeds))])
        values = self._values(curves)
        if values is None:
            return None
        values = np.where(over, math.nan, values)
        return None if (np.isnan(values) & ~over).any() else values

    def by_chunk(self, curves: Curves) -> list[tuple[int, float]]:
        """For each chunk after which the objective exists, the batches after it and the mean over seeds."""
        if self.is_standard:
            return metrics.objective_by_chunk(curves, self.name)
        ends = curves.chunks["batches"].tolist() if curves.chunks else []
        return [(end, float(values.mean())) for end in ends if (values := self(curves, end)) is not None]

    def check(self) -> None:
        """Import the function, if there is one.

        Raises:
            ObjectiveError: it cannot be imported.
        """
        if self.function is not None:
            _ = self._own

    @property  # not cached, since a function would be pickled with the objective
    def _own(self) -> Callable[[Curves], Any]:
        module, _, name = str(self.function).rpartition(".")
        try:
            function = getattr(importlib.import_module(module), name)
        except Exception as error:  # importing a user's module may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ObjectiveError(f"objective.function: {self.function} cannot be imported ({reason})") from error
        if not callable(function):
            raise ObjectiveError(f"objective.function: {self.function} must be a function of the curves")
        result: Callable[[Curves], Any] = function
        return result

    def _values(self, curves: Curves) -> np.ndarray | None:
        if self.function is not None:
            return self._own_values(curves)
        if self.metric == "points_to":
            return _points_to(curves, self.error or 0.0, self.batch_size)
        if self.last is not None:
            return _last(curves, str(self.metric), self.last)
        return _READY[str(self.metric)](curves)

    def _own_values(self, curves: Curves) -> np.ndarray | None:
        try:
            returned = self._own(curves)
            if returned is None:
                return None
            values = np.asarray(returned, dtype=float)
        except ObjectiveError:
            raise
        except Exception as error:  # a user's function may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ObjectiveError(f"objective.function: {self.function} raised {reason}") from error
        if values.shape != (len(curves.seeds),):
            rule = f"must return one number for each of {len(curves.seeds)} seeds, or None"
            raise ObjectiveError(f"objective.function: {self.function} {rule} (got the shape {values.shape})")
        return values


def _last(curves: Curves, metric: str, tasks: int) -> np.ndarray:
    """The mean validation error of the last tasks, or the mean online error over their batches; NaN before any."""
    error, ends = metrics.held_out(curves), metrics.held_out(curves, "batch")
    values = np.full(len(curves.seeds), math.nan)
    for seed, of_seed in enumerate(ends):
        ended = np.flatnonzero(np.isfinite(of_seed))
        if not len(ended):
            continue
        if metric == "validation_error":
            values[seed] = error[seed, ended[-tasks:]].mean()
        else:
            first = 0 if len(ended) <= tasks else int(of_seed[ended[-tasks - 1]]) + 1
            values[seed] = curves.by_batch["online_error"][seed, first : int(of_seed[ended[-1]]) + 1].mean()
    return values


def _points_to(curves: Curves, error: float, batch_size: int) -> np.ndarray:
    """`metrics.points_to` of each seed, and the length of the longest task where the error is never reached."""
    ends = metrics.held_out(curves, "batch")
    values = np.full(len(curves.seeds), math.nan)
    for seed, of_seed in enumerate(ends):
        curve = metrics.adaptation(curves.by_batch["online_error"][seed], of_seed[np.isfinite(of_seed)])
        points = metrics.points_to(error, np.arange(len(curve)) * batch_size, curve)
        values[seed] = len(curve) * batch_size if math.isinf(points) else points
    return values


def _forward_transfer(curves: Curves) -> np.ndarray:
    """The mean over tasks, without the first; NaN before the second task."""
    curve = curves.by_batch.get("forward_transfer")
    if curve is None:
        return np.full(len(curves.seeds), math.nan)
    finite = [of_seed[np.isfinite(of_seed)] for of_seed in curve]
    return np.array([values[1:].mean() if len(values) > 1 else math.nan for values in finite])


def _of_stack(column: str) -> Callable[[Curves], np.ndarray]:
    """The sum of a column of the chunks, the same for all seeds."""
    return lambda curves: np.full(len(curves.seeds), float(curves.chunks[column].sum()) if curves.chunks else math.nan)


def _past(name: str) -> Callable[[Curves], np.ndarray]:
    """The last value of one of `metrics.past_curves`; NaN before the first one."""

    def last(curves: Curves) -> np.ndarray:
        return metrics.last_values(metrics.past_curves(curves).get(name, np.empty((len(curves.seeds), 0))))

    return last


_READY: dict[str, Callable[[Curves], np.ndarray]] = {
    "forward_transfer": _forward_transfer,
    "gradient_evaluations": _of_stack("gradient_evaluations"),
    "seconds": _of_stack("seconds"),
    "average_accuracy": _past("average_accuracy"),
    "backward_transfer": _past("backward_transfer"),
    "forgetting": _past("forgetting"),
}
