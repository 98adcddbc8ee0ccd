"""dJ/dθ compared with closed forms, with its definition under autograd, and with finite differences."""

from collections import deque
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from learners.batch import Batch
from learners.networks.architectures import EmbeddingNet
from learners.networks.network import Network, TrainingPass, cross_entropy
from learners.training.meta_gradient import MetaObjective, OnlineStep
from learners.training.optim import SGD, Adam, Moments, Optimizer

R = 2
BETA1 = 0.2
ALPHA = {"sgd": 0.1, "adam": 0.05}  # with BETA1, α₁ β₁ is 0.02 and 0.01
OPTIMIZERS = {"sgd": SGD(ALPHA["sgd"]), "adam": Adam(ALPHA["adam"])}


def batch(step: int, classes: int = 3, dead: bool = False) -> Batch:
    """Ten random datapoints of 1x2x3 for each of R replicates."""
    g = torch.Generator().manual_seed(step)
    x = torch.rand(R, 10, 1, 2, 3, generator=g, dtype=torch.float64)
    if dead:
        x[..., 0, :] = 0  # half of the inputs are always 0
    y = torch.randint(0, classes, (R, 10), generator=g)
    return Batch(x, y, torch.zeros(R, 10, 1, dtype=torch.int64))


def trajectory(
    network: Network,
    optimizer: Optimizer,
    K: int,
    j: int,
    beta1: float = BETA1,
    dead: bool = False,
    decoupled: bool = False,
) -> tuple[deque[OnlineStep], Tensor]:
    """The last K of j online steps, each regularised towards a different θ, and the θ after them."""
    phi, statistics = network.initial(list(range(R)))
    moments, window = optimizer.initial(phi), deque[OnlineStep](maxlen=K)
    theta, g = phi, torch.Generator().manual_seed(7)
    for i in range(j):
        step = MetaObjective(optimizer, beta1, 0.0, decoupled=decoupled).online_step(
            network, batch(i, dead=dead), phi, theta, statistics, moments
        )
        window.append(step)
        phi, moments, statistics = step.new_phi, step.after, step.training_pass.statistics
        drift = 0.05 * torch.randn(theta.shape, generator=g, dtype=theta.dtype)
        theta = theta + (drift.masked_fill(step.after.s == 0, 0) if dead and step.after.s is not None else drift)
    return window, theta


def meta_loss_gradient(network: Network, window: deque[OnlineStep], dead: bool = False) -> tuple[Tensor, Batch]:
    replayed = batch(1000, dead=dead)
    phi, statistics = window[-1].new_phi, window[-1].statistics
    return network.training_pass(phi, statistics, replayed.x, cross_entropy(replayed.y)).gradient, replayed


def distance(a: Tensor, b: Tensor) -> float:
    """The relative distance, by norm."""
    return float((a - b).norm() / b.norm())


@pytest.fixture
def network(smooth) -> Network:
    return Network(smooth.make, dtype=torch.float64)


def test_one_sgd_step_without_beta2_is_twice_alpha_beta_times_the_gradient(network: Network) -> None:
    window, theta = trajectory(network, OPTIMIZERS["sgd"], K=1, j=4)
    v, _ = meta_loss_gradient(network, window)
    result = MetaObjective(OPTIMIZERS["sgd"], BETA1, beta2=0).adjoint(window, theta, v)
    assert torch.equal(result.direct, torch.zeros_like(theta))
    assert distance(result.total, 2 * ALPHA["sgd"] * BETA1 * v) < 1e-15


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_without_beta1_only_the_direct_term_remains(network: Network, name: str) -> None:
    window, theta = trajectory(network, OPTIMIZERS[name], K=5, j=7, beta1=0.0)
    v, _ = meta_loss_gradient(network, window)
    result = MetaObjective(OPTIMIZERS[name], 0.0, beta2=0.3).adjoint(window, theta, v)
    phis = [step.new_phi for step in window] + [window[0].phi]
    assert distance(result.total, 2 * 0.3 * sum(theta - phi for phi in phis)) < 1e-14
    assert torch.equal(result.total, result.direct)


class QuadraticPass(TrainingPass):
    """L(φ) = ½ φᵀ A φ + bᵀ φ per replicate."""

    def __init__(self, A: Tensor, b: Tensor, phi: Tensor) -> None:
        self.A = A
        self.loss = 0.5 * torch.einsum("rp,rpq,rq->r", phi, A, phi) + (b * phi).sum(1)
        self.gradient = torch.einsum("rpq,rq->rp", A, phi) + b
        self.statistics = torch.empty(R, 0, dtype=phi.dtype)

    def hessian_vector_product(self, v: Tensor) -> Tensor:
        return torch.einsum("rpq,rq->rp", self.A, v)


