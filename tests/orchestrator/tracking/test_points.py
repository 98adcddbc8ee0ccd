"""Which points of a seed's and a configuration's curves are sent to MLflow."""

import math

import numpy as np
import pytest

from orchestrator.protocol.curves import MEASURED, Curves
from orchestrator.protocol.objectives import ObjectiveMetric
from orchestrator.tracking.points import (
    _COSTS,
    _ONLINE,
    ADAPTATION,
    BY_TASK,
    OBJECTIVE,
    PAST,
    REGRET,
    TRANSFER,
    Bounds,
    Point,
    bounds_of,
    configuration_points,
    end_points,
    final_points,
    seed_points,
)
from tests.orchestrator import synthetic_sweep as synthetic

BATCHES = 12


def curves(total: int = BATCHES, **by_batch: list[float]) -> Curves:
    chunks = {"batches": np.array([5, BATCHES]), "time_ms": np.array([100, 200])}
    arrays = {name: np.array([values]) for name, values in by_batch.items()}
    return Curves([0], 0, arrays, {}, chunks, total_batches=total, total_tasks=2)


def test_no_diagnostic_has_the_name_of_a_metric() -> None:
    assert {*_ONLINE, *BY_TASK, ADAPTATION, TRANSFER, REGRET, OBJECTIVE, *PAST, *_COSTS} == MEASURED


def at(steps: dict[int, float]) -> list[float]:
    return [steps.get(j, math.nan) for j in range(BATCHES)]


def values(points: list[Point], name: str) -> dict[int, float]:
    return {point.step: point.value for point in points if point.metric == name}


EVERY_BATCH = [float(j) for j in range(BATCHES)]


def test_a_long_curve_has_the_means_of_blocks_at_their_last_batches() -> None:
    stack = curves(online_error=EVERY_BATCH, online_loss=EVERY_BATCH)
    points = seed_points(stack, 0, Bounds(3))[0]
    assert values(points, "online_error") == values(points, "online_loss") == {3: 1.5, 7: 5.5, 11: 9.5}
    assert Point("online_error", 3, 1.5, 100) in points and Point("online_error", 7, 5.5, 200) in points
    uneven = seed_points(stack, 0, Bounds(5))[0]  # blocks of three: 5 x 3 batches are more than 12
    assert values(uneven, "online_error") == {2: 1.0, 5: 4.0, 8: 7.0, 11: 10.0}
    assert values(seed_points(stack, 0, Bounds(8))[0], "online_error") == {j: j - 0.5 for j in range(1, 12, 2)}
    assert values(seed_points(stack, 0, Bounds(12))[0], "online_error") == dict(enumerate(EVERY_BATCH))
    assert values(seed_points(stack)[0], "online_error") == dict(enumerate(EVERY_BATCH))
    last = curves(total=11, online_error=EVERY_BATCH[:11])
    assert values(seed_points(last, 0, Bounds(3))[0], "online_error")[10] == 9.0, "the last block is shorter"


def test_a_block_has_no_point_before_its_last_batch() -> None:
    stack = curves(total=1_000, online_error=EVERY_BATCH, distance=EVERY_BATCH)
    assert values(seed_points(stack, 0, Bounds(200, 2))[0], "online_error") == {4: 2.0, 9: 7.0}
    assert values(seed_points(stack, 0, Bounds(200, 2))[0], "diagnostics/distance") == {9: 4.5}
    assert values(seed_points(stack, 0, Bounds(10))[0], "online_error") == {}


def test_diagnostics_have_one_point_in_n_blocks() -> None:
    stack = curves(
        online_error=EVERY_BATCH,
        distance=EVERY_BATCH,
        meta_loss=at(dict.fromkeys(range(1, BATCHES), 1.0)),  # not at the first batch
        leader=at({2: 1.0, 5: 2.0, 7: 3.0}),  # at irregular batches
        **{"hyper/K": at({0: 1.0, 2: 5.0})},
    )
    points = seed_points(stack, 0, Bounds(12, 4))[0]
    assert values(points, "online_error") == dict(enumerate(EVERY_BATCH))
    assert values(points, "diagnostics/distance") == {3: 1.5, 7: 5.5, 11: 9.5}
    assert values(points, "diagnostics/meta_loss") == {3: 1.0, 7: 1.0, 11: 1.0}
    assert values(points, "diagnostics/leader") == {3: 1.0, 7: 2.5}
    assert values(points, "hyper/K") == {0: 1.0, 2: 5.0}, "a change has its own batch"
    assert values(seed_points(stack, 0, Bounds(3, 4))[0], "hyper/K") == {2: 5.0}, "the last one of its block"
    assert values(seed_points(stack)[0], "diagnostics/distance") == dict(enumerate(EVERY_BATCH))


