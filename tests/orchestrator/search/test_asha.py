"""Successive halving against Ray's own, and what Ray's own gets wrong."""

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
        one = mine.stops(key, at[key], value)
        other = theirs.on_result(Named(key), at[key], -value)
        # The reward is the error's negative: its upper third begins where the error's lower third ends.
        assert one == (other == "STOP")
        stopped += one
        if one or at[key] >= 290:
            del at[key]
    assert 10 < stopped < 30


def test_the_first_one_at_a_rung_goes_on_and_a_worse_one_stops() -> None:
    asha = Asha(4, 2, 100)
    assert not asha.stops("a", 3, 0.9)  # no rung yet
    assert not asha.stops("a", 4, 0.5)
    assert asha.stops("b", 4, 0.6)
    assert not asha.stops("c", 5, 0.4)
    assert not asha.stops("a", 5, 9.0)  # it was judged at that rung


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_never_goes_on_and_outranks_nobody(value: float) -> None:
    asha = Asha(4, 2, 100)
    assert asha.stops("lost", 4, value)
    assert not asha.stops("a", 4, 0.5)
    assert not asha.stops("b", 4, 0.4)
    assert asha.stops("c", 4, 0.6)


def test_a_replayed_search_decides_as_the_one_before() -> None:
    reports = {"a": [(4, 0.5), (8, 0.3)], "b": [(4, 0.45)]}
    before, after = Asha(4, 2, 100), Asha(4, 2, 100)
    for key, its in reports.items():
        for batches, value in its:
            before.stops(key, batches, value)
        after.replay(key, its, ended=True)
    for key, batches, value in (("c", 4, 0.46), ("d", 4, 0.2), ("d", 8, 0.31), ("e", 8, 0.29)):
        assert before.stops(key, batches, value) == after.stops(key, batches, value)


def test_a_trial_that_was_not_judged_before_is_judged_by_its_next_report() -> None:
    """The driver was killed when the chunk at the rung was on disk, and its result had not come yet."""
    asha = Asha(10, 3, 100)
    for number in range(9):
        asha.replay(f"good {number}", [(5, 0.8), (10, 0.1)], ended=True)
    asha.replay("bad", [(5, 0.9), (10, 0.9)], ended=False)
    asha.replay("fair", [(10, 0.05)], ended=False)
    assert asha.stops("bad", 12, 0.9)
    assert not asha.stops("fair", 12, 0.04)
    assert not asha.stops("fair", 14, 0.9)  # it was judged at that rung


def test_others_are_measured_against_a_trial_that_goes_on() -> None:
    asha = Asha(4, 2, 100)
    asha.replay("best", [(4, 0.1)], ended=False)
    assert asha.stops("other", 4, 0.2)
    assert not asha.stops("best", 6, 0.1)  # against the other, not against itself
    asha.replay("later", [(4, 0.05), (5, 0.5)], ended=False)
    assert not asha.stops("later", 6, 0.5)  # the report at the rung had been judged: one came after it


def test_the_next_report_may_come_at_a_higher_rung() -> None:
    asha = Asha(4, 2, 100)
    asha.replay("a", [(8, 0.1)], ended=True)
    asha.replay("b", [(4, 0.5)], ended=False)
    assert asha.stops("b", 8, 0.2)
    assert not asha.stops("b", 9, 0.9)
