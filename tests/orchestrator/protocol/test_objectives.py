"""Every objective against values computed by hand, and functions of the user's own."""

import doctest
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from orchestrator.protocol import metrics, objectives
from orchestrator.protocol.curves import Curves
from orchestrator.protocol.objectives import ObjectiveError, ObjectiveMetric

NAN = math.nan


def curves() -> Curves:
    """Two seeds, three tasks of two batches of 10; chunks end after 2, 4 and 6 batches."""
    return Curves(
        [7, 9],
        0,
        {
            "online_error": np.array([[0.9, 0.7, 0.6, 0.2, 0.3, 0.1], [0.9, 0.8, 0.9, 0.8, 0.9, 0.8]]),
            "online_loss": np.ones((2, 6)),
            "forward_transfer": np.array([[0.0, NAN, 0.1, NAN, 0.3, NAN], [0.0, NAN, -0.1, NAN, -0.2, NAN]]),
        },
        {
            "seed": np.array([0, 1, 0, 1, 0, 1]),
            "task": np.array([0, 0, 1, 1, 2, 2]),
            "batch": np.array([1, 1, 3, 3, 5, 5]),
            "error": np.array([0.5, 0.6, 0.3, 0.6, 0.1, 0.5]),
        },
        {
            "batches": np.array([2, 4, 6]),
            "seconds": np.array([1.0, 2.0, 4.0]),
            "gradient_evaluations": np.array([20, 20, 40]),
        },
    )


def test_doctests() -> None:
    result = doctest.testmod(objectives)
    assert (result.failed, result.attempted) == (0, 1)


@pytest.mark.parametrize(
    ("objective", "after_4", "after_6"),
    [
        (ObjectiveMetric("validation_error", last=2), [0.4, 0.6], [0.2, 0.55]),
        (ObjectiveMetric("validation_error", last=9), [0.4, 0.6], [0.3, 1.7 / 3]),
        (ObjectiveMetric("online_error", last=1), [0.4, 0.85], [0.2, 0.85]),
        (ObjectiveMetric("online_error", last=2), [0.6, 0.85], [0.3, 0.85]),
        # Adaptation of seed 7 is (0.75, 0.45) after two tasks and (0.6, 1/3) after three; seed 9 is never below 0.5.
        (ObjectiveMetric("points_to", error=0.5, batch_size=10), [10, 20], [10, 20]),
        (ObjectiveMetric("points_to", error=0.6, batch_size=10), [10, 20], [0, 20]),
        (ObjectiveMetric("forward_transfer", "max"), [0.1, -0.1], [0.2, -0.15]),
        (ObjectiveMetric("gradient_evaluations"), [40, 40], [80, 80]),
        (ObjectiveMetric("seconds"), [3, 3], [7, 7]),
        (ObjectiveMetric("cumulative_error"), [0.4, 0.6], [0.3, 1.7 / 3]),
    ],
)
def test_ready_objectives(objective: ObjectiveMetric, after_4: list[float], after_6: list[float]) -> None:
    measured = curves()
    for batches, expected in ((4, after_4), (6, after_6), (None, after_6)):
        values = objective(measured, batches)
        assert values is not None
        np.testing.assert_allclose(values, expected, atol=1e-12)
    by_chunk = dict(objective.by_chunk(measured))
    assert by_chunk[4] == pytest.approx(np.mean(after_4)) and by_chunk[6] == pytest.approx(np.mean(after_6))


def test_objectives_of_past_tasks_are_those_of_their_last_evaluation() -> None:
    measured = curves()
    assert ObjectiveMetric("forgetting")(measured) is None
    measured.past = {
        "seed": np.array([0, 1, 0, 0, 1, 1]),
        "after": np.array([1, 1, 2, 2, 2, 2]),
        "task": np.array([0, 0, 0, 1, 0, 1]),
        "batch": np.array([3, 3, 5, 5, 5, 5]),
        "error": np.array([0.7, 0.4, 0.6, 0.5, 0.6, 0.6]),
    }
    values = {
        (metric, end): ObjectiveMetric(metric, mode)(measured, end)
        for metric, mode in (("average_accuracy", "max"), ("backward_transfer", "max"), ("forgetting", "min"))
        for end in (4, 6)
    }
    np.testing.assert_allclose(values["average_accuracy", 4], [(0.3 + 0.7) / 2, (0.6 + 0.4) / 2])
    np.testing.assert_allclose(values["average_accuracy", 6], [(0.4 + 0.5 + 0.9) / 3, (0.4 + 0.4 + 0.5) / 3])
    np.testing.assert_allclose(values["backward_transfer", 6], [(-0.1 - 0.2) / 2, 0], atol=1e-12)
    # Seed 9 had 0.6 on its first task after the second one, and 0.4 at the end.
    np.testing.assert_allclose(values["forgetting", 6], [(0.1 + 0.2) / 2, (0.2 + 0) / 2], atol=1e-12)


