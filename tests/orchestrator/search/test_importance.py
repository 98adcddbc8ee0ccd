"""The importance of hyper-parameters, where the answer is known."""

import numpy as np
import pytest

from orchestrator.search.importance import importances


def test_the_shares_of_the_variance_are_those_of_the_formula():
    """With independent options the shares are the variances of the terms: 4² : 1² of two uniform numbers, and none of c."""
    rng = np.random.default_rng(0)
    draws = [
        {"a": float(a), "b": float(b), "c": int(c)}
        for a, b, c in zip(rng.random(400), rng.random(400), rng.integers(1, 9, 400), strict=True)
    ]
    shares = importances(draws, [4 * each["a"] + each["b"] for each in draws])
    assert list(shares)[:2] == ["a", "b"] and 0.95 < sum(shares.values()) <= 1
    assert shares["a"] == pytest.approx(16 / 17, abs=0.03) and shares["b"] == pytest.approx(1 / 17, abs=0.03)
    assert shares["c"] < 0.01
    assert importances(draws, [4 * each["a"] + each["b"] for each in draws]) == shares, "the same for each report"


def test_what_two_options_explain_together_is_in_neither_share():
    """Whether one of two numbers is above its middle says nothing about whether exactly one is."""
    draws = [{"a": float(a), "b": float(b)} for a, b in np.random.default_rng(0).random((200, 2))]
    shares = importances(draws, [float((each["a"] > 0.5) != (each["b"] > 0.5)) for each in draws])
    assert max(shares.values()) < 0.05


def test_words_lists_switches_and_rates_over_decades():
    rng = np.random.default_rng(1)
    draws = [
        {
            "rate": float(10 ** rng.uniform(-5, -1)),
            "on": bool(number % 2),
            "layers": [4, 4] if number % 3 else [8],
            "fixed": None,
        }
        for number in range(60)
    ]
    shares = importances(draws, [float(np.log10(each["rate"])) for each in draws])
    assert set(shares) == {"rate", "on", "layers"} and shares["rate"] > 0.95, "an option with one value is left out"


def test_a_constant_objective_has_no_importances():
    assert importances([{"a": 0.1}, {"a": 0.2}], [0.5, 0.5]) == {}
