"""The curves of a chunk from its values."""

import math

import numpy as np
import pytest
import torch

from orchestrator.protocol.batches import mean_of_parts, score, slice_of_curves

NAN = math.nan


def test_a_seed_has_no_values_from_the_batch_where_one_is_not_finite() -> None:
    by_batch = {
        7: {"online_error": torch.tensor([0.5, 0.4])},
        8: {"online_error": torch.tensor([0.3, 0.2]), "norm": torch.tensor([1.0, math.inf])},
        9: {"online_error": torch.tensor([0.1, 0.0]), "norm": torch.tensor([2.0, 3.0])},
    }
    evaluations = {"seed": [0.0, 1.0, 0.0, 1.0], "task": [0.0, 0.0, 1.0, 1.0], "batch": [7.0, 7.0, 9.0, 9.0]}
    evaluations |= {name: [0.6, 0.7, 0.8, 0.9] for name in ("error", "loss", "test_error")}
    diverged = [-1, -1]
    curves = slice_of_curves([3, 4], 7, by_batch, evaluations, diverged, past={})
    assert (curves.first_batch, curves.batches, curves.seeds, diverged, curves.diverged) == (
        7,
        10,
        [3, 4],
        [-1, 8],
        [-1, 8],
    )
    np.testing.assert_allclose(curves.by_batch["online_error"], [[0.5, 0.3, 0.1], [0.4, NAN, NAN]], rtol=1e-6)
    np.testing.assert_allclose(curves.by_batch["norm"], [[NAN, 1.0, 2.0], [NAN, NAN, NAN]])
    for name in ("error", "loss", "test_error"):
        np.testing.assert_allclose(curves.evaluations[name], [0.6, 0.7, 0.8, NAN])
    assert curves.evaluations["batch"].dtype == np.int64


def test_a_seed_that_was_lost_before_stays_so() -> None:
    diverged = [2]
    curves = slice_of_curves([3], 7, {7: {"online_error": torch.tensor([0.5])}}, {}, diverged, past={})
    assert np.isnan(curves.by_batch["online_error"]).all() and curves.diverged == diverged == [2]


def test_each_datapoint_is_scored() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
    error, loss = score(logits, torch.tensor([[0, 0]]))
    assert error.tolist() == [[0.0, 1.0]]
    np.testing.assert_allclose(loss, [[math.log1p(math.exp(-2)), math.log1p(math.exp(2))]], rtol=1e-6)


def test_the_mean_of_parts_weighs_their_datapoints() -> None:
    error, loss = torch.tensor([0.2, 1.0]), torch.tensor([3.0, 5.0])
    parts = [(4, {"error": error}), (6, {"error": error + 1, "loss": loss})]
    mean = mean_of_parts(parts)
    assert mean["error"].tolist() == pytest.approx([0.8, 1.6])
    assert mean["loss"].tolist() == [3.0, 5.0]
    assert mean_of_parts(parts[:1])["error"] is error
