"""Curves that are not measured but follow from those that are, once a sweep is read back from MLflow."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orchestrator.protocol import metrics
from orchestrator.tracking.points import ADAPTATION, REGRET
from orchestrator.tracking.reader import SweepRuns, hindsight_of

_NO_LOSS = ("icarl",)
"""Learners that predict distances: their cross-entropy means little beside others'."""


def with_adaptation(sweep: SweepRuns, curves: pd.DataFrame) -> pd.DataFrame:
    """The curves, and `adaptation` of the seeds that have none yet: it is written at the end of a stream.

    Where it can be known: on a sequential stream of equally long tasks, once a configuration of the sweep is complete.
    Of a seed that is under way it is over the tasks so far; one that diverged has none.
    """
    has = set(curves[curves.metric == ADAPTATION].groupby(["configuration", "seed"]).groups)
    lack = {
        (of.hash, run.seed): of
        for of in sweep.configurations
        for run in of.seeds
        if (of.hash, run.seed) not in has and run.diverged_at is None
    }
    length = _task_length(sweep, curves) if lack else None
    if length is None:
        return curves
    frames = [curves]
    for key, online in curves[curves.metric == "online_error"].groupby(["configuration", "seed"]):
        if key in lack:
            online = online.sort_values("step")
            tasks = len(online) // length
            if not tasks:
                continue
            curve = metrics.adaptation(online.value.to_numpy(), length * np.arange(1, tasks + 1) - 1)
            made = online.iloc[: len(curve)].copy()
            made["metric"], made["value"] = ADAPTATION, curve
            made["step"] = np.arange(len(curve)) * int(lack[key].parameters["batch_size"])
            frames.append(made)
    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else curves


def with_regret(sweep: SweepRuns, curves: pd.DataFrame, reference: pd.DataFrame | None = None) -> pd.DataFrame:
    """The curves, and `regret` of every seed that the reference has: the one given (columns as `hindsight.COLUMNS`), or
    the one that `orchestrator.regret` has kept with the sweep."""
    if reference is None:
        reference = hindsight_of(sweep)
    if reference is None:
        return curves
    of_seed = {str(seed): table for seed, table in reference.sort_values("task").groupby("seed")}
    complete = {of.hash for of in sweep.configurations if of.complete and of.learner not in _NO_LOSS}
    losses = curves[(curves.metric == "online_loss") & curves.configuration.isin(complete)]
    frames = [curves[curves.metric != REGRET]]
    for (_, seed), online in losses.groupby(["configuration", "seed"]):
        if str(seed) not in of_seed:
            continue
        online, hindsight = online.sort_values("step"), of_seed[str(seed)]
        last, loss = hindsight.last_batch.to_numpy(), hindsight.loss.to_numpy()
        curve = metrics.regret(online.value.to_numpy(), last, loss)
        made = online.iloc[: len(curve)].copy()
        made["metric"], made["value"], made["step"] = REGRET, curve, np.arange(len(curve))
        frames.append(made)
    return pd.concat(frames, ignore_index=True)


def _task_length(sweep: SweepRuns, curves: pd.DataFrame) -> int | None:
    """Batches per task, if that is the same for all."""
    lengths = set()
    needed = curves[curves.metric.isin(["online_error", "validation_error"])]
    last = {key: int(steps.max()) for key, steps in needed.groupby(["configuration", "metric"]).step}
    for of in sweep.configurations:
        batch, task = (last.get((of.hash, metric), -1) for metric in ("online_error", "validation_error"))
        if of.complete and of.parameters.get("stream.schedule.name") == "sequential" and task >= 0:
            lengths.add(divmod(batch + 1, task + 1))
    if len(lengths) != 1:
        return None
    ((length, rest),) = lengths
    return length if rest == 0 else None
