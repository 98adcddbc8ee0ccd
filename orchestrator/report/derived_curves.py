"""Curves that are computed from the measured ones after a sweep is read from MLflow."""

import numpy as np
import pandas as pd

from orchestrator.protocol import metrics
from orchestrator.tracking.points import ADAPTATION, REGRET
from orchestrator.tracking.reader import SweepRuns, hindsight_of

LATE_ADAPTATION = "adaptation_late"
"""As `adaptation`, over the last quarter of a stream's tasks."""
_NO_LOSS = ("icarl",)
"""Learners that predict distances: their cross-entropy cannot be compared with that of others."""


def with_adaptation(sweep: SweepRuns, curves: pd.DataFrame) -> pd.DataFrame:
    """The curves with `adaptation` of the seeds without one, and `adaptation_late` of those at the end of the stream.

    This requires a sequential stream with tasks of equal length, and one complete configuration of which a seed did not
    diverge. A seed's run has `adaptation` from the end of its stream on; the curve of an unfinished seed is over its
    tasks so far. A diverged seed has neither.
    """
    lengths = _task_lengths(sweep, curves)
    if lengths is None:
        return curves
    length, stream_tasks = lengths
    present = set(curves[curves.metric == ADAPTATION].groupby(["configuration", "seed"]).groups)
    batch_sizes = {
        (configuration.hash, run.seed): int(configuration.parameters["batch_size"])
        for configuration in sweep.configurations
        for run in configuration.seeds
        if run.diverged_at is None
    }
    frames = [curves]
    for key, online in curves[curves.metric == "online_error"].groupby(["configuration", "seed"]):
        tasks = len(online) // length
        if key not in batch_sizes or not tasks:
            continue
        online = online.sort_values("step")
        if not _is_whole(online):
            continue
        for metric, count, included in (
            (ADAPTATION, tasks, key not in present),
            (LATE_ADAPTATION, stream_tasks // 4, tasks == stream_tasks >= 4),
        ):
            if included:
                part = online.iloc[(tasks - count) * length :]
                curve = metrics.adaptation(part.value.to_numpy(), length * np.arange(1, count + 1) - 1)
                step = np.arange(len(curve)) * batch_sizes[key]
                frames.append(part.iloc[: len(curve)].assign(metric=metric, value=curve, step=step))
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
        if not _is_whole(online):
            continue
        last, loss = hindsight.last_batch.to_numpy(), hindsight.loss.to_numpy()
        curve = metrics.regret(online.value.to_numpy(), last, loss)
        frames.append(online.iloc[: len(curve)].assign(metric=REGRET, value=curve, step=np.arange(len(curve))))
    return pd.concat(frames, ignore_index=True)


def _is_whole(curve: pd.DataFrame) -> bool:
    """Whether a curve has each batch, and not the means of blocks as in MLflow."""
    return bool((curve.step.to_numpy() == np.arange(len(curve))).all())


def _task_lengths(sweep: SweepRuns, curves: pd.DataFrame) -> tuple[int, int] | None:
    """Batches per task and tasks of the stream, if they are the same for all complete configurations, else None.

    A stream ends where the curves of its seeds do that did not diverge. The adaptation that was measured is as long as
    the longest task, so that tasks whose mean it exceeds are not of one length.
    """
    lengths = set()
    relevant = curves[curves.metric.isin(["online_error", "validation_error", ADAPTATION])]
    groups = dict(tuple(relevant.groupby("configuration")))
    for runs in sweep.configurations:
        if not runs.complete or runs.parameters.get("stream.schedule.name") != "sequential":
            continue
        points = groups.get(runs.hash, relevant[:0])
        points = points[points.seed.isin([run.seed for run in runs.seeds if run.diverged_at is None])]
        last = {str(metric): int(steps.max()) for metric, steps in points.groupby("metric").step}
        if "validation_error" not in last:
            continue
        batches, tasks = last.get("online_error", -1) + 1, last["validation_error"] + 1
        length, rest = divmod(batches, tasks)
        longest = last.get(ADAPTATION, (length - 1) * int(runs.parameters["batch_size"]))
        equal = rest == 0 and longest == (length - 1) * int(runs.parameters["batch_size"])
        lengths.add((length, tasks) if equal else None)
    return lengths.pop() if len(lengths) == 1 else None
