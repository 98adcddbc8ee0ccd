"""FOML against a separate implementation of Algorithm 1: no reset, no growth, no θ in a prediction."""

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from learners.seeding import generator

PARAMETERS = (("first.weight", (4, 6)), ("first.bias", (4,)), ("head.weight", (3, 4)), ("head.bias", (3,)))


def logits(flat: Tensor, x: Tensor) -> Tensor:
    """The smooth network of these tests as a function; flat [43], x [N, 1, 2, 3]."""
    W1, b1, W2, b2 = (
        piece.reshape(shape) for piece, (_, shape) in zip(flat.split([24, 4, 12, 3]), PARAMETERS, strict=True)
    )
    return torch.tanh(x.flatten(1) @ W1.T + b1) @ W2.T + b2


class ByHand:
    """Algorithm 1 and the appendix's meta-update for one seed, by autograd, in the paper's order."""

    def __init__(self, world: Any, seed: int, phi: Tensor, online: str, K: int, alpha1=0.05, alpha2=0.03) -> None:
        self.world, self.seed, self.online, self.K = world, seed, online, K
        self.alpha1, self.alpha2, self.beta1, self.beta2 = alpha1, alpha2, 0.3, 0.05
        self.phi = self.theta = phi
        self.state = (torch.zeros_like(phi), torch.zeros_like(phi), 0)
        self.history: list[tuple[Tensor, tuple[Tensor, Tensor, int], Tensor, Tensor, Tensor]] = []
        self.ids = np.empty((0,), dtype=np.int64)
        self.draws = generator(seed, "replay")
        self.meta = torch.optim.Adam([torch.nn.Parameter(phi.clone())], lr=alpha2)

    def opt1(self, phi: Tensor, g: Tensor, state: tuple[Tensor, Tensor, int]) -> tuple[Tensor, Any]:
        m, s, t = state
        if self.online == "sgd":
            return phi - self.alpha1 * g, (m, s, t + 1)
        m, s, t = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2, t + 1
        return phi - self.alpha1 * (m / (1 - 0.9**t)) / ((s / (1 - 0.999**t)).sqrt() + 1e-8), (m, s, t)

    def step(self, x: Tensor, y: Tensor, ids: Tensor) -> None:
        self.ids = np.concatenate([self.ids, ids[:, 0].numpy()])
        self.history = [*self.history, (self.phi, self.state, self.theta, x, y)][-self.K :]
        delta = torch.zeros_like(self.theta, requires_grad=True)
        phi, state = self.history[0][0].clone().requires_grad_(), self.history[0][1]
        path = [phi]
        for _, _, theta, x_i, y_i in self.history:
            loss = F.cross_entropy(logits(phi, x_i), y_i)
            pull = self.beta1 * (phi - theta - delta).square().sum()
            (g,) = torch.autograd.grad(loss + pull, phi, create_graph=True)
            phi, state = self.opt1(phi, g, state)
            path.append(phi)
        self.phi, self.state = phi.detach(), tuple(v.detach() if isinstance(v, Tensor) else v for v in state)
        replayed = torch.from_numpy(self.ids[self.draws.integers(0, len(self.ids), size=len(y))])
        x_m = self.world.table().gather(replayed.unsqueeze(-1))
        y_m = replayed % self.world.classes
        J = F.cross_entropy(logits(phi, x_m), y_m)
        J = J + self.beta2 * sum((self.theta + delta - p).square().sum() for p in path)
        (gradient,) = torch.autograd.grad(J, delta)
        self.meta.param_groups[0]["params"][0].grad = gradient
        self.meta.step()
        self.theta = self.meta.param_groups[0]["params"][0].detach().clone()


@pytest.mark.parametrize("path", ["adjoint", "unrolled"])
@pytest.mark.parametrize(("online", "K"), [("adam", 1), ("adam", 4), ("sgd", 4)])
def test_equals_algorithm_1_written_by_hand(smooth, online: str, K: int, path: str) -> None:
    seeds = (3, 8)
    learner = smooth.learner(
        "foml",
        seeds,
        alpha1=0.05,
        alpha2=0.03,
        beta1=0.3,
        beta2=0.05,
        K=K,
        online_optimizer=online,
        meta_path=path,
    )
    by_hand = [ByHand(smooth, seed, learner.phi[r], online, K) for r, seed in enumerate(seeds)]
    first_theta = learner.theta
    for step in range(20):
        batch = smooth.batch(step, seeds)
        learner.update(batch)
        for r, one in enumerate(by_hand):
            one.step(batch.x[r], batch.y[r], batch.ids[r])
    for r, one in enumerate(by_hand):
        assert float((learner.phi[r] - one.phi).norm() / one.phi.norm()) < 1e-9
        assert float((learner.theta[r] - one.theta).norm() / one.theta.norm()) < 1e-9
        assert float((one.theta - first_theta[r]).norm()) > 0.1
        assert torch.allclose(learner.predict(batch.x)[r], logits(one.phi, batch.x[r]), rtol=1e-9, atol=1e-9)


def test_default_hyper_parameters_are_those_of_the_paper(smooth) -> None:
    o = smooth.learner("foml").options
    assert (o.alpha1, o.alpha2, o.beta1, o.beta2, o.K) == (0.001, 0.001, 0.01, 0.001, 5)
    assert (o.online_optimizer, o.meta_optimizer, o.meta_gradient, o.adam_zero) == ("adam", "adam", "exact", "mask")
    assert (o.meta_updates, o.meta_every) == (True, 1)


