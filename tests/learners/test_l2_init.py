"""L2 Init against FOML whose θ never moves."""

import pytest
import torch


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_equals_foml_without_meta_updates(smooth, optimizer: str) -> None:
    shared = {"alpha1": 0.02, "online_optimizer": optimizer}
    learner = smooth.learner("l2_init", (0, 1), strength=0.3, **shared)
    foml = smooth.learner("foml", (0, 1), beta1=0.3, meta_updates=False, **shared)
    start = learner.model.phi
    for step in range(6):
        batch = smooth.batch(step, (0, 1))
        mine, its = learner.update(batch), foml.update(batch)
        assert torch.allclose(learner.model.phi, foml.phi, rtol=1e-12, atol=1e-14)
        for name in ("loss", "distance"):
            assert torch.allclose(mine[name], its[name], rtol=1e-11)
    assert torch.equal(learner.initial, start)
    assert learner.setting.network.gradient_evaluations == 6 * 5


def test_a_strong_pull_returns_to_the_initial_weights(smooth) -> None:
    """With SGD and α λ = 1/2 each step cancels the whole distance: φ = φ₀ − α ∇L."""
    learner = smooth.learner("l2_init", alpha1=0.1, strength=5.0, online_optimizer="sgd")
    for step in range(3):
        batch, network = smooth.batch(step), learner.setting.network
        loss = torch.nn.functional.cross_entropy
        at = learner.model.phi.clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(network.logits(at, learner.model.statistics, batch.x)[0], batch.y[0]), at)
        learner.update(batch)
        assert torch.allclose(learner.model.phi, learner.initial - 0.1 * g, rtol=1e-12, atol=1e-14)


def test_a_start_from_other_weights_pulls_towards_them(smooth) -> None:
    other, learner = smooth.learner("online"), smooth.learner("l2_init", alpha1=0.1, online_optimizer="sgd")
    smooth.drive(other, 0, 3)
    start = other.model.phi
    learner.start_from(other.weights())
    assert torch.equal(learner.model.phi, start)
    distances = [each["distance"] for each in smooth.drive(learner, 3, 5)]
    assert torch.equal(distances[-1], (learner.model.phi - start).norm(dim=1))
    assert float(distances[-1]) > 0
