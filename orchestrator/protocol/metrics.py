"""The metrics, with their formulas.

Axes: R seeds of a stack, J batches of the stream, T evaluated tasks. A value that does not exist (yet) is NaN. Lower is
better for all metrics except `forward_transfer`, `average_accuracy` and `backward_transfer`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.protocol.curves import Curves

_ROUNDING = 1e-12
"""More than a mean of errors is off by rounding, and less than two means of different errors are apart."""


def held_out(curves: Curves, column: str = "error") -> np.ndarray:
    """`validation_error[t]` [R, T]: the share of task t's held-out datapoints misclassified after learning task t."""
    evaluations = curves.evaluations
    tasks = int(evaluations["task"].max()) + 1 if evaluations and len(evaluations["task"]) else 0
    out = np.full((len(curves.seeds), tasks), math.nan)
    if tasks:
        out[evaluations["seed"], evaluations["task"]] = evaluations[column]
    return out


def cumulative(error: np.ndarray) -> np.ndarray:
    """`cumulative_error[t]` [R, T], the mean of `error[0..t]`, whose last value is the sweep's objective.

    >>> cumulative(np.array([[1.0, 0.5, 0.0]]))
    array([[1.  , 0.75, 0.5 ]])
    """
    return np.cumsum(error, axis=1) / np.arange(1, error.shape[1] + 1)


def last_values(curve: np.ndarray) -> np.ndarray:
    """The last value of each seed [R] of a curve [R, T]; NaN where there is none.

    >>> last_values(np.array([[0.5, np.nan, 0.25], [0.75, np.nan, np.nan]]))
    array([0.25, 0.75])
    """
    finite = [of_seed[np.isfinite(of_seed)] for of_seed in curve]
    return np.array([values[-1] if len(values) else math.nan for values in finite])


def diverged_at(curves: Curves, seed: int) -> int:
    """The batch at which the seed in this row diverged, −1 if it did not.

    A seed that `curves.diverged` does not list has diverged where a value is infinite, or an online error or loss NaN:
    those two exist for every batch.
    """
    if curves.diverged[seed] >= 0:
        return curves.diverged[seed]
    bad = np.zeros(curves.batches, dtype=bool)
    for name, curve in curves.by_batch.items():
        bad |= ~np.isfinite(curve[seed]) if name in ("online_error", "online_loss") else np.isinf(curve[seed])
    return int(np.argmax(bad)) if bad.any() else -1


def objective(curves: Curves, metric: str, until: int | None = None) -> np.ndarray | None:
    """The objective of each seed [R] after `until` batches, or after all of them.

    It is `cumulative_error` or `validation_error` of the seed's last evaluated task, or the mean of a curve by batch.
    (Tasks may end at different batches for different seeds.) A seed that has diverged by then has NaN. The result is
    None while another seed has no value yet.

    Args:
        curves: from batch 0 on.

    >>> evaluations = {"seed": np.array([0, 0]), "task": np.array([0, 1]), "batch": np.array([0, 2])}
    >>> evaluations |= {"error": np.array([0.5, 0.1])}
    >>> curves = Curves([7], 0, {"online_error": np.array([[0.9, 0.7, 0.2]])}, evaluations)
    >>> objective(curves, "cumulative_error"), objective(curves, "cumulative_error", 2)
    (array([0.3]), array([0.5]))
    >>> objective(curves, "online_error", 2)
    array([0.8])
    """
    return _objective(curves, metric)(curves.batches if until is None else until)


def objective_by_chunk(curves: Curves, metric: str) -> list[tuple[int, float]]:
    """For each chunk after which the objective exists, the batches after it and the objective's mean over seeds.

    A trial reports these values, chunk by chunk; NaN from the chunk in which a seed diverged.
    """
    after = _objective(curves, metric)
    ends = curves.chunks["batches"].tolist() if curves.chunks else []
    return [(end, float(values.mean())) for end in ends if (values := after(end)) is not None]


