"""FOML against a separate implementation of Algorithm 1: no reset, no growth, no θ in a prediction."""

import gc
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from learners import learner_class
from learners.base import StreamFacts
from learners.seeding import generator
from learners.training.optim import create_optimizer
from learners.training.replicate_options import packed_options

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


def test_meta_batches_is_the_size_of_the_meta_batch(smooth) -> None:
    """With K = 1, SGD and β₂ = 0, dJ/dθ = 2 α₁ β₁ ∇L(φ_j; D_m), a mean over meta_batches · N datapoints."""
    rates = {
        "alpha1": 0.1,
        "beta1": 0.2,
        "beta2": 0.0,
        "alpha2": 0.5,
        "meta_optimizer": "sgd",
        "online_optimizer": "sgd",
    }
    learner = smooth.learner("foml", (0, 1), K=1, meta_batches=3, **rates)
    smooth.drive(learner, 0, 3)
    theta, before, evaluations = learner.theta, learner.replay.state_dict(), learner.network.gradient_evaluations
    learner.update(smooth.batch(3, (0, 1)))
    assert learner.network.gradient_evaluations - evaluations == 5 + 3 * 5
    moved, phi = learner.theta, learner.phi
    learner.replay.load_state_dict(before)
    replayed = learner.replay.sample(3 * 5)
    for r in range(2):
        at = phi[r].clone().requires_grad_()
        (v,) = torch.autograd.grad(F.cross_entropy(logits(at, replayed.x[r]), replayed.y[r]), at)
        assert torch.allclose(moved[r], theta[r] - 0.5 * 2 * 0.1 * 0.2 * v, rtol=1e-12, atol=1e-14)


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
    direct = 2 * 0.3 * ((theta - after) + (theta - phi))
    assert torch.allclose(diagnostics["meta_gradient_direct"], direct.norm(dim=1), rtol=1e-12)
    learner.replay.load_state_dict(before)
    replayed = learner.replay.sample(5)
    for r in range(2):
        at = after[r].clone().requires_grad_()
        (v,) = torch.autograd.grad(F.cross_entropy(logits(at, replayed.x[r]), replayed.y[r]), at)
        v = v - 2 * 0.3 * (theta[r] - after[r])  # the contribution of the β₂ term at φ_j
        assert float(diagnostics["meta_gradient_rest"][r]) == pytest.approx(2 * 0.1 * 0.2 * float(v.norm()), rel=1e-10)
        same = (direct[r] + 2 * 0.1 * 0.2 * v).sign() == direct[r].sign()
        assert float(diagnostics["meta_gradient_same_sign"][r]) == float(same.double().mean())


def test_the_share_of_equal_signs_is_of_live_parameters(rainbow) -> None:
    """With β₁ = 0 the gradient is its direct part: all signs are equal where Adam's second moment is not zero."""
    learner = rainbow.learner("foml", (0, 1), K=2, beta1=0.0)
    diagnostics = rainbow.drive(learner, 0, 3)
    assert diagnostics[-1]["meta_gradient_same_sign"].tolist() == [1.0, 1.0]
    none = rainbow.learner("foml", K=2, beta2=0.0)
    assert rainbow.drive(none, 0, 1)[0]["meta_gradient_same_sign"].tolist() == [0.0]


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


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_decoupled_pulls_do_not_go_through_the_optimisers(smooth, optimizer: str) -> None:
    """φ ← φ − Opt₁(∇L) + c (θ − φ); θ ← θ − Opt₂(c ∇L(φ_j; D_m)) + e (φ_j − θ), K = 1."""
    c, e, rates = 0.4, 0.3, {"alpha1": 0.05, "alpha2": 0.03}
    kinds = {"online_optimizer": optimizer, "meta_optimizer": optimizer}
    learner = smooth.learner("foml", (0, 1), K=1, pull="decoupled", beta1=c, beta2=e, **rates, **kinds)
    phi = theta = learner.phi
    first, second = create_optimizer(optimizer, 0.05), create_optimizer(optimizer, 0.03)
    moments, meta_moments = first.initial(phi), second.initial(theta)

    def gradient(at: Tensor, batch: Any) -> Tensor:
        rows = []
        for r in range(2):
            leaf = at[r].clone().requires_grad_()
            rows += torch.autograd.grad(F.cross_entropy(logits(leaf, batch.x[r]), batch.y[r]), leaf)
        return torch.stack(rows)

    for step in range(4):
        batch = smooth.batch(step, (0, 1))
        generators = learner.replay.state_dict()
        diagnostics = learner.update(batch)
        after = learner.replay.state_dict()
        learner.replay.load_state_dict(generators)
        replayed = learner.replay.sample(5)
        learner.replay.load_state_dict(after)
        stepped, moments = first.step(phi, gradient(phi, batch), moments)
        phi = stepped + c * (theta - phi)
        meta = c * gradient(phi, replayed)
        stepped, meta_moments = second.step(theta, meta, meta_moments)
        theta = stepped + e * (phi - theta)
        assert torch.allclose(learner.phi, phi, rtol=1e-11, atol=1e-13)
        assert torch.allclose(learner.theta, theta, rtol=1e-11, atol=1e-13)
        assert torch.allclose(diagnostics["meta_gradient_rest"], meta.norm(dim=1), rtol=1e-11)
    assert learner.network.gradient_evaluations == 4 * 2 * 5


