"""La-MAML: its step by hand, and its gradient of the learning rates by finite differences."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from learners import Batch


def gradient(network, phi: Tensor, statistics: Tensor, x: Tensor, y: Tensor) -> Tensor:
    at = phi.clone().requires_grad_()
    logits = network.training_logits(at, statistics, x)[0]
    loss = sum(F.cross_entropy(logits[r], y[r]) for r in range(len(y)))
    return torch.autograd.grad(loss, at)[0]


def test_a_step_by_hand(smooth) -> None:
    """Five datapoints in two parts of 3 and 2, each seed with its own rates."""
    learner = smooth.learner("la_maml", (0, 1), alpha0=0.2, eta=0.5, inner_steps=2, clip=1e9)
    network, statistics = learner.setting.network, learner.statistics
    phi, rates = learner.phi, torch.full_like(learner.phi, 0.2)
    for step in range(3):
        batch = smooth.batch(step, (0, 1))
        generators = learner.replay.state_dict()
        diagnostics = learner.update(batch)
        after = learner.replay.state_dict()
        learner.replay.load_state_dict(generators)
        old = learner.replay.sample(5)
        learner.replay.load_state_dict(after)
        first = gradient(network, phi, statistics, batch.x[:, :3], batch.y[:, :3])
        ahead = phi - rates * first
        second = gradient(network, ahead, statistics, batch.x[:, 3:], batch.y[:, 3:])
        ahead = ahead - rates * second
        joint = torch.cat([batch.x, old.x], 1), torch.cat([batch.y, old.y], 1)
        g = gradient(network, ahead, statistics, *joint)
        rates = rates + 0.5 * g * (first + second)
        phi = phi - rates.clamp(min=0) * g
        assert torch.allclose(learner.rates, rates, rtol=1e-11, atol=1e-14)
        assert torch.allclose(learner.phi, phi, rtol=1e-11, atol=1e-14)
        assert torch.allclose(diagnostics["learning_rate"], rates.clamp(min=0).mean(1), rtol=1e-12)
    assert network.gradient_evaluations == 3 * 15


def test_one_inner_step_has_the_exact_gradient_of_the_rates(smooth) -> None:
    """α ← α − η dL(φ_1)/dα, by finite differences in each of the 43 rates."""
    learner = smooth.learner("la_maml", alpha0=0.3, eta=1.0, inner_steps=1, clip=1e9)
    network, statistics, phi, rates = learner.setting.network, learner.statistics, learner.phi, learner.rates
    batch = smooth.batch(0)
    generators = learner.replay.state_dict()
    learner.update(batch)
    learner.replay.load_state_dict(generators)
    joint = batch.concatenate(learner.replay.sample(5))
    inner = gradient(network, phi, statistics, batch.x, batch.y)

    def loss(rates: Tensor) -> float:
        logits = network.training_logits(phi - rates * inner, statistics, joint.x)[0]
        return float(F.cross_entropy(logits[0], joint.y[0]))

    h, slopes = 1e-5, []
    for p in range(rates.shape[1]):
        shift = torch.zeros_like(rates)
        shift[0, p] = h
        slopes.append((loss(rates + shift) - loss(rates - shift)) / (2 * h))
    assert (rates - learner.rates)[0].tolist() == pytest.approx(slopes, rel=1e-6, abs=1e-10)


def test_a_negative_rate_does_not_move_its_weight(smooth) -> None:
    learner = smooth.learner("la_maml", eta=0.0)
    learner.rates = torch.where(torch.arange(43) < 20, -1.0, 0.1).double().unsqueeze(0)
    before = learner.phi
    learner.update(smooth.batch(0))
    moved = (learner.phi != before)[0]
    assert not moved[:20].any()
    assert moved[20:].all()


def test_a_batch_shorter_than_the_steps_has_a_step_for_each_datapoint(smooth) -> None:
    learner = smooth.learner("la_maml", inner_steps=5)
    batch: Batch = smooth.batch(0, count=2)
    learner.update(batch)
    assert learner.setting.network.gradient_evaluations == 2 + 4


def test_gradients_are_clipped(smooth) -> None:
    """Entries of inner gradients to 0.01, the norms of both meta-gradients to 0.01; for each seed separately."""
    learner = smooth.learner("la_maml", (0, 1), alpha0=0.2, eta=0.5, inner_steps=1, clip=0.01)
    network, statistics, phi = learner.setting.network, learner.statistics, learner.phi
    batch = smooth.batch(0, (0, 1))
    generators = learner.replay.state_dict()
    learner.update(batch)
    learner.replay.load_state_dict(generators)
    joint = batch.concatenate(learner.replay.sample(5))
    inner = gradient(network, phi, statistics, batch.x, batch.y).clamp(-0.01, 0.01)
    g = gradient(network, phi - 0.2 * inner, statistics, joint.x, joint.y)
    by_rates = g * inner
    rates = 0.2 + 0.5 * by_rates * (0.01 / by_rates.norm(dim=1, keepdim=True)).clamp(max=1)
    assert torch.allclose(learner.rates, rates, rtol=1e-12)
    expected = phi - rates * 0.01 * g / g.norm(dim=1, keepdim=True)
    assert torch.allclose(learner.phi, expected, rtol=1e-11, atol=1e-14)
