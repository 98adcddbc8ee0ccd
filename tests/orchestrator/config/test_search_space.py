"""The values that search spaces draw, and how they are read."""

import numpy as np

from learners import registry
from orchestrator.config.search_space import Space, read_space
from streams.errors import Faults
from streams.options import model_of


def draws(space: Space, count: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.array([space.draw(rng) for _ in range(count)])


def test_uniform() -> None:
    values = draws(Space("uniform", (2.0, 4.0)))
    assert values.min() >= 2
    assert values.max() < 4
    assert abs(values.mean() - 3) < 0.05


def test_loguniform_is_uniform_in_the_logarithm() -> None:
    values = draws(Space("loguniform", (1e-4, 1e-2)))
    assert values.min() >= 1e-4
    assert values.max() <= 1e-2
    assert abs(np.mean(values < 1e-3) - 0.5) < 0.05


def test_randint_has_both_ends() -> None:
    assert set(draws(Space("randint", (1, 3)), 200).tolist()) == {1, 2, 3}


def test_whole_numbers_of_a_real_option_are_real() -> None:
    values = [Space("randint", (1.0, 3.0)).draw(np.random.default_rng(seed)) for seed in range(50)]
    assert set(map(repr, values)) == {"1.0", "2.0", "3.0"}
    values = [Space("randint", (1, 3)).draw(np.random.default_rng(seed)) for seed in range(50)]
    assert set(map(repr, values)) == {"1", "2", "3"}


def test_which_values_a_space_contains() -> None:
    assert [Space("choice", (1, "a", None)).contains(value) for value in (1, "a", None, 1.0, 2)] == [True] * 3 + [
        False
    ] * 2
    assert [Space("randint", (1, 3)).contains(value) for value in (0, 1, 3, 4, 2.5, None, "a", True)] == [
        *(False, True, True, False, False, False, False, False),
    ]
    for kind in ("uniform", "loguniform"):
        assert [Space(kind, (0.1, 1.0)).contains(value) for value in (0.09, 0.1, 1.0, 1.1)] == [
            False,
            True,
            True,
            False,
        ]


def test_values_have_the_type_of_the_option() -> None:
    model, faults = model_of(registry.learner_class("foml").options_class), Faults("f")
    for kind in ("grid", "choice", "uniform", "loguniform", "randint"):
        space = read_space({kind: [1, 10]}, model, "beta1", faults)
        assert repr(space) == f"Space(kind='{kind}', values=(1.0, 10.0))"
    assert repr(read_space({"grid": [1, 10]}, model, "K", faults)) == "Space(kind='grid', values=(1, 10))"
    assert list(faults) == []


def test_choice() -> None:
    assert set(draws(Space("choice", ("a", "b")), 100).tolist()) == {"a", "b"}
