"""What a sweep came to, as a figure and tables: `python -m orchestrator.report [NAME]`.

Every number is over seeds, with its 95 % t-interval. A configuration with a seed that diverged or is missing is shown
as such, and is not the best one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from orchestrator import figures, metrics, results
from orchestrator.errors import OrchestratorError, fault
from orchestrator.metrics import Interval
from orchestrator.results import ConfigurationRuns, SweepRuns
from orchestrator.tracking_database import DEFAULT_URI, first_line
from orchestrator.tracking_points import BY_TASK

_ALL_IN_COLOUR = 8


@dataclass(frozen=True)
class Report:
    """``paths``: the files. ``table``: `summary_table`. ``summary``: one row per configuration, the best first.
    ``best``: its label, None if none has all its seeds. ``problems``: one line each."""

    paths: tuple[Path, ...]
    table: str
    summary: pd.DataFrame
    best: str | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A configuration's results. ``lost``: seed → what became of it, of those that are not in the means."""

    of: ConfigurationRuns
    objective: Interval
    final_error: Interval
    lost: dict[int, str] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether this may be the best one: all its seeds are at the end, and none diverged."""
        return self.of.complete and not self.lost and self.objective.n > 0


def write_report(name: str | None, uri: str, out: Path, experiment: str | None = None) -> Report:
    """Write learning_curves.png and .svg, curves.csv and summary.csv into `out`, and keep them with the sweep's run.

    Raises:
        SweepNotFound, TrackingError: one line.
        OrchestratorError: `out` cannot be written.
    """
    sweep = results.find_sweep(name, uri, experiment)
    curves = results.curves_of(sweep)
    rows = _rows(sweep, curves)
    summary = _summary(sweep, rows)
    paths = tuple(out / file for file in ("learning_curves.png", "learning_curves.svg", "curves.csv", "summary.csv"))
    try:
        out.mkdir(parents=True, exist_ok=True)
        figures.learning_curves(_lines(rows, curves), _title(sweep, rows), paths[:2])
        curves.to_csv(paths[2], index=False)
        summary.to_csv(paths[3], index=False)
    except OSError as error:
        raise OrchestratorError(fault(str(out), "", f"must be a folder that can be written ({error})")) from error
    problems = []
    try:
        for path in paths:
            sweep.client.log_artifact(sweep.run_id, str(path), "report")
    except Exception as error:  # the files are there: what is missing is a copy
        problems.append(fault("report", "", f"could not be kept with the sweep's run in {uri}", first_line(error)))
    best = next((row.of.label for row in rows if row.usable), None)
    return Report(paths, summary_table(rows, sweep.objective), summary, best, tuple(problems))


def summary_table(rows: Sequence[Row], objective: str = "cumulative_error") -> str:
    """The table that ends a sweep: aligned text, the best configuration first."""
    head = (
        "learner",
        "hyper-parameters",
        objective.replace("_", " "),
        "final error",
        "gradients/datapoint",
        "seconds",
        "boundaries",
        "notes",
    )
    cells = [
        (
            row.of.learner,
            row.of.label.removeprefix(row.of.learner).strip() or "–",
            str(row.objective) if row.objective.n else "–",
            _mean(row.final_error.mean),
            _mean(row.of.metrics.get("gradient_evaluations_per_datapoint"), 1),
            _mean(row.of.metrics.get("seconds"), 1),
            "yes" if row.of.needs_boundaries else "no",
            _notes(row),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    right = {"final error", "gradients/datapoint", "seconds"}
    lines = [
        "  ".join(
            f"{cell:>{width}}" if name in right else f"{cell:{width}}"
            for name, cell, width in zip(head, line, widths, strict=True)
        ).rstrip()
        for line in (head, *cells)
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _rows(sweep: SweepRuns, curves: pd.DataFrame) -> list[Row]:
    """One for each configuration: usable ones first, then by objective."""
    rows = [_row(of, sweep.objective, curves[curves.configuration == of.hash]) for of in sweep.configurations]
    sign = -1 if sweep.mode == "max" else 1
    return sorted(rows, key=lambda row: (not row.usable, row.objective.n == 0, sign * row.objective.mean))


def _row(of: ConfigurationRuns, objective: str, curves: pd.DataFrame) -> Row:
    lost = {}
    for seed in of.planned:
        run = next((run for run in of.seeds if run.seed == seed), None)
        if run is None:
            lost[seed] = "missing"
        elif run.diverged_at is not None:
            lost[seed] = f"diverged at batch {run.diverged_at}"
        elif run.status != "FINISHED":
            lost[seed] = {"FAILED": "failed", "KILLED": "interrupted"}.get(run.status, "unfinished")
    whole = curves[~curves.seed.isin(list(lost))]
    last = whole.sort_values("step").groupby(["metric", "seed"]).value.last()
    final = _of_metric(last, "validation_error")
    if objective in BY_TASK:
        values = _of_metric(last, objective)
    else:
        values = whole[whole.metric == objective].groupby("seed").value.mean().to_numpy()
    return Row(of, metrics.interval(values), metrics.interval(final), lost)


def _of_metric(last: pd.Series[float], metric: str) -> np.ndarray:
    return last[last.index.get_level_values("metric") == metric].to_numpy()


def _summary(sweep: SweepRuns, rows: Sequence[Row]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "configuration": row.of.hash,
                "label": row.of.label,
                "learner": row.of.learner,
                "options": json.dumps(row.of.parameters, sort_keys=True, ensure_ascii=False),
                "objective": sweep.objective,
                "objective_mean": row.objective.mean,
                "objective_low": row.objective.low,
                "objective_high": row.objective.high,
                "n": row.objective.n,
                "final_error_mean": row.final_error.mean,
                "final_error_low": row.final_error.low,
                "final_error_high": row.final_error.high,
                "gradient_evaluations_per_datapoint": row.of.metrics.get("gradient_evaluations_per_datapoint"),
                "seconds": row.of.metrics.get("seconds"),
                "needs_boundaries": row.of.needs_boundaries,
                "seeds": ",".join(map(str, row.of.planned)),
                "diverged_seeds": ",".join(str(s) for s, what in row.lost.items() if what.startswith("diverged")),
                "missing_seeds": ",".join(str(s) for s, what in row.lost.items() if not what.startswith("diverged")),
                "usable": row.usable,
            }
            for row in rows
        ]
    )


def _lines(rows: Sequence[Row], curves: pd.DataFrame) -> list[figures.Line]:
    """Every configuration's line; of many, the best of each learner in colour."""
    best_of = {row.of.learner: row.of.hash for row in reversed(rows)}
    few = len(rows) <= _ALL_IN_COLOUR
    alike = len({row.of.planned for row in rows}) <= 1
    lines = []
    for row in rows:
        mine = curves[curves.configuration == row.of.hash]
        drawn = {}
        for metric in BY_TASK:
            table = mine[mine.metric == metric].pivot(index="seed", columns="step", values="value")
            if table.size:
                by_task = table.reindex(columns=range(int(table.columns.max()) + 1)).to_numpy()
                mean, low, high = metrics.interval_curve(by_task)
                # Where a seed is lost the line goes on, as its label says; the interval of the others would mislead.
                whole = np.isfinite(by_task).all(axis=0) & (len(by_task) == len(row.of.planned))
                drawn[metric] = (mean, np.where(whole, low, np.nan), np.where(whole, high, np.nan))
        label = row.of.label if alike else f"{row.of.label}, n={len(row.of.planned)}"
        if row.lost:
            label += f" ({_notes(row)})"
        lines.append(figures.Line(label, drawn, few or best_of[row.of.learner] == row.of.hash))
    return lines