def _objective(curves: Curves, metric: str) -> Callable[[int], np.ndarray | None]:
    """The function from a number of batches to `objective` after them."""
    diverged = np.array([diverged_at(curves, seed) for seed in range(len(curves.seeds))])
    error, evaluated = held_out(curves), held_out(curves, "batch")
    by_task = cumulative(error) if metric == "cumulative_error" else error

    def after(batches: int) -> np.ndarray | None:
        over = (diverged >= 0) & (diverged < batches)
        if metric in ("cumulative_error", "validation_error"):
            tasks = (evaluated < batches).sum(axis=1)
            last = [row[count - 1] if count else math.nan for row, count in zip(by_task, tasks, strict=True)]
        else:
            last = curves.by_batch[metric][:, :batches].mean(axis=1) if batches else [math.nan] * len(over)
        values = np.where(over, math.nan, np.asarray(last, dtype=float))
        return None if (np.isnan(values) & ~over).any() else values

    return after


def adaptation(online_error: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """`adaptation[k]`: the mean online error of the k-th batch of a task, over the tasks that have that many batches.

    NaN where a task has NaN: after a seed diverged, its earlier tasks alone are no mean over tasks.

    Args:
        online_error: of one seed by batch, [J].
        ends: index of each task's last batch, [T]; batches after the last end are of an unfinished task, and ignored.

    >>> adaptation(np.array([1.0, 0.5, 0.25, 0.5, 0.25]), np.array([2, 4]))
    array([0.75 , 0.375, 0.25 ])
    """
    bounds = np.concatenate([[0], np.asarray(ends, dtype=int) + 1])
    starts, lengths = bounds[:-1], np.diff(bounds)
    longest = int(lengths.max(initial=0))
    total = np.zeros(longest)
    for start, length in zip(starts, lengths, strict=True):
        total[:length] += online_error[start : start + length]
    return np.asarray(total / (lengths[:, None] > np.arange(longest)).sum(axis=0))


def accuracies(curves: Curves) -> np.ndarray:
    """`a[i, j]` [R, T, T]: the accuracy on task j's validation set after learning task i; NaN where not evaluated.

    The diagonal is evaluated at each task's end, and earlier tasks with `evaluate_past`.
    """
    error, past = held_out(curves), curves.past
    tasks = error.shape[1]
    matrix = np.full((len(error), tasks, tasks), math.nan)
    matrix[:, np.arange(tasks), np.arange(tasks)] = 1 - error
    if past:
        matrix[past["seed"], past["after"], past["task"]] = 1 - past["error"]
    return matrix


def average_accuracy(matrix: np.ndarray) -> np.ndarray:
    """`average_accuracy[i]` [T]: the mean of `a[i, 0..i]`, the tasks so far (Lopez-Paz & Ranzato 2017).

    NaN where a task was not evaluated, as in `backward_transfer` and `forgetting`.

    >>> average_accuracy(np.array([[0.75, np.nan], [0.25, 0.5]]))
    array([0.75 , 0.375])
    """
    return np.array([row[: i + 1].mean() for i, row in enumerate(matrix)])


def backward_transfer(matrix: np.ndarray) -> np.ndarray:
    """`backward_transfer[i]` [T]: the mean over tasks j < i of `a[i, j] − a[j, j]` (Lopez-Paz & Ranzato 2017).

    >>> backward_transfer(np.array([[0.75, np.nan], [0.25, 0.5]]))
    array([ nan, -0.5])
    """
    learned = np.diagonal(matrix)
    return np.array([(row[:i] - learned[:i]).mean() if i else math.nan for i, row in enumerate(matrix)])


def forgetting(matrix: np.ndarray) -> np.ndarray:
    """`forgetting[i]` [T]: the mean over tasks j < i of max `a[j..i−1, j]` − `a[i, j]` (Chaudhry et al. 2018).

    The maximum is over the evaluations of task j before the present one.

    >>> forgetting(np.array([[0.5, np.nan, np.nan], [0.75, 0.5, np.nan], [0.25, 0.5, 0.5]]))
    array([  nan, -0.25,  0.25])
    """
    out = np.full(len(matrix), math.nan)
    best = np.full(len(matrix), -math.inf)
    for i, row in enumerate(matrix):
        if i:
            out[i] = (best[:i] - row[:i]).mean()
        best[: i + 1] = np.fmax(best[: i + 1], row[: i + 1])
    return out


def past_curves(curves: Curves) -> dict[str, np.ndarray]:
    """The three curves above by name, [R, T] each, where past tasks were evaluated; empty without `evaluate_past`."""
    if not curves.past:
        return {}
    matrices = accuracies(curves)
    after = np.zeros(matrices.shape[:2], dtype=bool)
    after[curves.past["seed"], curves.past["after"]] = True
    formulas = (average_accuracy, backward_transfer, forgetting)
    values = {formula.__name__: np.array([formula(matrix) for matrix in matrices]) for formula in formulas}
    return {name: np.where(after, curve, math.nan) for name, curve in values.items()}


def regret(online_loss: np.ndarray, last_batch: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """`regret[t]` [T]: the sum over tasks up to t of the mean online loss minus the reference's loss on the task.

    NaN from the first task on that has NaN.

    Args:
        online_loss: of one seed by batch, [J].
        last_batch: index of each task's last batch, [T].
        reference: loss of a network that was fitted to the task in hindsight, [T].

    >>> regret(np.array([2.0, 1.0, 1.0, 0.5]), np.array([1, 3]), np.array([0.5, 0.25]))
    array([1. , 1.5])
    """
    starts = np.concatenate([[0], last_batch[:-1] + 1])
    means = [online_loss[a : b + 1].mean() for a, b in zip(starts, last_batch, strict=True) if b < len(online_loss)]
    return np.cumsum(np.array(means) - reference[: len(means)])


def points_to(error: float, points: np.ndarray, curve: np.ndarray) -> float:
    """`points_to(e)`: the datapoints after which adaptation first is ≤ e; inf if it never is.

    NaN if the curve is empty or has NaN (the seed diverged). A value that exceeds e by 1e-12 or less counts as e: the
    mean of 0, 0.1 and 0.2 is 0.10000000000000002. A mean over n datapoints that is above a threshold with d decimals is
    so by 10⁻ᵈ / n or more.

    Args:
        error: e.
        points: datapoints of the task learned before each value of the curve, [n].
        curve: adaptation, [n].

    >>> points_to(0.4, np.array([0, 10, 20]), np.array([0.75, 0.375, 0.25]))
    10.0
    """
    if not np.isfinite(curve).all() or not len(curve):
        return math.nan
    reached = np.flatnonzero(curve <= error + _ROUNDING)
    return float(points[reached[0]]) if len(reached) else math.inf


@dataclass(frozen=True)
class Interval:
    """The mean over seeds with its 95 % t-interval.

    Attributes:
        mean: NaN if n is 0.
        low: none if n is below 2, for which no interval exists.
        high: as `low`.
        n: seeds with a finite value.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    def __str__(self) -> str:
        if self.high is None:
            return f"{self.mean:.4f} ± – (n={self.n})"
        return f"{self.mean:.4f} ± {self.high - self.mean:.4f} (n={self.n})"


def interval(values: np.ndarray) -> Interval:
    """The mean and 95 % t-interval of the finite values among [n] (Student's t, n − 1 degrees of freedom).

    >>> str(interval(np.array([0.1, 0.2, 0.3])))
    '0.2000 ± 0.2484 (n=3)'
    """
    finite = np.asarray(values, dtype=float)[np.isfinite(values)]
    n = len(finite)
    if n == 0:
        return Interval(math.nan, None, None, 0)
    mean = float(finite.mean())
    if n == 1:
        return Interval(mean, None, None, 1)
    half = float(t_quantile(n - 1) * finite.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def interval_curve(curve: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, low and high [T] over the seeds of a curve [R, T]; low and high are NaN where fewer than two are finite."""
    finite = np.isfinite(curve)
    n = finite.sum(axis=0)
    at_least_1, at_least_2 = np.maximum(n, 1), np.maximum(n, 2)
    mean = np.where(n > 0, np.where(finite, curve, 0.0).sum(axis=0) / at_least_1, math.nan)
    squares = np.where(finite, (curve - mean) ** 2, 0.0).sum(axis=0)
    half = t_quantile(at_least_2 - 1) * np.sqrt(squares / (at_least_2 - 1) / at_least_2)
    half = np.where(n > 1, half, math.nan)
    return mean, mean - half, mean + half


def t_quantile(freedom: Any) -> Any:
    """The 0.975 quantile of Student's t."""
    from scipy import special  # the import of scipy.stats takes ten times as long

    return special.stdtrit(freedom, 0.975)
