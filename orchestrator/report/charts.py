"""The report's charts as numbers, which `figures` prints and `html_page` shows on a screen.

A configuration has the same colour in all charts: a series' `style` is the rank of its configuration among those in
colour. Of many configurations, only the best of each learner has a colour and the others are grey; where some grey ones
are compared (an ablation), all have colours in that panel only, which then needs a legend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from orchestrator.protocol import metrics
from orchestrator.report.comparison import ComparisonRow
from orchestrator.tracking.names import INITIAL
from orchestrator.tracking.points import ADAPTATION, BY_TASK, REGRET, TRANSFER
from orchestrator.tracking.reader import SweepRuns

ALL_IN_COLOUR = 8
_FIRST = ("K", "alpha1", "beta1", "beta2")
_BLACK = 4
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

    @property
    def y_limits(self) -> tuple[float, float] | None:
        """The limits of y, None for an empty panel.

        Lines: from the means alone, as the band of two seeds is 13 standard errors wide and would flatten the curves.
        Points: with the intervals, cut at 0 and 1, as a negligible difference would fill the panel otherwise.
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
        if len(limits := np.concatenate([np.empty(0), *ends])):
            low = min(low, max(float(limits.min()), 0.0))
            high = max(high, min(float(limits.max()), 1.0))
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
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    empty: str = "nothing yet"


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
    ]
    return [chart for chart in charts if chart is not None]


class _Configurations:
    """The rows of a table with their colours, labels and curves."""

    def __init__(self, sweep: SweepRuns, rows: Sequence[ComparisonRow], curves: pd.DataFrame) -> None:
        self._name, self._rows, self._runs = sweep.name, rows, [row.configuration for row in rows]
        self._objective = sweep.objective.replace("_", " ")
        relevant = curves[curves.metric.isin([*BY_TASK, ADAPTATION, TRANSFER, REGRET])]
        self._curves = dict(tuple(relevant.groupby(["configuration", "metric"])))
        best = {runs.learner: runs.hash for runs in reversed(self._runs)}.values()
        all_in_colour = len(rows) <= ALL_IN_COLOUR
        in_colour = [index for index, runs in enumerate(self._runs) if all_in_colour or runs.hash in best]
        self._style = {index: style for style, index in enumerate(in_colour)}
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
        series = self._series(range(len(self._rows)), lambda row: self._curve(row, ADAPTATION))
        panel = Panel("Adaptation within a task, mean over tasks", x_label, "share misclassified", series)
        return Chart("adaptation", self._title("adaptation; "), (panel,)) if series else None

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
        panels = tuple(
            Panel(title, label, self._objective, self._costs(metric), log_x=True)
            for metric, title, label in (
                ("gradient_evaluations_per_datapoint", "Against gradients", "gradient evaluations per datapoint"),
                ("seconds", "Against time", "seconds in a learner actor"),
            )
        )
        if not any(panel.series for panel in panels):
            return None
        return Chart("cost", self._title("error against cost; "), panels)

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

    def _title(self, what: str) -> str:
        counts = {len(runs.planned) for runs in self._runs}
        if counts == {1}:
            seeds = "one seed each"
        else:
            seeds = f"mean and 95 % interval over {f'{counts.pop()} seeds' if len(counts) == 1 else 'seeds'}"
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
                x, mean, low, high = arrays
                series.append(Series(self._labels[index], x, mean, low, high, style, index, kind))
        return tuple(series)

    def _curve(self, row: ComparisonRow, metric: str) -> tuple[np.ndarray, ...] | None:
        """x, mean, low and high; the interval is NaN where a seed is missing, as that of the others would mislead."""
        points = self._curves.get((row.configuration.hash, metric))
        if points is None:
            return None
        table = points.pivot(index="seed", columns="step", values="value")
        by_step = table.to_numpy()
        mean, low, high = metrics.interval_curve(by_step)
        complete = np.isfinite(by_step).all(axis=0) & (len(by_step) == len(row.configuration.planned))
        first = 0 if metric == ADAPTATION else 1  # tasks are counted from one
        x = table.columns.to_numpy() + first
        return x, mean, np.where(complete, low, np.nan), np.where(complete, high, np.nan)

    def _costs(self, metric: str) -> tuple[Series, ...]:
        def values(row: ComparisonRow) -> tuple[np.ndarray, ...] | None:
            cost = row.configuration.metrics.get(metric)
            if cost is None or not row.objective.n or cost <= 0:
                return None
            return np.array([cost]), *_as_arrays([row])

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
            mean, low, high = _as_arrays(rows)
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
        ticks = () if numeric and len(distinct) > _GRID else tuple((places[repr(v)], _shown(v)) for v in distinct)
        log = numeric and min(places.values()) > 0 and max(places.values()) / min(places.values()) >= 10
        title = option + (f" ({'; '.join(correlations)})" if correlations else "")
        return Panel(title, option, self._objective, tuple(series), log, ticks, from_zero=False)


def _place(value: Any) -> tuple[bool, float, str]:
    """A sort key: numbers by size, then other values by name."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _as_arrays(rows: Sequence[ComparisonRow]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The objectives' means and interval ends; NaN without an interval."""
    objectives = [row.objective for row in rows]
    low, high = (np.array([getattr(each, end) for each in objectives], dtype=float) for end in ("low", "high"))
    return np.array([each.mean for each in objectives]), low, high