def _title(sweep: SweepRuns, rows: Sequence[Row]) -> str:
    counts = {len(row.of.planned) for row in rows}
    if counts == {1}:
        over = "one seed each"
    else:
        over = f"mean and 95 % interval over {f'{counts.pop()} seeds' if len(counts) == 1 else 'seeds'}"
    hidden = "" if len(rows) <= _ALL_IN_COLOUR else f"; {len(rows)} configurations, the best of each learner in colour"
    return f"{sweep.name}: {over}{hidden}"


def _notes(row: Row) -> str:
    """What became of the seeds that are lost, those with the same fate together."""
    fates: dict[str, list[int]] = {}
    for seed, what in row.lost.items():
        fates.setdefault(what, []).append(seed)
    return ", ".join(
        f"{'seed' if len(seeds) == 1 else 'seeds'} {' '.join(map(str, seeds))} {what}" for what, seeds in fates.items()
    )


def _mean(value: float | None, digits: int = 4) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:.{digits}f}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code: 0, 1 if a copy could not be kept in MLflow, 2 for what the user must mend."""
    from orchestrator.plan import sweep_folder

    parser = argparse.ArgumentParser(prog="python -m orchestrator.report", description="What a sweep came to.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the sweep (the newest if there is no name)")
    parser.add_argument("--tracking-uri", default=DEFAULT_URI, metavar="URI", help=f"default: {DEFAULT_URI}")
    parser.add_argument("--experiment", help="look in this experiment only")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: reports/NAME")
    arguments = parser.parse_args(argv)
    uri, experiment = arguments.tracking_uri, arguments.experiment
    try:
        name = arguments.name or results.find_sweep(None, uri, experiment).name
        out = arguments.out or sweep_folder("reports", name)
        report = write_report(name, uri, out, experiment)
    except OrchestratorError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(report.table)
    print()
    for path in report.paths:
        print(path)
    for line in report.problems:
        print(line, file=sys.stderr)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
