"""docs/images/reproduction.svg, drawn from the first table of docs/reproduction.md.

    python -m benchmarks.reproduction_picture

Each method's cumulative error with its 95 % interval, and its gradient evaluations per datapoint ("gradients").
"""

import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs/reproduction.md", ROOT / "docs/images/reproduction.svg"
REFERENCES = {"replay", "online"}
"""Methods that the paper leaves out."""
_BESIDE = ("axes fraction", "data")
_ROW = re.compile(r"\| (\w+) \| ([\d.]+) ± ([\d.]+) \| [^|]+ \| ([\d.]+) \|")


@dataclass(frozen=True)
class Row:
    """A method's row of the table.

    Attributes:
        method: its name.
        error: the cumulative error.
        half: half the width of its 95 % interval.
        gradients: gradient evaluations per datapoint.
    """

    method: str
    error: float
    half: float
    gradients: float

    @property
    def text(self) -> str:
        """The numbers, as in the table."""
        return f"{self.error:.3f} ± {self.half:.3f}"


def table(page: str) -> list[Row]:
    """The rows of the first table with a column of cumulative errors."""
    head = page.index("| method | cumulative error |")
    lines = page[head:].split("\n\n")[0].splitlines()[2:]
    matches = [_ROW.match(line) for line in lines]
    assert all(matches), lines
    return [Row(match[1], *(float(match[group]) for group in (2, 3, 4))) for match in matches if match]


def draw(rows: list[Row], path: Path) -> None:
    """Draw one line for each method, the lowest error at the top; readable on light and dark pages."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "reproduction", "font.family": "sans-serif", "font.size": 10}
    with matplotlib.rc_context(style):
        height = 0.32 * (len(rows) + 1)
        figure = Figure(figsize=(8, height + 0.6))
        axes = figure.add_axes((0.2, 0.55 / (height + 0.6), 0.5, height / (height + 0.6)))
        for place, row in enumerate(rows):
            colour = "#d1495b" if row.method == "foml" else "#66788a" if row.method not in REFERENCES else "#00798c"
            axes.errorbar(row.error, place, xerr=row.half, fmt="o", color=colour, capsize=3, markersize=6)
            note = " (reference)" if row.method in REFERENCES else ""
            axes.annotate(
                f"{row.method}{note}", (-0.01, place), xycoords=_BESIDE, ha="right", va="center",
                color=colour, weight="bold" if colour != "#66788a" else "normal",
            )  # fmt: skip
            for at, text in ((1.02, row.text), (1.4, f"{row.gradients:g}")):
                axes.annotate(text, (at, place), xycoords=_BESIDE, va="center", color=colour)
        for at, text in ((1.02, "error ± 95 %"), (1.4, "gradients")):
            axes.annotate(text, (at, -0.9), xycoords=_BESIDE, va="center", color="#808080", fontsize=8)
        axes.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -1.5), yticks=[])
        axes.set_xlabel("cumulative error over 56 tasks of Rainbow-MNIST, lower is better", color="#808080")
        axes.tick_params(colors="#808080")
        axes.grid(axis="x", color="#808080", alpha=0.25)
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.savefig(path, metadata={"Date": None, "Creator": None}, transparent=True)


def main() -> None:
    """Draw the picture."""
    draw(table(PAGE.read_text(encoding="utf-8")), PICTURE)


if __name__ == "__main__":
    main()
