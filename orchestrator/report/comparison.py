"""The configurations of a sweep against each other: their results over seeds, and their differences, paired by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from orchestrator.protocol import metrics
from orchestrator.protocol.metrics import Interval
from orchestrator.tracking.points import ADAPTATION, BY_TASK, REGRET, TRANSFER
from orchestrator.tracking.reader import ConfigurationRuns, SweepRuns

_DISTILLED = "distilled"
WITHDRAWN = "of an earlier version of this sweep"
"""Notes a configuration that was taken out of the sweep since it was run: it is shown, and compared with nothing."""
NOTHING = Interval(math.nan, None, None, 0)


@dataclass(frozen=True)
class Difference:
    """A configuration's objective minus the best one's, on the seeds that both have.

    ``p``: of the two-sided paired t-test, corrected by Holm for all configurations that are compared with the best;
    None where there is no test: fewer than two common seeds, or a difference that is the same for all of them.
    """

    by: Interval
    p: float | None


@dataclass(frozen=True)
class Reached:
    """`points_to(e)` over seeds. ``points``: mean and interval if all of them got there; else over none of them."""

    points: Interval
    seeds: int
    of: int


@dataclass(frozen=True)
class Row:
    """A configuration's results.

    ``lost``: seed → what became of it, of those that are not in the means. ``values``: the objective of the others.
    ``points_to``: by threshold. ``test_error``: mean over tasks; None if it was not asked for. ``forward_transfer``:
    mean over tasks, the first left out. ``regret``: at the end; None if nobody has computed it. ``distilled``: mean of
    the curve of that name, the share of a learner's targets that an older model of it gave; None if it has none.
    """

    of: ConfigurationRuns
    objective: Interval
    final_error: Interval
    lost: dict[int, str] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)
    points_to: dict[float, Reached] = field(default_factory=dict)
    difference: Difference | None = None
    test_error: Interval | None = None
    forward_transfer: Interval | None = None
    regret: Interval | None = None
    distilled: float | None = None

    @property
    def usable(self) -> bool:
        """Whether this may be the best one: it is of the sweep as it was last started, all its seeds are at the end,
        and none diverged."""
        return not self.of.removed and self.of.complete and not self.lost and self.objective.n > 0

    @property
    def notes(self) -> str:
        """What became of the seeds that are lost, those with the same fate together; how much was distilled."""
        fates: dict[str, list[int]] = {}
        for seed, what in self.lost.items():
            fates.setdefault(what, []).append(seed)
        told = [
            f"{'seed' if len(seeds) == 1 else 'seeds'} {' '.join(map(str, seeds))} {what}"
            for what, seeds in fates.items()
        ]
        if self.distilled is not None:
            told.append(f"{100 * self.distilled:.1f} % of targets distilled" if self.distilled else "nothing distilled")
        if self.of.population:
            told.append("member of a population")
        if self.of.removed:
            told.append(WITHDRAWN)
        return ", ".join(told)


def compare(
    sweep: SweepRuns, curves: pd.DataFrame, thresholds: Sequence[float] = (), test_errors: pd.DataFrame | None = None
) -> list[Row]:
    """One row for each configuration: usable ones first, then by objective, each with its difference to the first.
    Those of an earlier version of the sweep come last.

    Args:
        sweep: what was found.
        curves: its points.
        thresholds: the errors that `points_to` is asked for.
        test_errors: points of `test_error`, to be shown beside the objective; they decide nothing.
    """
    wanted = curves[curves.metric.isin([*BY_TASK, ADAPTATION, TRANSFER, REGRET, _DISTILLED, sweep.objective])]
    groups = dict(tuple(wanted.groupby("configuration")))
    tested = {} if test_errors is None else dict(tuple(test_errors.groupby("configuration")))
    rows = []
    for of in sweep.configurations:
        row = _row(of, sweep.objective, groups.get(of.hash, curves[:0]), thresholds)
        if test_errors is not None:
            means = tested.get(of.hash, test_errors[:0]).groupby("seed").value.mean()
            row = replace(row, test_error=metrics.interval(means[~means.index.isin(list(row.lost))].to_numpy()))
        rows.append(row)
    sign = -1 if sweep.mode == "max" else 1
    rows.sort(key=lambda row: (row.of.removed, not row.usable, row.objective.n == 0, sign * row.objective.mean))
    return _with_differences(rows)


def difference(own: Mapping[int, float], other: Mapping[int, float]) -> Difference:
    """Own minus other, paired by seed, with the uncorrected p of the paired t-test.

    >>> apart = difference({0: 0.3, 1: 0.5, 2: 0.4}, {0: 0.2, 1: 0.3, 2: 0.1, 7: 0.9})
    >>> str(apart.by), round(apart.p, 4)
    ('0.2000 ± 0.2484 (n=3)', 0.0742)
    """
    seeds = sorted(own.keys() & other.keys())
    differences = np.array([own[seed] - other[seed] for seed in seeds])
    p = None
    if len(seeds) >= 2 and np.ptp(differences) > 1e-12:
        p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return Difference(metrics.interval(differences), p)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given: the k-th smallest of m is multiplied by m − k + 1, and no
    corrected value is below a smaller one's.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    factors = len(p) - np.arange(len(p))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(p, dtype=float)[order] * factors))
    return [float(value) for value in corrected]


def _with_differences(rows: list[Row]) -> list[Row]:
    if not rows or not rows[0].usable:
        return rows
    compared = [index for index, row in enumerate(rows) if index and row.values and not row.of.removed]
    raw = {index: difference(rows[index].values, rows[0].values) for index in compared}
    tested = [(index, each.p) for index, each in raw.items() if each.p is not None]
    corrected = dict(zip((index for index, _ in tested), holm([p for _, p in tested]), strict=True))
    return [
        replace(row, difference=Difference(raw[index].by, corrected.get(index))) if index in raw else row
        for index, row in enumerate(rows)
    ]


def _row(of: ConfigurationRuns, objective: str, curves: pd.DataFrame, thresholds: Sequence[float]) -> Row:
    lost = {seed: fate for seed in of.planned if (fate := _fate(of, seed))}
    whole = curves[~curves.seed.isin(list(lost))]
    by_task = whole[whole.metric.isin(BY_TASK)].sort_values("step").groupby(["metric", "seed"]).value.last()
    if objective in BY_TASK:
        values = _of_metric(by_task, objective)
    else:
        means = whole[whole.metric == objective].groupby("seed").value.mean()
        values = dict(zip(map(int, means.index), map(float, means), strict=True))
    final = _of_metric(by_task, "validation_error")
    within = whole[whole.metric == ADAPTATION].sort_values("step")
    distilled = whole[whole.metric == _DISTILLED].value
    return Row(
        of,
        metrics.interval(np.array(list(values.values()))),
        metrics.interval(np.array(list(final.values()))),
        lost,
        values,
        {error: _reached(error, within) for error in thresholds},
        forward_transfer=_over_seeds(whole[(whole.metric == TRANSFER) & (whole.step > 0)], "mean"),
        regret=_over_seeds(whole[whole.metric == REGRET].sort_values("step"), "last"),
        distilled=float(distilled.mean()) if len(distilled) else None,
    )


def _over_seeds(points: pd.DataFrame, of_seed: Literal["mean", "last"]) -> Interval | None:
    """Over seeds, of each seed's mean or last value; None if there are none."""
    return metrics.interval(points.groupby("seed").value.agg(of_seed).to_numpy()) if len(points) else None