def test_past_tasks_are_points_of_the_task_after_which_they_were_evaluated() -> None:
    """Two tasks, the first one with accuracy 0.75 when it was learned and 0.25 at the end."""
    stack = curves(online_error=[0.5] * BATCHES)
    stack.evaluations = {
        name: np.array(column)
        for name, column in {"seed": [0, 0], "task": [0, 1], "batch": [5, 11], "error": [0.25, 0.5]}.items()
    }
    past = {"seed": [0], "after": [1], "task": [0], "batch": [11], "error": [0.75]}
    stack.past = {name: np.array(column) for name, column in past.items()}
    expected = {"average_accuracy": 0.375, "backward_transfer": -0.5, "forgetting": 0.5}
    points = {point.metric: point for point in seed_points(stack)[0] if point.metric in expected}
    assert points == {name: Point(name, 1, value, 200) for name, value in expected.items()}
    assert not expected.keys() & {point.metric for point in seed_points(stack, since=12)[0]}
    stack.chunks |= {"seconds": np.array([1.0, 1.0]), "gradient_evaluations": np.array([5, 7])}
    mean = configuration_points([stack], [[]], ObjectiveMetric("forgetting"), 10)
    assert [point for point in mean if point.metric in expected] == list(points.values())
    assert [point for point in mean if point.metric == "objective"] == [Point("objective", 0, 0.5, 200)]


def test_a_diverged_seed_has_the_mean_of_what_it_has() -> None:
    stack = curves(online_error=at(dict(enumerate([1.0, 3.0, 5.0, 7.0, 9.0]))))
    assert values(seed_points(stack, 0, Bounds(3))[0], "online_error") == {3: 4.0, 7: 9.0}


def test_curves_by_task_are_whole_up_to_the_same_bound() -> None:
    error = np.array([0.5, 0.3, 0.1, 0.7, 0.2])
    evaluations = {"seed": np.zeros(5, int), "task": np.arange(5), "batch": np.array([1, 3, 5, 7, 9]), "error": error}
    transfer = at({0: 0.0, 2: 0.4, 4: 0.2, 6: 0.1, 8: 0.3})
    chunks = {"batches": np.array([BATCHES]), "time_ms": np.array([100])}
    by_batch = {"online_error": np.zeros((1, 12)), "forward_transfer": np.array([transfer])}
    stack = Curves([0], 0, by_batch, evaluations, chunks, total_batches=12, total_tasks=5)
    assert values(seed_points(stack, 0, Bounds(5))[0], "validation_error") == dict(enumerate(error))
    points = seed_points(stack, 0, Bounds(3))[0]  # blocks of two tasks
    assert values(points, "validation_error") == pytest.approx({1: 0.4, 3: 0.4, 4: 0.2})
    assert values(points, "cumulative_error") == pytest.approx({1: 0.45, 3: 0.35, 4: 0.36})
    assert values(points, "forward_transfer") == pytest.approx({1: 0.2, 3: 0.15, 4: 0.3})
    before_the_end = Curves([0], 0, by_batch, evaluations, chunks, total_batches=20, total_tasks=6)
    assert list(values(seed_points(before_the_end, 0, Bounds(2))[0], "validation_error")) == [2]


@pytest.mark.parametrize("bounds", [Bounds(), Bounds(12, 3), Bounds(5), Bounds(3, 2), Bounds(1)])
def test_points_do_not_depend_on_the_chunks(bounds: Bounds) -> None:
    rng = np.random.default_rng(0)
    trial = synthetic.Trial(synthetic.configuration("online"), (0, 1))
    sweep = synthetic.make_sweep(synthetic.Path("unused"), "sweep", trial)
    whole = sweep.whole[trial.key]
    whole.by_batch["irregular"] = np.where(rng.random((2, 60)) > 0.6, rng.random((2, 60)), math.nan)
    whole.by_batch["forward_transfer"] = np.where(np.arange(60) % 10 == 0, rng.random((2, 60)), math.nan)
    expected = sorted(seed_points(whole, 0, bounds)[1])
    for size in (1, 7, 60):
        sent = [
            point
            for start in range(0, 60, size)
            for point in seed_points(sweep.part(trial, 0, min(60, start + size)), start, bounds)[1]
        ]
        assert sorted(sent) == expected, "the same numbers, bit for bit, and each once"
    if bounds.points is not None:
        assert max(len(values(expected, name)) for name in whole.by_batch) <= bounds.points


