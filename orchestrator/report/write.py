"""Writing a report: figures, tables and a page of what a sweep came to."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from csv import writer
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from orchestrator.errors import DiskFullError, OrchestratorError, disk_full_line, fault, is_disk_full
from orchestrator.report import charts, comparison, figures, lineage, tables
from orchestrator.report.comparison import Row
from orchestrator.report.derived_curves import with_adaptation, with_regret
from orchestrator.report.lineage import Descent
from orchestrator.report.schedule_chart import schedule
from orchestrator.tracking import reader
from orchestrator.tracking.database import first_line
from orchestrator.tracking.reader import SweepRuns
from orchestrator.tracking.tables import TEST_FILE

THRESHOLDS = (0.3, 0.2, 0.1)
_NOTE = "mlflow.note.content"
_NOTE_LENGTH = 4_500
"""Of a tag, MLflow's database keeps 5,000 to 8,000 characters, by its version."""


@dataclass(frozen=True)
class Report:
    """``paths``: the files. ``table``: the table as text. ``summary``: one row per configuration, the best first.
    ``best``: its label, None if none has all its seeds. ``problems``: one line each. ``rows``: the configurations, the
    best first. ``run_id``: of the sweep's own run. ``explained``: what else is to be known of the best one, empty if
    nothing."""

    paths: tuple[Path, ...]
    table: str
    summary: pd.DataFrame
    best: str | None
    problems: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    run_id: str | None = None
    explained: str = ""


def write_report(
    name: str | None,
    uri: str,
    out: Path,
    experiment: str | None = None,
    test: bool = False,
    thresholds: Sequence[float] = THRESHOLDS,
    dpi: int = figures.DPI,
) -> Report:
    """Write the report into `out`, and keep it with the sweep's run, whose description becomes the table.

    The files: `report.html`; each chart as .png and .svg; `curves` and `summary` as .csv and .parquet; `summary.tex`;
    `copies.csv` where there are populations.

    Args:
        name: the sweep; the newest if None.
        uri: where it was tracked.
        out: a folder, made if it is not there.
        experiment: look in this experiment only.
        test: show the test errors, too. That is for the end: they are not to be chosen by.
        thresholds: the errors that `points_to` is asked for.
        dpi: pixels per inch of the .png figures, which are 7.2 inches wide.

    Raises:
        SweepNotFound, TrackingError: one line.
        OrchestratorError: `out` cannot be written; or there are no test errors.
    """
    sweep = reader.find_sweep(name, uri, experiment)
    curves = with_regret(sweep, with_adaptation(sweep, reader.curves_of(sweep)))
    test_errors = _test_errors(sweep) if test else None
    rows = comparison.compare(sweep, curves, thresholds, test_errors)
    if test_errors is not None:
        curves = pd.concat([curves, test_errors], ignore_index=True)
    summary = comparison.summary(sweep, rows)
    descents = lineage.read(sweep)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=out) as new:
            _write_files(sweep, rows, curves, summary, descents, Path(new), dpi)
            # Whoever looks at a report while it is made anew sees the old files or the new, and none cut short.
            paths = [path.replace(out / path.name) for path in sorted(Path(new).iterdir())]
    except OSError as error:
        if is_disk_full(error):
            raise DiskFullError(disk_full_line(out)) from error
        raise OrchestratorError(fault(str(out), "", f"must be a folder that can be written ({error})")) from error
    problems = []
    try:
        for path in paths:
            sweep.client.log_artifact(sweep.run_id, str(path), "report")
        sweep.client.set_tag(sweep.run_id, _NOTE, _description(sweep, rows))
    except Exception as error:  # the files are there: what is missing is a copy
        problems.append(fault("report", "", f"could not be kept with the sweep's run in {uri}", first_line(error)))
    best = next((row.of for row in rows if row.usable), None)
    table = tables.text(rows, sweep.objective)
    label = None if best is None else best.label
    told = "" if best is None else lineage.explained(descents, best.hash, best.label)
    return Report(tuple(paths), table, summary, label, tuple(problems), tuple(rows), sweep.run_id, told)


def _write_files(
    sweep: SweepRuns,
    rows: Sequence[Row],
    curves: pd.DataFrame,
    summary: pd.DataFrame,
    descents: Sequence[Descent],
    folder: Path,
    dpi: int,
) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    from orchestrator.report.html_page import page

    drawn = charts.all_charts(sweep, rows, curves)
    if (populations := schedule(sweep.name, rows, curves, descents)) is not None:
        drawn.append(populations)
    for chart in drawn:
        figures.draw(chart, [folder / f"{chart.name}.png", folder / f"{chart.name}.svg"], dpi)
    (folder / "report.html").write_text(page(sweep, rows, drawn, descents), encoding="utf-8")
    (folder / "summary.tex").write_text(tables.latex(rows, sweep.objective), encoding="utf-8")
    if descents:
        with (folder / "copies.csv").open("w", encoding="utf-8", newline="") as file:
            for each in descents:
                writer(file).writerows(
                    [("population", *each.table()[0]), *((each.label, *row) for row in each.table()[1:])]
                )
    for name, table in (("curves", curves), ("summary", summary)):
        plain = pa.Table.from_pandas(_mixed_as_text(table), preserve_index=False)
        # pyarrow writes millions of points in a tenth of the time that pandas takes.
        csv.write_csv(plain, folder / f"{name}.csv")
        parquet.write_table(plain, folder / f"{name}.parquet")


def _mixed_as_text(table: pd.DataFrame) -> pd.DataFrame:
    """A column of values of several types (an option that is a number here and a word there) as text."""
    mixed = {
        name: column.map(lambda value: None if value is None else str(value))
        for name, column in table.items()
        if column.dtype == object and len({type(value) for value in column.dropna().unique()}) > 1
    }
    return table.assign(**mixed)  # type: ignore[arg-type]


def _test_errors(sweep: SweepRuns) -> pd.DataFrame:
    errors = reader.test_errors_of(sweep)
    if errors.empty and any(TEST_FILE in of.digests for of in sweep.configurations):
        rule = "no configuration has test errors that can be read"
        again = f"python -m orchestrator.sweep --resume {shlex.quote(sweep.name)}"
        raise OrchestratorError(fault("--test", "", rule, sweep.name, f"{again} writes them again"))
    if errors.empty:
        rule = "no configuration has test errors: they are there once one is complete"
        raise OrchestratorError(
            fault("--test", "", rule, sweep.name, "a sweep of an older version has none: run it again with --rerun")
        )
    return errors


def _description(sweep: SweepRuns, rows: Sequence[Row]) -> str:
    """The parent run's description in MLflow."""
    best = next((f"Best: **{row.of.label}**, {tables.shown(row.objective)}. " for row in rows if row.usable), "")
    head = f"{best}{tables.complete(rows)}; curves and figures are in the artifact `report`."
    return f"{head}\n\n{tables.markdown(rows, sweep.objective, _NOTE_LENGTH - len(head))}"