def test_decoupled_pulls_are_shares() -> None:
    kind = learner_class("foml")
    facts = StreamFacts(batch_size=10, held_back=0)
    rule = "must be at most 1 with pull: decoupled"
    assert [*kind.check(kind.options_class(beta1=1.5, beta2=2.0), facts)] == []
    options = kind.options_class(beta1=1.5, beta2=2.0, pull="decoupled")
    assert [*kind.check(options, facts)] == [("beta1", rule), ("beta2", rule)]
    assert [*kind.check(kind.options_class(beta1=1.0, beta2=1.0, pull="decoupled"), facts)] == []


def test_decoupled_resumes_bit_for_bit(rainbow) -> None:
    options = {"K": 3, "pull": "decoupled", "beta1": 0.5, "beta2": 0.5}
    reference = rainbow.learner("foml", (0, 1), **options)
    rainbow.drive(reference, 0, 4)
    other = rainbow.learner("foml", (0, 1), **options)
    other.load_state_dict(reference.state_dict())
    other.restore_seen(rainbow.seen(4, (0, 1)))
    for learner in (reference, other):
        rainbow.drive(learner, 4, 6)
    assert torch.equal(other.theta, reference.theta)
    assert torch.equal(other.phi, reference.phi)


def test_online_replay_without_pull_is_replay(smooth) -> None:
    """β₁ = 0 and no meta-updates: φ is that of the baseline, with the same draws."""
    learner = smooth.learner("foml", (0, 1), alpha1=0.02, beta1=0.0, meta_updates=False, online_replay=True)
    replay = smooth.learner("replay", (0, 1), alpha1=0.02)
    for step in range(4):
        batch = smooth.batch(step, (0, 1))
        mine, its = learner.update(batch), replay.update(batch)
        assert torch.equal(learner.phi, replay.model.phi)
        assert torch.equal(mine["loss"], its["loss"])
    assert learner.network.gradient_evaluations == 4 * 10


def test_online_replay_resumes_and_differentiates_through_joint_batches(rainbow) -> None:
    options = {"K": 3, "online_replay": True}
    reference = rainbow.learner("foml", (0, 1), **options)
    rainbow.drive(reference, 0, 4)
    assert [len(step.batch) for step in reference.window] == [10] * 3
    other = rainbow.learner("foml", (0, 1), **options)
    other.load_state_dict(reference.state_dict())
    other.restore_seen(rainbow.seen(4, (0, 1)))
    before = other.network.gradient_evaluations
    for learner in (reference, other):
        rainbow.drive(learner, 4, 6)
    assert torch.equal(other.theta, reference.theta)
    # Each batch: 10 online, 5 for D_m, and two Hessian-vector products of 10 datapoints, which count twice.
    assert other.network.gradient_evaluations - before == 2 * (10 + 5 + 2 * 2 * 10)


