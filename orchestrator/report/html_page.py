"""`report.html`: the tables and the interactive charts in one file, which also opens without a network.

The template is `report.html.j2`; Bokeh's script is inlined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.console.progress import clock_time
from orchestrator.report import html_charts, lineage, tables
from orchestrator.report.charts import Chart
from orchestrator.report.comparison import ComparisonRow
from orchestrator.report.figures import GREY
from orchestrator.report.html_charts import Toggles
from orchestrator.report.lineage import Lineage
from orchestrator.report.tables import Column
from orchestrator.tracking.database import charts_link, ui_command
from orchestrator.tracking.names import listed
from orchestrator.tracking.provenance import STORE
from orchestrator.tracking.reader import SweepRuns

_TEMPLATE = Path(__file__).with_name("report.html.j2")
_PROVENANCE = (
    *("foml.git_commit", "foml.git_dirty", "foml.versions", "foml.python", "foml.platform", STORE, "foml.command"),
)
_STATES = {"RUNNING": "still running", "FINISHED": "finished", "FAILED": "finished, some trials failed"}


def page(
    sweep: SweepRuns,
    rows: Sequence[ComparisonRow],
    charts: Sequence[Chart],
    lineages: Sequence[Lineage] = (),
    pairs: Sequence[Column] = (),
    warning: str = "",
) -> str:
    """The HTML text of the page; `pairs` and `warning`: of a comparison of two sweeps."""
    from bokeh.document import Document
    from bokeh.embed import components
    from bokeh.resources import Resources
    from jinja2 import Template

    toggles = Toggles()
    figures = {
        (chart.name, index): html_charts.plot(panel, panel.y_limits, toggles)
        for chart in charts
        for index, panel in enumerate(chart.panels)
        if panel.y_limits
    }
    document = Document()
    with document.models.freeze():  # otherwise each root walks through the models of all roots before it
        for figure in figures.values():
            document.add_root(figure)
    script, divisions = components(tuple(figures.values())) if figures else ("", ())
    best = next((row.configuration for row in rows if row.usable), None)
    wide, n = tables.columns(rows, sweep.objective, wide=True), tables.usual_n(rows)
    points_to = tables.points_to(rows)
    html: str = Template(_TEMPLATE.read_text(encoding="utf-8"), autoescape=True).render(
        title=sweep.name,
        sentence=tables.result_sentence(rows, sweep.objective),
        complete=tables.complete(rows),
        state=_STATES.get(sweep.status, "interrupted"),
        objective=sweep.objective.replace("_", " "),
        better="higher" if sweep.mode == "max" else "lower",
        rows=rows,
        origin=" · ".join(_origin(sweep, rows)),
        mlflow_link=charts_link(sweep.client.tracking_uri, sweep.charts) if sweep.charts else "",
        mlflow_command=ui_command(sweep.client.tracking_uri, sweep.name) if sweep.charts else "",
        columns=wide,
        n=n,
        pairs=pairs,
        warning=warning,
        latex=tables.latex(rows, sweep.objective),
        points_to=points_to if len(points_to[0]) > 1 else [],
        lineages=lineages,
        explanation="" if best is None else lineage.explanation(lineages, best),
        charts=charts,
        plots=dict(zip(figures, divisions, strict=True)),
        colours={
            series.owner: html_charts.colour(series)
            for chart in charts[:1]
            for panel in chart.panels
            for series in panel.series
        },
        grey=GREY,
        provenance=[
            ("", ""),
            *((tag.partition(".")[2], sweep.tags[tag]) for tag in _PROVENANCE if tag in sweep.tags),
        ],
        toggles=toggles,
        bokeh=Resources(mode="inline", components=["bokeh"]).render(),  # one of its five scripts
        script=script,
    )
    return html


def _origin(sweep: SweepRuns, rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """The parts of the line that says where the results are from."""
    streams = dict.fromkeys(str(row.configuration.parameters.get("stream", "")) for row in rows)
    yield from filter(None, streams)
    seeds = {seed for row in rows for seed in row.configuration.planned}
    if seeds:
        yield f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)}"
    if sweep.started_ms is not None:
        yield f"{datetime.fromtimestamp(sweep.started_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
        if sweep.ended_ms is not None:
            yield f"{clock_time((sweep.ended_ms - sweep.started_ms) / 1000)} from first start to last end"
    if host := sweep.tags.get("foml.hostname"):
        yield host
    if commit := sweep.tags.get("foml.git_commit"):
        yield f"commit {commit[:12]}{' with changes' if sweep.tags.get('foml.git_dirty') == 'true' else ''}"