def test_without_meta_updates_theta_keeps_its_initial_value(smooth) -> None:
    learner = smooth.learner("foml", (0, 1), meta_updates=False, beta1=0.3)
    start = learner.phi
    diagnostics = smooth.drive(learner, 0, 12)
    assert torch.equal(learner.theta, start)
    assert not torch.equal(learner.phi, start)
    assert set(diagnostics[-1]) == {"loss", "distance", "masked_share"}


def test_meta_every_counts_batches(smooth) -> None:
    learner = smooth.learner("foml", meta_every=3)
    moved = []
    for step in range(9):
        before = learner.theta
        learner.update(smooth.batch(step))
        moved.append(not torch.equal(before, learner.theta))
    assert moved == [False, False, True] * 3


def test_first_order_needs_no_hessian(smooth, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = smooth.learner("foml", meta_gradient="first_order", K=4)
    smooth.drive(learner, 0, 8)
    # Eight times one gradient of the online step and one of the meta-loss, five datapoints each; no product.
    assert learner.network.gradient_evaluations == 8 * (5 + 5)
    exact = smooth.learner("foml", K=4)
    smooth.drive(exact, 0, 8)
    # W − 1 products per step, W = 1, 2, 3, 4, 4, …; each counts as two gradients.
    assert exact.network.gradient_evaluations == 8 * (5 + 5) + 2 * 5 * (0 + 1 + 2 + 3 * 5)


@pytest.mark.parametrize("meta_gradient", ["exact", "first_order"])
def test_unrolled_counts_the_same_evaluations_as_adjoint(smooth, meta_gradient: str) -> None:
    counts = {}
    for path in ("adjoint", "unrolled"):
        learner = smooth.learner("foml", (0, 1), K=5, meta_path=path, meta_gradient=meta_gradient)
        smooth.drive(learner, 0, 8)
        before = learner.network.gradient_evaluations
        smooth.drive(learner, 8, 9)
        counts[path] = (learner.network.gradient_evaluations - before) / 5
    expected = 2 + 2 * (5 - 1) if meta_gradient == "exact" else 2
    assert counts == {"adjoint": expected, "unrolled": expected}


def test_diagnostics_equal_their_formulas(smooth) -> None:
    """‖2β₂ Σ(θ − φ)‖, the norm of the remainder, and ‖θ − φ‖, for K = 1 and SGD, which have a closed form."""
    learner = smooth.learner("foml", (0, 1), K=1, online_optimizer="sgd", alpha1=0.1, beta1=0.2, beta2=0.3)
    smooth.drive(learner, 0, 3)
    theta, phi, before = learner.theta, learner.phi, learner.replay.state_dict()
    diagnostics = learner.update(smooth.batch(3, (0, 1)))
    after = learner.phi
    assert torch.equal(diagnostics["distance"], (theta - after).norm(dim=1))
    direct = (2 * 0.3 * ((theta - after) + (theta - phi))).norm(dim=1)
    assert torch.allclose(diagnostics["meta_gradient_direct"], direct, rtol=1e-12)
    learner.replay.load_state_dict(before)
    replayed = learner.replay.sample(5)
    for r in range(2):
        at = after[r].clone().requires_grad_()
        (v,) = torch.autograd.grad(F.cross_entropy(logits(at, replayed.x[r]), replayed.y[r]), at)
        v = v - 2 * 0.3 * (theta[r] - after[r])  # the contribution of the β₂ term at φ_j
        assert float(diagnostics["meta_gradient_rest"][r]) == pytest.approx(2 * 0.1 * 0.2 * float(v.norm()), rel=1e-10)


def test_the_window_has_at_most_k_steps(smooth) -> None:
    learner = smooth.learner("foml", K=4)
    lengths = []
    for step in range(9):
        learner.update(smooth.batch(step))
        lengths.append(len(learner.window))
    assert lengths == [1, 2, 3, 4, 4, 4, 4, 4, 4]
    assert learner.window[-1].new_phi is learner.phi


def test_predictions_do_not_depend_on_theta(smooth) -> None:
    learner = smooth.learner("foml")
    smooth.drive(learner, 0, 3)
    x = smooth.batch(50).x
    before = learner.predict(x)
    learner.theta = learner.theta + 1
    assert torch.equal(learner.predict(x), before)


def test_only_the_online_pass_updates_batch_norm_statistics(siamese) -> None:
    """The statistics are the same with and without the pass on the replayed batch and the Hessians."""
    runs = {}
    for updates in (False, True):
        learner = siamese.learner("foml", meta_updates=updates, beta1=0.0, K=3)
        siamese.drive(learner, 0, 5)
        runs[updates] = learner  # with β₁ = 0, φ does not depend on θ
    assert torch.equal(runs[False].phi, runs[True].phi)
    assert torch.equal(runs[False].statistics, runs[True].statistics)


def alive() -> int:
    """Bytes of all tensors that Python references."""
    gc.collect()
    held = [o for o in gc.get_objects() if issubclass(type(o), Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values())


def test_memory_is_flat_once_the_window_is_full(smooth) -> None:
    learner = smooth.learner("foml", K=5)
    smooth.drive(learner, 0, 10)
    after_ten = alive()
    smooth.drive(learner, 10, 60)
    assert alive() == after_ten
