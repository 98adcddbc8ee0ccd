"""La-MAML: its step by hand, and its gradient of the learning rates by finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from learners import Batch, ImageTable, Setting, create, registry
from learners.la_maml import LaMAML
from learners.networks.network import Network
from learners.training.replicate_options import packed_options


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


def test_the_mean_over_one_inner_step_is_the_loss_after_it(rainbow) -> None:
    """Bit for bit; two seeds, and batches of two lengths."""
    last, mean = (
        rainbow.learner("la_maml", (0, 1), inner_steps=1, meta_loss=meta_loss) for meta_loss in ("last", "mean")
    )
    for step, count in enumerate((5, 3)):
        batch = rainbow.batch(step, (0, 1), count)
        a, b = last.update(batch), mean.update(batch)
        assert all(torch.equal(a[key], b[key]) for key in a)
    for key in ("phi", "rates", "statistics"):
        assert torch.equal(getattr(last, key), getattr(mean, key))
    assert last.setting.network.gradient_evaluations == mean.setting.network.gradient_evaluations == 3 * 8


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_the_mean_of_the_losses_after_each_inner_step(smooth, seeds: tuple[int, ...]) -> None:
    """Parts of 2, 2 and 1; the step of α against autograd through the path with constant inner gradients."""
    options = {"alpha0": 0.2, "eta": 0.5, "inner_steps": 3, "clip": 1e9, "meta_loss": "mean"}
    learner = smooth.learner("la_maml", seeds, **options)
    network, statistics = learner.setting.network, learner.statistics
    for number in range(2):
        batch, phi, rates = smooth.batch(number, seeds), learner.phi, learner.rates
        generators = learner.replay.state_dict()
        diagnostics = learner.update(batch)
        after = learner.replay.state_dict()
        learner.replay.load_state_dict(generators)
        joint = batch.concatenate(learner.replay.sample(5))
        learner.replay.load_state_dict(after)

        start, rate = phi.clone().requires_grad_(), rates.clone().requires_grad_()
        ahead, losses = start, []
        for part in (slice(0, 2), slice(2, 4), slice(4, 5)):
            ahead = ahead - rate * gradient(network, ahead, statistics, batch.x[:, part], batch.y[:, part])
            logits = network.training_logits(ahead, statistics, joint.x)[0]
            losses.append(torch.stack([F.cross_entropy(logits[r], joint.y[r]) for r in range(len(seeds))]))
        meta_loss = torch.stack(losses).mean(0)
        by_phi, by_rate = torch.autograd.grad(meta_loss.sum(), (start, rate))
        rates = rates - 0.5 * by_rate
        assert torch.allclose(learner.rates, rates, rtol=1e-11, atol=1e-14)
        assert torch.allclose(learner.phi, phi - rates.clamp(min=0) * by_phi, rtol=1e-11, atol=1e-14)
        assert torch.allclose(diagnostics["meta_loss"], meta_loss, rtol=1e-12)
    assert network.gradient_evaluations == 2 * (5 + 3 * 10)


@pytest.mark.parametrize("kind", ["rainbow", "siamese"])
def test_the_mean_in_a_stack_a_pack_and_a_resumed_learner(kind: str, request: pytest.FixtureRequest) -> None:
    """Bit for bit, in float32: two seeds with different η in one stack, each alone, and continued from the states."""
    world = replace(request.getfixturevalue(kind), dtype=torch.float32)
    options = [LaMAML.options_class(eta=eta, inner_steps=2, meta_loss="mean") for eta in (0.1, 0.5)]
    packed = packed_options(options, 1, LaMAML.changeable)
    stack, x = LaMAML(packed, world.setting((4, 9))), world.batch(70, (4, 9)).x
    world.drive(stack, 0, 2, predict=False)
    states = []
    for row, seed in enumerate((4, 9)):
        alone = LaMAML(options[row], world.setting((seed,)))
        world.drive(alone, 0, 2, predict=False)
        assert torch.equal(alone.predict(x[row : row + 1]), stack.predict(x)[row : row + 1])
        states.append(alone.state_dict())
    resumed = LaMAML(packed, world.setting((4, 9)))
    resumed.load_state_dict(stack.state_of_replicates(states))
    resumed.restore_seen(world.seen(2, (4, 9)))
    for learner in (stack, resumed):
        world.drive(learner, 2, 3, predict=False)
    for name in ("phi", "rates", "statistics"):
        assert torch.equal(getattr(resumed, name), getattr(stack, name))


def test_the_meta_loss_is_an_addition_without_effect_for_one_inner_step() -> None:
    last, mean = ({"inner_steps": 1, "meta_loss": meta_loss} for meta_loss in ("last", "mean"))
    assert registry.without_additions("la_maml", last) == {"inner_steps": 1}
    assert registry.without_additions("la_maml", mean) == mean
    assert LaMAML.without_effect(LaMAML.options_class(**mean)) == {"meta_loss": "inner_steps: 1"}
    assert LaMAML.without_effect(LaMAML.options_class(meta_loss="mean")) == {}


def test_the_mean_learns_a_stationary_task() -> None:
    """Four noisy pictures, each datapoint once: a held-out error below 0.1, where guessing has 0.75; two seeds."""
    rng = np.random.default_rng(0)
    labels = np.arange(1_200) % 4
    pictures = rng.integers(0, 256, (4, 1, 4, 4))[labels] + rng.normal(0, 40, (1_200, 1, 4, 4))
    table = ImageTable(pictures.clip(0, 255).round().astype(np.uint8))
    order = rng.permutation(1_200)

    def batch(start: int, stop: int) -> Batch:
        ids = torch.from_numpy(order[start:stop]).expand(2, -1).unsqueeze(2)
        return Batch(table.gather(ids), torch.from_numpy(labels)[ids[..., 0]], ids)

    network = Network(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)))
    setting = Setting(network, [0, 1], batch_size=10, batches_per_task=80, classes=4, images=table)
    learner = create("la_maml", {"meta_loss": "mean"}, setting)
    for start in range(0, 800, 10):
        learner.update(batch(start, start + 10))
    held_out = batch(800, 1_200)
    errors = (learner.predict(held_out.x).argmax(2) != held_out.y).double().mean(1)
    assert errors.max() < 0.1, errors
