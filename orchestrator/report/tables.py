"""The table of a comparison as text, as Markdown for MLflow, as LaTeX and as HTML: the same cells each time."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from orchestrator.protocol.metrics import Interval
from orchestrator.report.comparison import Row

_RIGHT = {"final error", "gradients/datapoint", "seconds"}
_NONE = "–"
_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
        "<": "$<$",
        ">": "$>$",
    }
)


def cells(rows: Sequence[Row], objective: str, wide: bool = False) -> list[tuple[str, ...]]:
    """The head, and one tuple for each row, the best first; `wide`: forward transfer and regret with it, if known."""
    tested = any(row.test_error is not None for row in rows)
    known = {"forward transfer": [row.forward_transfer for row in rows], "regret": [row.regret for row in rows]}
    further = [name for name, values in known.items() if wide and any(values)]
    head = (
        "learner",
        "hyper-parameters",
        objective.replace("_", " "),
        "minus the best, p",
        *(["test error"] if tested else []),
        "final error",
        *further,
        "gradients/datapoint",
        "seconds",
        "boundaries",
        "notes",
    )
    more = [[shown(of) if (of := known[name][place]) else _NONE for name in further] for place in range(len(rows))]
    return [head, *(_cells(row, tested, of) for row, of in zip(rows, more, strict=True))]


def _cells(row: Row, tested: bool, further: Sequence[str]) -> tuple[str, ...]:
    return (
        row.of.learner,
        row.of.label.removeprefix(row.of.learner).strip() or _NONE,
        shown(row.objective),
        difference(row),
        *([shown(row.test_error) if row.test_error else _NONE] if tested else []),
        number(row.final_error.mean),
        *further,
        number(row.of.metrics.get("gradient_evaluations_per_datapoint"), 1),
        number(row.of.metrics.get("seconds"), 1),
        "yes" if row.of.needs_boundaries else "no",
        row.notes,
    )


def complete(rows: Sequence[Row]) -> str:
    """How much of the sweep is there; what was taken out of it is counted apart.

    >>> complete([])
    '0 of 0 configurations complete'
    """
    planned = [row for row in rows if not row.of.removed]
    told = f"{sum(row.of.complete for row in planned)} of {len(planned)} configurations complete"
    earlier = len(rows) - len(planned)
    return f"{told}, and {earlier} of an earlier version of this sweep" if earlier else told


def shown(value: Interval) -> str:
    """Mean, half-width and n, or a dash."""
    return str(value) if value.n else _NONE


def number(value: float | None, digits: int = 4) -> str:
    """A number, or a dash where there is none."""
    return _NONE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def difference(row: Row) -> str:
    """The paired difference to the best one, with Holm's p."""
    if row.difference is None or not row.difference.by.n:
        return _NONE
    by, p = row.difference.by, row.difference.p
    half = _NONE if by.high is None else f"{by.high - by.mean:.4f}"
    chance = "" if p is None else ", <0.001" if p < 0.001 else f", {p:.3f}"
    return f"{by.mean:+.4f} ± {half}{chance}"


def points_to(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """`points_to`: the head and the rows; only a head's worth if no threshold was asked for."""
    thresholds = list(rows[0].points_to) if rows else []
    head = ("configuration", *(f"points to {error:g}" for error in thresholds))
    return [head, *((row.of.label, *(_reached(row, error) for error in thresholds)) for row in rows)]


def _reached(row: Row, error: float) -> str:
    reached = row.points_to[error]
    if not reached.of:
        return _NONE
    if reached.seeds < reached.of:
        return f"not reached ({reached.seeds} of {reached.of} seeds)"
    half = _NONE if reached.points.high is None else f"{reached.points.high - reached.points.mean:.0f}"
    return f"{reached.points.mean:.0f} ± {half} (n={reached.points.n})"


def text(rows: Sequence[Row], objective: str = "cumulative_error") -> str:
    """Aligned text: the table that ends a sweep."""
    head, *lines = cells(rows, objective)
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    made = [
        "  ".join(
            f"{cell:>{width}}" if name in _RIGHT else f"{cell:{width}}"
            for name, cell, width in zip(head, line, widths, strict=True)
        ).rstrip()
        for line in (head, *lines)
    ]
    made.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(made)


def markdown(rows: Sequence[Row], objective: str, most: int) -> str:
    """A table of at most that many characters: where it would be longer, the last rows are left out and counted."""
    head, *lines = [[cell.replace("|", "\\|") for cell in line] for line in cells(rows, objective)]
    made = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for index, line in enumerate(lines):
        made.append(f"| {' | '.join(line)} |")
        left_out = f"\n\n… and {len(lines) - index} more configurations: see the report."
        if len("\n".join(made)) + len(left_out) > most:
            return "\n".join(made[:-1]) + left_out
    return "\n".join(made)


def latex(rows: Sequence[Row], objective: str) -> str:
    """A `tabular` for the package booktabs."""
    head, *lines = [[cell.translate(_LATEX) for cell in line] for line in cells(rows, objective)]
    columns = "".join("r" if name in _RIGHT else "l" for name in head)
    body = "".join(f"{' & '.join(line)} \\\\\n" for line in lines)
    return (
        "% needs \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{' & '.join(head)} \\\\\n\\midrule\n"
        f"{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def as_html(table: Sequence[Sequence[str]]) -> str:
    """Any head and rows as an HTML table."""
    head, *lines = table
    made = [f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in head)}</tr>"]
    made += [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in lines]
    return f"<table>\n{chr(10).join(made)}\n</table>"
