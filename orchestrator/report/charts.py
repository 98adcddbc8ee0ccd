"""What the report draws, as numbers: `figures` puts it on paper, `page` on a screen.

Configurations keep their colour from chart to chart: a series' `style` is the place of its configuration among those in
front. Of many configurations, the best of each learner is in front and the others are grey; where some of them are
drawn apart (an ablation), all get colours for that panel alone, which then needs a legend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from orchestrator.protocol import metrics
from orchestrator.report.comparison import Row
from orchestrator.tracking.names import INITIAL
from orchestrator.tracking.points import ADAPTATION, BY_TASK, REGRET, TRANSFER
from orchestrator.tracking.reader import SweepRuns

ALL_IN_COLOUR = 8
_FIRST = ("K", "alpha1", "beta1", "beta2")
_BLACK = 4
_GRID = 6
"""Values of an option up to which their means are joined by a line: more were drawn at random."""


@dataclass(frozen=True)
class Series:
    """``x``, ``y`` [n], and the ends of the intervals, NaN where there is none. ``label``: "" keeps it out of the
    legend. ``style``: a colour's number, None for grey. ``owner``: the place of its configuration in the table, None if
    it is of several. ``marked``: whether a line has markers, to be told from others without its colour. ``hint``: what
    the page says of a point, the label if empty."""

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    style: int | None
    owner: int | None = None
    kind: Literal["line", "points", "both"] = "line"
    marked: bool = True
    hint: str = ""


@dataclass(frozen=True)
class Panel:
    """A pair of axes. ``ticks``: (x, text) where x are no numbers but places. ``from_zero``: whether y begins there.
    ``log_y``: all y are positive. ``own_colours``: its styles are not those of other panels."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    from_zero: bool = True
    log_y: bool = False
    own_colours: bool = False

    @property
    def y_limits(self) -> tuple[float, float] | None:
        """From the means: of two seeds, the bands of lines are 13 standard errors wide, and would leave nothing to see.

        Points show their intervals whole, as far as an error goes: without them a difference of nothing fills the
        panel. None if there is nothing.
        """
        y = np.concatenate([np.empty(0), *(series.y[np.isfinite(series.y)] for series in self.series)])
        if not len(y):
            return None
        low, high = float(y.min()), float(y.max())
        if self.log_y:
            return low / 1.4, high * 1.4
        if self.from_zero:
            return 0.0, max(0.02, min(1.02, 1.12 * high))
        ends = [end[np.isfinite(end)] for one in self.series if one.kind != "line" for end in (one.low, one.high)]
        if len(reach := np.concatenate([np.empty(0), *ends])):
            low = min(low, max(float(reach.min()), 0.0))
            high = max(high, min(float(reach.max()), 1.0))
        room = max(0.02, (0.05 if len(reach) else 0.5) * (high - low))
        return low - room, high + room


