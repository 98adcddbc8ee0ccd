"""Comparison of a sweep's configurations: their results over seeds, and their differences, paired by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

from orchestrator.plan.fate import Ending, Fate
from orchestrator.protocol import metrics
from orchestrator.protocol.metrics import Interval
from orchestrator.protocol.objectives import STANDARD
from orchestrator.tracking.points import ADAPTATION, BY_TASK, OBJECTIVE, PAST, REGRET, TRANSFER
from orchestrator.tracking.reader import ConfigurationRuns, SweepRuns

_DISTILLED, _TEST_ERROR = "diagnostics/distilled", "test_error"
NO_INTERVAL = Interval(math.nan, None, None, 0)
SIGNIFICANT = 0.05
_POWER = 0.8
_MOST_SEEDS = 1_000


@dataclass(frozen=True)
class PairedDifference:
    """A configuration's objective minus that of the best one, on their common seeds.

    Attributes:
        interval: mean and 95 % interval of the differences.
        p: of the two-sided paired t-test, corrected by Holm for all configurations that are compared with the best
            one; None without a test: fewer than two common seeds, or the same difference for all of them.
    """

    interval: Interval
    p: float | None

    @property
    def effect(self) -> float:
        """Mean divided by standard deviation; requires an interval."""
        interval = self.interval
        assert interval.high is not None
        error = (interval.high - interval.mean) / float(metrics.t_quantile(interval.n - 1))
        return interval.mean / (error * math.sqrt(interval.n))


@dataclass(frozen=True)
class PointsTo:
    """The metric `points_to(e)` over seeds.

    Attributes:
        points: mean and interval if every seed reached the threshold, else empty.
        reached: the number of seeds that reached it.
        total: the number of seeds.
    """

    points: Interval
    reached: int
    total: int


@dataclass(frozen=True)
class ComparisonRow:
    """The results of a configuration.

    Attributes:
        configuration: its runs.
        objective: over seeds.
        final_error: the held-out error after the last task, over seeds.
        excluded: seed → its fate, of the seeds that are in no mean.
        values: seed → objective, of the other seeds.
        points_to: threshold → `points_to`.
        difference: to the best configuration; None for the best one and for what is not compared with it.
        test_error: mean over tasks; None unless it was requested.
        forward_transfer: mean over tasks without the first; None if it was not measured.
        regret: at the end of the stream; None if it was not computed.
        distilled: mean share of a learner's targets that an older model of it supplied; None for other learners.
        past: average accuracy, backward transfer and forgetting at the end; empty without `evaluate_past`.
        so_far: the objective of the excluded seeds that did not diverge, up to their last task or batch; None if they
            have none, or another seed finished. It is in no comparison.
    """

    configuration: ConfigurationRuns
    objective: Interval
    final_error: Interval
    excluded: dict[int, Fate] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)
    points_to: dict[float, PointsTo] = field(default_factory=dict)
    difference: PairedDifference | None = None
    test_error: Interval | None = None
    forward_transfer: Interval | None = None
    regret: Interval | None = None
    distilled: float | None = None
    past: dict[str, Interval] = field(default_factory=dict)
    so_far: Interval | None = None

    @property
    def usable(self) -> bool:
        """Whether this can be the best configuration of the sweep's current version: every seed has its objective."""
        runs = self.configuration
        ended = not runs.removed and runs.complete and not self.excluded
        return ended and self.objective.n >= max(1, len(runs.planned))

    @property
    def diverged_seeds(self) -> list[int]:
        """The seeds that diverged."""
        return [seed for seed, fate in self.excluded.items() if fate.ending is Ending.DIVERGED]

    @property
    def missing_seeds(self) -> list[int]:
        """The excluded seeds that did not diverge."""
        return [seed for seed, fate in self.excluded.items() if fate.ending is not Ending.DIVERGED]

    @property
    def seeds_without_objective(self) -> list[int]:
        """The seeds that finished without one: a function of the user's own returned infinity or no number."""
        if self.objective.n >= len(self.configuration.planned) - len(self.excluded):
            return []
        return [seed for seed in self.configuration.planned if seed not in self.excluded and seed not in self.values]

    @property
    def notes(self) -> str:
        """The excluded seeds by their fate, the share of distilled targets, membership in a population, removal."""
        fates: dict[Fate, list[int]] = {}
        for seed, fate in self.excluded.items():
            fates.setdefault(fate, []).append(seed)
        notes = [
            f"{'seed' if len(seeds) == 1 else 'seeds'} {' '.join(map(str, seeds))} {fate}"
            for fate, seeds in fates.items()
        ]
        if seeds := self.seeds_without_objective:
            notes.append(f"no objective for {'seed' if len(seeds) == 1 else 'seeds'} {' '.join(map(str, seeds))}")
        if self.distilled is not None:
            notes.append(
                f"{100 * self.distilled:.1f} % of targets distilled" if self.distilled else "nothing distilled"
            )
        if self.configuration.population:
            notes.append("member of a population")
        if self.configuration.removed:
            notes.append("of an earlier version of this sweep")
        return ", ".join(notes)