def two_tasks() -> Curves:
    """Two tasks of six batches; the first chunk ends one batch before the first task."""
    stack = curves(online_error=EVERY_BATCH)
    evaluations = {"seed": [0, 0], "task": [0, 1], "batch": [5, 11], "error": [0.25, 0.5]}
    stack.evaluations = {name: np.array(column) for name, column in evaluations.items()}
    stack.chunks |= {
        "seconds": np.array([1.5, 2.5]),
        "gradient_evaluations": np.array([100, 140]),
        "peak_memory": np.array([3e8, 2e8]),
        "peak_gpu_memory": np.array([math.nan, math.nan]),
    }
    return stack


def test_a_point_has_the_time_of_the_chunk_that_holds_its_batch() -> None:
    stack = two_tasks()
    points = seed_points(stack)[0]
    times = {point.step: point.time_ms for point in points if point.metric == "online_error"}
    assert times == {j: 100 if j < 5 else 200 for j in range(BATCHES)}
    assert Point("validation_error", 0, 0.25, 200) in points
    mean = configuration_points([stack], [[]], ObjectiveMetric(), 10)
    assert Point("validation_error", 0, 0.25, 200) in mean and Point("online_error", 4, 4.0, 100) in mean


def test_points_at_the_end_of_a_seed() -> None:
    """240 gradients for 120 datapoints; batches k and 6 + k are the k-th of their tasks, with the mean 3 + k."""
    stack = two_tasks()
    costs = {"gradient_evaluations_per_datapoint": 2.0, "seconds": 4.0, "peak_memory_mb": 300.0}
    expected = {Point(name, 0, value, 200) for name, value in costs.items()}
    assert set(final_points(stack, 120)) == expected
    (points,) = end_points(stack, 120, ObjectiveMetric("online_error", last=1), 10)
    adaptation = {Point("adaptation", 10 * k, 3.0 + k, 200) for k in range(6)}
    assert set(points) == expected | adaptation | {Point("objective", 0, 8.5, 200)}
    (blocks,) = end_points(stack, 120, ObjectiveMetric(), 10, Bounds(2))
    assert values(blocks, "adaptation") == {20: 4.0, 50: 7.0} and values(blocks, "objective") == {}


def test_costs_of_a_configuration_are_combined_from_its_stacks() -> None:
    """Means of gradients, sums of seconds, maxima of memory; adaptation is at datapoints of a task."""
    other = two_tasks()
    other.chunks |= {"seconds": np.array([1.0, 1.0]), "peak_memory": np.array([1e8, 4e8])}
    other.chunks["gradient_evaluations"] = np.array([0, 120])
    stacks = [two_tasks(), other]
    points = configuration_points(stacks, [final_points(each, 120) for each in stacks], ObjectiveMetric(), 10)
    assert values(points, "gradient_evaluations_per_datapoint") == {0: 1.5}
    assert (values(points, "seconds"), values(points, "peak_memory_mb")) == ({0: 6.0}, {0: 400.0})
    assert values(points, "peak_gpu_memory_mb") == {}
    assert values(points, "adaptation") == {10 * k: 3.0 + k for k in range(6)}


def test_the_transfer_of_a_task_that_starts_in_the_batch_that_ends_another() -> None:
    """Batch 5 ends the first task and starts the second one; the third one starts with batch 10."""
    stack = curves(online_error=EVERY_BATCH, forward_transfer=at({0: 0.0, 5: 0.4, 10: 0.2}))
    evaluations = {"seed": [0, 0], "task": [0, 1], "batch": [5, 9], "error": [0.25, 0.5]}
    stack.evaluations = {name: np.array(column) for name, column in evaluations.items()}
    stack.total_tasks = 3
    assert values(seed_points(stack)[0], "forward_transfer") == {0: 0.0, 1: 0.4, 2: 0.2}


def test_bounds_of_a_sweep() -> None:
    assert bounds_of({"points": 300, "diagnostics_every": 5}) == Bounds(300, 5)
    assert bounds_of({}) == Bounds(None, 1), "an earlier version sent every value"


def test_a_configurations_mean_curves_are_bounded_too() -> None:
    trial = synthetic.Trial(synthetic.configuration("online"), (0, 1))
    whole = synthetic.curves_of(trial, batches=6_000)
    points = configuration_points([whole], [[]], ObjectiveMetric(), 10, Bounds(300))
    assert list(values(points, "online_error")) == list(range(59, 6_000, 60))
    assert values(points, "online_error")[59] == pytest.approx(whole.by_batch["online_error"][:, :60].mean())
    assert list(values(points, "validation_error")) == list(range(1, 600, 2))
    assert list(values(points, "interval/validation_error_low")) == list(range(1, 600, 2))
    by_task = whole.evaluations["error"].reshape(600, 2)
    assert values(points, "validation_error")[1] == pytest.approx(by_task[:2].mean())
    assert len(values(points, "adaptation")) == 10
