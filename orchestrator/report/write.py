"""Writes the report of a sweep: figures, tables and an HTML page."""

from __future__ import annotations

import csv
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from orchestrator.errors import DiskFullError, OrchestratorError, disk_full_line, fault, is_disk_full
from orchestrator.plan.plan import sweep_folder
from orchestrator.report import charts, comparison, figures, lineage, sweep_comparison, tables
from orchestrator.report.comparison import ComparisonRow
from orchestrator.report.derived_curves import with_adaptation, with_regret
from orchestrator.report.figures import FigureStyle
from orchestrator.report.lineage import Lineage
from orchestrator.report.schedule_chart import schedule
from orchestrator.report.sweep_comparison import SweepPart
from orchestrator.report.tables import Column
from orchestrator.tracking import reader
from orchestrator.tracking.database import first_line
from orchestrator.tracking.reader import SweepRuns
from orchestrator.tracking.tables import TEST_FILE

THRESHOLDS = (0.3, 0.2, 0.1)
_NOTE, _COLOUR = "mlflow.note.content", "mlflow.runColor"
_NOTE_LENGTH = 4_500
"""MLflow's database stores 5,000 to 8,000 characters of a tag, depending on its version."""


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        folder: where it was written; None without files.
        paths: the files.
        table: the comparison as text.
        summary: one row per configuration, the best one first.
        best: the label of the best configuration; None if none finished with every seed.
        problems: one line each.
        rows: the comparison, the best configuration first.
        run_id: the sweep's own run.
        explanation: the lineage of the best configuration if it is a population member, else empty.
        sentence: the result in words, from `tables.result_sentence`.
        charts: the page of MLflow's UI that overlays all curves, below the server's address.
    """

    folder: Path | None
    paths: tuple[Path, ...]
    table: str
    summary: pd.DataFrame
    best: str | None
    problems: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    run_id: str
    explanation: str
    sentence: str
    charts: str = ""


def write_report(
    name: str | None,
    uri: str,
    out: Path | None,
    experiment: str | None = None,
    test: bool = False,
    thresholds: Sequence[float] = THRESHOLDS,
    style: FigureStyle | None = None,
) -> Report:
    """Write the report into a folder and store it with the sweep's run, whose description becomes the table.

    The files: `report.html`; each chart as .png and .svg; `curves` and `summary` as .csv and .parquet; `summary.tex`;
    `copies.csv` of a sweep with populations.

    Args:
        name: the sweep; the newest one if None.
        uri: the tracking URI.
        out: the folder, which is created if it does not exist; None to write no files.
        experiment: the only experiment to search; all if None.
        test: show the test errors. Only after all choices are made: they must not affect a choice.
        thresholds: the errors for which `points_to` is computed.
        style: of the figures; without titles, or where the folder has its .pdf, each chart is also a .pdf.

    Raises:
        SweepNotFound, TrackingError: the sweep cannot be read.
        OrchestratorError: the folder cannot be written, or there are no test errors.
    """
    sweep, curves = _read(name, uri, experiment, test)
    rows = comparison.compare(sweep, curves, thresholds)
    lineages = lineage.read(sweep)
    summary = comparison.summary(sweep, rows)
    paths: tuple[Path, ...] = ()
    if out is not None:
        paths = _save(out, lambda folder: _write_files(sweep, rows, curves, summary, lineages, folder, style))
    problems = []
    try:
        for path in paths:
            sweep.client.log_artifact(sweep.run_id, str(path), "report")
        sweep.client.set_tag(sweep.run_id, _NOTE, _description(sweep, rows))
        _colour_runs(sweep, rows)
    except Exception as error:  # the files are written, only their copy is missing
        problems.append(fault("report", "", f"could not be stored with the sweep's run in {uri}", first_line(error)))
    best = _best(rows)
    return Report(
        out,
        paths,
        tables.text(rows, sweep.objective),
        summary,
        None if best is None else best.configuration.label,
        tuple(problems),
        tuple(rows),
        sweep.run_id,
        "" if best is None else lineage.explanation(lineages, best.configuration),
        tables.result_sentence(rows, sweep.objective),
        sweep.charts,
    )


def write_comparison(
    first: str | None,
    second: str | None,
    uri: str,
    out: Path | None = None,
    experiment: str | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    style: FigureStyle | None = None,
) -> tuple[str, tuple[Path, ...]]:
    """Write the comparison of two sweeps into a folder: a report on both, with the table of their pairs.

    The table is in `report.html`, and as `pairs.csv` and `pairs.tex`.

    Args:
        first: the first sweep; the newest one if None.
        second: the second sweep; the earlier version of the first one if None.
        uri: the tracking URI.
        out: the folder; `reports/FIRST and SECOND` if None.
        experiment: the only experiment to search; all if None.
        thresholds: the errors for which `points_to` is computed.
        style: of the figures.

    Returns:
        The table as text, and the files.

    Raises:
        SweepNotFound, TrackingError: a sweep cannot be read.
        OrchestratorError: the sweeps cannot be compared, or the folder cannot be written.
    """
    if second is None:
        one, other = sweep_comparison.versions(*_read(first, uri, experiment))
    else:
        one, other = (
            SweepPart(sweep.name, sweep, curves)
            for sweep, curves in (_read(name, uri, experiment) for name in (first, second))
        )
    both = sweep_comparison.merged(one, other)
    rows = comparison.compare(both.sweep, both.curves, thresholds)
    matches = sweep_comparison.pairs(one, other, rows)
    if not matches:
        rule = "the sweeps have no finished configurations of the same learner"
        raise OrchestratorError(fault("report", "", rule, both.name))
    table, warning = sweep_comparison.columns(one, other, matches), sweep_comparison.warning(matches)
    summary = comparison.summary(both.sweep, rows)

    def write(folder: Path) -> None:
        _write_files(both.sweep, rows, both.curves, summary, (), folder, style, table, warning)
        (folder / "pairs.tex").write_text(tables.tabular(table, tables.usual_n(rows)), encoding="utf-8")
        sweep_comparison.numbers(matches).to_csv(folder / "pairs.csv", index=False)

    paths = _save(out or sweep_folder("reports", both.name), write)
    return "\n\n".join(filter(None, [tables.aligned(table), warning])), paths


def _read(name: str | None, uri: str, experiment: str | None, test: bool = False) -> tuple[SweepRuns, pd.DataFrame]:
    """A sweep with its curves, the computed ones included."""
    sweep = reader.find_sweep(name, uri, experiment)
    curves = with_regret(sweep, with_adaptation(sweep, reader.curves_of(sweep)))
    return sweep, pd.concat([curves, _test_errors(sweep)], ignore_index=True) if test else curves


def _save(out: Path, write: Callable[[Path], None]) -> tuple[Path, ...]:
    """The files of `write`, in the folder `out`: a reader sees the old file or the new one, never a part of it.

    `write` is given a new folder inside of `out`.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=out) as new:
            write(Path(new))
            return tuple(path.replace(out / path.name) for path in sorted(Path(new).iterdir()))
    except OSError as error:
        if is_disk_full(error):
            raise DiskFullError(disk_full_line(out)) from error
        raise OrchestratorError(fault(str(out), "", f"must be a folder that can be written ({error})")) from error


