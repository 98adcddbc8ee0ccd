"""Who copies whom, on constructed numbers with known decisions."""

import math
from collections import Counter

import numpy as np
import pytest

from orchestrator.config.schedulers import PbtOptions
from orchestrator.config.search_space import Space
from orchestrator.protocol.curves import Curves
from orchestrator.search.population.decisions import decide, explore, fitness

SPACES = {"alpha1": Space("loguniform", (1e-4, 1e-1)), "beta1": Space("uniform", (0.0, 1.0))}
STEPS = PbtOptions(resample=0)


def generator(member: str) -> np.random.Generator:
    return np.random.default_rng(list(member.encode()))


def decided(by_member: dict[str, float], options: PbtOptions = STEPS) -> dict[str, str]:
    values = {key: {"alpha1": 0.01, "beta1": 0.5} for key in by_member}
    return {copy.member: copy.parent for copy in decide(by_member, values, SPACES, options, generator)}


def test_the_worst_quarter_copies_the_best() -> None:
    assert decided({"a": 0.4, "b": 0.1, "c": 0.3, "d": 0.2}) == {"a": "b"}
    eight = {key: float(at) for at, key in enumerate("abcdefgh")}
    copies = decided(eight)
    assert copies.keys() == {"g", "h"}
    assert set(copies.values()) <= {"a", "b"}
    assert decided(eight, PbtOptions(resample=0, quantile=0.5)).keys() == set("efgh")
    seven = {key: eight[key] for key in "abcdefg"}
    assert decided(seven) == {"g": "a"}  # a quarter of seven, rounded down


def test_each_of_the_best_is_copied() -> None:
    eight = {key: float(at) for at, key in enumerate("abcdefgh")}
    values = {key: {"beta1": 0.5} for key in eight}
    space = {"beta1": SPACES["beta1"]}
    counts = Counter(
        copy.parent
        for round_ in range(100)
        for copy in decide(eight, values, space, STEPS, lambda key, round_=round_: generator(f"{round_} {key}"))
    )
    assert counts.keys() == {"a", "b"}
    assert 70 < counts["a"] < 130


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_member_always_copies_and_is_never_copied(value: float) -> None:
    assert decided({"a": value, "b": 0.1, "c": 0.3, "d": value}) == {"a": "b", "d": "b"}
    assert decided({"a": value, "b": value, "c": value, "d": 0.9}) == {"a": "d", "b": "d", "c": "d"}
    assert decided({"a": value, "b": value}) == {}  # no member can be copied


def test_no_member_copies_an_equal_or_itself() -> None:
    assert decided({"a": 0.2, "b": 0.2, "c": 0.2, "d": 0.2}) == {}
    assert decided({"a": 0.2}) == {}
    assert decided({"a": 0.2, "b": 0.1}) == {"a": "b"}
    assert decided({"a": 0.2, "b": 0.1, "c": 0.15}, PbtOptions(quantile=0.5)) == {"a": "b"}


def test_a_copy_has_the_parents_values_moved_by_one_step() -> None:
    values = {"good": {"alpha1": 0.01, "beta1": 0.4}, "bad": {"alpha1": 0.09, "beta1": 0.1}}
    (copy,) = decide({"good": 0.1, "bad": 0.2}, values, SPACES, STEPS, generator)
    assert copy.before == values["bad"]
    assert copy.after["alpha1"] in (0.01 * 0.8, 0.01 * 1.25)
    assert copy.after["beta1"] in (0.4 * 0.8, 0.4 * 1.25)
    assert values["good"] == {"alpha1": 0.01, "beta1": 0.4}


def test_steps_stay_inside_the_space_in_both_directions() -> None:
    rng = np.random.default_rng(0)
    near = [explore({"alpha1": 0.09, "beta1": 0.9}, SPACES, STEPS, rng) for _ in range(100)]
    assert {values["alpha1"] for values in near} == {0.09 * 0.8, 0.1}
    assert {values["beta1"] for values in near} == {0.9 * 0.8, 1.0}
    low = [explore({"alpha1": 1.1e-4, "beta1": 0.0}, SPACES, STEPS, rng) for _ in range(100)]
    assert {values["alpha1"] for values in low} == {1e-4, 1.1e-4 * 1.25}
    assert {values["beta1"] for values in low} == {0.0}


