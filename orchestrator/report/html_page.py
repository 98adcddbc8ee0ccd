"""`report.html`: the tables and the interactive charts in one file, which also opens without a network.

The template is `report.html.j2`; Bokeh's script is inlined.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.report import html_charts, lineage, tables
from orchestrator.report.charts import Chart
from orchestrator.report.comparison import ComparisonRow
from orchestrator.report.figures import GREY
from orchestrator.report.html_charts import Toggles
from orchestrator.report.lineage import Lineage
from orchestrator.tracking.reader import SweepRuns

_TEMPLATE = Path(__file__).with_name("report.html.j2")
_PROVENANCE = ("git_commit", "git_dirty", "versions", "python", "platform", "store", "command")
_STATES = {"RUNNING": "still running", "FINISHED": "finished", "FAILED": "finished, some trials failed"}


def page(
    sweep: SweepRuns, rows: Sequence[ComparisonRow], charts: Sequence[Chart], lineages: Sequence[Lineage] = ()
) -> str:
    """The HTML text of the page."""
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
    script, divisions = components(tuple(figures.values())) if figures else ("", ())
    best = next((row.configuration for row in rows if row.usable), None)
    html: str = Template(_TEMPLATE.read_text(encoding="utf-8"), autoescape=True).render(
        title=sweep.name,
        complete=tables.complete(rows),
        state=_STATES.get(sweep.status, "interrupted"),
        objective=sweep.objective.replace("_", " "),
        rows=rows,
        configurations=tables.cells(rows, sweep.objective, wide=True),
        points_to=tables.points_to(rows),
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
            *((key, sweep.tags[f"foml.{key}"]) for key in _PROVENANCE if f"foml.{key}" in sweep.tags),
        ],
        toggles=toggles,
        bokeh=Resources(mode="inline", components=["bokeh"]).render(),  # one of its five scripts
        script=script,
    )
    return html
