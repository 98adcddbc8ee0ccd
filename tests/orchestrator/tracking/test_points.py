"""Which points of a seed's curves are sent to MLflow."""

import math

import numpy as np

from orchestrator.protocol.curves import Curves
from orchestrator.tracking.points import Point, seed_points

BATCHES = 12


def curves(**by_batch: list[float]) -> Curves:
    chunks = {"batches": np.array([5, BATCHES]), "time_ms": np.array([100, 200])}
    return Curves([0], 0, {name: np.array([values]) for name, values in by_batch.items()}, {}, chunks)


def at(steps: dict[int, float]) -> list[float]:
    return [steps.get(j, math.nan) for j in range(BATCHES)]


def steps(points: list[Point], name: str) -> list[int]:
    return [point.step for point in points if point.metric == name]


def test_diagnostics_have_one_point_in_n_batches() -> None:
    every_batch = [float(j) for j in range(BATCHES)]
    stack = curves(
        online_error=every_batch,
        online_loss=every_batch,
        distance=every_batch,
        meta_loss=at(dict.fromkeys(range(1, BATCHES), 1.0)),  # not at the first batch
        leader=at({2: 1.0, 5: 2.0, 7: 3.0}),  # at irregular batches
        copied=at({6: 1.0}),
        **{"hyper/K": at({0: 1.0, 2: 5.0})},
    )
    points = seed_points(stack, 0, 0, 4)
    assert steps(points, "online_error") == steps(points, "online_loss") == list(range(BATCHES))
    assert steps(points, "distance") == [0, 4, 8]
    assert steps(points, "meta_loss") == [1, 4, 8]
    assert steps(points, "leader") == [2, 5]  # 7 is in the block of 5, batches 4 to 7
    assert steps(points, "copied") == [6]
    assert steps(points, "hyper/K") == [0, 2]  # a schedule's marks are not thinned
    assert Point("distance", 4, 4.0, 100) in points and Point("distance", 8, 8.0, 200) in points
    assert steps(seed_points(stack, 0), "distance") == list(range(BATCHES))


def test_points_do_not_depend_on_the_start_of_a_slice() -> None:
    rng = np.random.default_rng(0)
    stack = curves(online_error=[0.0] * BATCHES, d=[float(v) if v > 0.4 else math.nan for v in rng.random(BATCHES)])
    all_points = seed_points(stack, 0, 0, 3)
    for start in range(BATCHES):
        late = seed_points(stack, 0, start, 3)
        assert sorted(late) == sorted(point for point in all_points if point.step >= start)
