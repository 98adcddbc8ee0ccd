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


def test_final_values_have_transfer_as_the_report_and_past_tasks() -> None:
    """The first task has a transfer of its own where a learner predicts with another network than all start from."""
    evaluations = {"seed": [0, 0, 0], "task": [0, 1, 2], "batch": [1, 3, 5], "error": [0.5, 0.25, 0.25]}
    past = {"seed": [0, 0], "after": [2, 2], "task": [0, 1], "batch": [5, 5], "error": [0.75, 0.5]}
    transfer = [0.9, np.nan, 0.2, np.nan, 0.4, np.nan]
    measured = Curves(
        [7],
        by_batch={"online_error": np.full((1, 6), 0.5), "forward_transfer": np.array([transfer])},
        evaluations={name: np.array(column) for name, column in evaluations.items()},
        past={name: np.array(column) for name, column in past.items()},
    )
    (row,) = tables.final_values([measured]).to_dict("records")
    got = {
        name: round(row[name], 12) for name in ("forward_transfer", "average_accuracy", "forgetting", "online_error")
    }
    assert got == {"forward_transfer": 0.3, "average_accuracy": 0.5, "forgetting": 0.25, "online_error": 0.5}


def test_tables_without_points_have_the_same_columns() -> None:
    frames = tables.of_configuration([Curves([0])], [[[]]])
    assert {name: (len(frame), list(frame)) for name, frame in frames.items()} == {
        tables.CURVES_FILE: (0, ["seed", "metric", "step", "value"]),
        tables.TEST_FILE: (0, ["seed", "metric", "step", "value"]),
    }
