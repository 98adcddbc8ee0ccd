"""The replay baseline: one step on the new batch and equally many datapoints of 𝓑."""

import torch
from torch.nn import functional as F

from learners.training.optim import Adam


def test_one_step_on_the_joint_batch(smooth) -> None:
    learner = smooth.learner("replay", (0, 1), alpha1=0.02)
    network, phi, statistics = learner.setting.network, learner.model.phi, learner.model.statistics
    moments = learner.model.moments
    for step in range(3):
        generators = learner.replay.state_dict()
        batch = smooth.batch(step, (0, 1))
        diagnostics = learner.update(batch)
        after_drawing = learner.replay.state_dict()
        learner.replay.load_state_dict(generators)
        old = learner.replay.sample(5)  # from 𝓑, which includes the new batch
        learner.replay.load_state_dict(after_drawing)
        at = phi.clone().requires_grad_()
        logits, _ = network.training_logits(at, statistics, torch.cat([batch.x, old.x], 1))
        y = torch.cat([batch.y, old.y], 1)
        losses = torch.stack([F.cross_entropy(logits[r], y[r]) for r in range(2)])
        (gradient,) = torch.autograd.grad(losses.sum(), at)
        phi, moments = Adam(0.02).step(phi, gradient, moments)
        assert torch.allclose(learner.model.phi, phi, rtol=1e-12, atol=1e-12)
        assert torch.allclose(diagnostics["loss"], losses.detach(), rtol=1e-12)
    assert network.gradient_evaluations == 3 * 10


def test_a_short_batch_is_joined_with_equally_many_old_datapoints(smooth) -> None:
    learner = smooth.learner("replay")
    learner.update(smooth.batch(0))
    learner.update(smooth.batch(1, count=2))
    assert learner.setting.network.gradient_evaluations == 10 + 4
    assert learner.replay.size == 7


def test_alternate_steps_on_the_new_batch_and_then_on_old_datapoints(smooth) -> None:
    """Two updates for each batch: new, replayed, new, replayed, all with one Adam."""
    learner = smooth.learner("replay", (0, 1), alpha1=0.02, step="alternate", updates_per_batch=2)
    by_hand = smooth.learner("replay", (0, 1), alpha1=0.02)
    for step in range(3):
        batch = smooth.batch(step, (0, 1))
        diagnostics = learner.update(batch)
        by_hand.replay.add(batch)
        losses = []
        for _ in range(2):
            losses += [by_hand.model.learn(batch), by_hand.model.learn(by_hand.replay.sample(5))]
        assert torch.equal(learner.model.phi, by_hand.model.phi)
        assert torch.equal(diagnostics["loss"], torch.stack(losses, 1).mean(1))
    assert learner.setting.network.gradient_evaluations == 3 * 2 * 10


def test_each_update_for_a_batch_draws_other_old_datapoints(smooth) -> None:
    learner, by_hand = (smooth.learner("replay", (0, 1), alpha1=0.02, **o) for o in ({"updates_per_batch": 3}, {}))
    batch = smooth.batch(0, (0, 1))
    learner.update(batch)
    by_hand.replay.add(batch)
    for _ in range(3):
        by_hand.model.learn(batch.concatenate(by_hand.replay.sample(5)))
    assert torch.equal(learner.model.phi, by_hand.model.phi)
