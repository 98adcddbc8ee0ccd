"""The table of a comparison: its cells, and their form as text, Markdown for MLflow, and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from orchestrator.protocol.metrics import Interval
from orchestrator.report.comparison import ComparisonRow

_RIGHT_ALIGNED = {"final error", "gradients/datapoint", "seconds"}
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
Table = list[tuple[str, ...]]
"""The head, then the lines."""


def cells(rows: Sequence[ComparisonRow], objective: str, wide: bool = False) -> Table:
    """The table's cells, one line for each row; `wide`: with forward transfer and regret, where they exist."""
    tested = any(row.test_error is not None for row in rows)
    transferred = wide and any(row.forward_transfer for row in rows)
    regretted = wide and any(row.regret for row in rows)
    columns: list[tuple[str, bool, Callable[[ComparisonRow], str]]] = [
        ("learner", True, lambda row: row.configuration.learner),
        ("hyper-parameters", True, _hyper_parameters),
        (objective.replace("_", " "), True, lambda row: shown(row.objective)),
        ("difference to best, p", True, _difference),
        ("test error", tested, lambda row: shown(row.test_error)),
        ("final error", True, lambda row: _number(row.final_error.mean, 4)),
        ("forward transfer", transferred, lambda row: shown(row.forward_transfer)),
        ("regret", regretted, lambda row: shown(row.regret)),
        ("gradients/datapoint", True, lambda row: _metric(row, "gradient_evaluations_per_datapoint")),
        ("seconds", True, lambda row: _metric(row, "seconds")),
        ("boundaries", True, lambda row: "yes" if row.configuration.needs_boundaries else "no"),
        ("notes", True, lambda row: row.notes),
    ]
    head = tuple(name for name, included, _ in columns if included)
    return [head, *(tuple(cell(row) for _, included, cell in columns if included) for row in rows)]


def complete(rows: Sequence[ComparisonRow]) -> str:
    """The number of complete configurations; those removed from the sweep are counted separately.

    >>> complete([])
    '0 of 0 configurations complete'
    """
    planned = [row.configuration for row in rows if not row.configuration.removed]
    text = f"{sum(runs.complete for runs in planned)} of {len(planned)} configurations complete"
    removed = len(rows) - len(planned)
    return f"{text}, and {removed} of an earlier version of this sweep" if removed else text


def shown(value: Interval | None) -> str:
    """Mean, half-width and n, or a dash."""
    return str(value) if value is not None and value.n else _NONE


def points_to(rows: Sequence[ComparisonRow]) -> Table:
    """The table of `points_to`, one column for each threshold."""
    thresholds = list(rows[0].points_to) if rows else []
    head = ("configuration", *(f"points to {error:g}" for error in thresholds))
    return [head, *((row.configuration.label, *(_points_to(row, error) for error in thresholds)) for row in rows)]


def text(rows: Sequence[ComparisonRow], objective: str = "cumulative_error") -> str:
    """The table as aligned text."""
    head, *lines = cells(rows, objective)
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    aligned = [
        "  ".join(
            f"{cell:>{width}}" if name in _RIGHT_ALIGNED else f"{cell:{width}}"
            for name, cell, width in zip(head, line, widths, strict=True)
        ).rstrip()
        for line in (head, *lines)
    ]
    return "\n".join([aligned[0], "  ".join("-" * width for width in widths), *aligned[1:]])


def markdown(rows: Sequence[ComparisonRow], objective: str, most: int) -> str:
    """The table in at most `most` characters: a longer one ends early, with the number of rows that it leaves out."""
    head, *lines = [[cell.replace("|", "\\|") for cell in line] for line in cells(rows, objective)]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for index, line in enumerate(lines):
        rest = f"\n\n… and {len(lines) - index} more configurations: see the report."
        row = f"| {' | '.join(line)} |"
        if len("\n".join([*table, row])) + len(rest) > most:
            return "\n".join(table) + rest
        table.append(row)
    return "\n".join(table)


def latex(rows: Sequence[ComparisonRow], objective: str) -> str:
    """The table as a `tabular` for the package booktabs."""
    head, *lines = [[cell.translate(_LATEX) for cell in line] for line in cells(rows, objective)]
    columns = "".join("r" if name in _RIGHT_ALIGNED else "l" for name in head)
    body = "".join(f"{' & '.join(line)} \\\\\n" for line in lines)
    return (
        "% needs \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{' & '.join(head)} \\\\\n\\midrule\n"
        f"{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def _hyper_parameters(row: ComparisonRow) -> str:
    return row.configuration.label.removeprefix(row.configuration.learner).strip() or _NONE


def _metric(row: ComparisonRow, name: str) -> str:
    return _number(row.configuration.metrics.get(name), 1)


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _half_width(value: Interval, digits: int) -> str:
    return _number(None if value.high is None else value.high - value.mean, digits)


def _difference(row: ComparisonRow) -> str:
    if row.difference is None or not row.difference.interval.n:
        return _NONE
    interval, p = row.difference.interval, row.difference.p
    p_value = "" if p is None else ", <0.001" if p < 0.001 else f", {p:.3f}"
    return f"{interval.mean:+.4f} ± {_half_width(interval, 4)}{p_value}"


def _points_to(row: ComparisonRow, error: float) -> str:
    points_to = row.points_to[error]
    if not points_to.total:
        return _NONE
    if points_to.reached < points_to.total:
        return f"not reached ({points_to.reached} of {points_to.total} seeds)"
    return f"{points_to.points.mean:.0f} ± {_half_width(points_to.points, 0)} (n={points_to.points.n})"