def compare(sweep: SweepRuns, curves: pd.DataFrame, thresholds: Sequence[float] = ()) -> list[ComparisonRow]:
    """One row for each configuration: usable ones first, by objective, each with its difference to the first row.

    Where objectives are equal, the order of the plan decides. Configurations that were removed from the sweep are last.

    Args:
        sweep: the sweep's runs.
        curves: the points of its curves; those of `test_error`, if any, do not affect the order.
        thresholds: the errors for which `points_to` is computed.
    """
    names = [*BY_TASK, ADAPTATION, TRANSFER, REGRET, _DISTILLED, _TEST_ERROR, OBJECTIVE, *STANDARD, *PAST]
    groups = dict(tuple(curves[curves.metric.isin(names)].groupby("configuration")))
    rows = [
        _row(configuration, sweep.objective, groups.get(configuration.hash, curves[:0]), thresholds)
        for configuration in sweep.configurations
    ]
    sign = -1 if sweep.mode == "max" else 1
    rows.sort(
        key=lambda row: (row.configuration.removed, not row.usable, row.objective.n == 0, sign * row.objective.mean)
    )
    return with_differences(rows)


def difference(values: Mapping[int, float], reference: Mapping[int, float]) -> PairedDifference:
    """Values minus reference (seed → objective), paired by seed, with the uncorrected p of the paired t-test.

    >>> result = difference({0: 0.3, 1: 0.5, 2: 0.4}, {0: 0.2, 1: 0.3, 2: 0.1, 7: 0.9})
    >>> str(result.interval), round(result.p, 4)
    ('0.2000 ± 0.2484 (n=3)', 0.0742)
    """
    seeds = sorted(values.keys() & reference.keys())
    differences = np.array([values[seed] - reference[seed] for seed in seeds])
    p = None
    if len(seeds) >= 2 and np.ptp(differences) > 1e-12:
        p = _t_test(differences)
    return PairedDifference(metrics.interval(differences), p)


def _t_test(values: np.ndarray) -> float:
    """The p of the two-sided t-test of mean zero; the same bits as `scipy.stats.ttest_1samp`, whose import is slow."""
    from scipy import special

    n, mean = len(values), np.mean(values)
    t = mean / np.sqrt(np.mean((values - mean) ** 2) * (n / (n - 1)) / n)
    return float(2 * special.stdtr(n - 1, -abs(t)))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order of `p`.

    The k-th smallest of m is multiplied by m − k + 1, and no corrected value is below that of a smaller one.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    factors = len(p) - np.arange(len(p))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(p, dtype=float)[order] * factors))
    return [float(value) for value in corrected]


def seeds_needed(effect: float, tests: int = 1) -> int | None:
    """The number of seeds with which a paired t-test finds a difference in four of five experiments.

    Args:
        effect: mean divided by standard deviation of the difference.
        tests: the number of tests among which this is one, at the level 5 % / `tests`, as for the first of Holm.

    Returns:
        The number; None if it is above 1,000.

    >>> [seeds_needed(effect) for effect in (0.2, 0.5, 0.8, 1.0, 0.01)], seeds_needed(0.5, tests=5)
    ([199, 34, 15, 10, None], 51)
    """
    from scipy import special

    n = np.arange(2, _MOST_SEEDS + 1)
    critical = special.stdtrit(n - 1, 1 - SIGNIFICANT / tests / 2)
    enough = 1 - special.nctdtr(n - 1, abs(effect) * np.sqrt(n), critical) >= _POWER
    return int(n[enough][0]) if enough.any() else None


def with_differences(rows: list[ComparisonRow]) -> list[ComparisonRow]:
    """The rows, each with its difference to the first one if that is usable."""
    if not rows or not rows[0].usable:
        return rows
    compared = [index for index, row in enumerate(rows) if index and row.values and not row.configuration.removed]
    raw = {index: difference(rows[index].values, rows[0].values) for index in compared}
    tested = [(index, each.p) for index, each in raw.items() if each.p is not None]
    corrected = dict(zip((index for index, _ in tested), holm([p for _, p in tested]), strict=True))
    return [
        replace(row, difference=PairedDifference(raw[index].interval, corrected.get(index))) if index in raw else row
        for index, row in enumerate(rows)
    ]