class Quadratic(Network):
    """A network whose loss is a quadratic function of its parameters, the same for every batch."""

    def __init__(self, size: int = 6) -> None:
        g = torch.Generator().manual_seed(3)
        root = torch.randn(R, size, size, generator=g, dtype=torch.float64)
        self.A = root @ root.transpose(1, 2) / size
        self.b = torch.randn(R, size, generator=g, dtype=torch.float64)
        self.start = torch.randn(R, size, generator=g, dtype=torch.float64)

    def initial(self, seeds, purpose="network"):
        return self.start, torch.empty(R, 0, dtype=torch.float64)

    def training_pass(self, phi, statistics, x, loss, twice=False):
        return QuadraticPass(self.A, self.b, phi)


@pytest.mark.parametrize("W", [1, 2, 5, 10])
def test_quadratic_loss_has_a_geometric_series(W: int) -> None:
    network, alpha = Quadratic(), ALPHA["sgd"]
    window, theta = trajectory(network, SGD(alpha), K=W, j=W + 2)
    v = QuadraticPass(network.A, network.b, window[-1].new_phi).gradient
    result = MetaObjective(SGD(alpha), BETA1, beta2=0).adjoint(window, theta, v)
    one = (1 - 2 * alpha * BETA1) * torch.eye(6, dtype=torch.float64) - alpha * network.A
    expected, term = torch.zeros_like(v), v
    for _ in range(W):
        expected, term = expected + 2 * alpha * BETA1 * term, torch.einsum("rpq,rq->rp", one, term)
    assert distance(result.total, expected) < 1e-13


def test_quadratic_loss_with_adam_equals_a_separate_implementation() -> None:
    """Opt₁ is implemented again and J differentiated by autograd: no code is shared with the code under test."""
    network, alpha, beta2, W = Quadratic(), 0.05, 0.02, 4
    window, theta = trajectory(network, Adam(alpha), K=W, j=6)
    delta = torch.zeros_like(theta, requires_grad=True)
    phi, m, s, count = window[0].phi, *window[0].before
    path = [phi]
    for step in window:
        g = torch.einsum("rpq,rq->rp", network.A, phi) + network.b + 2 * BETA1 * (phi - step.theta - delta)
        count += 1
        m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
        phi = phi - alpha * (m / (1 - 0.9**count)) / (torch.sqrt(s / (1 - 0.999**count)) + 1e-8)
        path.append(phi)
    loss = 0.5 * torch.einsum("rp,rpq,rq->r", phi, network.A, phi) + (network.b * phi).sum(1)
    objective = loss.sum() + beta2 * sum((theta + delta - phi).square().sum() for phi in path)
    (expected,) = torch.autograd.grad(objective, delta)
    v = QuadraticPass(network.A, network.b, window[-1].new_phi).gradient
    assert distance(MetaObjective(Adam(alpha), BETA1, beta2).adjoint(window, theta, v).total, expected) < 1e-9


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize(("K", "j"), [(1, 1), (1, 3), (5, 2), (5, 5), (5, 8), (10, 4), (10, 10), (10, 13)])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_adjoint_equals_unrolled(
    network: Network, name: str, K: int, j: int, first_order: bool, decoupled: bool
) -> None:
    optimizer = OPTIMIZERS[name]
    window, theta = trajectory(network, optimizer, K, j, decoupled=decoupled)
    assert len(window) == min(K, j)
    v, replayed = meta_loss_gradient(network, window)
    objective = MetaObjective(optimizer, BETA1, 0.1, first_order, decoupled)
    fast = objective.adjoint(window, theta, v)
    slow = objective.unrolled(network, window, theta, replayed)
    assert distance(fast.total, slow.total) < 1e-9
    assert float((fast.direct - slow.direct).norm()) <= 1e-12 * float(slow.direct.norm())


