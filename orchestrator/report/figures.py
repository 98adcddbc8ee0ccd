"""The report's charts as image files, readable in print and by the colour-blind."""

import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.report.charts import Chart, Panel, Series, log_ticks

# Okabe and Ito's palette without its yellow, which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
GREY = "#9A9A9A"
DPI = 300
_LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (4, 1.2, 1, 1.2)), (0, (1, 1)), (0, (7, 1.5, 1, 1.2, 1, 1.2)))
_MARKERS = "os^DvPX<>"
_COLUMNS = 3
_PANEL_WIDTH = 2.2
"""The fewest inches of a panel beside others."""
_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
    "text.parse_math": False,  # a sweep's name may contain a dollar sign
    "svg.hashsalt": "foml",  # equal curves result in equal files
    "pdf.fonttype": 42,  # TrueType: publishers reject Type 3
}
_NO_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
_FALLBACK = "DejaVu Sans"
"""The font of characters that the chosen one does not have, such as ρ; part of Matplotlib."""


@dataclass(frozen=True)
class FigureStyle:
    """How figures look.

    Attributes:
        dpi: pixels per inch of .png files.
        titles: whether a figure has a title; a paper has captions instead.
        size: width and height in inches; None for a size that fits the content.
        font: of all text; None for Matplotlib's own.
        font_size: in points.
    """

    dpi: int = DPI
    titles: bool = True
    size: tuple[float, float] | None = None
    font: str | None = None
    font_size: float = 8.0


def has_font(name: str) -> bool:
    """Whether this machine has a font or a family (`serif`) of this name."""
    from matplotlib import font_manager

    try:
        font_manager.findfont(font_manager.FontProperties(family=[name]), fallback_to_default=False)
    except ValueError:
        return False
    return True


def draw(chart: Chart, paths: Sequence[Path], style: FigureStyle | None = None) -> None:
    """Draw a chart and save it at each path."""
    import matplotlib
    from matplotlib.figure import Figure

    style = style or FigureStyle()
    size = style.font_size
    fonts = {
        "font.size": size,
        "legend.fontsize": size,
        "axes.titlesize": size + 1,
        "font.family": [*([style.font] if style.font else []), _FALLBACK],
    }
    with matplotlib.rc_context(_STYLE | fonts):
        columns = 1 if chart.wide else min(_COLUMNS, len(chart.panels))
        width = 7.2 if columns > 1 or chart.wide else 4.6
        if style.size is not None:
            width = style.size[0]
            columns = min(columns, max(1, int(width / _PANEL_WIDTH)))
        characters = int(17 * width * 8 / size)
        rows = -(-len(chart.panels) // columns)
        in_colour = [series for panel in chart.panels for series in panel.series if series.style is not None]
        labels = {series.label for series in in_colour if series.label}
        legend_columns = _legend_columns(labels, characters)
        legend_rows = -(-len(labels) // legend_columns)
        height = 0.5 + (2.6 if columns < 3 else 2.3) * rows + 0.17 * legend_rows
        figure = Figure(figsize=style.size or (width, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in grid[len(chart.panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(grid, chart.panels, strict=False):
            _panel(axes, panel, chart.empty)
        if style.titles:
            figure.suptitle(textwrap.fill(chart.title, int(0.9 * characters)), fontsize=size + 1)
        handles = {
            label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if handles:
            texts = [textwrap.fill(label, int(0.8 * characters)) for label in handles]
            place = "outside lower center"
            figure.legend(list(handles.values()), texts, loc=place, ncols=legend_columns, handlelength=3.4)
        for path in paths:
            figure.savefig(path, dpi=style.dpi, metadata=_NO_DATE.get(path.suffix))
            figure.set_layout_engine("none")  # the first file has computed the layout, which takes as long as drawing


def _legend_columns(labels: Collection[str], characters: int) -> int:
    """The most columns that fit a figure of this width, fewer if they would not be filled."""
    fitting = max(1, min(4, len(labels), characters // (max(map(len, labels), default=1) + 10)))
    rows = -(-len(labels) // fitting)
    return max(1, -(-len(labels) // max(1, rows)))


def _panel(axes: Any, panel: Panel, empty: str) -> None:
    axes.set_title(textwrap.fill(panel.title, 44))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.5)
    if panel.log_y:
        axes.set_yscale("log")
        ticks = log_ticks(np.concatenate([series.y for series in panel.series]).tolist())
        axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
        axes.yaxis.minorticks_off()
    if panel.log_x:
        axes.set_xscale("log")
    else:
        axes.xaxis.get_major_locator().set_params(integer=all((series.x % 1 == 0).all() for series in panel.series))
    if panel.ticks:
        axes.set_xticks([x for x, _ in panel.ticks], [text for _, text in panel.ticks])
        axes.xaxis.minorticks_off()
    lines = sum(series.style is not None and series.kind == "line" for series in panel.series)
    for index, series in enumerate(panel.series):
        _series(axes, series, index, max(1, lines))
    if panel.y_limits:
        axes.set_ylim(*panel.y_limits)
    else:
        axes.text(0.5, 0.5, empty, ha="center", va="center", transform=axes.transAxes)


def _series(axes: Any, series: Series, index: int, lines: int) -> None:
    if series.style is None:
        marks = {"marker": "o", "linestyle": "none", "markersize": 3} if series.kind == "points" else {"linewidth": 0.6}
        axes.plot(series.x, series.y, color=GREY, alpha=0.7, zorder=1, **marks)
        return
    colour = COLOURS[series.style % len(COLOURS)]
    properties = {
        "color": colour,
        "marker": _MARKERS[series.style % len(_MARKERS)] if series.marked else "",
        "markersize": 4,
        "markerfacecolor": "white",
        "zorder": 3,
    }
    if series.kind == "line":
        alpha = 0.14 if lines <= 4 else 0.07  # many overlapping bands would look like one dark band
        if np.isfinite(series.low).any():
            axes.fill_between(series.x, series.low, series.high, color=colour, alpha=alpha, linewidth=0, zorder=2)
        if series.by_seed.size:
            axes.plot(series.x, series.by_seed.T, color=colour, linewidth=0.5, alpha=0.4, zorder=2)
        every = max(1, len(series.x) // 8)
        # The markers of different lines are side by side.
        properties["markevery"] = (index * every // lines % max(1, len(series.x)), every)
    else:
        half = np.abs(np.nan_to_num(np.stack([series.y - series.low, series.high - series.y])))
        axes.errorbar(series.x, series.y, yerr=half, fmt="none", ecolor=colour, elinewidth=0.9, alpha=0.5, zorder=2)
    style = "none" if series.kind == "points" else _LINES[series.style % len(_LINES)]
    axes.plot(series.x, series.y, label=series.label or None, linestyle=style, linewidth=1.3, **properties)