def _colour_runs(sweep: SweepRuns, rows: Sequence[ComparisonRow]) -> None:
    """Give the runs of configurations and seeds the colours of the report in MLflow's UI."""
    for index, style in charts.styles(rows).items():
        configuration, colour = rows[index].configuration, figures.COLOURS[style % len(figures.COLOURS)]
        runs = [configuration.run_id, *(seed.run_id for seed in configuration.seeds if seed.run_id)]
        for run_id in runs:
            sweep.client.set_tag(run_id, _COLOUR, colour)


def _best(rows: Sequence[ComparisonRow]) -> ComparisonRow | None:
    return next((row for row in rows if row.usable), None)


def _write_files(
    sweep: SweepRuns,
    rows: Sequence[ComparisonRow],
    curves: pd.DataFrame,
    summary: pd.DataFrame,
    lineages: Sequence[Lineage],
    folder: Path,
    style: FigureStyle | None,
    pairs: Sequence[Column] = (),
    warning: str = "",
) -> None:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    from orchestrator.report.html_page import page

    all_charts = charts.all_charts(sweep, rows, curves)
    if (populations := schedule(sweep.name, rows, curves, lineages)) is not None:
        all_charts.append(populations)
    earlier = {path.name for path in folder.parent.glob("*.pdf")}  # of `--paper`: a PDF is never older than its chart
    for chart in all_charts:
        paper = (style is not None and not style.titles) or f"{chart.name}.pdf" in earlier
        endings = ("png", "svg", "pdf") if paper else ("png", "svg")
        figures.draw(chart, [folder / f"{chart.name}.{ending}" for ending in endings], style)
    (folder / "report.html").write_text(page(sweep, rows, all_charts, lineages, pairs, warning), encoding="utf-8")
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
