"""The report's charts as numbers, which `figures` prints and `html_page` shows on a screen.

A configuration has the same colour in all charts: a series' `style` is the rank of its configuration among those in
colour. Of many configurations, only the best of each learner has a colour and the others are grey; where some grey ones
are compared (an ablation), all have colours in that panel only, which then needs a legend.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from orchestrator.protocol import metrics
from orchestrator.report.comparison import ComparisonRow
from orchestrator.report.derived_curves import LATE_ADAPTATION
from orchestrator.tracking.names import INITIAL
from orchestrator.tracking.points import ADAPTATION, BY_TASK, REGRET, TRANSFER
from orchestrator.tracking.reader import SweepRuns

ALL_IN_COLOUR = 8
_FIRST = ("K", "alpha1", "beta1", "beta2")
_BLACK = 4
BANDS_FROM = 5
"""The fewest seeds whose interval is drawn as a band: that of three extends 4.3 standard errors to each side."""
_SHARES = (*BY_TASK, ADAPTATION, LATE_ADAPTATION, "online_error")
"""Metrics whose intervals end at 0 and 1."""
_SEARCHED = 8
"""The fewest finished configurations of a learner whose search is drawn."""
_GRID = 6
"""The most values of an option whose means are joined by a line; more are random samples."""


@dataclass(frozen=True)
class Series:
    """A line or points of a panel.

    Attributes:
        label: in the legend, which leaves out an empty label.
        x: [n].
        y: [n].
        low: lower ends of the intervals [n], NaN without an interval.
        high: upper ends [n].
        style: the number of a colour, line style and marker; None for grey.
        owner: the row of its configuration in the table; None for a series of several configurations.
        kind: line, points, or both.
        marked: whether a line has markers, which distinguish it without its colour.
        hint: the text that the page shows at a point; the label if empty.
        by_seed: the curves of single seeds [R, n], drawn as thin lines instead of an interval.
    """

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
    by_seed: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Attributes:
        title: above the axes.
        x_label: of the x axis.
        y_label: of the y axis.
        series: what is drawn.
        log_x: whether the x axis is logarithmic.
        ticks: (x, text) of the x axis; empty for the default ones.
        from_zero: whether the y axis starts at zero.
        log_y: whether the y axis is logarithmic; all y are positive.
        own_colours: whether its styles differ from those of the other panels.
        shares: whether y are shares, such as errors: they end at 0 and 1.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    from_zero: bool = True
    log_y: bool = False
    own_colours: bool = False
    shares: bool = True

    @property
    def y_limits(self) -> tuple[float, float] | None:
        """The limits of y, None for an empty panel.

        Lines: from means and single seeds, as a wide band would flatten the curves.
        Points: with the intervals, those of shares cut at 0 and 1, as a negligible difference would fill the panel
        otherwise.
        """
        y = np.concatenate([np.empty(0), *(series.y[np.isfinite(series.y)] for series in self.series)])
        if not len(y):
            return None
        seeds = [series.by_seed[np.isfinite(series.by_seed)] for series in self.series if series.style is not None]
        y = np.concatenate([y, *seeds])
        low, high = float(y.min()), float(y.max())
        if self.log_y:
            return low / 1.4, high * 1.4
        if self.from_zero:
            return 0.0, max(0.02, min(1.02, 1.12 * high))
        ends = [end[np.isfinite(end)] for one in self.series if one.kind != "line" for end in (one.low, one.high)]
        if len(limits := np.concatenate([np.empty(0), *ends])):
            lowest, highest = float(limits.min()), float(limits.max())
            low = min(low, max(lowest, 0.0) if self.shares else lowest)
            high = max(high, min(highest, 1.0) if self.shares else highest)
        margin = max(0.02, (0.05 if len(limits) else 0.5) * (high - low))
        return low - margin, high + margin


@dataclass(frozen=True)
class Chart:
    """Panels side by side.

    Attributes:
        name: of its files.
        title: above the panels.
        panels: from left to right.
        empty: the text in a panel without data.
        wide: whether each panel is as wide as the page.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    empty: str = "nothing yet"
    wide: bool = False


def all_charts(sweep: SweepRuns, rows: Sequence[ComparisonRow], curves: pd.DataFrame) -> list[Chart]:
    """The learning curves, and every other chart for which there is data."""
    configurations = _Configurations(sweep, rows, curves)
    charts: list[Chart | None] = [
        configurations.learning_curves(),
        configurations.adaptation(),
        configurations.ablation("K", "How far the meta-gradient looks back"),
        configurations.ablation("meta_updates", "With and without meta-updates"),
        configurations.transfer(),
        configurations.cost(),
        configurations.effects(),
        *configurations.search(),
    ]
    return [chart for chart in charts if chart is not None]