def test_there_is_no_value_before_one_exists() -> None:
    measured = curves()
    assert ObjectiveMetric("validation_error", last=2)(measured, 1) is None
    assert ObjectiveMetric("forward_transfer", "max")(measured, 2) is None, "the first task is left out"
    assert [end for end, _ in ObjectiveMetric("forward_transfer", "max").by_chunk(measured)] == [4, 6]
    assert ObjectiveMetric("points_to", error=0.5)(measured, 0) is None


def test_batches_of_a_task_that_has_not_ended_are_in_no_mean_over_the_last_tasks() -> None:
    values = ObjectiveMetric("online_error", last=1)(curves(), 5)
    assert values is not None
    np.testing.assert_allclose(values, [0.4, 0.85])


def test_what_was_not_measured_has_no_value() -> None:
    measured = curves()
    del measured.by_batch["forward_transfer"]
    measured.chunks = {}
    for objective in (ObjectiveMetric("forward_transfer", "max"), ObjectiveMetric("seconds")):
        assert objective(measured) is None and objective.by_chunk(measured) == []


def test_a_seed_that_diverged_has_nan() -> None:
    measured = curves()
    measured.diverged = [-1, 4]
    for objective in (ObjectiveMetric("validation_error", last=2), ObjectiveMetric("seconds")):
        before, after = objective(measured, 4), objective(measured, 6)
        assert before is not None and np.isfinite(before).all()
        assert after is not None and np.isnan(after).tolist() == [False, True]


def test_names_and_signs() -> None:
    assert [ObjectiveMetric.of({"metric": metric}, 10).is_standard for metric in objectives.STANDARD] == [True] * 3
    one = ObjectiveMetric.of({"function": "mine.of", "mode": "max"}, 10)
    assert (one.name, one.sign, one.is_standard, one.metric) == ("mine.of", -1, False, None)
    assert ObjectiveMetric.of({"metric": "points_to", "error": 0.3}, 7) == ObjectiveMetric(
        "points_to", error=0.3, batch_size=7
    )
    assert ObjectiveMetric().sign == 1


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own with functions that work and functions that do not."""
    (tmp_path / "own_scores.py").write_text(
        "import numpy as np\n"
        "def first(curves): return curves.by_batch['online_error'][:, 0] if curves.batches > 2 else None\n"
        "def last_seen(curves): return curves.by_batch['online_error'][:, -1].tolist()\n"
        "def wrong(curves): return 3.0\n"
        "def fails(curves): return curves.by_batch['theta']\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_scores"
    sys.modules.pop("own_scores", None)


def test_a_function_sees_the_curves_up_to_the_batch(module: str) -> None:
    measured = curves()
    first = ObjectiveMetric(None, function=f"{module}.first")
    first.check()
    assert first(measured, 2) is None
    assert first(measured).tolist() == [0.9, 0.9]
    last_seen = ObjectiveMetric(None, function=f"{module}.last_seen")
    assert last_seen(measured, 4).tolist() == [0.2, 0.8]
    assert last_seen.by_chunk(measured) == [(2, 0.75), (4, 0.5), (6, pytest.approx(0.45))]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wrong", "own_scores.wrong must return one number for each of 2 seeds, or None (got the shape ())"),
        ("fails", "own_scores.fails raised KeyError: 'theta'"),
        ("number", "own_scores.number must be a function of the curves"),
        ("none", "own_scores.none cannot be imported (AttributeError: module 'own_scores' has no attribute 'none')"),
    ],
)
def test_a_function_that_does_not_work_is_one_line(module: str, name: str, line: str) -> None:
    with pytest.raises(ObjectiveError) as caught:
        ObjectiveMetric(None, function=f"{module}.{name}")(curves())
    assert str(caught.value) == f"objective.function: {line}"


def test_the_part_up_to_a_batch_is_that_of_a_shorter_run() -> None:
    measured = curves()
    part = measured.until(4)
    assert (part.batches, part.chunks["batches"].tolist()) == (4, [2, 4])
    assert metrics.held_out(part).tolist() == [[0.5, 0.3], [0.6, 0.6]]
    measured.diverged = [3, 5]
    assert measured.until(4).diverged == [3, -1]
