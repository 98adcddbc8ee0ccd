"""Curves as points of MLflow, of a seed's run and of a configuration's; pure functions without MLflow.

NaN and infinity are never logged. A point has the time of its chunk, so that a point sent twice is identical. Steps of
curves by batch are batches, steps of curves by task are tasks, and a number that exists once has step 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from orchestrator.protocol import metrics
from orchestrator.protocol.curves import MEASURED, Curves
from orchestrator.protocol.objectives import ObjectiveMetric

BY_TASK = ("validation_error", "cumulative_error")
ADAPTATION = "adaptation"
"""Its step is the number of the task's datapoints learned before."""
TRANSFER = "forward_transfer"
"""Its step is the task; it is measured on the task's first batch."""
REGRET = "regret"
"""Its step is the task."""
OBJECTIVE = "objective"
"""Of a seed: only if it is none of the curves that every sweep has.

Of a seed that ended early it is the value so far, in the table of curves only.
"""
PAST = ("average_accuracy", "backward_transfer", "forgetting")
"""Their step is the task after which past tasks were evaluated."""
INTERVAL, DIAGNOSTICS = "interval/", "diagnostics/"
"""Prefixes of the bounds of intervals and of learners' diagnostics.

Each is a section of MLflow's UI that can be folded. MLflow 3.17 sorts sections by name, and puts "Model metrics", which
has the metrics without a prefix, behind all others but "System metrics".
"""
MARK = "hyper/"
"""Prefix of the values that a population changes, which have a point at each change."""
_ONLINE = ("online_error", "online_loss")
_MEAN_POINTS = 100
"""The most points of a configuration's mean online error, which costs three points a step."""

_COSTS: dict[str, Callable[[np.ndarray], float]] = {
    "gradient_evaluations_per_datapoint": np.mean,
    "seconds": np.sum,
    "peak_memory_mb": np.max,
    "peak_gpu_memory_mb": np.max,
}
"""Metric → how the values of its stacks are combined for a configuration."""


def metric_name(name: str) -> str:
    """The metric of a curve of a seed, and the one that replaces a metric of an earlier version.

    >>> [metric_name(name) for name in ("online_error", "meta_loss", "hyper/K", "diagnostics/meta_loss")]
    ['online_error', 'diagnostics/meta_loss', 'hyper/K', 'diagnostics/meta_loss']
    """
    return name if name in MEASURED or "/" in name else DIAGNOSTICS + name


def bound_names(name: str) -> tuple[str, str]:
    """The metrics of the two ends of a metric's 95 % interval.

    >>> bound_names("online_error")
    ('interval/online_error_low', 'interval/online_error_high')
    """
    return f"{INTERVAL}{name}_low", f"{INTERVAL}{name}_high"


class Point(NamedTuple):
    """One value of one metric."""

    metric: str
    step: int
    value: float
    time_ms: int


