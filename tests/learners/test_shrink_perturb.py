"""Shrink and perturb: λ φ + p after every n-th batch."""

import pytest
import torch

from learners.seeding import generator


def test_the_weights_are_scaled_and_the_noise_is_of_the_seed(smooth) -> None:
    learner = smooth.learner("shrink_perturb", (3, 8), alpha1=0.02, shrink=0.7, noise=0.01, every=2)
    plain = smooth.learner("online", (3, 8), alpha1=0.02)
    draws = [generator(seed, "perturbation") for seed in (3, 8)]
    size = learner.model.phi.shape[1]
    for step in range(4):
        batch = smooth.batch(step, (3, 8))
        diagnostics, _ = learner.update(batch), plain.update(batch)
        if step % 2 == 1:
            noise = torch.stack([torch.from_numpy(draw.standard_normal(size)) for draw in draws])
            plain.model.phi = 0.7 * plain.model.phi + 0.01 * noise
        assert torch.allclose(learner.model.phi, plain.model.phi, rtol=1e-13, atol=1e-15)
        assert torch.equal(diagnostics["norm"], learner.model.phi.norm(dim=1))


def test_without_shrinking_and_noise_it_is_plain_online_learning(smooth) -> None:
    learner, plain = smooth.learner("shrink_perturb", shrink=1.0, noise=0.0), smooth.learner("online")
    for step in range(3):
        learner.update(smooth.batch(step))
        plain.update(smooth.batch(step))
    assert torch.equal(learner.model.phi, plain.model.phi)


def test_the_noise_has_its_standard_deviation(rainbow) -> None:
    """Without learning (rate 1e-30), weights of 0 become noise."""
    learner = rainbow.learner("shrink_perturb", (0, 1), alpha1=1e-30, shrink=0.5, noise=0.2)
    learner.model.phi = torch.zeros_like(learner.model.phi)
    learner.update(rainbow.batch(0, (0, 1)))
    phi = learner.model.phi
    assert phi.std(1).tolist() == pytest.approx([0.2, 0.2], rel=0.15)
    assert abs(float(torch.corrcoef(phi)[0, 1])) < 0.2
