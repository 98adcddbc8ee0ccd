"""The chart of a population's schedule: the value at each batch, and a mark for each copy."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from orchestrator.protocol.metrics import Interval
from orchestrator.report import figures
from orchestrator.report.charts import Chart
from orchestrator.report.comparison import ComparisonRow
from orchestrator.report.lineage import Lineage
from orchestrator.report.schedule_chart import schedule
from orchestrator.tracking.reader import ConfigurationRuns
from tests.orchestrator.report.test_lineage import lineage


def row(configuration: str) -> ComparisonRow:
    runs = ConfigurationRuns("run", configuration, configuration, "foml", False, True, (0,), {}, {}, ())
    return ComparisonRow(runs, Interval(0.5, None, None, 1), Interval(0.5, None, None, 1))


def points(reached: dict[str, int]) -> pd.DataFrame:
    rows = [(key, 0, "online_error", step, 0.5) for key, stop in reached.items() for step in range(stop)]
    return pd.DataFrame(rows, columns=["configuration", "seed", "metric", "step", "value"])


@pytest.fixture
def chart() -> Chart:
    """Member a is at batch 12, b at 8, c at 6; the table's rows are c, a, b."""
    rows = [row("hash c"), row("hash a"), row("hash b")]
    chart = schedule("pop", rows, points({"hash a": 12, "hash b": 8, "hash c": 6}), [lineage()])
    assert chart is not None
    return chart


def test_each_member_is_a_line_of_steps(chart: Chart) -> None:
    (panel,) = chart.panels
    assert (panel.title, panel.x_label, panel.y_label, panel.log_y) == ("beta1", "batches seen", "beta1", True)
    lines = {series.label: series for series in panel.series if series.kind == "line"}
    assert {label: (line.x.tolist(), line.y.tolist()) for label, line in lines.items()} == {
        "member a": ([0, 8, 8, 12], [0.1, 0.1, 0.1, 0.1]),
        "member b": ([0, 8, 8, 8], [0.2, 0.2, 0.064, 0.064]),
        "member c": ([0, 4, 4, 6], [0.3, 0.3, 0.08, 0.08]),
    }
    # The row of the table, whose checkbox hides the series, and the colour of the other charts.
    assert {label: (line.owner, line.style) for label, line in lines.items()} == {
        "member a": (1, 1),
        "member b": (2, 2),
        "member c": (0, 0),
    }
    low, high = panel.y_limits or (0, 0)
    assert 0 < low < 0.064 and high > 0.3


def test_each_copy_is_a_mark(chart: Chart) -> None:
    marks = [series for series in chart.panels[0].series if series.kind == "points"]
    assert [(mark.hint, mark.x.tolist(), mark.y.tolist(), mark.label) for mark in marks] == [
        ("member a copied member c", [8], [0.1], ""),
        ("member b copied member c", [8], [0.064], ""),
        ("member c copied member a", [4], [0.08], ""),
    ]


def test_a_panel_for_each_option_of_each_population_and_none_without_one() -> None:
    content = lineage().content
    members = [{**member, "values": {**member["values"], "alpha1": 0.0}} for member in content["members"]]
    other = Lineage({**content, "label": "foml K=1", "members": members, "rounds": []})
    chart = schedule("pop", [], points({}), [lineage(), other])
    assert chart is not None
    assert [panel.title for panel in chart.panels] == ["foml K=5: beta1", "foml K=1: alpha1", "foml K=1: beta1"]
    assert [panel.log_y for panel in chart.panels] == [True, False, True]
    assert schedule("pop", [row("x")], points({}), []) is None


def test_it_is_drawn(chart: Chart, tmp_path: Path) -> None:
    png, svg = tmp_path / "schedule.png", tmp_path / "schedule.svg"
    figures.draw(chart, [png, svg], figures.FigureStyle(dpi=80))
    pixels = matplotlib.image.imread(png)[..., :3]
    for colour in figures.COLOURS[:3]:
        wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        assert (np.abs(pixels - wanted).max(axis=-1) < 0.02).sum() > 50, colour
    assert "member c" in svg.read_text(encoding="utf-8") and "<dc:date>" not in svg.read_text(encoding="utf-8")
