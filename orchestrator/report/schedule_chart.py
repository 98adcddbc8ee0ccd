"""A population's schedule, drawn: which value each member had when, and where it copied another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from orchestrator.report.charts import ALL_IN_COLOUR, Chart, Panel, Series
from orchestrator.report.comparison import Row
from orchestrator.report.lineage import Descent, Way


def schedule(name: str, rows: Sequence[Row], curves: pd.DataFrame, descents: Sequence[Descent]) -> Chart | None:
    """One panel for each option that changes in each population, against batches; None without a population.

    Args:
        name: of the sweep.
        rows: the table, for the members' places and colours in it.
        curves: all points; they say how far each member has come.
        descents: the populations.
    """
    online = curves[curves.metric == "online_error"]
    reached = {str(key): int(step) + 1 for key, step in online.groupby("configuration").step.max().items()}
    panels = [
        _panel(option, ways, rows, "" if len(descents) == 1 else f"{each.label}: ")
        for each in descents
        for ways in [each.ways(reached)]
        for option in sorted(ways[0].values[0])
    ]
    title = f"{name}: values of each member; a mark where it copied another, and went on with that one's state"
    return Chart("schedule", title, tuple(panels)) if panels else None


def _panel(option: str, ways: Sequence[Way], rows: Sequence[Row], of: str) -> Panel:
    places = {row.of.hash: place for place, row in enumerate(rows)}
    series: list[Series] = []
    for number, way in enumerate(ways):
        owner = places.get(way.configuration)
        style = _style(number, owner, len(ways), len(rows))
        series += _series(option, way, style, owner)
    # A step down or up is a factor: on a logarithmic axis it is as long everywhere.
    log = min(float(each.y.min()) for each in series) > 0
    return Panel(f"{of}{option}", "batches seen", option, tuple(series), from_zero=False, log_y=log)


def _style(number: int, owner: int | None, members: int, configurations: int) -> int | None:
    """The colour that the configuration has in the other charts, where all have one; else one of the population's own,
    if it is small enough for that."""
    if configurations <= ALL_IN_COLOUR:
        return owner
    return number if members <= ALL_IN_COLOUR else None


def _series(option: str, way: Way, style: int | None, owner: int | None) -> list[Series]:
    """Its values as steps, and a mark for each copy."""
    ends = [*way.starts[1:], way.stop]
    x = np.array([at for both in zip(way.starts, ends, strict=True) for at in both], dtype=float)
    y = np.array([float(values[option]) for values in way.values for _ in range(2)])
    none = np.full(len(x), np.nan)
    made = [Series(way.label, x, y, none, none, style, owner, marked=False)]
    for start, values, donor in zip(way.starts, way.values, way.donors, strict=True):
        if donor:
            at, value, nothing = np.array([float(start)]), np.array([float(values[option])]), np.full(1, np.nan)
            hint = f"{way.label} copied {donor}"
            made.append(Series("", at, value, nothing, nothing, style, owner, kind="points", hint=hint))
    return made