@dataclass(frozen=True)
class Chart:
    """``name``: of its files. ``empty``: what stands in a panel that has nothing yet."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    empty: str = "nothing yet"


def all_charts(sweep: SweepRuns, rows: Sequence[Row], curves: pd.DataFrame) -> list[Chart]:
    """Learning curves always, and every other chart that there is something for."""
    drawn = _Configurations(sweep, rows, curves)
    charts: list[Chart | None] = [
        drawn.learning_curves(),
        drawn.adaptation(),
        drawn.ablation("K", "How far the meta-gradient looks back"),
        drawn.ablation("meta_updates", "With and without meta-updates"),
        drawn.transfer(),
        drawn.cost(),
        drawn.effects(),
    ]
    return [chart for chart in charts if chart is not None]


class _Configurations:
    """The rows of a table, ready to be drawn."""

    def __init__(self, sweep: SweepRuns, rows: Sequence[Row], curves: pd.DataFrame) -> None:
        self._name, self._rows = sweep.name, rows
        self._objective = sweep.objective.replace("_", " ")
        drawn = curves[curves.metric.isin([*BY_TASK, ADAPTATION, TRANSFER, REGRET])]
        self._curves = dict(tuple(drawn.groupby(["configuration", "metric"])))
        best_of = {row.of.learner: row.of.hash for row in reversed(rows)}
        few = len(rows) <= ALL_IN_COLOUR
        front = [index for index, row in enumerate(rows) if few or best_of[row.of.learner] == row.of.hash]
        self._style = {index: style for style, index in enumerate(front)}
        alike = len({row.of.planned for row in rows}) <= 1
        self._labels = [
            row.of.label
            + ("" if alike else f", n={len(row.of.planned)}")
            + (f" ({row.notes})" if row.lost or row.of.removed else "")
            for row in rows
        ]

    def learning_curves(self) -> Chart:
        """The paper's Figure 3."""
        panels = (
            self._by_task("cumulative_error", "Cumulative error"),
            self._by_task("validation_error", "Error on the task just learned"),
        )
        return Chart("learning_curves", self._title(""), panels, "no task is over yet")

    def adaptation(self) -> Chart | None:
        """Online error by position within a task."""
        x_label = "points of the task learned before"
        series = self._series(range(len(self._rows)), lambda row: self._curve(row, ADAPTATION))
        panel = Panel("Adaptation within a task, mean over tasks", x_label, "share misclassified", series)
        return Chart("adaptation", self._title("adaptation; "), (panel,)) if series else None

    def ablation(self, option: str, what: str) -> Chart | None:
        """The paper's Figure 4: configurations that differ in this option and in nothing else."""
        group = self._differing_in(option)
        if len(group) < 2:
            return None
        panels = (
            self._by_task("cumulative_error", "Cumulative error", group),
            self._by_task("validation_error", "Error on the task just learned", group),
            self._effect(option, {self._rows[group[0]].of.learner: group}, joined=True),
        )
        return Chart(f"ablation_{option}", self._title(f"{what}; "), panels)

    def transfer(self) -> Chart | None:
        """What a task gains from those before it, and what learning online loses against hindsight."""
        panels = []
        for metric, title, y_label in (
            (TRANSFER, "Forward transfer, before a task is learned", "a fresh network's error − own"),
            (REGRET, "Regret against hindsight", "sum of losses above the reference's"),
        ):
            series = self._series(range(len(self._rows)), partial(self._curve, metric=metric))
            if series:
                panels.append(Panel(title, "tasks seen", y_label, series, from_zero=False))
        return Chart("transfer", self._title("transfer and regret; "), tuple(panels)) if panels else None

    def cost(self) -> Chart | None:
        """What the objective costs."""
        panels = tuple(
            Panel(title, label, self._objective, self._costs(metric), log_x=True)
            for metric, title, label in (
                ("gradient_evaluations_per_datapoint", "Against gradients", "gradient evaluations per datapoint"),
                ("seconds", "Against time", "seconds in a learner actor"),
            )
        )
        there = any(panel.series for panel in panels)
        return Chart("cost", self._title("error against cost; "), panels) if there else None

    def effects(self) -> Chart | None:
        """One panel for each option that varies within a learner."""
        options: dict[str, dict[str, list[int]]] = {}
        for learner in dict.fromkeys(row.of.learner for row in self._rows):
            group = [index for index, row in enumerate(self._rows) if row.of.learner == learner and row.objective.n]
            for option in self._varying(group):
                options.setdefault(option, {})[learner] = group
        order = sorted(
            options, key=lambda option: (option not in _FIRST, _FIRST.index(option) if option in _FIRST else 0)
        )
        panels = tuple(self._effect(option, options[option]) for option in order)
        return Chart("effects", f"{self._name}: what each option does", panels) if panels else None

    def _title(self, what: str) -> str:
        counts = {len(row.of.planned) for row in self._rows}
        if counts == {1}:
            over = "one seed each"
        else:
            over = f"mean and 95 % interval over {f'{counts.pop()} seeds' if len(counts) == 1 else 'seeds'}"
        many = len(self._rows) > ALL_IN_COLOUR and len(self._style) < len(self._rows)
        hidden = f"; {len(self._rows)} configurations, the best of each learner in colour" if many else ""
        return f"{self._name}: {what}{over}{hidden}"

    def _by_task(self, metric: str, title: str, group: Sequence[int] | None = None) -> Panel:
        own = group is not None and any(index not in self._style for index in group)
        of = range(len(self._rows)) if group is None else group
        series = self._series(of, lambda row: self._curve(row, metric), own_colours=own)
        return Panel(title, "tasks seen", "share misclassified", series, own_colours=own)

    def _series(
        self,
        group: Sequence[int],
        values: Callable[[Row], tuple[np.ndarray, ...] | None],
        kind: Literal["line", "points"] = "line",
        own_colours: bool = False,
    ) -> tuple[Series, ...]:
        out = []
        for place, index in enumerate(group):
            made = values(self._rows[index])
            if made is not None:
                style = place if own_colours else self._style.get(index)
                x, mean, low, high = made
                out.append(Series(self._labels[index], x, mean, low, high, style, index, kind))
        return tuple(out)

    def _curve(self, row: Row, metric: str) -> tuple[np.ndarray, ...] | None:
        """x, mean, low and high. Where a seed is lost the line goes on, as its label says, without an interval: that of
        the others would mislead."""
        points = self._curves.get((row.of.hash, metric))
        if points is None:
            return None
        table = points.pivot(index="seed", columns="step", values="value")
        by_step = table.to_numpy()
        mean, low, high = metrics.interval_curve(by_step)
        whole = np.isfinite(by_step).all(axis=0) & (len(by_step) == len(row.of.planned))
        first = 0 if metric == ADAPTATION else 1  # tasks are counted from one
        x = table.columns.to_numpy() + first
        return x, mean, np.where(whole, low, np.nan), np.where(whole, high, np.nan)

    def _costs(self, metric: str) -> tuple[Series, ...]:
        def values(row: Row) -> tuple[np.ndarray, ...] | None:
            cost = row.of.metrics.get(metric)
            if cost is None or not row.objective.n or cost <= 0:
                return None
            return np.array([cost]), *_as_arrays([row])

        return self._series(range(len(self._rows)), values, "points")

    def _varying(self, group: Sequence[int]) -> list[str]:
        """Options that all of these have, with several values; what a population's members only began with is none."""
        values: dict[str, list[Any]] = {}
        for index in group:
            for key, value in self._rows[index].of.parameters.items():
                values.setdefault(key, []).append(value)
        return [
            key
            for key, there in values.items()
            if len(there) == len(group) and any(value != there[0] for value in there) and not key.endswith(INITIAL)
        ]

    def _differing_in(self, option: str) -> list[int]:
        """The largest group of configurations that differ in this option only, in order of its values; of two as large,
        the one with the better configuration."""
        groups: dict[str, list[int]] = {}
        for index, row in enumerate(self._rows):
            if option in row.of.parameters:
                others = {key: value for key, value in row.of.parameters.items() if key != option}
                groups.setdefault(repr(sorted(others.items())), []).append(index)
        largest = max(groups.values(), key=len, default=[])
        return sorted(largest, key=lambda index: _place(self._rows[index].of.parameters[option]))

    def _effect(self, option: str, groups: dict[str, list[int]], joined: bool = False) -> Panel:
        """Objective against an option's value, one series a learner; the means are joined where values recur."""
        everything = [self._rows[index].of.parameters[option] for group in groups.values() for index in group]
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in everything)
        distinct = sorted({repr(value): value for value in everything}.values(), key=_place)
        places = {repr(value): float(value) if numeric else float(i) for i, value in enumerate(distinct)}
        series, correlations = [], []
        for style, (learner, group) in enumerate(groups.items()):
            rows = [self._rows[index] for index in group if self._rows[index].objective.n]
            x = np.array([places[repr(row.of.parameters[option])] for row in rows])
            mean, low, high = _as_arrays(rows)
            label, look = ("", _BLACK) if joined else (learner, style)
            series.append(Series(label, x, mean, low, high, look, kind="both" if joined else "points"))
            values = np.unique(x)
            if not joined and 2 <= len(values) <= min(_GRID, len(x) - 1):
                means = np.array([mean[x == value].mean() for value in values])
                none = np.full(len(values), np.nan)
                series.append(Series(f"{learner}, mean", values, means, none, none, style, marked=False))
            if numeric and len(values) >= 5 and len(np.unique(mean)) > 1:
                correlations.append(f"ρ = {stats.spearmanr(x, mean).statistic:+.2f}, n = {len(x)}")
        ticks = () if numeric and len(distinct) > _GRID else tuple((places[repr(v)], _shown(v)) for v in distinct)
        log = numeric and min(places.values()) > 0 and max(places.values()) / min(places.values()) >= 10
        title = option + (f" ({'; '.join(correlations)})" if correlations else "")
        return Panel(title, option, self._objective, tuple(series), log, ticks, from_zero=False)


def _place(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then everything else by name."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _as_arrays(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Objectives: mean, low, high."""
    each = [row.objective for row in rows]
    nan = float("nan")
    return (
        np.array([one.mean for one in each]),
        np.array([nan if one.low is None else one.low for one in each]),
        np.array([nan if one.high is None else one.high for one in each]),
    )
