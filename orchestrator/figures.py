"""The report's figure: learning curves with intervals, to be read in print and by the colour-blind."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Okabe and Ito's palette without its yellow, which a white page swallows.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (4, 1.2, 1, 1.2)), (0, (1, 1)), (0, (7, 1.5, 1, 1.2, 1, 1.2)))
_MARKERS = "os^DvPX<>"
_REST = "#9A9A9A"
_PANELS = (("cumulative_error", "Cumulative error"), ("validation_error", "Error on the task just learned"))
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.parse_math": False,  # a sweep's name may hold a dollar sign
    "svg.hashsalt": "foml",  # the same curves give the same file
}


@dataclass(frozen=True)
class Line:
    """One configuration: for each metric its mean, low and high [T]; low and high are NaN where there is no interval.
    ``in_front``: drawn in colour and named; the others are thin and grey."""

    label: str
    curves: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    in_front: bool = True


def learning_curves(lines: Sequence[Line], title: str, paths: Sequence[Path]) -> None:
    """Draw `cumulative_error` and `validation_error` against the tasks seen, and save it under each path."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        front = [line for line in lines if line.in_front]
        columns = _columns([line.label for line in front])
        rows = -(-len(front) // columns) if front else 0
        figure = Figure(figsize=(7.2, 3.1 + 0.17 * rows), layout="constrained")
        panels = figure.subplots(1, len(_PANELS), squeeze=False)[0]
        for axes, (metric, name) in zip(panels, _PANELS, strict=True):
            _panel(axes, metric, name, lines)
        figure.suptitle(textwrap.fill(title, 110), fontsize=9)
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            labels = [textwrap.fill(label, 100) for label in labels]
            figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.4)
        for path in paths:
            figure.savefig(path, dpi=300, metadata={"Date": None} if path.suffix == ".svg" else None)


def _columns(labels: Sequence[str]) -> int:
    """As many columns of the legend as fit the figure's width of about 120 characters, and as full as can be."""
    fitting = max(1, min(4, len(labels), 120 // (max(map(len, labels), default=1) + 10)))
    rows = -(-len(labels) // fitting)
    return -(-len(labels) // rows) if rows else 1


def _panel(axes: Any, metric: str, name: str, lines: Sequence[Line]) -> None:
    axes.set_title(name)
    axes.set_xlabel("tasks seen")
    axes.set_ylabel("share misclassified")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    drawn = [line for line in lines if line.in_front and metric in line.curves]
    for line in lines:
        if not line.in_front and metric in line.curves:
            mean = line.curves[metric][0]
            axes.plot(np.arange(1, len(mean) + 1), mean, color=_REST, linewidth=0.6, alpha=0.7, zorder=1)
    for index, line in enumerate(drawn):
        mean, low, high = line.curves[metric]
        seen = np.arange(1, len(mean) + 1)
        colour = _COLOURS[index % len(_COLOURS)]
        axes.fill_between(seen, low, high, color=colour, alpha=0.14, linewidth=0, zorder=2)
        every = max(1, len(seen) // 8)
        axes.plot(
            seen,
            mean,
            label=line.label,
            color=colour,
            linestyle=_LINES[index % len(_LINES)],
            marker=_MARKERS[index % len(_MARKERS)],
            markevery=(index * every // max(1, len(drawn)), every),  # side by side, not on top of each other
            markersize=4,
            markerfacecolor="white",
            linewidth=1.3,
            zorder=3,
        )
    highest = [np.nanmax(line.curves[metric][0]) for line in lines if metric in line.curves]
    if highest:
        # The means decide: the interval of two seeds is 13 standard errors wide and would leave nothing to see.
        axes.set_ylim(0, max(0.02, min(1.0, 1.12 * max(highest))))
    else:
        axes.text(0.5, 0.5, "no task is over yet", ha="center", va="center", transform=axes.transAxes)
