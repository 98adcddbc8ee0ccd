"""The interactive charts of the page: the panels of `charts` as Bokeh figures whose series can be toggles.

Each series in colour has glyphs of its own. Grey series, which may be hundreds, share one glyph for their lines and one
for their points: a model for each of them would take longer to create, and to load, than the trials of a small sweep.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestrator.report.charts import Panel, Series, log_ticks
from orchestrator.report.figures import COLOURS, GREY

_MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "plus", "x")
_DASHES: tuple[Any, ...] = ("solid", [8, 3], [7, 3, 2, 3], [2, 2], [10, 3, 2, 3, 2, 3])


@dataclass(frozen=True)
class Toggles:
    """What shows or hides a configuration, by its row in the table.

    Attributes:
        models: the ids of the configuration's own models.
        filters: the ids of filters on models shared with others, each with the configuration's index there.
    """

    models: dict[int, list[str]] = field(default_factory=dict)
    filters: dict[int, list[tuple[str, int]]] = field(default_factory=dict)


def colour(series: Series) -> str:
    """The series' colour; grey for a series without a style."""
    return GREY if series.style is None else COLOURS[series.style % len(COLOURS)]


def plot(panel: Panel, y_limits: tuple[float, float], toggles: Toggles) -> Any:
    """A panel as a Bokeh figure; the models that hide its series are added to `toggles`."""
    from bokeh.models import HoverTool, Range1d
    from bokeh.plotting import figure

    low, high = y_limits
    axes = figure(
        title=panel.title,
        x_axis_label=panel.x_label,
        y_axis_label=panel.y_label,
        x_axis_type="log" if panel.log_x else "linear",
        y_axis_type="log" if panel.log_y else "linear",
        x_range=_x_range(panel),
        y_range=Range1d(start=low, end=high),
        tools="box_zoom,wheel_zoom,pan,reset,save",
        active_drag="box_zoom",
        active_scroll=None,
        height=380,
        sizing_mode="stretch_width",
    )
    axes.toolbar.logo = None
    grey = [series for series in panel.series if series.style is None and series.owner is not None]
    lines = _grey(axes, [series for series in grey if series.kind == "line"], toggles)
    points = _grey(axes, [series for series in grey if series.kind == "points"], toggles)
    shared = {id(series) for series in grey if series.kind != "both"}
    single = []
    for series in panel.series:
        if id(series) in shared:
            continue
        glyphs = _glyphs(axes, series)
        single.append(glyphs[-1])
        if series.owner is not None:
            toggles.models.setdefault(series.owner, []).extend(glyph.id for glyph in glyphs)
    value = "{0.[00000000]}" if panel.log_y else "{0.0000}"
    interval = any(np.isfinite(series.low).any() for series in panel.series)
    values = f"@y{value} [@low{value}, @high{value}]" if interval else f"@y{value}"
    for renderers, name, x, y in (
        (single, "$name", "@x", values),
        (points, "@label", "@x", values),
        (lines, "@label", "$snap_x", f"$snap_y{value}"),
    ):
        if renderers:
            tooltips = [("", name), (panel.x_label, x + "{0.[0000]}"), (panel.y_label, y)]
            axes.add_tools(HoverTool(tooltips=tooltips, renderers=renderers))
    if panel.own_colours:  # they differ from the colours of the page's checkboxes
        axes.add_layout(_legend([series.label for series in panel.series], single))
    if panel.ticks:
        axes.xaxis.ticker = [x for x, _ in panel.ticks]
        axes.xaxis.major_label_overrides = dict(panel.ticks)
    if panel.log_y:
        ticks = log_ticks(np.concatenate([series.y for series in panel.series]).tolist())
        axes.yaxis.ticker, axes.yaxis.major_label_overrides = [y for y, _ in ticks], dict(ticks)
    return axes