def _fate(of: ConfigurationRuns, seed: int) -> str:
    """What became of a seed that is not to be counted; empty for one that is at the end of its stream."""
    run = next((run for run in of.seeds if run.seed == seed), None)
    if run is None:
        return "missing"
    if run.diverged_at is not None:
        return f"diverged at batch {run.diverged_at}"
    if run.status != "FINISHED":
        if run.stopped_at is not None:
            return f"stopped at batch {run.stopped_at}"
        return {"FAILED": "failed", "KILLED": "interrupted"}.get(run.status, "unfinished")
    return ""


def _of_metric(last: pd.Series[float], metric: str) -> dict[int, float]:
    own = last[last.index.get_level_values("metric") == metric]
    return dict(zip(map(int, own.index.get_level_values("seed")), map(float, own), strict=True))


def _reached(error: float, within: pd.DataFrame) -> Reached:
    each = [
        metrics.points_to(error, curve.step.to_numpy(), curve.value.to_numpy()) for _, curve in within.groupby("seed")
    ]
    there = [points for points in each if math.isfinite(points)]
    all_there = bool(each) and len(there) == len(each)
    return Reached(metrics.interval(np.array(there)) if all_there else NOTHING, len(there), len(each))


def summary(sweep: SweepRuns, rows: Sequence[Row]) -> pd.DataFrame:
    """The rows as a table of numbers: what `summary.csv` holds."""
    return pd.DataFrame([_numbers(sweep, row) for row in rows])


def _numbers(sweep: SweepRuns, row: Row) -> dict[str, object]:
    by = row.difference.by if row.difference else NOTHING
    out: dict[str, object] = {
        "configuration": row.of.hash,
        "label": row.of.label,
        "learner": row.of.learner,
        "options": json.dumps(row.of.parameters, sort_keys=True, ensure_ascii=False),
        "objective": sweep.objective,
        **_named("objective", row.objective),
        "n": row.objective.n,
        **_named("final_error", row.final_error),
        **_named("difference", by),
        "difference_n": by.n,
        "difference_p_holm": row.difference.p if row.difference else None,
    }
    for error, reached in row.points_to.items():
        out |= {f"points_to_{error:g}": reached.points.mean, f"points_to_{error:g}_seeds": reached.seeds}
    if row.test_error is not None:
        out |= _named("test_error", row.test_error)
    for name, value in (("forward_transfer", row.forward_transfer), ("regret", row.regret)):
        if value is not None:
            out |= _named(name, value)
    return out | {
        "gradient_evaluations_per_datapoint": row.of.metrics.get("gradient_evaluations_per_datapoint"),
        "seconds": row.of.metrics.get("seconds"),
        "needs_boundaries": row.of.needs_boundaries,
        "seeds": ",".join(map(str, row.of.planned)),
        "diverged_seeds": ",".join(str(s) for s, what in row.lost.items() if what.startswith("diverged")),
        "missing_seeds": ",".join(str(s) for s, what in row.lost.items() if not what.startswith("diverged")),
        "withdrawn": row.of.removed,
        "usable": row.usable,
    }


def _named(name: str, value: Interval) -> dict[str, float | None]:
    return {f"{name}_mean": value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