@pytest.mark.parametrize(
    "variant",
    [
        {"pull": "decoupled"},
        {"meta_gradient": "first_order", "online_optimizer": "sgd", "meta_optimizer": "sgd"},
        {"meta_path": "unrolled"},
        {"meta_path": "unrolled", "pull": "decoupled", "adam_zero": "exact"},
    ],
    ids=lambda variant: "-".join(map(str, variant.values())),
)
def test_configurations_in_a_stack_equal_each_alone(rainbow, variant: dict[str, str]) -> None:
    """Bit for bit, with different rates and pulls; `unrolled`, which runs under autograd, up to rounding."""
    same = partial(torch.allclose, rtol=1e-9, atol=1e-11) if "unrolled" in variant.values() else torch.equal
    kind = learner_class("foml")
    options = [
        kind.options_class(K=3, alpha1=rate, alpha2=rate / 3, beta1=pull, beta2=pull / 7, **variant)
        for rate, pull in ((0.01, 0.3), (0.003, 0.9), (0.02, 0.0))
    ]
    stack = kind(packed_options(options, 1, kind.changeable), rainbow.setting((2, 2, 2)))
    rainbow.drive(stack, 0, 6)
    for r, one in enumerate(options):
        alone = kind(one, rainbow.setting((2,)))
        rainbow.drive(alone, 0, 6)
        assert same(stack.phi[r : r + 1], alone.phi)
        assert same(stack.theta[r : r + 1], alone.theta)
    assert not torch.equal(stack.theta[0], stack.theta[1])


def test_a_state_holds_the_input_of_the_oldest_step_of_the_window_only(rainbow) -> None:
    reference = rainbow.quick("foml", K=3, online_optimizer="adam")
    rainbow.drive(reference, 0, 6, predict=False)
    state = reference.state_dict()
    assert [set(step) for step in state["window"]] == [
        {"theta", "ids", "y", "phi", "statistics", "before"}, {"theta", "ids", "y"}, {"theta", "ids", "y"},
    ]  # fmt: skip
    # The states of earlier versions hold the input of each step.
    inputs = [{"phi": s.phi, "statistics": s.statistics, "before": tuple(s.before)} for s in reference.window]
    earlier = [step | of_step for step, of_step in zip(state["window"], inputs, strict=True)]
    for window in (state["window"], earlier):
        other = rainbow.quick("foml", K=3, online_optimizer="adam")
        other.load_state_dict({**state, "window": window})
        for step, expected in zip(other.window, reference.window, strict=True):
            assert torch.equal(step.phi, expected.phi) and torch.equal(step.gradient, expected.gradient)
            assert torch.equal(step.new_phi, expected.new_phi) and torch.equal(step.statistics, expected.statistics)
            assert all(torch.equal(a, b) for a, b in zip(step.before[:2], expected.before[:2], strict=True))
        assert torch.equal(other.window[-1].new_phi, other.phi)


def test_a_loaded_state_replaces_the_whole_window(smooth) -> None:
    short, full = smooth.learner("foml", K=3), smooth.learner("foml", K=3)
    smooth.drive(short, 0, 1)
    smooth.drive(full, 0, 5)
    full.load_state_dict(short.state_dict())
    assert len(full.window) == 1
    assert torch.equal(full.window[0].theta, short.window[0].theta)


def test_new_options_begin_with_an_empty_window(smooth) -> None:
    """Unless the next step replaces the whole window; as many of the newest batches are lost as it holds."""
    learner, changed = smooth.learner("foml", K=3), smooth.learner("foml", K=3, alpha1=0.01)
    smooth.drive(learner, 0, 5)
    state = learner.state_dict()
    changed.load_state_dict(changed.state_for_new_options(state))
    assert len(changed.window) == 0 and len(state["window"]) == 3
    assert torch.equal(changed.phi, learner.phi) and torch.equal(changed.theta, learner.theta)
    one = smooth.learner("foml", K=1)
    smooth.drive(one, 0, 2)
    state = one.state_dict()
    assert len(one.state_for_new_options(state)["window"]) == 1
    assert [each.window_length(each.options) for each in (one, learner)] == [0, 3]
