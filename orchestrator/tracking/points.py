"""Curves as points of MLflow, of a seed's run and of a configuration's; pure functions without MLflow.

NaN and infinity are never logged. A point has the time of its chunk, so that a point sent twice is identical. Steps of
curves by batch are batches, steps of curves by task are tasks, and a number that exists once has step 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from orchestrator.protocol import metrics
from orchestrator.protocol.curves import Curves

BY_TASK = ("validation_error", "cumulative_error")
ADAPTATION = "adaptation"
"""Its step is the number of the task's datapoints learned before."""
TRANSFER = "forward_transfer"
"""Its step is the task; it is measured on the task's first batch."""
REGRET = "regret"
"""Its step is the task."""
_ONLINE = ("online_error", "online_loss")

_COSTS: dict[str, Callable[[np.ndarray], float]] = {
    "gradient_evaluations_per_datapoint": np.mean,
    "seconds": np.sum,
    "peak_memory_mb": np.max,
    "peak_gpu_memory_mb": np.max,
}
"""Metric → how the values of its stacks are combined for a configuration."""


class Point(NamedTuple):
    """One value of one metric."""

    metric: str
    step: int
    value: float
    time_ms: int


def seed_points(curves: Curves, seed: int, since: int = 0, diagnostics_every: int = 1) -> list[Point]:
    """Points of one seed.

    Args:
        curves: from batch 0 on, since `cumulative_error` needs all earlier tasks.
        seed: the row of the seed.
        since: the first batch.
        diagnostics_every: a learner's diagnostics get one point in this many batches, the first value in them.
    """
    out: list[Point] = []
    if not curves.batches:
        return out
    times = _times(curves, np.arange(curves.batches))
    when = _evaluated_at(curves)[seed]
    for name, curve in curves.by_batch.items():
        batches = np.flatnonzero(np.isfinite(curve[seed]))
        if name not in (*_ONLINE, TRANSFER) and not name.startswith("hyper/"):
            batches = _thinned(batches, diagnostics_every)
        for j in batches[batches >= since].tolist():
            step = int((when < j).sum()) if name == TRANSFER else j
            out.append(Point(name, step, float(curve[seed, j]), int(times[j])))
    for name, by_task in zip(BY_TASK, _by_task(curves), strict=True):
        for task in np.flatnonzero(np.isfinite(by_task[seed]) & (when >= since)):
            time = _times(curves, when[[task]].astype(int))[0]
            out.append(Point(name, int(task), float(by_task[seed, task]), int(time)))
    return out


def _thinned(batches: np.ndarray, every: int) -> np.ndarray:
    """The first of the ascending `batches` in each block of `every` batches."""
    blocks = batches // every
    return batches[np.diff(blocks, prepend=-1) > 0]


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


def adaptation_points(curves: Curves, seed: int, batch_size: int) -> list[Point]:
    """The adaptation curve of the seed in this row of a finished stream."""
    curve, end = _adaptation(curves)[seed], _end(curves)
    return _finite(*(Point(ADAPTATION, k * batch_size, float(value), end) for k, value in enumerate(curve)))


def configuration_points(
    stacks: Sequence[Curves], costs: Sequence[Sequence[Point]], objective: str, batch_size: int
) -> list[Point]:
    """Mean curves over all seeds of all stacks, with `…_low` and `…_high` of the 95 % t-interval for two or more seeds.

    Steps at which a seed has no value are left out, so that each mean is over all seeds.

    Args:
        stacks: the complete curves of each stack.
        costs: the `final_points` of each.
        objective: what the sweep minimises.
        batch_size: datapoints per batch.
    """
    out: list[Point] = []
    tasks = max(_by_task(curves)[0].shape[1] for curves in stacks)
    time_of_task = np.concatenate([_padded(_evaluation_times(curves), tasks) for curves in stacks]).max(axis=0)
    for index, name in enumerate(BY_TASK):
        curve = np.concatenate([_padded(_by_task(curves)[index], tasks) for curves in stacks])
        out += _interval_points(name, curve, np.arange(tasks), time_of_task)
    ends = stacks[0].chunks["batches"]
    ends = ends[ends <= min(curves.batches for curves in stacks)]
    if "online_error" in stacks[0].by_batch and len(ends):
        starts = np.concatenate([[0], ends[:-1]])
        rows = np.concatenate([curves.by_batch["online_error"][:, : ends[-1]] for curves in stacks])
        by_chunk = np.add.reduceat(rows, starts, axis=1) / (ends - starts)
        times = np.max([_times(curves, ends - 1) for curves in stacks], axis=0)
        out += _interval_points("online_error", by_chunk, ends - 1, times)
    end = max(_end(curves) for curves in stacks)
    within = [_adaptation(curves) for curves in stacks]
    longest = max(curve.shape[1] for curve in within)
    rows = np.concatenate([_padded(curve, longest) for curve in within])
    out += _interval_points(ADAPTATION, rows, np.arange(longest) * batch_size, np.full(longest, end))
    if all(TRANSFER in curves.by_batch for curves in stacks):
        rows = np.concatenate([_padded(_transfer(curves), tasks) for curves in stacks])
        out += _interval_points(TRANSFER, rows, np.arange(tasks), time_of_task)
    by_seed = [values for curves in stacks if (values := metrics.objective(curves, objective)) is not None]
    if len(by_seed) == len(stacks):
        out += _interval_points("objective", np.concatenate(by_seed)[:, None], np.array([0]), np.array([end]))
    for name, total in _COSTS.items():
        values = np.array([point.value for cost in costs for point in cost if point.metric == name])
        if len(values):
            out += _finite(Point(name, 0, float(total(values)), end))
    return out


def _interval_points(name: str, curve: np.ndarray, steps: np.ndarray, times: np.ndarray) -> list[Point]:
    complete = np.isfinite(curve).all(axis=0)
    mean, low, high = metrics.interval_curve(curve[:, complete])
    out = []
    for suffix, values in (("", mean), ("_low", low), ("_high", high)):
        for step, value, time in zip(steps[complete], values, times[complete], strict=True):
            out += _finite(Point(name + suffix, int(step), float(value), int(time)))
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


def _transfer(curves: Curves) -> np.ndarray:
    """Forward transfer by task [R, T]."""
    by_batch, when = curves.by_batch[TRANSFER], _evaluated_at(curves)
    out = np.full(when.shape, math.nan)
    for seed, batch in np.argwhere(np.isfinite(by_batch)).tolist():
        task = int((when[seed] < batch).sum())
        if task < len(out[seed]):
            out[seed, task] = by_batch[seed, batch]
    return out


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
