"""Adaptation, as the report computes it from the curves by batch."""

import math

import numpy as np
import pandas as pd
import pytest

from orchestrator.plan.plan import Trial
from orchestrator.report.derived_curves import LATE_ADAPTATION, with_adaptation
from orchestrator.tracking.points import ADAPTATION
from orchestrator.tracking.reader import curves_of, find_sweep
from tests.orchestrator import synthetic_sweep as synthetic

NAME, SEEDS = "sweep", (0, 1, 2)


@pytest.fixture
def sweep(tmp_path):
    trials = [Trial(synthetic.configuration("foml", K=k), SEEDS) for k in (1, 5)]
    return synthetic.make_sweep(tmp_path / "results", NAME, *trials)


def late(uri: str) -> pd.DataFrame:
    runs = find_sweep(NAME, uri)
    curves = with_adaptation(runs, curves_of(runs))
    return curves[curves.metric == LATE_ADAPTATION]


def diverge(curves, row, at):
    curves.diverged[row] = at
    for curve in curves.by_batch.values():
        curve[row, at:] = math.nan
    lost = (curves.evaluations["seed"] == row) & (curves.evaluations["batch"] >= at)
    for name in ("error", "loss", "test_error"):
        curves.evaluations[name][lost] = math.nan


def test_a_configuration_that_diverged_on_every_seed_leaves_the_others_theirs(sweep, tracking_uri):
    one, other = sweep.plan.trials
    for row, at in enumerate((25, 17, 40)):
        diverge(sweep.whole[other.key], row, at)
    diverge(sweep.whole[one.key], 1, 30)
    synthetic.write_all(sweep, tracking_uri)
    points = late(tracking_uri)
    assert set(zip(points.configuration, points.seed, strict=True)) == {(one.configuration.hash, s) for s in (0, 2)}
    last_task = sweep.whole[one.key].by_batch["online_error"][0, -synthetic.BATCHES_PER_TASK :]
    assert points[points.seed == 0].sort_values("step").value.tolist() == last_task.tolist()


def test_there_is_none_for_tasks_of_different_lengths(sweep, tracking_uri):
    ends = np.array([4, 34, 39, 59])  # on average 15 batches, which divides 60
    for trial in sweep.plan.trials:
        curves = sweep.whole[trial.key]
        kept = curves.evaluations["task"] < len(ends)
        curves.evaluations = {name: column[kept] for name, column in curves.evaluations.items()}
        curves.evaluations["batch"], curves.total_tasks = ends[curves.evaluations["task"]], len(ends)
    synthetic.write_all(sweep, tracking_uri)
    assert late(tracking_uri).empty


def test_equal_tasks_are_found_without_adaptation_and_with_means_of_its_blocks(sweep, tracking_uri):
    synthetic.write_all(sweep, tracking_uri)
    runs = find_sweep(NAME, tracking_uri)
    curves = curves_of(runs)
    steps = curves.step // synthetic.BATCH_SIZE
    for points in (
        curves[curves.metric != ADAPTATION],
        curves[(curves.metric != ADAPTATION) | (steps % 4 == 3) | (steps == synthetic.BATCHES_PER_TASK - 1)],
    ):
        found = with_adaptation(runs, points)
        assert found[found.metric == LATE_ADAPTATION].groupby(["configuration", "seed"]).ngroups == 6
