"""The table of a comparison: its columns, and their form as text, Markdown for MLflow, HTML cells, and LaTeX."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.protocol.metrics import Interval
from orchestrator.report import comparison
from orchestrator.report.comparison import ComparisonRow, PointsTo
from orchestrator.tracking.points import PAST

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
        "→": r"$\rightarrow$",
        "<": "$<$",
        ">": "$>$",
    }
)
Table = list[tuple[str, ...]]
"""The head, then the lines."""


@dataclass(frozen=True)
class Column:
    """A column of the comparison.

    Attributes:
        name: in the head.
        values: of the rows; None for an empty cell.
        kind: words, an interval, a difference (an interval with a sign), a number, or a p-value.
        decimals: the same for all its cells, so that their digits are aligned.
        best: the row with the best value, in a column that shows it.
        so_far: the rows whose values are those of unfinished seeds, and are in no comparison.
    """

    name: str
    values: tuple[Interval | float | str | None, ...]
    kind: Literal["words", "interval", "difference", "number", "p"] = "words"
    decimals: int = 0
    best: int | None = None
    so_far: frozenset[int] = frozenset()

    def cell(self, row: int, usual_n: int) -> str:
        """The text of a cell; an interval of another number of seeds than the usual one shows its own."""
        value = self.values[row]
        if value is None:
            return _NONE
        if isinstance(value, str):
            return value
        if isinstance(value, Interval):
            n = "" if value.n == usual_n or self.kind == "difference" else f" (n={value.n})"
            return f"{self.mean(row)}{self.half_width(row)}{n}{' so far' if row in self.so_far else ''}"
        if not math.isfinite(value):
            return _NONE
        return "<0.001" if self.kind == "p" and value < 0.001 else f"{value:.{self.decimals}f}"

    def mean(self, row: int) -> str:
        """The mean of an interval, as text."""
        value = self.values[row]
        assert isinstance(value, Interval)
        return f"{value.mean:{'+' if self.kind == 'difference' else ''}.{self.decimals}f}"

    def half_width(self, row: int) -> str:
        """The half-width of an interval as text with its sign; empty for one seed."""
        value = self.values[row]
        assert isinstance(value, Interval)
        return "" if value.high is None else f" ± {value.high - value.mean:.{self.decimals}f}"

    def key(self, row: int) -> float | str:
        """The value by which the rows are sorted; empty for an empty cell, and for seeds so far."""
        value = None if row in self.so_far else self.values[row]
        key = value.mean if isinstance(value, Interval) else value
        return "" if key is None or (isinstance(key, float) and not math.isfinite(key)) else key


def columns(rows: Sequence[ComparisonRow], objective: str, wide: bool = False, digits: int = 3) -> list[Column]:
    """The columns of the table.

    Args:
        rows: from `comparison.compare`.
        objective: the metric.
        wide: with the interval of the final error, and with forward transfer, regret and past tasks where they exist.
        digits: of the largest value of each column of numbers; four decimals at most.
    """

    def intervals(name: str, values: Sequence[Interval | None], best: Callable[..., int] | None = None) -> Column:
        present = tuple(each if each is not None and each.n else None for each in values)
        means = {row: each.mean for row, each in enumerate(present) if each is not None}
        usable = [row for row in means if rows[row].usable]
        winner = best(usable, key=means.__getitem__) if best and usable else None
        return Column(name, present, "interval", decimals(means.values(), digits), winner)

    def numbers(name: str, metric: str) -> Column:
        values = tuple(row.configuration.metrics.get(metric) for row in rows)
        return Column(name, values, "number", decimals((each for each in values if each is not None), 3))

    main = intervals(objective.replace("_", " "), [row.so_far or row.objective for row in rows])
    so_far = frozenset(index for index, row in enumerate(rows) if row.so_far is not None)
    final = intervals("final error", [row.final_error for row in rows], min)
    if not wide:
        means = tuple(row.final_error.mean if row.final_error.n else None for row in rows)
        final = replace(final, values=means, kind="number")
    differences = [row.difference for row in rows]
    table = [
        Column("learner", tuple(row.configuration.learner for row in rows)),
        Column("hyper-parameters", tuple(_hyper_parameters(row) for row in rows)),
        replace(main, best=0 if rows and rows[0].usable else None, so_far=so_far),
        replace(
            intervals("difference to best", [None if each is None else each.interval for each in differences]),
            kind="difference",
            decimals=main.decimals,
        ),
        Column("p", tuple(None if each is None else each.p for each in differences), "p", 3),
    ]
    if any(row.test_error is not None for row in rows):
        table.append(intervals("test error", [row.test_error for row in rows], min))
    table.append(final)
    if wide and any(row.forward_transfer for row in rows):
        table.append(intervals("forward transfer", [row.forward_transfer for row in rows], max))
    if wide and any(row.regret for row in rows):
        table.append(intervals("regret", [row.regret for row in rows], min))
    for name in PAST:
        if wide and any(name in row.past for row in rows):
            values = [row.past.get(name) for row in rows]
            table.append(intervals(name.replace("_", " "), values, min if name == "forgetting" else max))
    table += [
        numbers("gradients/datapoint", "gradient_evaluations_per_datapoint"),
        numbers("seconds", "seconds"),
        Column("boundaries", tuple("yes" if row.configuration.needs_boundaries else "no" for row in rows)),
    ]
    notes = tuple(row.notes for row in rows)
    return [*table, Column("notes", notes)] if any(notes) else table


def usual_n(rows: Sequence[ComparisonRow]) -> int:
    """The number of seeds behind most objectives; 0 without any."""
    counts = Counter(row.objective.n for row in rows if row.objective.n)
    return counts.most_common(1)[0][0] if counts else 0


def decimals(values: Iterable[float], digits: int) -> int:
    """Decimals with which the largest value has this many digits, four at most."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return min(4, max(0, digits - 1 - math.floor(math.log10(largest)))) if largest else digits


