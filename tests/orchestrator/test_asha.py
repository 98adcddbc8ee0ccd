"""Successive halving against Ray's own, and what Ray's own gets wrong."""

import math

import numpy as np
import pytest
from ray.tune.schedulers.async_hyperband import _Bracket

from orchestrator.asha import Asha


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
        after.replay(key, its)
    for key, batches, value in (("c", 4, 0.46), ("d", 4, 0.2), ("d", 8, 0.31), ("e", 8, 0.29)):
        assert before.stops(key, batches, value) == after.stops(key, batches, value)