def _legend(labels: Sequence[str], renderers: Sequence[Any]) -> Any:
    from bokeh.models.annotations import Legend, LegendItem

    items = [LegendItem(label=label, renderers=[line]) for label, line in zip(labels, renderers, strict=True)]
    return Legend(items=items, label_text_font_size="8pt", background_fill_alpha=0.6)


def _x_range(panel: Panel) -> Any:
    """The range of all series, hidden ones included."""
    from bokeh.models import Range1d

    x = np.concatenate([series.x.astype(float) for series in panel.series])
    low, high = (np.log(x.min()), np.log(x.max())) if panel.log_x else (x.min(), x.max())
    margin = 0.05 * (high - low) or 0.5
    ends = (low - margin, high + margin)
    start, end = np.exp(ends) if panel.log_x else ends
    return Range1d(start=float(start), end=float(end))


def _glyphs(axes: Any, series: Series) -> list[Any]:
    """The series' renderers: band or bars, then line or points; the last one has the values."""
    from bokeh.models import CDSView, ColumnDataSource, Line, MultiLine, Scatter, VArea

    style, in_front = series.style or 0, series.style is not None
    source = ColumnDataSource({"x": series.x.astype(float), "y": series.y, "low": series.low, "high": series.high})
    width, dash = (2, _DASHES[style % len(_DASHES)]) if in_front else (1, "solid")
    line = Line(x="x", y="y", line_color=colour(series), line_width=width, line_dash=dash)
    glyphs: list[Any] = []
    if series.kind == "line":
        if in_front and np.isfinite(series.low).any():
            glyphs.append(VArea(x="x", y1="low", y2="high", fill_color=colour(series), fill_alpha=0.14))
        glyphs.append(line)
    else:
        glyphs.append(_bars(colour(series)))
        if series.kind == "both":
            glyphs.append(line)
        marker, fill = _MARKERS[style % len(_MARKERS)], "white"
        glyphs.append(
            Scatter(x="x", y="y", marker=marker, size=9, line_color=colour(series), fill_color=fill, line_width=2)
        )
    # add_glyph with one shared view instead of axes.line and its like, which create more models.
    view = CDSView()
    renderers = [axes.add_glyph(source, glyph, view=view, name=series.hint or series.label) for glyph in glyphs]
    if in_front and series.by_seed.size:
        seeds = ColumnDataSource({"xs": [series.x.astype(float)] * len(series.by_seed), "ys": list(series.by_seed)})
        thin = MultiLine(xs="xs", ys="ys", line_color=colour(series), line_alpha=0.4, line_width=0.7)
        renderers.insert(0, axes.add_glyph(seeds, thin))
    return renderers


def _bars(line_color: str) -> Any:
    from bokeh.models import Segment

    return Segment(x0="x", y0="low", x1="x", y1="high", line_color=line_color, line_alpha=0.5)


def _grey(axes: Any, group: Sequence[Series], toggles: Toggles) -> list[Any]:
    """Draw lines, or series of one point each, with shared glyphs. Returns the renderer with the values, if any."""
    from bokeh.models import BooleanFilter, CDSView, ColumnDataSource, MultiLine, Scatter

    if not group:
        return []
    columns: dict[str, Any] = {"label": [series.hint or series.label for series in group]}
    if group[0].kind == "line":
        columns |= {name: [getattr(series, name).astype(float) for series in group] for name in ("x", "y")}
        glyphs: list[Any] = [MultiLine(xs="x", ys="y", line_color=GREY)]
    else:
        columns |= {name: [getattr(series, name)[0] for series in group] for name in ("x", "y", "low", "high")}
        glyphs = [_bars(GREY), Scatter(x="x", y="y", size=9, line_color=GREY, fill_color="white", line_width=2)]
    visible = BooleanFilter(booleans=[True] * len(group))
    for index, series in enumerate(group):
        assert series.owner is not None
        toggles.filters.setdefault(series.owner, []).append((visible.id, index))
    source, view = ColumnDataSource(columns), CDSView(filter=visible)
    return [axes.add_glyph(source, glyph, view=view) for glyph in glyphs][-1:]
