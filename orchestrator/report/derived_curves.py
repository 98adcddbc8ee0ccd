"""Curves that are computed from the measured ones after a sweep is read from MLflow."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orchestrator.protocol import metrics
from orchestrator.tracking.points import ADAPTATION, REGRET
from orchestrator.tracking.reader import SweepRuns, hindsight_of

_NO_LOSS = ("icarl",)
"""Learners that predict distances: their cross-entropy cannot be compared with that of others."""


def with_adaptation(sweep: SweepRuns, curves: pd.DataFrame) -> pd.DataFrame:
    """The curves with `adaptation` of the seeds without one; a seed's run has it from the end of its stream on.

    This requires a sequential stream with tasks of equal length, and one complete configuration. The curve of an
    unfinished seed is over its tasks so far; a diverged seed has none.
    """
    present = set(curves[curves.metric == ADAPTATION].groupby(["configuration", "seed"]).groups)
    missing = {
        (configuration.hash, run.seed): configuration
        for configuration in sweep.configurations
        for run in configuration.seeds
        if (configuration.hash, run.seed) not in present and run.diverged_at is None
    }
    length = _task_length(sweep, curves) if missing else None
    if length is None:
        return curves
    frames = [curves]
    for key, online in curves[curves.metric == "online_error"].groupby(["configuration", "seed"]):
        if key in missing:
            online = online.sort_values("step")
            tasks = len(online) // length
            if not tasks:
                continue
            curve = metrics.adaptation(online.value.to_numpy(), length * np.arange(1, tasks + 1) - 1)
            step = np.arange(len(curve)) * int(missing[key].parameters["batch_size"])
            frames.append(online.iloc[: len(curve)].assign(metric=ADAPTATION, value=curve, step=step))
    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else curves


def with_regret(sweep: SweepRuns, curves: pd.DataFrame, reference: pd.DataFrame | None = None) -> pd.DataFrame:
    """The curves with `regret` of every seed that the reference contains.

    Args:
        sweep: the sweep's runs.
        curves: the points of its curves.
        reference: columns as `hindsight.COLUMNS`; if None, the one that `orchestrator.regret` stored with the sweep.
    """
    if reference is None:
        reference = hindsight_of(sweep)
    if reference is None:
        return curves
    by_seed = {str(seed): table for seed, table in reference.sort_values("task").groupby("seed")}
    complete = {runs.hash for runs in sweep.configurations if runs.complete and runs.learner not in _NO_LOSS}
    losses = curves[(curves.metric == "online_loss") & curves.configuration.isin(complete)]
    frames = [curves[curves.metric != REGRET]]
    for (_, seed), online in losses.groupby(["configuration", "seed"]):
        if str(seed) not in by_seed:
            continue
        online, hindsight = online.sort_values("step"), by_seed[str(seed)]
        last, loss = hindsight.last_batch.to_numpy(), hindsight.loss.to_numpy()
        curve = metrics.regret(online.value.to_numpy(), last, loss)
        frames.append(online.iloc[: len(curve)].assign(metric=REGRET, value=curve, step=np.arange(len(curve))))
    return pd.concat(frames, ignore_index=True)


def _task_length(sweep: SweepRuns, curves: pd.DataFrame) -> int | None:
    """Batches per task if they are the same for all tasks, else None."""
    lengths = set()
    relevant = curves[curves.metric.isin(["online_error", "validation_error"])]
    last = {key: int(steps.max()) for key, steps in relevant.groupby(["configuration", "metric"]).step}
    for runs in sweep.configurations:
        batch, task = (last.get((runs.hash, metric), -1) for metric in ("online_error", "validation_error"))
        if runs.complete and runs.parameters.get("stream.schedule.name") == "sequential" and task >= 0:
            lengths.add(divmod(batch + 1, task + 1))
    if len(lengths) != 1:
        return None
    ((length, rest),) = lengths
    return length if rest == 0 else None