def test_a_choice_moves_to_a_neighbour() -> None:
    space = {"alpha1": Space("choice", (0.1, 0.001, 0.01))}
    rng = np.random.default_rng(0)
    assert {explore({"alpha1": 0.01}, space, STEPS, rng)["alpha1"] for _ in range(50)} == {0.001, 0.1}
    assert {explore({"alpha1": 0.1}, space, STEPS, rng)["alpha1"] for _ in range(50)} == {0.01, 0.1}
    assert {explore({"alpha1": 0.001}, space, STEPS, rng)["alpha1"] for _ in range(50)} == {0.001, 0.01}


def test_values_do_not_depend_on_the_order_of_the_options() -> None:
    values, order = {"alpha1": 0.01, "beta1": 0.5}, dict(reversed(SPACES.items()))
    for seed in range(10):
        first, second = (explore(values, spaces, STEPS, np.random.default_rng(seed)) for spaces in (SPACES, order))
        assert first == second


def test_the_share_that_is_drawn_again() -> None:
    rng = np.random.default_rng(0)
    options = PbtOptions(resample=0.25)
    again = [explore({"beta1": 0.5}, {"beta1": SPACES["beta1"]}, options, rng)["beta1"] for _ in range(2000)]
    assert 0.22 < np.mean([value not in (0.4, 0.625) for value in again]) < 0.28


def curves() -> Curves:
    """Two seeds, eight batches, a task every two batches."""
    rows = [(seed, task, 2 * task + 1) for task in range(4) for seed in range(2)]
    seed, task, batch = (np.array(column) for column in zip(*rows, strict=True))
    online = np.array([[0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]])
    error = np.array([0.5, 0.6, 0.4, 0.5, 0.3, 0.4, 0.2, 0.3])
    return Curves([0, 1], 0, {"online_error": online}, {"seed": seed, "task": task, "batch": batch, "error": error})


def test_fitness_is_of_one_generation_alone() -> None:
    assert fitness(curves(), "cumulative_error", 0, 4) == pytest.approx((0.5 + 0.4 + 0.6 + 0.5) / 4)
    assert fitness(curves(), "validation_error", 4, 8) == pytest.approx((0.3 + 0.2 + 0.4 + 0.3) / 4)
    assert fitness(curves(), "online_error", 4, 6) == pytest.approx((0.4 + 0.3 + 0.5 + 0.4) / 4)
    assert fitness(curves(), "cumulative_error", 4, 5) == pytest.approx(0.45)  # no task ends there: the online error
    # From batch 1, at which the first task ended, to batch 3, at which the second one ends.
    assert fitness(curves(), "cumulative_error", 1, 3) == pytest.approx((0.5 + 0.6) / 2)


def test_fitness_is_the_online_error_if_one_seed_has_ended_no_task() -> None:
    part = curves()
    part.evaluations = {name: column[part.evaluations["seed"] == 0] for name, column in part.evaluations.items()}
    assert fitness(part, "cumulative_error", 4, 6) == pytest.approx((0.4 + 0.3 + 0.5 + 0.4) / 4)


def test_fitness_of_a_generation_in_which_a_seed_diverged() -> None:
    diverged = curves()
    diverged.by_batch["online_error"][1, 3:5] = math.nan
    assert math.isnan(fitness(diverged, "cumulative_error", 0, 4))
    assert math.isnan(fitness(diverged, "online_error", 4, 8))
    assert fitness(diverged, "cumulative_error", 6, 8) == pytest.approx(0.25)  # after a copy
    assert math.isnan(fitness(diverged, "cumulative_error", 8, 10))  # nothing was measured


@pytest.mark.parametrize("of_type", [int, float])
def test_a_whole_number_moves_to_a_whole_number_of_its_space(of_type: type) -> None:
    space, rng = {"temperature": Space("randint", (of_type(1), of_type(20)))}, np.random.default_rng(0)
    for value, expected in [(1, {1, 2}), (2, {1, 3}), (3, {2, 4}), (10, {8, 12}), (20, {16, 20})]:
        values = [explore({"temperature": of_type(value)}, space, STEPS, rng)["temperature"] for _ in range(50)]
        assert {type(each) for each in values} == {of_type} and set(values) == expected
