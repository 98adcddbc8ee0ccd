"""DER++: eq. 6 by hand, the reservoir's probabilities, and the logits that it stores."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from learners.training.optim import Adam


def test_one_step_is_equation_6(smooth) -> None:
    """L(φ; D) + α mean (z' − h(x'))² + β L(φ; x'', y''), with z' from the step that stored the datapoint."""
    options = {"alpha": 0.02, "logit_weight": 0.3, "label_weight": 0.7, "memory": 20}
    learner = smooth.learner("der", (0, 1), **options)
    network, statistics = learner.setting.network, learner.model.statistics
    phi, moments = learner.model.phi, learner.model.moments
    all_x: list[Tensor] = []
    all_y: list[Tensor] = []
    all_z: list[Tensor] = []
    for step in range(4):
        batch = smooth.batch(step, (0, 1))
        generators = learner.draws.state_dict()
        diagnostics = learner.update(batch)
        after = learner.draws.state_dict()
        learner.draws.load_state_dict(generators)
        at = phi.clone().requires_grad_()
        losses = []
        if step:
            first, second = (learner.draws.integers(0, 5 * step, 5) for _ in range(2))
        for r in range(2):
            logits = network.logits(at, statistics, batch.x)[r]
            loss = F.cross_entropy(logits, batch.y[r])
            if step:  # nothing was replaced yet: the reservoir is the stream so far
                x, y, z = (torch.cat(parts, 1)[r] for parts in (all_x, all_y, all_z))
                h = network.logits(at, statistics, torch.stack([x[first[r]]] * 2))[r]
                labels = network.logits(at, statistics, torch.stack([x[second[r]]] * 2))[r]
                loss = loss + 0.3 * F.mse_loss(h, z[first[r]]) + 0.7 * F.cross_entropy(labels, y[second[r]])
            losses.append(loss)
        learner.draws.load_state_dict(after)
        (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), at)
        all_x.append(batch.x)
        all_y.append(batch.y)
        all_z.append(network.logits(phi, statistics, batch.x))
        phi, moments = Adam(0.02).step(phi, gradient, moments)
        assert torch.allclose(learner.model.phi, phi, rtol=1e-11, atol=1e-13)
        assert torch.allclose(diagnostics["loss"], torch.stack(losses).detach(), rtol=1e-11)
        assert torch.allclose(learner.logits, torch.cat(all_z, 1), rtol=1e-11)
        assert learner.positions.tolist() == [list(range(5 * (step + 1)))] * 2
    assert network.gradient_evaluations == 5 + 3 * 15


def test_the_reservoir_holds_each_datapoint_with_equal_probability(smooth) -> None:
    """40 of 200 datapoints in each of 60 seeds: every fifth of the stream has a fifth of the places, within 5 σ."""
    learner = smooth.learner("der", tuple(range(60)), memory=40)
    logits = torch.zeros(60, 10, 3, dtype=torch.float64)
    for start in range(0, 200, 10):
        numbers = torch.arange(start, start + 10, dtype=torch.float64)
        learner._store(logits + numbers.view(1, 10, 1))
    assert learner.positions.shape == (60, 40)
    assert torch.equal(learner.logits[..., 0].long(), learner.positions)  # logits belong to their datapoints
    assert all(len(set(row)) == 40 for row in learner.positions.tolist())
    counts = torch.bincount(learner.positions.flatten() // 40, minlength=5).double()
    sigma = (60 * 40 * 0.2 * 0.8 * (1 - 40 / 200)) ** 0.5
    assert counts.tolist() == pytest.approx([480.0] * 5, abs=5 * sigma)


def test_datapoint_number_t_is_drawn_from_t_places(smooth) -> None:
    """So it is kept with probability memory / t (Vitter 1985, Algorithm R)."""
    learner, drawn_from = smooth.learner("der", memory=7), []

    class Draws:
        def integers(self, high: int) -> int:
            drawn_from.append(high)
            return 6 if high == 9 else 7

    learner.draws = [Draws()]
    for start in (0, 5):
        learner._store(torch.full((1, 5, 3), float(start), dtype=torch.float64))
    assert drawn_from == [8, 9, 10]
    assert learner.positions.tolist() == [[0, 1, 2, 3, 4, 5, 8]]  # the ninth has replaced the seventh


def test_without_weights_it_is_plain_online_learning(smooth) -> None:
    learner = smooth.learner("der", (0, 1), alpha=0.02, logit_weight=0.0, label_weight=0.0)
    plain = smooth.learner("online", (0, 1), alpha1=0.02)
    for step in range(4):
        learner.update(smooth.batch(step, (0, 1)))
        plain.update(smooth.batch(step, (0, 1)))
        assert torch.allclose(learner.model.phi, plain.model.phi, rtol=1e-9, atol=1e-12)
