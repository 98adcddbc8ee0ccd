"""The tables of a configuration: every point of every seed, in the columns that readers of Parquet expect."""

import numpy as np

from orchestrator.protocol.curves import Curves
from orchestrator.tracking import tables
from orchestrator.tracking.points import Point


def test_the_rows_and_columns_of_the_tables() -> None:
    evaluations = {"seed": [0, 1], "task": [0, 0], "batch": [1, 1], "error": [0.5, 0.25], "loss": [1.0, 2.0]}
    measured = Curves(
        [7, 9],
        by_batch={"online_error": np.array([[0.1, 0.2], [0.3, np.nan]])},
        evaluations={name: np.array(column) for name, column in evaluations.items()} | {"test_error": np.array([1, 0])},
        chunks={"batches": np.array([2]), "time_ms": np.array([1_000])},
        total_batches=2,
        total_tasks=1,
    )
    final = [Point("adaptation", 0, 0.3, 1_000), Point("adaptation", 10, 0.4, 1_000), Point("seconds", 0, 2.0, 1_000)]
    frames = tables.of_configuration([measured], [[final, []]])
    curves = frames[tables.CURVES_FILE]
    assert list(map(tuple, curves.to_numpy())) == [
        (7, "online_error", 0, 0.1), (7, "online_error", 1, 0.2), (7, "validation_error", 0, 0.5),
        (7, "cumulative_error", 0, 0.5), (7, "adaptation", 0, 0.3), (7, "adaptation", 10, 0.4), (7, "seconds", 0, 2.0),
        (9, "online_error", 0, 0.3), (9, "validation_error", 0, 0.25), (9, "cumulative_error", 0, 0.25),
    ]  # fmt: skip
    assert [curves[name].dtype for name in ("seed", "step", "value")] == [np.int64, np.int64, np.float64]
    assert list(map(tuple, frames[tables.TEST_FILE].to_numpy())) == [(7, "test_error", 0, 1), (9, "test_error", 0, 0)]


def test_tables_without_points_have_the_same_columns() -> None:
    frames = tables.of_configuration([Curves([0])], [[[]]])
    assert {name: (len(frame), list(frame)) for name, frame in frames.items()} == {
        tables.CURVES_FILE: (0, ["seed", "metric", "step", "value"]),
        tables.TEST_FILE: (0, ["seed", "metric", "step", "value"]),
    }
