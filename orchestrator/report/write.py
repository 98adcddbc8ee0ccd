"""Writes the report of a sweep: figures, tables and an HTML page."""

from __future__ import annotations

import csv
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from orchestrator.errors import DiskFullError, OrchestratorError, disk_full_line, fault, is_disk_full
from orchestrator.report import charts, comparison, figures, lineage, tables
from orchestrator.report.comparison import ComparisonRow
from orchestrator.report.derived_curves import with_adaptation, with_regret
from orchestrator.report.lineage import Lineage
from orchestrator.report.schedule_chart import schedule
from orchestrator.tracking import reader
from orchestrator.tracking.database import first_line
from orchestrator.tracking.reader import SweepRuns
from orchestrator.tracking.tables import TEST_FILE

THRESHOLDS = (0.3, 0.2, 0.1)
_NOTE = "mlflow.note.content"
_NOTE_LENGTH = 4_500
"""MLflow's database stores 5,000 to 8,000 characters of a tag, depending on its version."""


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        folder: where it was written.
        paths: the files.
        table: the comparison as text.
        summary: one row per configuration, the best one first.
        best: the label of the best configuration; None if none finished with every seed.
        problems: one line each.
        rows: the comparison, the best configuration first.
        run_id: the sweep's own run.
        explanation: the lineage of the best configuration if it is a population member, else empty.
    """

    folder: Path
    paths: tuple[Path, ...]
    table: str
    summary: pd.DataFrame
    best: str | None
    problems: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    run_id: str
    explanation: str


def write_report(
    name: str | None,
    uri: str,
    out: Path,
    experiment: str | None = None,
    test: bool = False,
    thresholds: Sequence[float] = THRESHOLDS,
    dpi: int = figures.DPI,
) -> Report:
    """Write the report into a folder and store it with the sweep's run, whose description becomes the table.

    The files: `report.html`; each chart as .png and .svg; `curves` and `summary` as .csv and .parquet; `summary.tex`;
    `copies.csv` of a sweep with populations.

    Args:
        name: the sweep; the newest one if None.
        uri: the tracking URI.
        out: the folder, which is created if it does not exist.
        experiment: the only experiment to search; all if None.
        test: show the test errors. Only after all choices are made: they must not affect a choice.
        thresholds: the errors for which `points_to` is computed.
        dpi: pixels per inch of the .png figures, which are 7.2 inches wide.

    Raises:
        SweepNotFound, TrackingError: the sweep cannot be read.
        OrchestratorError: the folder cannot be written, or there are no test errors.
    """
    sweep = reader.find_sweep(name, uri, experiment)
    curves = with_regret(sweep, with_adaptation(sweep, reader.curves_of(sweep)))
    if test:
        curves = pd.concat([curves, _test_errors(sweep)], ignore_index=True)
    rows = comparison.compare(sweep, curves, thresholds)
    summary = comparison.summary(sweep, rows)
    lineages = lineage.read(sweep)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=out) as new:
            _write_files(sweep, rows, curves, summary, lineages, Path(new), dpi)
            # A reader sees the old file or the new one, never a part of it.
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
    except Exception as error:  # the files are written, only their copy is missing
        problems.append(fault("report", "", f"could not be stored with the sweep's run in {uri}", first_line(error)))
    table, best = tables.text(rows, sweep.objective), _best(rows)
    label = None if best is None else best.configuration.label
    explanation = "" if best is None else lineage.explanation(lineages, best.configuration)
    return Report(out, tuple(paths), table, summary, label, tuple(problems), tuple(rows), sweep.run_id, explanation)


def _best(rows: Sequence[ComparisonRow]) -> ComparisonRow | None:
    return next((row for row in rows if row.usable), None)


def _write_files(
    sweep: SweepRuns,
    rows: Sequence[ComparisonRow],
    curves: pd.DataFrame,
    summary: pd.DataFrame,
    lineages: Sequence[Lineage],
    folder: Path,
    dpi: int,
) -> None:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    from orchestrator.report.html_page import page

    all_charts = charts.all_charts(sweep, rows, curves)
    if (populations := schedule(sweep.name, rows, curves, lineages)) is not None:
        all_charts.append(populations)
    for chart in all_charts:
        figures.draw(chart, [folder / f"{chart.name}.png", folder / f"{chart.name}.svg"], dpi)
    (folder / "report.html").write_text(page(sweep, rows, all_charts, lineages), encoding="utf-8")
    (folder / "summary.tex").write_text(tables.latex(rows, sweep.objective), encoding="utf-8")
    if lineages:
        with (folder / "copies.csv").open("w", encoding="utf-8", newline="") as file:
            for each in lineages:
                head, *copies = each.table()
                csv.writer(file).writerows([("population", *head), *((each.label, *copy) for copy in copies)])
    for name, table in (("curves", curves), ("summary", summary)):
        plain = pa.Table.from_pandas(_mixed_as_text(table), preserve_index=False)
        # For millions of points, pyarrow is ten times as fast as pandas.
        arrow_csv.write_csv(plain, folder / f"{name}.csv")
        parquet.write_table(plain, folder / f"{name}.parquet")


def _mixed_as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table with columns of several types (an option with numbers and words as values) converted to text."""
    mixed = {
        name: column.map(lambda value: None if value is None else str(value))
        for name, column in table.items()
        if column.dtype == object and len({type(value) for value in column.dropna().unique()}) > 1
    }
    return table.assign(**mixed)  # type: ignore[arg-type]


def _test_errors(sweep: SweepRuns) -> pd.DataFrame:
    errors = reader.test_errors_of(sweep)
    if errors.empty:
        rule, remedy = "no configuration has test errors", "run the sweep again with --rerun: its version wrote none"
        if any(TEST_FILE in runs.digests for runs in sweep.configurations):
            rule += " that can be read"
            remedy = f"python -m orchestrator.sweep --resume {shlex.quote(sweep.name)} writes them again"
        elif not any(runs.complete for runs in sweep.configurations):
            rule, remedy = f"{rule}: none is complete", "wait until one is"
        raise OrchestratorError(fault("--test", "", rule, sweep.name, remedy))
    return errors


def _description(sweep: SweepRuns, rows: Sequence[ComparisonRow]) -> str:
    """The description of the sweep's run in MLflow."""
    best = _best(rows)
    text = "" if best is None else f"Best: **{best.configuration.label}**, {tables.shown(best.objective)}. "
    text += f"{tables.complete(rows)}; curves and figures are in the artifact `report`.\n\n"
    return text + tables.markdown(rows, sweep.objective, _NOTE_LENGTH - len(text))