def styles(rows: Sequence[ComparisonRow]) -> dict[int, int]:
    """The number of its colour for each row that has one: all of few rows, of many the best of each learner."""
    best = {row.configuration.learner: row.configuration.hash for row in reversed(rows)}.values()
    all_in_colour = len(rows) <= ALL_IN_COLOUR
    in_colour = [index for index, row in enumerate(rows) if all_in_colour or row.configuration.hash in best]
    return {index: style for style, index in enumerate(in_colour)}


class _Configurations:
    """The rows of a table with their colours, labels and curves."""

    def __init__(self, sweep: SweepRuns, rows: Sequence[ComparisonRow], curves: pd.DataFrame) -> None:
        self._name, self._rows, self._runs = sweep.name, rows, [row.configuration for row in rows]
        self._order, self._higher = sweep.configurations, sweep.mode == "max"
        self._metric, self._objective = sweep.objective, sweep.objective.replace("_", " ")
        relevant = curves[curves.metric.isin([*_SHARES, TRANSFER, REGRET])]
        self._curves = dict(tuple(relevant.groupby(["configuration", "metric"])))
        self._style = styles(rows)
        same_seeds = len({runs.planned for runs in self._runs}) <= 1
        self._labels = [
            row.configuration.label
            + ("" if same_seeds else f", n={len(row.configuration.planned)}")
            + (f" ({row.notes})" if row.excluded or row.configuration.removed else "")
            for row in rows
        ]

    def learning_curves(self) -> Chart:
        """The paper's Figure 3."""
        panels = self._by_task(None)
        return Chart("learning_curves", self._title(""), panels, "no task is finished yet")

    def adaptation(self) -> Chart | None:
        """The online error by position within a task."""
        x_label = "datapoints of the task learned before"
        panels = []
        for metric, tasks in ((ADAPTATION, "all tasks"), (LATE_ADAPTATION, "the last quarter of tasks")):
            if series := self._series(range(len(self._rows)), partial(self._curve, metric=metric)):
                panels.append(Panel(f"Mean over {tasks}", x_label, "share misclassified", series))
        return Chart("adaptation", self._title("adaptation within a task; "), tuple(panels)) if panels else None

    def ablation(self, option: str, what: str) -> Chart | None:
        """The paper's Figure 4: configurations that differ in this option only."""
        group = self._differing_in(option)
        if len(group) < 2:
            return None
        effect = self._effect(option, {self._runs[group[0]].learner: group}, joined=True)
        return Chart(f"ablation_{option}", self._title(f"{what}; "), (*self._by_task(group), effect))

    def transfer(self) -> Chart | None:
        """Forward transfer, and the regret of online learning against hindsight."""
        panels = []
        for metric, title, y_label in (
            (TRANSFER, "Forward transfer, before a task is learned", "a fresh network's error − the learner's"),
            (REGRET, "Regret against hindsight", "sum of losses − the reference's"),
        ):
            series = self._series(range(len(self._rows)), partial(self._curve, metric=metric))
            if series:
                panels.append(Panel(title, "tasks seen", y_label, series, from_zero=False))
        return Chart("transfer", self._title("transfer and regret; "), tuple(panels)) if panels else None

    def cost(self) -> Chart | None:
        """The objective against its cost."""
        shares = self._metric.startswith(_SHARES)  # another objective can be below zero, or far above one

        def panel(title: str, label: str, metric: str) -> Panel:
            series = self._costs(metric)
            return Panel(title, label, self._objective, series, log_x=True, from_zero=shares, shares=shares)

        panels = tuple(
            _with_log_ticks(panel(title, label, metric))
            for metric, title, label in (
                ("gradient_evaluations_per_datapoint", "Against gradients", "gradient evaluations per datapoint"),
                ("seconds", "Against time", "seconds in a learner actor"),
            )
        )
        if not any(panel.series for panel in panels):
            return None
        return Chart("cost", self._title("error against cost; ", bands=True), panels)

    def effects(self) -> Chart | None:
        """One panel for each option that varies within a learner."""
        options: dict[str, dict[str, list[int]]] = {}
        for learner in dict.fromkeys(runs.learner for runs in self._runs):
            rows = enumerate(self._rows)
            group = [index for index, row in rows if row.configuration.learner == learner and row.objective.n]
            for option in self._varying(group):
                options.setdefault(option, {})[learner] = group
        order = [*(option for option in _FIRST if option in options), *(each for each in options if each not in _FIRST)]
        panels = tuple(self._effect(option, options[option]) for option in order)
        return Chart("effects", f"{self._name}: effect of each option", panels) if panels else None

    def search(self) -> list[Chart]:
        """Of each learner with drawn values: the search's course, the options' importance, parallel coordinates."""
        order = {runs.hash: place for place, runs in enumerate(self._order)}
        panels: list[Panel] = []
        parallel: list[Panel] = []
        for learner in dict.fromkeys(runs.learner for runs in self._runs):
            group = [
                index for index, row in enumerate(self._rows) if row.usable and self._runs[index].learner == learner
            ]
            options = self._varying(group)
            values = {option: [self._runs[index].parameters[option] for index in group] for option in options}
            if len(group) < _SEARCHED or not any(len(set(map(repr, column))) > _GRID for column in values.values()):
                continue
            objectives = np.array([self._rows[index].objective.mean for index in group])
            created = np.argsort([order.get(self._runs[index].hash, 0) for index in group], kind="stable")
            panels.append(self._course(learner, objectives[created]))
            panels.append(_importance(learner, values, objectives))
            parallel.append(self._parallel(learner, group, values, objectives))
        title = f"{self._name}: search for hyper-parameters, finished configurations only"
        charts = [Chart("search", title, tuple(panels))]
        charts.append(Chart("parallel_coordinates", f"{title}; the best tenth in colour", tuple(parallel), wide=True))
        return charts if panels else []

    def _course(self, learner: str, objectives: np.ndarray) -> Panel:
        """The objective of each configuration in the order of their start, and the best one so far."""
        best = (np.maximum if self._higher else np.minimum).accumulate(objectives)
        x, nan = np.arange(1.0, len(objectives) + 1), np.full(len(objectives), np.nan)
        series = (
            Series("a configuration", x, objectives, nan, nan, 0, kind="points"),
            Series("the best so far", x, best, nan, nan, 1, marked=False),
        )
        return Panel(f"{learner}: course of the search", "configurations", self._objective, series, from_zero=False)

    def _parallel(
        self, learner: str, group: Sequence[int], values: Mapping[str, Sequence[Any]], objectives: np.ndarray
    ) -> Panel:
        """Each configuration as a line over its options and its objective, each scaled to its range."""
        axes = {**{option: _scaled(column) for option, column in values.items()}, self._objective: _scaled(objectives)}
        y = np.stack([scaled for scaled, _, _ in axes.values()], axis=1)
        x = np.arange(float(len(axes)))
        ticks = tuple(
            (at, f"{name}\n{low}\n{high}") for at, (name, (_, low, high)) in zip(x, axes.items(), strict=True)
        )
        nan, best = np.full(len(x), np.nan), -(-len(group) // 10)
        series = [
            Series(
                "the best tenth" if place == 0 else "", x, y[place], nan, nan, 2 if place < best else None, index,
                marked=False, hint=self._labels[index],
            )
            for place, index in enumerate(group)
        ]  # fmt: skip
        x_label, y_label = "each option, with its lowest and highest value", "from lowest to highest"
        return Panel(f"{learner}: parallel coordinates", x_label, y_label, tuple(series), ticks=ticks)

    def _title(self, what: str, bands: bool = False) -> str:
        counts = {len(runs.planned) for runs in self._runs}
        number = f"{min(counts)} seeds" if len(counts) == 1 else "seeds"
        if counts == {1}:
            seeds = "one seed each"
        elif bands or not counts or min(counts) >= BANDS_FROM:
            seeds = f"mean and 95 % interval over {number}"
        elif max(counts) < BANDS_FROM:
            seeds = f"mean over {number}, and each of them as a thin line"
        else:
            seeds = (
                f"mean over seeds, and their 95 % interval or, of fewer than {BANDS_FROM}, each of them as a thin line"
            )
        many = len(self._rows) > ALL_IN_COLOUR and len(self._style) < len(self._rows)
        hidden = f"; {len(self._rows)} configurations, the best of each learner in colour" if many else ""
        return f"{self._name}: {what}{seeds}{hidden}"

    def _by_task(self, ablation: Sequence[int] | None) -> tuple[Panel, ...]:
        """The panels of the curves by task, of all configurations or of those of an ablation."""
        own_colours = ablation is not None and any(index not in self._style for index in ablation)
        group = range(len(self._rows)) if ablation is None else ablation
        return tuple(
            Panel(
                title,
                "tasks seen",
                "share misclassified",
                self._series(group, partial(self._curve, metric=metric), own_colours=own_colours),
                own_colours=own_colours,
            )
            for metric, title in (
                ("cumulative_error", "Cumulative error"),
                ("validation_error", "Error on the last task learned"),
            )
        )

    def _series(
        self,
        group: Sequence[int],
        values: Callable[[ComparisonRow], tuple[np.ndarray, ...] | None],
        kind: Literal["line", "points"] = "line",
        own_colours: bool = False,
    ) -> tuple[Series, ...]:
        series = []
        for place, index in enumerate(group):
            arrays = values(self._rows[index])
            if arrays is not None:
                style = place if own_colours else self._style.get(index)
                x, mean, low, high, *by_seed = arrays
                one = Series(self._labels[index], x, mean, low, high, style, index, kind)
                series.append(replace(one, by_seed=by_seed[0]) if by_seed else one)
        return tuple(series)

    def _curve(self, row: ComparisonRow, metric: str) -> tuple[np.ndarray, ...] | None:
        """x, mean, low and high, and for fewer than five seeds each seed instead of the interval.

        The interval is NaN where a seed is missing, as that of the others would mislead.
        """
        points = self._curves.get((row.configuration.hash, metric))
        if points is None:
            return None
        table = points.pivot(index="seed", columns="step", values="value")
        by_step = table.to_numpy()
        mean, low, high = metrics.interval_curve(by_step)
        complete = np.isfinite(by_step).all(axis=0) & (len(by_step) == len(row.configuration.planned))
        first = 0 if metric in (ADAPTATION, LATE_ADAPTATION) else 1  # tasks are counted from one
        x = table.columns.to_numpy() + first
        if 1 < len(row.configuration.planned) < BANDS_FROM:
            nan = np.full(len(x), np.nan)
            return x, mean, nan, nan, by_step
        low, high = _clipped(low, high, metric)
        return x, mean, np.where(complete, low, np.nan), np.where(complete, high, np.nan)

    def _costs(self, metric: str) -> tuple[Series, ...]:
        def values(row: ComparisonRow) -> tuple[np.ndarray, ...] | None:
            cost = row.configuration.metrics.get(metric)
            if cost is None or not row.objective.n or cost <= 0:
                return None
            return np.array([cost]), *_as_arrays([row], self._metric)

        return self._series(range(len(self._rows)), values, "points")

    def _varying(self, group: Sequence[int]) -> list[str]:
        """The options that all of these configurations have, with at least two values.

        The initial values of a population's members are left out: they change during training.
        """
        values: dict[str, list[Any]] = {}
        for index in group:
            for key, value in self._runs[index].parameters.items():
                values.setdefault(key, []).append(value)
        return [
            key
            for key, of_group in values.items()
            if len(of_group) == len(group)
            and any(value != of_group[0] for value in of_group)
            and not key.endswith(INITIAL)
        ]

    def _differing_in(self, option: str) -> list[int]:
        """The largest group of configurations that differ in this option only, in order of its values.

        Of two groups of the same size, the one with the better configuration.
        """
        groups: dict[str, list[int]] = {}
        for index, runs in enumerate(self._runs):
            if option in runs.parameters:
                others = {key: value for key, value in runs.parameters.items() if key != option}
                groups.setdefault(repr(sorted(others.items())), []).append(index)
        largest = max(groups.values(), key=len, default=[])
        return sorted(largest, key=lambda index: _place(self._runs[index].parameters[option]))

    def _effect(self, option: str, groups: dict[str, list[int]], joined: bool = False) -> Panel:
        """The objective against an option's value, one series for each learner; means are joined where values recur."""
        values = [self._runs[index].parameters[option] for group in groups.values() for index in group]
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        distinct = sorted({repr(value): value for value in values}.values(), key=_place)
        places = {repr(value): float(value) if numeric else float(i) for i, value in enumerate(distinct)}
        series, correlations = [], []
        for style, (learner, group) in enumerate(groups.items()):
            rows = [self._rows[index] for index in group if self._rows[index].objective.n]
            x = np.array([places[repr(row.configuration.parameters[option])] for row in rows])
            mean, low, high = _as_arrays(rows, self._metric)
            label, look = ("", _BLACK) if joined else (learner, style)
            series.append(Series(label, x, mean, low, high, look, kind="both" if joined else "points"))
            grid = np.unique(x)
            if not joined and 2 <= len(grid) <= min(_GRID, len(x) - 1):
                means = np.array([mean[x == value].mean() for value in grid])
                nan = np.full(len(grid), np.nan)
                series.append(Series(f"{learner}, mean", grid, means, nan, nan, style, marked=False))
            if numeric and len(grid) >= 5 and len(np.unique(mean)) > 1:
                from scipy import stats  # takes a second to import, and each sweep imports this module

                correlations.append(f"ρ = {stats.spearmanr(x, mean).statistic:+.2f}, n = {len(x)}")
        log = numeric and min(places.values()) > 0 and max(places.values()) / min(places.values()) >= 10
        if len(distinct) <= _GRID or not numeric:
            ticks = tuple((places[repr(v)], _shown(v)) for v in distinct)
        else:
            ticks = log_ticks(list(places.values())) if log else ()
        title = option + (f" ({'; '.join(correlations)})" if correlations else "")
        shares = self._metric.startswith(_SHARES)
        return Panel(title, option, self._objective, tuple(series), log, ticks, from_zero=False, shares=shares)


def _with_log_ticks(panel: Panel) -> Panel:
    x = [float(value) for series in panel.series for value in series.x]
    return replace(panel, ticks=log_ticks(x)) if x else panel


def log_ticks(values: Sequence[float]) -> tuple[tuple[float, str], ...]:
    """At most six ticks of a logarithmic axis with these values, each with its text.

    >>> [[text for _, text in log_ticks(values)] for values in ([0.00012, 0.08], [2.0, 30.0], [1.06, 2.0])]
    [['0.001', '0.01'], ['3', '10', '30'], ['1.2', '1.4', '1.6', '1.8', '2']]
    """
    low, high = min(values), max(values)
    span = math.log10(high / low)
    factors = (1, 3) if span < 2.2 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
    if span < 1 and high > low:
        unit = 10.0 ** math.floor(math.log10(high - low))
        step = next(each for each in (unit, 2 * unit, 5 * unit) if (high - low) / each <= 5)
        ticks = [float(f"{step * k:.9g}") for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    inside = [tick for tick in ticks if low <= tick <= high] or [low]
    return tuple((tick, f"{tick:g}") for tick in inside[:: -(-len(inside) // 6)])


def _importance(learner: str, values: Mapping[str, Sequence[Any]], objectives: np.ndarray) -> Panel:
    """The share of the objective's variance that each option explains."""
    from orchestrator.search.importance import importances  # loads Optuna

    draws = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    shares = importances(draws, [float(value) for value in objectives])
    x, nan = np.arange(float(len(shares))), np.full(len(shares), np.nan)
    series = Series("importance", x, np.array(list(shares.values())), nan, nan, 3, kind="points")
    ticks = tuple(zip(x.tolist(), shares, strict=True))
    title, y_label = f"{learner}: importance (fANOVA)", "share of variance"
    return Panel(title, "option", y_label, (series,) if shares else (), ticks=ticks)


def _scaled(values: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, str, str]:
    """Values scaled to [0, 1], on a logarithmic scale if they spread over a factor of ten; the texts of both ends."""
    distinct = sorted({repr(value): value for value in values}.values(), key=_place)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        numbers = np.array(values, dtype=float)
        if numbers.min() > 0 and numbers.max() / numbers.min() >= 10:
            numbers = np.log10(numbers)
        low, high = (f"{end:.2g}" for end in (distinct[0], distinct[-1]))
    else:
        places = {repr(value): place for place, value in enumerate(distinct)}
        numbers = np.array([places[repr(value)] for value in values], dtype=float)
        low, high = _shown(distinct[0]), _shown(distinct[-1])
    spread = float(np.ptp(numbers))
    return (numbers - numbers.min()) / spread if spread else np.full(len(numbers), 0.5), low, high


def _place(value: Any) -> tuple[bool, float, str]:
    """A sort key: numbers by size, then other values by name."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _clipped(low: np.ndarray, high: np.ndarray, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The ends of intervals, within [0, 1] for a share."""
    return (np.maximum(low, 0.0), np.minimum(high, 1.0)) if metric.startswith(_SHARES) else (low, high)


def _as_arrays(rows: Sequence[ComparisonRow], metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The objectives' means and interval ends; NaN without an interval."""
    objectives = [row.objective for row in rows]
    low, high = (np.array([getattr(each, end) for each in objectives], dtype=float) for end in ("low", "high"))
    return np.array([each.mean for each in objectives]), *_clipped(low, high, metric)
