"""Successive halving compared with Ray's, and the cases that Ray's handles wrongly."""

import math

import numpy as np
import pytest
from ray.tune.schedulers.async_hyperband import _Bracket

from orchestrator.search.asha import Asha


class Named:
    def __init__(self, name: str) -> None:
        self.trial_id = name


@pytest.mark.parametrize("seed", range(5))
def test_decisions_are_those_of_ray(seed: int) -> None:
    """Thirty trials in a random interleaving, each reporting at every rung."""
    rng = np.random.default_rng(seed)
    mine, theirs = Asha(10, 3, 300), _Bracket(10, 300, 3, 0)
    at = {f"trial {i}": 0 for i in range(30)}
    stopped = 0
    while at:
        key = str(rng.choice(sorted(at)))
        at[key] += 10
        value = float(rng.random())
        one = mine.should_stop(key, at[key], value)
        other = theirs.on_result(Named(key), at[key], -value)
        # Ray's reward is the negative error, so its upper third is the lower third of the error.
        assert one == (other == "STOP")
        stopped += one
        if one or at[key] >= 290:
            del at[key]
    assert 10 < stopped < 30


def test_rungs_begin_at_the_first_batch_at_the_earliest_and_are_before_the_end() -> None:
    assert Asha(5, 2, 41).rungs == (5, 10, 20, 40)
    assert Asha(5, 2, 40).rungs == (5, 10, 20)
    assert Asha(0, 3, 10).rungs == (1, 3, 9)
    assert Asha(5, 2, 5).rungs == ()


def test_trials_that_report_together_are_judged_together() -> None:
    """With η = 2 the limit of each is the median of the two others, and a trial at its limit continues."""
    asha = Asha(4, 2, 100)
    assert asha.stopped(4, {"a": 0.5, "b": 0.375, "c": 0.25}) == {"a"}  # limits 0.3125, 0.375, 0.4375
    assert asha.stopped(3, {"d": 9.0}) == set()


def test_the_first_trial_at_a_rung_continues_and_a_worse_one_stops() -> None:
    asha = Asha(4, 2, 100)
    assert not asha.should_stop("a", 3, 0.9)  # no rung yet
    assert not asha.should_stop("a", 4, 0.5)
    assert asha.should_stop("b", 4, 0.6)
    assert not asha.should_stop("c", 5, 0.4)
    assert not asha.should_stop("a", 5, 9.0)  # it was judged at that rung


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_stops_and_outranks_no_trial(value: float) -> None:
    asha = Asha(4, 2, 100)
    assert asha.should_stop("diverged", 4, value)
    assert not asha.should_stop("a", 4, 0.5)
    assert not asha.should_stop("b", 4, 0.4)
    assert asha.should_stop("c", 4, 0.6)


def test_a_replayed_search_decides_as_before() -> None:
    reports = {"a": [(4, 0.5), (8, 0.3)], "b": [(4, 0.45)]}
    before, after = Asha(4, 2, 100), Asha(4, 2, 100)
    for key, its in reports.items():
        for batches, value in its:
            before.should_stop(key, batches, value)
        after.replay(key, its, ended=True)
    for key, batches, value in (("c", 4, 0.46), ("d", 4, 0.2), ("d", 8, 0.31), ("e", 8, 0.29)):
        assert before.should_stop(key, batches, value) == after.should_stop(key, batches, value)


def test_a_trial_that_was_not_judged_is_judged_by_its_next_report() -> None:
    """The driver was killed after the chunk at the rung was written and before its result arrived."""
    asha = Asha(10, 3, 100)
    for number in range(9):
        asha.replay(f"good {number}", [(5, 0.8), (10, 0.1)], ended=True)
    asha.replay("bad", [(5, 0.9), (10, 0.9)], ended=False)
    asha.replay("fair", [(10, 0.05)], ended=False)
    assert asha.should_stop("bad", 12, 0.9)
    assert not asha.should_stop("fair", 12, 0.04)
    assert not asha.should_stop("fair", 14, 0.9)  # it was judged at that rung


def test_others_are_compared_with_a_trial_that_continues() -> None:
    asha = Asha(4, 2, 100)
    asha.replay("best", [(4, 0.1)], ended=False)
    assert asha.should_stop("other", 4, 0.2)
    assert not asha.should_stop("best", 6, 0.1)  # against the other, not against itself
    asha.replay("later", [(4, 0.05), (5, 0.5)], ended=False)
    assert not asha.should_stop("later", 6, 0.5)  # the report at the rung was judged, because a later one exists


def test_the_next_report_may_be_at_a_higher_rung() -> None:
    asha = Asha(4, 2, 100)
    asha.replay("a", [(8, 0.1)], ended=True)
    asha.replay("b", [(4, 0.5)], ended=False)
    assert asha.should_stop("b", 8, 0.2)
    assert not asha.should_stop("b", 9, 0.9)