@pytest.mark.parametrize(("decoupled", "beta2"), [(False, 0.0), (False, 0.1), (True, 0.1)])
@pytest.mark.parametrize(
    ("name", "K", "j"), [("sgd", 1, 1), ("sgd", 5, 3), ("sgd", 5, 7), ("adam", 1, 3), ("adam", 5, 8)]
)
def test_finite_differences(network: Network, name: str, K: int, j: int, beta2: float, decoupled: bool) -> None:
    optimizer = OPTIMIZERS[name]
    window, theta = trajectory(network, optimizer, K, j, decoupled=decoupled)
    v, replayed = meta_loss_gradient(network, window)
    objective = MetaObjective(optimizer, BETA1, beta2, decoupled=decoupled)
    result = objective.adjoint(window, theta, v).total

    def shifted(component: int, size: float) -> Tensor:
        delta = torch.zeros_like(theta)
        delta[:, component] = size
        return objective.shifted(network, window, theta, delta, replayed)

    h = 2e-3
    columns = [
        (8 * (shifted(p, h) - shifted(p, -h)) - (shifted(p, 2 * h) - shifted(p, -2 * h))) / (12 * h)
        for p in range(theta.shape[1])
    ]
    assert distance(result, torch.stack(columns, 1)) < 1e-6


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_one_decoupled_step_is_beta1_times_the_gradient(network: Network, name: str) -> None:
    window, theta = trajectory(network, OPTIMIZERS[name], K=1, j=4, decoupled=True)
    v, _ = meta_loss_gradient(network, window)
    result = MetaObjective(OPTIMIZERS[name], BETA1, 0.3, decoupled=True).adjoint(window, theta, v)
    assert torch.equal(result.total, BETA1 * v)
    assert torch.equal(result.direct, torch.zeros_like(theta))


@pytest.mark.parametrize("W", [1, 2, 5])
def test_decoupled_sgd_on_a_quadratic_loss_has_a_geometric_series(W: int) -> None:
    """β₁ Σ_{i<W} ((1 − β₁) I − α₁ A)^i ∇L."""
    network, alpha = Quadratic(), ALPHA["sgd"]
    window, theta = trajectory(network, SGD(alpha), K=W, j=W + 2, decoupled=True)
    v = QuadraticPass(network.A, network.b, window[-1].new_phi).gradient
    result = MetaObjective(SGD(alpha), BETA1, 0.0, decoupled=True).adjoint(window, theta, v)
    one = (1 - BETA1) * torch.eye(6, dtype=torch.float64) - alpha * network.A
    expected, term = torch.zeros_like(v), v
    for _ in range(W):
        expected, term = expected + BETA1 * term, torch.einsum("rpq,rq->rp", one, term)
    assert distance(result.total, expected) < 1e-13


def test_shifted_objective_is_the_meta_loss_and_the_penalty(network: Network) -> None:
    """At δ = 0 it reproduces the window: L(φ_j; D_m) + β₂ Σ ‖θ − φ‖²."""
    window, theta = trajectory(network, OPTIMIZERS["adam"], K=3, j=5)
    _, replayed = meta_loss_gradient(network, window)
    result = MetaObjective(OPTIMIZERS["adam"], BETA1, 0.7).shifted(
        network, window, theta, torch.zeros_like(theta), replayed
    )
    loss = cross_entropy(replayed.y)(network.training_logits(window[-1].new_phi, window[-1].statistics, replayed.x)[0])
    phis = [window[0].phi] + [step.new_phi for step in window]
    penalty = torch.stack([(theta - phi).square().sum(1) for phi in phis]).sum(0)
    assert torch.allclose(result, loss + 0.7 * penalty, rtol=1e-13, atol=0)


def test_each_step_stores_the_theta_that_it_used(network: Network) -> None:
    """A rerun of the window with the newest θ is another function, with another gradient."""
    optimizer = OPTIMIZERS["sgd"]
    window, theta = trajectory(network, optimizer, K=5, j=6)
    v, replayed = meta_loss_gradient(network, window)
    right = MetaObjective(optimizer, BETA1, 0.0).adjoint(window, theta, v).total
    newest_theta = [replace(step, theta=theta) for step in window]
    wrong = MetaObjective(optimizer, BETA1, 0.0).unrolled(network, newest_theta, theta, replayed).total
    assert 1e-4 < distance(wrong, right) < 0.2


@pytest.mark.parametrize("beta2", [0.0, 0.1])
def test_first_order_sgd_is_a_scalar_series(network: Network, beta2: float) -> None:
    """Without Hessians, each step multiplies v by (1 − 2α₁β₁) and subtracts the β₂ term."""
    optimizer, alpha = OPTIMIZERS["sgd"], ALPHA["sgd"]
    window, theta = trajectory(network, optimizer, K=4, j=6)
    v, _ = meta_loss_gradient(network, window)
    result = MetaObjective(optimizer, BETA1, beta2, first_order=True).adjoint(window, theta, v)
    expected = torch.zeros_like(theta)
    for step in reversed(window):
        r = 2 * beta2 * (theta - step.new_phi)
        v = v - r
        expected, v = expected + r + 2 * alpha * BETA1 * v, (1 - 2 * alpha * BETA1) * v
    expected = expected + 2 * beta2 * (theta - window[0].phi)
    assert distance(result.total, expected) < 1e-14