@dataclass(frozen=True)
class Bounds:
    """How many points a curve has in MLflow.

    A curve is cut into blocks of equal length, which follows from the length of the stream alone. A block has one
    point: the mean of its values at its last step.

    Attributes:
        points: the most points of a curve; None for one point per value.
        diagnostics_every: blocks of the errors' curves that make one block of a diagnostic's.
    """

    points: int | None = None
    diagnostics_every: int = 1

    def block(self, total: int) -> int:
        """The length of a block of a curve with `total` steps; 1 if the total is 0, that is, unknown.

        >>> Bounds(1_000).block(5_040), Bounds(1_000).block(1_000), Bounds().block(5_040)
        (6, 1, 1)
        """
        return 1 if self.points is None else max(1, -(-total // self.points))


def bounds_of(tracking: Mapping[str, Any]) -> Bounds:
    """The bounds of a sweep's section `tracking`; an earlier version, which had no bound, sent every value."""
    return Bounds(tracking.get("points"), tracking.get("diagnostics_every", 1))


WHOLE = Bounds()
"""Every value is a point, as in `curves.parquet`."""


class SeedCurve(NamedTuple):
    """The points of one metric of one seed: steps [n], values [n], and the batches [n] that they are known after."""

    metric: str
    steps: np.ndarray
    values: np.ndarray
    batches: np.ndarray


def seed_curves(curves: Curves, since: int = 0, bounds: Bounds = WHOLE) -> list[list[SeedCurve]]:
    """The points of each seed by metric.

    A block whose last step is not measured yet has none.

    Args:
        curves: from batch 0 on, since `cumulative_error` needs all earlier tasks.
        since: points that were known after fewer batches are left out.
        bounds: the lengths of blocks.
    """
    out: list[list[SeedCurve]] = [[] for _ in curves.seeds]
    batches = curves.batches
    if not batches:
        return out
    evaluated = _evaluated_at(curves)
    block, block_of_tasks = bounds.block(curves.total_batches), bounds.block(curves.total_tasks)
    parts: list[_Blocks] = []
    for name, curve in curves.by_batch.items():
        if name == TRANSFER:
            parts.append(_blocks(name, *_transfer(curves, curves.total_tasks), block_of_tasks, curves))
            continue
        every = block if name in _ONLINE or name.startswith(MARK) else block * bounds.diagnostics_every
        first = since // every * every
        steps = np.arange(first, max(batches, curves.total_batches), dtype=float)
        values = np.full((len(curve), len(steps)), math.nan)
        values[:, : batches - first] = curve[:, first:]
        at = np.where(steps < batches, steps, math.nan)
        part = _blocks(metric_name(name), values, at, every, curves, last=name.startswith(MARK))
        parts.append(part._replace(steps=part.steps + first))
    tasks = max(curves.total_tasks, evaluated.shape[1])
    by_name = dict(zip(BY_TASK, _by_task(curves), strict=True)) | metrics.past_curves(curves)
    for name, by_task in by_name.items():
        parts.append(_blocks(name, _padded(by_task, tasks), _padded(evaluated, tasks), block_of_tasks, curves))
    for part in parts:
        new = part.chosen & (part.known_after >= since)
        columns = np.broadcast_arrays(part.steps, part.values, part.known_after)
        for seed in np.flatnonzero(new.any(axis=1)).tolist():
            out[seed].append(SeedCurve(part.metric, *(column[seed][new[seed]] for column in columns)))
    return out


class _Blocks(NamedTuple):
    """The blocks of one metric of a stack: steps, values, known_after and chosen are [R, B], or [B] if seeds agree."""

    metric: str
    steps: np.ndarray
    values: np.ndarray
    known_after: np.ndarray
    chosen: np.ndarray


def _blocks(name: str, values: np.ndarray, at: np.ndarray, block: int, curves: Curves, last: bool = False) -> _Blocks:
    """The blocks of a curve over its whole axis; those are chosen that have a value and whose last step is measured.

    Args:
        name: the metric.
        values: [R, n], NaN where there is none.
        at: the batch at which each step is measured, [n] or [R, n], NaN where it is not yet.
        block: the length of a block.
        curves: whose end ends every block, if it is the stream's.
        last: take the last value of a block and its step instead of the mean.
    """
    count = values.shape[1]
    starts = np.arange(0, count, block)
    ends = np.minimum(starts + block, count) - 1
    finite, over = np.isfinite(values), curves.batches >= curves.total_batches
    zeros = np.where(finite, values, 0.0)
    counts, sums = (finite, zeros) if block == 1 else (_sums(finite, starts, int), _sums(zeros, starts, float))
    known_after = np.where(np.isfinite(at[..., ends]), at[..., ends], curves.batches - 1).astype(int)
    chosen = (counts > 0) & (np.isfinite(at[..., ends]) | over)
    if not last or not len(starts):
        return _Blocks(name, ends, sums / np.maximum(counts, 1), known_after, chosen)
    steps = np.maximum.reduceat(np.where(finite, np.arange(count), 0), starts, axis=1)
    return _Blocks(name, steps, np.take_along_axis(values, steps, axis=1), known_after, chosen)


def _sums(rows: np.ndarray, starts: np.ndarray, kind: type) -> np.ndarray:
    """The sum [R, B] of each block of rows [R, n]."""
    return np.asarray(np.add.reduceat(rows, starts, axis=1, dtype=kind)) if len(starts) else rows


def seed_points(curves: Curves, since: int = 0, bounds: Bounds = WHOLE) -> list[list[Point]]:
    """The points of `seed_curves`, each with the time of its chunk."""
    times = _times(curves, np.arange(curves.batches)).astype(int) if curves.batches else np.empty(0, int)
    return [
        [
            Point(part.metric, *row)
            for part in of_seed
            for row in zip(part.steps.tolist(), part.values.tolist(), times[part.batches].tolist(), strict=True)
        ]
        for of_seed in seed_curves(curves, since, bounds)
    ]


def final_points(curves: Curves, datapoints: int) -> list[Point]:
    """Costs of a finished stream of `datapoints`, the same for all seeds of a stack, which share time and memory."""
    end = _end(curves)
    cost = float(curves.chunks["gradient_evaluations"].sum()) / max(1, datapoints)
    return _finite(
        Point("gradient_evaluations_per_datapoint", 0, cost, end),
        Point("seconds", 0, float(curves.chunks["seconds"].sum()), end),
        *(Point(f"{name}_mb", 0, value, end) for name, value in peaks(curves).items()),
    )


def peaks(curves: Curves) -> dict[str, float]:
    """`peak_memory` and `peak_gpu_memory` of a stack in MB (10⁶ bytes), as far as they were measured."""
    columns = {name: curves.chunks[name] for name in ("peak_memory", "peak_gpu_memory") if name in curves.chunks}
    return {name: float(np.nanmax(column)) / 1e6 for name, column in columns.items() if np.isfinite(column).any()}


def end_points(
    curves: Curves, datapoints: int, objective: ObjectiveMetric, batch_size: int, bounds: Bounds = WHOLE
) -> list[list[Point]]:
    """The points of each seed that exist only at the end of the stream: adaptation, objective and `final_points`.

    An objective that other points hold has none.

    Args:
        curves: of a finished stream.
        datapoints: of the stream.
        objective: of the sweep.
        batch_size: datapoints per batch.
        bounds: the lengths of blocks.

    Raises:
        ObjectiveError: from a function of the user's own.
    """
    costs, end = final_points(curves, datapoints), _end(curves)
    out = []
    for curve, of_objective in zip(_adaptation(curves), objective_points(curves, objective), strict=True):
        length = int(np.flatnonzero(np.isfinite(curve)).max(initial=-1)) + 1
        steps, (means,) = _means(curve[None, :length], bounds.block(len(curve)))
        adaptation = zip(steps.tolist(), means.tolist(), strict=True)
        out.append([Point(ADAPTATION, k * batch_size, value, end) for k, value in adaptation] + of_objective + costs)
    return out


def objective_points(curves: Curves, objective: ObjectiveMetric) -> list[list[Point]]:
    """The objective of each seed as a point; none if other points hold it, and none before it has a value.

    Raises:
        ObjectiveError: from a function of the user's own.
    """
    values = None if objective.is_standard else objective(curves)
    if values is None:
        return [[] for _ in curves.seeds]
    return [_finite(Point(OBJECTIVE, 0, float(value), _end(curves))) for value in values]


def configuration_points(
    stacks: Sequence[Curves],
    costs: Sequence[Sequence[Point]],
    objective: ObjectiveMetric,
    batch_size: int,
    bounds: Bounds = WHOLE,
) -> list[Point]:
    """Mean curves over all seeds of all stacks, with the bounds of the 95 % t-interval for two or more seeds.

    Steps at which a seed has no value are left out, so that each mean is over all seeds.

    Args:
        stacks: the complete curves of each stack.
        costs: the `final_points` of each.
        objective: of the sweep.
        batch_size: datapoints per batch.
        bounds: the lengths of blocks.
    """
    out: list[Point] = []
    tasks = max(_by_task(curves)[0].shape[1] for curves in stacks)
    by_task = bounds.block(tasks)
    time_of_task = np.concatenate([_padded(_evaluation_times(curves), tasks) for curves in stacks]).max(axis=0)
    for index, name in enumerate(BY_TASK):
        curve = np.concatenate([_padded(_by_task(curves)[index], tasks) for curves in stacks])
        out += _interval_points(name, curve, by_task, time_of_task)
    batches = min(curves.batches for curves in stacks)
    if "online_error" in stacks[0].by_batch and batches:
        rows = np.concatenate([curves.by_batch["online_error"][:, :batches] for curves in stacks])
        block = Bounds(min(_MEAN_POINTS, bounds.points or _MEAN_POINTS)).block(batches)
        times = np.max([_times(curves, np.arange(batches)) for curves in stacks], axis=0)
        out += _interval_points("online_error", rows, block, times)
    end = max(_end(curves) for curves in stacks)
    within = [_adaptation(curves) for curves in stacks]
    longest = max(curve.shape[1] for curve in within)
    rows = np.concatenate([_padded(curve, longest) for curve in within])
    out += _interval_points(ADAPTATION, rows, bounds.block(longest), np.full(longest, end), batch_size)
    if all(TRANSFER in curves.by_batch for curves in stacks):
        rows = np.concatenate([_padded(_transfer(curves)[0][:, :-1], tasks) for curves in stacks])
        out += _interval_points(TRANSFER, rows, by_task, time_of_task)
    again = [metrics.past_curves(curves) for curves in stacks]
    for name in PAST:
        if all(name in of_stack for of_stack in again):
            rows = np.concatenate([_padded(of_stack[name], tasks) for of_stack in again])
            out += _interval_points(name, rows, by_task, time_of_task)
    by_seed = [values for curves in stacks if (values := objective(curves)) is not None]
    if len(by_seed) == len(stacks):
        out += _interval_points(OBJECTIVE, np.concatenate(by_seed)[:, None], 1, np.array([end]))
    for name, total in _COSTS.items():
        values = np.array([point.value for cost in costs for point in cost if point.metric == name])
        if len(values):
            out += _finite(Point(name, 0, float(total(values)), end))
    return out


def _means(rows: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The last step of each block [B], and the means [R, B], NaN where a block has NaN."""
    starts = np.arange(0, rows.shape[1], block)
    ends = np.minimum(starts + block, rows.shape[1]) - 1
    if not len(starts):
        return ends, rows
    return ends, np.add.reduceat(rows, starts, axis=1) / (ends - starts + 1)


def _interval_points(name: str, curve: np.ndarray, block: int, times: np.ndarray, per_step: int = 1) -> list[Point]:
    ends, means = _means(curve, block)
    complete = np.isfinite(means).all(axis=0)
    ends = ends[complete]
    mean, low, high = metrics.interval_curve(means[:, complete])
    out = []
    for metric, values in zip((name, *bound_names(name)), (mean, low, high), strict=True):
        for step, value, time in zip(ends, values, times[ends], strict=True):
            out += _finite(Point(metric, int(step) * per_step, float(value), int(time)))
    return out


def _by_task(curves: Curves) -> tuple[np.ndarray, np.ndarray]:
    error = metrics.held_out(curves)
    return error, metrics.cumulative(error)


def _adaptation(curves: Curves) -> np.ndarray:
    """Adaptation curves [R, n] in batches."""
    if "online_error" not in curves.by_batch:
        return np.empty((len(curves.seeds), 0))
    ends = _evaluated_at(curves)
    each = [
        metrics.adaptation(online, at[np.isfinite(at)])
        for online, at in zip(curves.by_batch["online_error"], ends, strict=True)
    ]
    longest = max(map(len, each))
    return np.stack([np.pad(curve, (0, longest - len(curve)), constant_values=math.nan) for curve in each])


def _transfer(curves: Curves, tasks: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Forward transfer by task, and the batch at which it was measured, each [R, T].

    T is `tasks`; if that is 0, one more than were evaluated, since a task's transfer is measured before its end. Of a
    learner that needs boundaries, a batch can hold the end of one task and the start of the next, whose transfer it is:
    that of the first has been measured before.
    """
    by_batch, evaluated = curves.by_batch[TRANSFER], _evaluated_at(curves)
    by_task, at = np.full((2, len(evaluated), tasks or evaluated.shape[1] + 1), math.nan)
    for seed, batch in np.argwhere(np.isfinite(by_batch)).tolist():
        task = int((evaluated[seed] < batch).sum())
        if np.isfinite(at[seed, task]):
            task = int((evaluated[seed] <= batch).sum())
        by_task[seed, task], at[seed, task] = by_batch[seed, batch], batch
    return by_task, at


def _evaluated_at(curves: Curves) -> np.ndarray:
    """The batch [R, T] after which each task was evaluated; NaN where it was not."""
    return metrics.held_out(curves, "batch")


def _evaluation_times(curves: Curves) -> np.ndarray:
    at = _evaluated_at(curves)
    times = _times(curves, np.nan_to_num(at).astype(int).ravel()).reshape(at.shape)
    return np.where(np.isfinite(at), times, 0)


def _times(curves: Curves, batches: np.ndarray) -> np.ndarray:
    """The time of the chunk of each batch."""
    ends, times = curves.chunks["batches"], curves.chunks["time_ms"]
    return np.asarray(times[np.minimum(np.searchsorted(ends, batches, side="right"), len(ends) - 1)])


def _end(curves: Curves) -> int:
    return int(curves.chunks["time_ms"].max())


def _padded(by_task: np.ndarray, tasks: int) -> np.ndarray:
    return np.pad(by_task.astype(float), ((0, 0), (0, tasks - by_task.shape[1])), constant_values=math.nan)


def _finite(*points: Point) -> list[Point]:
    return [point for point in points if math.isfinite(point.value)]
