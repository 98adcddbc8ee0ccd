"""The pictures of the reproduction, which `benchmarks.reproduction` draws; readable on light and dark pages."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from orchestrator.protocol.metrics import Interval, interval

IMAGES = Path(__file__).parents[1] / "docs/images"
PICTURES = ERRORS, RAINBOW, ABLATIONS, CIFAR, COST, RECURRING, PIXELS = tuple(
    IMAGES / f"{name}.svg"
    for name in (
        "reproduction", "rainbow-mnist", "ablations", "online-cifar100", "cost", "recurring-labels", "permuted-pixels"
    )
)  # fmt: skip
REFERENCES = {"replay", "online"}
"""Methods that the paper leaves out."""
MOST_POINTS = 200
"""Of a curve: more would be narrower than a line, and make the file large."""
_BESIDE = ("axes fraction", "data")
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "reproduction", "font.family": "sans-serif", "font.size": 10}
_GREY, _PLAIN = "#808080", "#66788a"
_COLOURS = {
    "foml": "#d1495b",
    "replay": "#00798c",
    "online": "#00798c",
    "moca": "#8a5fbf",
    "ftml": "#c98a1b",
    "l2_init": "#5a8f29",
    "continual_backprop": "#c98a1b",
    "K=1": "#00798c",
    "K=5": "#d1495b",
    "K=10": "#8a5fbf",
    "θ fixed": "#c98a1b",
}
"""Of the methods that the text compares."""
_DASHED = {"online"}


@dataclass(frozen=True)
class Row:
    """A method's line of the picture of errors.

    Attributes:
        method: its name.
        error: the cumulative error over seeds.
        gradients: gradient evaluations per datapoint.
    """

    method: str
    error: Interval
    gradients: float


@contextmanager
def _saved(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of this size in inches that is written at the end of the block, the same bytes each time."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height))
        yield figure
        for axes in figure.axes:
            axes.tick_params(colors=_GREY)
            for spine in axes.spines.values():
                spine.set_visible(False)
        figure.savefig(path, metadata={"Date": None, "Creator": None}, transparent=True)


def draw_errors(rows: list[Row], tasks: int, path: Path) -> None:
    """Draw each method's cumulative error with its 95 % interval, one line for each, in the order of `rows`."""
    height = 0.32 * (len(rows) + 1)
    with _saved(path, 8, height + 0.6) as figure:
        axes = figure.add_axes((0.2, 0.55 / (height + 0.6), 0.5, height / (height + 0.6)))
        for place, row in enumerate(rows):
            mean, high = row.error.mean, row.error.high
            half = 0.0 if high is None else high - mean
            marked = row.method == "foml" or row.method in REFERENCES
            colour = _COLOURS[row.method] if marked else _PLAIN
            axes.errorbar(mean, place, xerr=half, fmt="o", color=colour, capsize=3, markersize=6)
            note = " (reference)" if row.method in REFERENCES else ""
            axes.annotate(
                f"{row.method}{note}", (-0.01, place), xycoords=_BESIDE, ha="right", va="center",
                color=colour, weight="bold" if marked else "normal",
            )  # fmt: skip
            for at, text in ((1.02, f"{mean:.3f} ± {half:.3f}"), (1.4, f"{row.gradients:.1f}")):
                axes.annotate(text, (at, place), xycoords=_BESIDE, va="center", color=colour)
        for at, text in ((1.02, "error ± 95 %"), (1.4, "gradients")):
            axes.annotate(text, (at, -0.9), xycoords=_BESIDE, va="center", color=_GREY, fontsize=8)
        axes.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -1.5), yticks=[])
        axes.set_xlabel(f"cumulative error over {tasks} tasks of Rainbow-MNIST, lower is better", color=_GREY)
        axes.grid(axis="x", color=_GREY, alpha=0.25)


def draw_curves(errors: Mapping[str, np.ndarray], window: int, path: Path, bottom: float = 0, top: float = 1) -> None:
    """Draw each method's validation error against tasks seen, with a band of the 95 % interval for some.

    Args:
        errors: for each method the error after each task, shape [seeds, tasks].
        window: tasks in a point's mean.
        path: the picture.
        bottom: the smallest error of the axis.
        top: the largest one.
    """
    with _saved(path, 8, 4.6) as figure:
        axes = figure.add_axes((0.08, 0.12, 0.72, 0.84))
        ends = []
        for method, error in errors.items():
            means = np.stack([np.convolve(row, np.full(window, 1 / window), mode="valid") for row in error])
            shown = np.arange(means.shape[1])[:: -(means.shape[1] // MOST_POINTS + 1)][::-1]  # with the last one
            points = [interval(column) for column in means.T[shown]]
            tasks, mean = window + shown, [point.mean for point in points]
            colour = _COLOURS.get(method, _PLAIN)
            axes.plot(tasks, mean, color=colour, lw=1.8, ls="--" if method in _DASHED else "-")
            if method in _COLOURS and len(error) > 1:
                low, high = [point.low for point in points], [point.high for point in points]
                axes.fill_between(tasks, low, high, color=colour, alpha=0.12, lw=0)
            ends.append((mean[-1], method, colour))
        place = -1.0
        for end, method, colour in sorted(ends):  # names of lines that end close together are moved apart
            place = max(end, place + 0.034 * (top - bottom))
            line = {"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)}
            axes.annotate(
                method, (tasks[-1], end), (1.04, place), textcoords=_BESIDE, va="center", color=colour, arrowprops=line
            )
        axes.set(xlim=(window, tasks[-1]), ylim=(bottom, top))
        axes.set_xlabel("tasks seen", color=_GREY)
        axes.set_ylabel(f"validation error, mean of {window} tasks", color=_GREY)
        axes.grid(color=_GREY, alpha=0.25)


def draw_cost(errors: Mapping[str, Mapping[int, Interval]], path: Path) -> None:
    """Draw each method's cumulative error with its 95 % interval against gradient evaluations per datapoint."""
    with _saved(path, 8, 4.2) as figure:
        axes = figure.add_axes((0.08, 0.13, 0.58, 0.84))
        columns = sorted({evaluations for of_method in errors.values() for evaluations in of_method})
        for (method, of_method), marker in zip(errors.items(), cycle("oDs^v<>")):
            evaluations = sorted(of_method)
            points = [of_method[each] for each in evaluations]
            mean = [point.mean for point in points]
            half = [0.0 if point.high is None else point.high - point.mean for point in points]
            colour, line = _COLOURS.get(method, _PLAIN), "--" if method in _DASHED else "-"
            axes.errorbar(
                evaluations, mean, half, marker=marker, ls=line, color=colour, capsize=3, markersize=5, label=method
            )
        axes.legend(bbox_to_anchor=(1.02, 1), loc="upper left", frameon=False, labelcolor="linecolor")
        axes.set_xscale("log")
        axes.set_xticks(columns, labels=[str(column) for column in columns])
        axes.minorticks_off()
        axes.set_xlabel("gradient evaluations per datapoint", color=_GREY)
        axes.set_ylabel("cumulative error", color=_GREY)
        axes.set_ylim(bottom=0)
        axes.grid(color=_GREY, alpha=0.25)
