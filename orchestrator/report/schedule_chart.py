"""The chart of a population's schedule: each member's values over time, and where it copied another member."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from orchestrator.report.charts import ALL_IN_COLOUR, Chart, Panel, Series
from orchestrator.report.comparison import ComparisonRow
from orchestrator.report.lineage import Lineage, MemberHistory


def schedule(
    name: str, rows: Sequence[ComparisonRow], curves: pd.DataFrame, lineages: Sequence[Lineage]
) -> Chart | None:
    """One panel for each option that changes in each population, against batches; None without a population.

    Args:
        name: the sweep's.
        rows: the table, which has the members' rows and colours.
        curves: the points of all curves, which show how many batches each member has seen.
        lineages: of the populations.
    """
    online = curves[curves.metric == "online_error"]
    batches = {str(key): int(step) + 1 for key, step in online.groupby("configuration").step.max().items()}
    panels = [
        _panel(option, histories, rows, "" if len(lineages) == 1 else f"{lineage.label}: ")
        for lineage in lineages
        for histories in [lineage.histories(batches)]
        for option in sorted(histories[0].values[0])
    ]
    title = f"{name}: values of each member; a mark where it copied another and continued from that one's state"
    return Chart("schedule", title, tuple(panels)) if panels else None


def _panel(option: str, histories: Sequence[MemberHistory], rows: Sequence[ComparisonRow], population: str) -> Panel:
    places = {row.configuration.hash: place for place, row in enumerate(rows)}
    series: list[Series] = []
    for number, history in enumerate(histories):
        owner = places.get(history.configuration)
        series += _series(option, history, _style(number, owner, len(histories), len(rows)), owner)
    # A step down or up is a factor: on a logarithmic axis it has the same length everywhere.
    log_y = min(float(each.y.min()) for each in series) > 0
    return Panel(f"{population}{option}", "batches seen", option, tuple(series), from_zero=False, log_y=log_y)


def _style(number: int, owner: int | None, members: int, configurations: int) -> int | None:
    """The configuration's colour in the other charts if all have one, else one within a small population."""
    if configurations <= ALL_IN_COLOUR:
        return owner
    return number if members <= ALL_IN_COLOUR else None


def _series(option: str, history: MemberHistory, style: int | None, owner: int | None) -> list[Series]:
    """The values as a step function, and a mark at each copy."""
    starts, values = np.array(history.starts, dtype=float), np.array([float(each[option]) for each in history.values])
    x = np.stack([starts, [*starts[1:], history.stop]], axis=1).ravel()
    nan = np.full(len(x), np.nan)
    series = [Series(history.label, x, values.repeat(2), nan, nan, style, owner, marked=False)]
    for at, parent in enumerate(history.parents):
        if parent:
            point, hint = slice(at, at + 1), f"{history.label} copied {parent}"
            nan = np.full(1, np.nan)
            series.append(Series("", starts[point], values[point], nan, nan, style, owner, kind="points", hint=hint))
    return series