class ReluNet(EmbeddingNet):
    """A network with inputs that are always 0, so that some rows of its weights never get a gradient."""

    features = 4

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, self.features)
        self.head = torch.nn.Linear(self.features, 3)

    def embed(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x.flatten(1)))


@pytest.mark.parametrize("zero", ["mask", "exact"])
@pytest.mark.parametrize("K", [1, 5])
def test_adjoint_equals_unrolled_where_second_moments_are_zero(zero: str, K: int) -> None:
    network, adam = Network(ReluNet, dtype=torch.float64), Adam(0.05, zero=zero)
    window, theta = trajectory(network, adam, K, j=6, dead=True)
    v, replayed = meta_loss_gradient(network, window, dead=True)
    dead = window[-1].after.s == 0
    assert 0 < int(dead.sum()) < dead.numel()
    fast = MetaObjective(adam, BETA1, 0.1).adjoint(window, theta, v)
    slow = MetaObjective(adam, BETA1, 0.1).unrolled(network, window, theta, replayed)
    assert distance(fast.total, slow.total) < 1e-9


def test_a_masked_component_has_exactly_the_direct_term() -> None:
    network = Network(ReluNet, dtype=torch.float64)
    results = {}
    for zero in ("mask", "exact"):
        adam = Adam(0.05, zero=zero)
        window, _ = trajectory(network, adam, K=5, j=6, dead=True)
        dead = window[-1].after.s == 0
        theta = window[-1].new_phi + 1.0  # any θ will do, such that the direct term is not zero
        v, _ = meta_loss_gradient(network, window, dead=True)
        results[zero] = (MetaObjective(adam, BETA1, 0.1).adjoint(window, theta, v), dead)
    result, dead = results["mask"]
    # φ is constant there, so that each of the six terms 2 β₂ (θ − φ) is 2 · 0.1 · 1.
    assert torch.allclose(result.total[dead], torch.full_like(result.total[dead], 1.2), rtol=1e-12, atol=0)
    assert torch.equal(result.total[dead], result.direct[dead])
    exact, _ = results["exact"]
    assert float((exact.total - exact.direct)[dead].abs().max()) > 1e5


@pytest.mark.parametrize(("m", "s"), [(0.0, 0.0), (-1e-23, 1e-31)])
def test_the_meta_gradient_is_finite_in_float32_after_black_images(rainbow, m: float, s: float) -> None:
    """The reason for the mask: φ = θ, no gradient for ten steps, then replayed images that are not black.

    Without the mask, each step multiplies v by 2 β₁ α₁ / ε at the components without a gradient, also if the moments
    contain a rounding error (the values are from a run that diverged).
    """
    network = Network(rainbow.make, dtype=torch.float32)
    black = Batch(
        torch.zeros(1, 10, 3, 16, 16), torch.arange(10).unsqueeze(0), torch.zeros(1, 10, 1, dtype=torch.int64)
    )
    sizes = {}
    for zero in ("mask", "exact"):
        adam = Adam(0.001, zero=zero)
        phi, statistics = network.initial([0])
        theta, moments = phi, Moments(torch.full_like(phi, m), torch.full_like(phi, s), 100 if s else 0)
        window = deque[OnlineStep](maxlen=10)
        for _ in range(10):
            step = MetaObjective(adam, 0.01, 0.001).online_step(network, black, phi, theta, statistics, moments)
            window.append(step)
            phi, moments = step.new_phi, step.after
        replayed = torch.rand(black.x.shape, generator=torch.Generator().manual_seed(0))
        v = network.training_pass(phi, statistics, replayed, cross_entropy(black.y)).gradient
        result = MetaObjective(adam, 0.01, 0.001).adjoint(window, theta, v)
        sizes[zero] = float(result.total.norm())
        if zero == "mask":
            dead = torch.stack([step.after.s <= s for step in window]).all(0)
            assert torch.equal(adam.dead(window[-1].after), dead)
            assert 0.1 < float(dead.float().mean()) < 1
            assert torch.equal(result.total[dead], result.direct[dead])
    assert sizes["mask"] < 1e6
    assert not sizes["exact"] < 1e20  # also true for ∞ and NaN


def test_a_step_without_its_graph_has_no_hessian(network: Network) -> None:
    phi, statistics = network.initial([0, 1])
    only_once = network.training_pass(phi, statistics, batch(0).x, cross_entropy(batch(0).y))
    with pytest.raises(ValueError, match="twice=True"):
        only_once.hessian_vector_product(phi)
