"""`report.html`: the tables, and the charts to zoom into and to switch series of on and off, in one file.

It opens from disk without a network: Bokeh's script is in it.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from orchestrator.report import html_charts, lineage, tables
from orchestrator.report.charts import Chart, Series
from orchestrator.report.comparison import Row
from orchestrator.report.figures import GREY
from orchestrator.report.html_charts import Hidden
from orchestrator.report.lineage import Descent
from orchestrator.tracking.reader import SweepRuns

_TOLD = (
    "foml.git_commit",
    "foml.git_dirty",
    "foml.versions",
    "foml.python",
    "foml.platform",
    "foml.store",
    "foml.command",
)

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1200px; margin: 1.5rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.5rem }} h2 {{ font-size: 1.15rem; margin: 1.8rem 0 .4rem }}
.scroll {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: 13px; white-space: nowrap; font-variant-numeric: tabular-nums }}
th, td {{ padding: .25rem .7rem; text-align: left; border-bottom: 1px solid #ddd }}
th {{ border-bottom: 2px solid #888 }}
#series {{ position: sticky; top: 0; z-index: 9; background: #fff; padding: .5rem 0; border-bottom: 1px solid #ddd;
  max-height: 25vh; overflow-y: auto }}
#series label {{ display: inline-block; margin-right: 1rem; cursor: pointer }}
#series i {{ display: inline-block; width: 1.1em; height: .7em; margin: 0 .3em }}
.panels {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(360px, 1fr)); gap: 1rem }}
.note {{ color: #555; font-size: 13px }}
@media print {{ #series {{ position: static }} }}
</style>
{script}
</head><body>
<h1>{title}</h1>
<p>{state}</p>
<h2>Configurations</h2>
<div class="scroll">{table}</div>
<p class="note">Means over seeds ± the half-width of their 95 % t-interval. The difference to the best configuration is
paired by seed; its p is of a two-sided paired t-test, corrected by Holm for all differences in the table. Seeds that
diverged or are missing are named, and are in no mean.</p>
{reached}
{populations}
<h2>Curves</h2>
<div id="series">{toggles}</div>
<p class="note">Drag a box to zoom, or take another tool beside the chart; the round arrow shows everything again.</p>
{charts}
<h2>Where it comes from</h2>
<div class="scroll">{told}</div>
{roots}
<script>
const owned = {owned}, filtered = {filtered};
const model = id => Bokeh.documents.map(each => each.get_model_by_id(id)).find(each => each);
function show(changed) {{
  const shown = new Map();
  for (const box of changed) {{
    for (const id of owned[box.value] || []) model(id).visible = box.checked;
    for (const [id, index] of filtered[box.value] || []) {{
      if (!shown.has(id)) shown.set(id, [...model(id).booleans]);
      shown.get(id)[index] = box.checked;
    }}
  }}
  for (const [id, booleans] of shown) model(id).booleans = booleans;
}}
const boxes = [...document.querySelectorAll("#series input")];
for (const box of boxes) box.addEventListener("change", () => show([box]));
function showAll(on) {{ for (const box of boxes) box.checked = on; show(boxes); }}
</script>
</body></html>
"""


def page(sweep: SweepRuns, rows: Sequence[Row], charts: Sequence[Chart], descents: Sequence[Descent] = ()) -> str:
    """The whole file."""
    from bokeh.embed import components
    from bokeh.resources import Resources

    hidden = Hidden()
    plots = {
        f"{chart.name}-{index}": html_charts.plot(panel, panel.y_limits, hidden)
        for chart in charts
        for index, panel in enumerate(chart.panels)
        if panel.y_limits
    }
    script, places = components(plots) if plots else ("", {})
    divs = "\n".join(
        f'<h2>{html.escape(chart.title)}</h2>\n<div class="panels" id="{chart.name}">'
        + "".join(
            f"<div>{places.get(f'{chart.name}-{index}', f'{html.escape(panel.title)}: {chart.empty}')}</div>"
            for index, panel in enumerate(chart.panels)
        )
        + "</div>"
        for chart in charts
    )
    colours = {series.owner: html_charts.colour(series) for series in _all_series(charts[:1])}
    reached = tables.points_to(rows)
    told = [("", ""), *((key.removeprefix("foml."), sweep.tags[key]) for key in _TOLD if key in sweep.tags)]
    return _PAGE.format(
        title=html.escape(sweep.name),
        script=Resources(mode="inline", components=["bokeh"]).render(),  # of its five scripts the one needed
        state=html.escape(_state(sweep, rows)),
        table=tables.as_html(tables.cells(rows, sweep.objective, wide=True)),
        reached=_reached(reached) if len(reached[0]) > 1 else "",
        populations=_populations(rows, descents),
        toggles=_toggles(rows, colours),
        charts=divs,
        told=tables.as_html(told),
        roots=script,
        owned=json.dumps(hidden.models),
        filtered=json.dumps(hidden.filters),
    )


def _state(sweep: SweepRuns, rows: Sequence[Row]) -> str:
    running = {"RUNNING": "still running", "FINISHED": "finished", "FAILED": "ended, some failed"}
    return (
        f"{tables.complete(rows)}; the sweep is "
        f"{running.get(sweep.status, 'interrupted')}. Objective: {sweep.objective.replace('_', ' ')}, lower is better."
    )


def _reached(table: Sequence[Sequence[str]]) -> str:
    return (
        f'<h2>How soon a task is learned</h2>\n<div class="scroll">{tables.as_html(table)}</div>\n'
        '<p class="note">Points of a task learned before the online error, a mean over tasks, is at most this.</p>'
    )


def _populations(rows: Sequence[Row], descents: Sequence[Descent]) -> str:
    if not descents:
        return ""
    made = ["<h2>Who copied whom</h2>"]
    best = next((row.of for row in rows if row.usable), None)
    if best is not None and (told := lineage.explained(descents, best.hash, best.label)):
        made.append(f"<pre>{html.escape(told)}</pre>")
    for each in descents:
        made.append(f'<div class="scroll">{tables.as_html(each.table())}</div>')
    made.append(
        '<p class="note">A member of a population is no constant configuration. At the end of a round the worst copied '
        "one of the best: from there on it goes on from that one's state, with that one's values a step away or drawn "
        "anew. Its curve before a copy is that of the state which it gave up. Errors are of the round alone. Members "
        "that copied one another are not independent: read differences between them with care.</p>"
    )
    return "\n".join(made)


def _toggles(rows: Sequence[Row], colours: dict[int | None, str]) -> str:
    made = [
        f'<label><input type="checkbox" checked value="{index}">'
        f'<i style="background:{colours.get(index, GREY)}"></i>{html.escape(row.of.label)}</label>'
        for index, row in enumerate(rows)
    ]
    return "\n".join(
        [*made, '<button onclick="showAll(true)">all</button>', '<button onclick="showAll(false)">none</button>']
    )


def _all_series(charts: Sequence[Chart]) -> list[Series]:
    return [series for chart in charts for panel in chart.panels for series in panel.series]