def _row(
    configuration: ConfigurationRuns, objective: str, curves: pd.DataFrame, thresholds: Sequence[float]
) -> ComparisonRow:
    fates = {seed: _fate(configuration, seed) for seed in configuration.planned}
    excluded = {seed: fate for seed, fate in fates.items() if fate.ending is not Ending.FINISHED}
    points = curves[~curves.seed.isin(list(excluded))]
    points = points[(points.metric != TRANSFER) | (points.step > 0)]
    by_metric = {str(metric): group for metric, group in points.groupby("metric")}
    none = points[:0]

    def by_seed(metric: str, aggregate: Literal["mean", "last"]) -> dict[int, float]:
        return _by_seed(by_metric.get(metric, none), aggregate)

    def over_seeds(values: Mapping[int, float]) -> Interval:
        return metrics.interval(np.array(list(values.values())))

    aggregate: Literal["mean", "last"] = "last" if objective in BY_TASK else "mean"
    name = objective if objective in STANDARD else OBJECTIVE
    values = by_seed(name, aggregate)
    open_seeds = [seed for seed, fate in excluded.items() if fate.ending is not Ending.DIVERGED and not values]
    so_far = _by_seed(curves[curves.seed.isin(open_seeds) & (curves.metric == name)], aggregate)
    within = by_metric.get(ADAPTATION, none).sort_values("step")
    distilled = by_metric.get(_DISTILLED, none).value
    return ComparisonRow(
        configuration,
        over_seeds(values),
        over_seeds(by_seed("validation_error", "last")),
        excluded,
        values,
        {error: _points_to(error, within) for error in thresholds},
        test_error=over_seeds(errors) if (errors := by_seed(_TEST_ERROR, "mean")) else None,
        forward_transfer=over_seeds(transfer) if (transfer := by_seed(TRANSFER, "mean")) else None,
        regret=over_seeds(regret) if (regret := by_seed(REGRET, "last")) else None,
        distilled=float(distilled.mean()) if len(distilled) else None,
        past={name: over_seeds(last) for name in PAST if (last := by_seed(name, "last"))},
        so_far=over_seeds(so_far) if so_far else None,
    )


def _by_seed(points: pd.DataFrame, aggregate: Literal["mean", "last"]) -> dict[int, float]:
    """The mean or the last value of one metric's points, of each seed."""
    ordered = points.sort_values("step")
    if aggregate == "mean" and set(ordered.metric) == {"online_error"}:
        # A point may be the mean over the batches since the one before.
        curves = {int(str(seed)): curve for seed, curve in ordered.groupby("seed")}
        return {
            seed: float(np.average(curve.value, weights=np.diff(curve.step, prepend=-1)))
            for seed, curve in curves.items()
        }
    values = ordered.groupby("seed").value.agg(aggregate)
    return dict(zip(map(int, values.index), map(float, values), strict=True))


def _fate(configuration: ConfigurationRuns, seed: int) -> Fate:
    run = next((run for run in configuration.seeds if run.seed == seed), None)
    if run is None:
        return Fate(Ending.MISSING)
    if run.diverged_at is not None:
        return Fate(Ending.DIVERGED, run.diverged_at)
    if run.status != "FINISHED" and run.stopped_at is not None:
        return Fate(Ending.STOPPED, run.stopped_at)
    endings = {"FINISHED": Ending.FINISHED, "FAILED": Ending.FAILED, "KILLED": Ending.INTERRUPTED}
    return Fate(endings.get(run.status, Ending.UNFINISHED))


def _points_to(error: float, within: pd.DataFrame) -> PointsTo:
    by_seed = [
        metrics.points_to(error, curve.step.to_numpy(), curve.value.to_numpy()) for _, curve in within.groupby("seed")
    ]
    reached = [points for points in by_seed if math.isfinite(points)]
    every = bool(by_seed) and len(reached) == len(by_seed)
    return PointsTo(metrics.interval(np.array(reached)) if every else NO_INTERVAL, len(reached), len(by_seed))


def summary(sweep: SweepRuns, rows: Sequence[ComparisonRow]) -> pd.DataFrame:
    """The rows as a table of numbers: the content of `summary.csv`."""
    return pd.DataFrame([_numbers(sweep, row) for row in rows])


def _numbers(sweep: SweepRuns, row: ComparisonRow) -> dict[str, object]:
    runs, difference = row.configuration, row.difference or PairedDifference(NO_INTERVAL, None)
    numbers: dict[str, object] = {
        "configuration": runs.hash,
        "label": runs.label,
        "learner": runs.learner,
        "options": json.dumps(runs.parameters, sort_keys=True, ensure_ascii=False),
        "objective": sweep.objective,
        **interval_numbers("objective", row.objective),
        "n": row.objective.n,
        **interval_numbers("final_error", row.final_error),
        **interval_numbers("difference", difference.interval),
        "difference_n": difference.interval.n,
        "difference_p_holm": difference.p,
    }
    for error, points_to in row.points_to.items():
        numbers |= {f"points_to_{error:g}": points_to.points.mean, f"points_to_{error:g}_seeds": points_to.reached}
    for name in ("test_error", "forward_transfer", "regret", "so_far"):
        if (value := getattr(row, name)) is not None:
            numbers |= interval_numbers(name, value)
    for name, value in row.past.items():
        numbers |= interval_numbers(name, value)
    return numbers | {
        "gradient_evaluations_per_datapoint": runs.metrics.get("gradient_evaluations_per_datapoint"),
        "seconds": runs.metrics.get("seconds"),
        "needs_boundaries": runs.needs_boundaries,
        "seeds": ",".join(map(str, runs.planned)),
        "diverged_seeds": ",".join(map(str, row.diverged_seeds)),
        "missing_seeds": ",".join(map(str, row.missing_seeds)),
        "withdrawn": runs.removed,
        "usable": row.usable,
    }


def interval_numbers(name: str, value: Interval) -> dict[str, float | None]:
    """An interval as columns of a table."""
    return {f"{name}_mean": value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