def complete(rows: Sequence[ComparisonRow]) -> str:
    """The number of complete configurations; those removed from the sweep are counted separately.

    >>> complete([])
    '0 of 0 configurations complete'
    """
    planned = [row.configuration for row in rows if not row.configuration.removed]
    text = f"{sum(runs.complete for runs in planned)} of {len(planned)} configurations complete"
    removed = len(rows) - len(planned)
    return f"{text}, and {removed} of an earlier version of this sweep" if removed else text


def result_sentence(rows: Sequence[ComparisonRow], objective: str) -> str:
    """The result in words: which configuration leads, by how much, and whether the seeds suffice to be sure.

    The best configuration is compared with the best one of another learner, or of its own if the sweep has one learner.

    Args:
        rows: from `comparison.compare`.
        objective: the metric.
    """
    usable = [row for row in rows if row.usable]
    incomplete = any(row.seeds_without_objective for row in rows)
    ended = "finished with an objective for every seed" if incomplete else "finished with every seed"
    if not usable:
        return f"No configuration {ended}."
    best, *others = usable
    label, name = best.configuration.label, objective.replace("_", " ")
    if not others:
        return f"{label} is the only configuration that {ended}: its {name} is {shown(best.objective)}."
    compared = [(row, row.difference) for row in others if row.difference is not None and row.difference.interval.n]
    leads = f"{label} leads: its {name} of {_number(best.objective.mean, 4)}"
    if not compared:
        return f"{leads} is the best; no other configuration has seeds in common with it."
    different = [each for each in compared if each[0].configuration.learner != best.configuration.learner]
    second, difference = (different or compared)[0]
    interval, p = difference.interval, difference.p
    half = "" if interval.high is None else f" ± {_half_width(interval, 4)}"
    distance = (
        f"{abs(interval.mean):.4f}{half} {'below' if interval.mean > 0 else 'above'}" if interval.mean else "equal to"
    )
    what = "the best of the other learners" if different else "the next configuration"
    result = f"{leads} is {distance} that of {second.configuration.label}, {what}."
    if p is None:
        why = "one seed allows no test" if interval.n == 1 else "the difference is the same for every seed"
        return f"{result} Whether the difference is significant cannot be tested: {why}."
    tests = sum(row.difference is not None and row.difference.p is not None for row in rows)
    corrected = f", corrected for {tests} comparisons" if tests > 1 else ""
    evidence = f"with {interval.n} seeds (p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}{corrected})"
    if p < comparison.SIGNIFICANT:
        return f"{result} The difference is significant {evidence}."
    number = comparison.seeds_needed(difference.effect, tests)
    needed = "more than 1,000" if number is None else f"about {number:,}"
    return f"{result} The difference is not significant {evidence}; if it is real, {needed} seeds would show it."


def shown(value: Interval | None) -> str:
    """Mean, half-width and n, or a dash."""
    return str(value) if value is not None and value.n else _NONE


