"""Spaces draw what they say."""

import numpy as np

from orchestrator.spaces import Space


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


def test_choice() -> None:
    assert set(draws(Space("choice", ("a", "b")), 100).tolist()) == {"a", "b"}