def points_to(rows: Sequence[ComparisonRow]) -> Table:
    """The table of `points_to`: one column for each threshold that a seed of any configuration reached."""
    thresholds = [
        error for error in (rows[0].points_to if rows else ()) if any(row.points_to[error].reached for row in rows)
    ]
    head = ("configuration", *(f"points to {error:g}" for error in thresholds))
    n = usual_n(rows)
    return [
        head,
        *((row.configuration.label, *(_points_to(row.points_to[error], n) for error in thresholds)) for row in rows),
    ]


def text(rows: Sequence[ComparisonRow], objective: str = "cumulative_error") -> str:
    """The table as aligned text."""
    return aligned(columns(rows, objective, digits=4))


def aligned(table: Sequence[Column]) -> str:
    """Columns as aligned text; each interval with its number of seeds."""
    texts = []
    for column in table:
        cells = [column.name, *_cells(column)]
        width = max(map(len, cells))
        align = ">" if column.kind in ("number", "p") else "<"
        texts.append([f"{cell:{align}{width}}" for cell in cells])
    head, *lines = ["  ".join(line).rstrip() for line in zip(*texts, strict=True)]
    return "\n".join([head, "  ".join("-" * len(column[0]) for column in texts), *lines])


def markdown(rows: Sequence[ComparisonRow], objective: str, most: int) -> str:
    """The table in at most `most` characters: a longer one ends early, with the number of rows that it leaves out."""
    plain = columns(rows, objective, digits=4)
    head = [column.name for column in plain]
    lines = [[cell.replace("|", "\\|") for cell in line] for line in zip(*map(_cells, plain), strict=True)]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for index, line in enumerate(lines):
        rest = f"\n\n… and {len(lines) - index} more configurations: see the report."
        row = f"| {' | '.join(line)} |"
        if len("\n".join([*table, row])) + len(rest) > most:
            return "\n".join(table) + rest
        table.append(row)
    return "\n".join(table)


def latex(rows: Sequence[ComparisonRow], objective: str) -> str:
    """The table for a paper, without configurations that were removed from the sweep."""
    present = [row for row in rows if not row.configuration.removed]
    table = tabular(columns(present, objective), usual_n(present))
    if len(present) == len(rows):
        return table
    needs, _, rest = table.partition("\n")
    return f"{needs}\n% without {len(rows) - len(present)} of an earlier version of this sweep\n{rest}"


def tabular(table: Sequence[Column], n: int) -> str:
    """Columns as a `tabular` for the package booktabs: digits aligned, the best of a column in bold.

    Args:
        table: the columns.
        n: the number of seeds that cells do not repeat.
    """
    alignment, head, cells = "", [], []
    for column in table:
        pair = any(isinstance(value, Interval) and value.high is not None for value in column.values)
        name = column.name.translate(_LATEX)
        alignment += "r@{}l" if pair else "l" if column.kind == "words" else "r"
        head.append(f"\\multicolumn{{2}}{{c}}{{{name}}}" if pair else name)
        texts = []
        for row, value in enumerate(column.values):
            parts = [column.cell(row, n)]
            if pair and isinstance(value, Interval):
                mean = column.mean(row)
                parts = [mean, parts[0].removeprefix(mean)]
            elif pair:
                parts = [*parts, ""]
            translated = [part.translate(_LATEX).replace(" $\\pm$ ", r"\,$\pm$\,") for part in parts]
            texts.append(
                " & ".join(f"\\textbf{{{part}}}" if row == column.best and part else part for part in translated)
            )
        cells.append(texts)
    body = "".join(f"{' & '.join(line)} \\\\\n" for line in zip(*cells, strict=True))
    return (
        "% needs \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{' & '.join(head)} \\\\\n\\midrule\n"
        f"{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def _cells(column: Column) -> list[str]:
    return [column.cell(row, usual_n=0) for row in range(len(column.values))]


def _hyper_parameters(row: ComparisonRow) -> str:
    return row.configuration.label.removeprefix(row.configuration.learner).strip() or _NONE


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _half_width(value: Interval, digits: int) -> str:
    return _number(None if value.high is None else value.high - value.mean, digits)


def _points_to(result: PointsTo, n: int) -> str:
    if not result.total:
        return _NONE
    if result.reached < result.total:
        return f"not reached ({result.reached} of {result.total} seeds)"
    points = result.points
    half = "" if points.high is None else f" ± {_half_width(points, 0)}"
    return f"{points.mean:.0f}{half}" + ("" if points.n == n else f" (n={points.n})")
