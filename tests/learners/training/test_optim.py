"""The functional optimisers compared with torch.optim, and their derivatives with autograd."""

import pytest
import torch

from learners.training.optim import Adam, Cotangents, Moments, create_optimizer


def gradients(steps: int, shape: tuple[int, ...] = (2, 7)) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(steps)]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_steps_equal_torch_optim(name: str) -> None:
    start = torch.linspace(-1, 1, 14, dtype=torch.float64).reshape(2, 7)
    theirs = torch.nn.Parameter(start.clone())
    reference = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]([theirs], lr=0.02)
    ours = create_optimizer(name, 0.02)
    phi, moments = start, ours.initial(start)
    for gradient in gradients(20):
        theirs.grad = gradient.clone()
        reference.step()
        phi, moments = ours.step(phi, gradient, moments)
        assert torch.allclose(phi, theirs.detach(), rtol=0, atol=1e-14)
    assert moments.steps == 20


def test_first_adam_step_by_hand() -> None:
    """m̂ = g and ŝ = g², so the step is −rate · g / (|g| + ε)."""
    adam = Adam(0.5, epsilon=0.25)
    phi = torch.zeros(1, 3, dtype=torch.float64)
    new, moments = adam.step(phi, torch.tensor([[0.75, -0.25, 0.0]], dtype=torch.float64), adam.initial(phi))
    assert torch.allclose(new, torch.tensor([[-0.375, 0.25, 0.0]], dtype=torch.float64), rtol=0, atol=1e-15)
    assert torch.allclose(moments.m, torch.tensor([[0.075, -0.025, 0.0]], dtype=torch.float64), rtol=0, atol=1e-15)
    assert moments.steps == 1


def test_a_step_changes_nothing_in_place() -> None:
    adam = Adam(0.1)
    phi, g = gradients(2)
    before = phi.clone()
    moments = adam.initial(phi)
    adam.step(phi, g, moments)
    assert torch.equal(phi, before)
    assert torch.equal(moments.m, torch.zeros_like(phi))
    assert torch.equal(moments.s, torch.zeros_like(phi))


@pytest.mark.parametrize("with_later", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_pullback_equals_autograd(name: str, with_later: bool) -> None:
    """Derivatives of v·φ' + μ·m' + σ·s' with respect to the gradient and the moments before the step."""
    optimizer = create_optimizer(name, 0.05)
    phi, *history, gradient, v, mu, sigma = gradients(8)
    moments = optimizer.initial(phi)
    for g in history:
        phi, moments = optimizer.step(phi, g, moments)
    leaves = [gradient.requires_grad_()]
    if name == "adam":
        moments = Moments(moments.m.requires_grad_(), moments.s.requires_grad_(), moments.steps)
        leaves += [moments.m, moments.s]
    new, after = optimizer.step(phi, gradient, moments)
    objective = (v * new).sum()
    later = None
    if with_later:
        later = Cotangents(mu, sigma) if name == "adam" else Cotangents(None, None)
        if name == "adam":
            objective = objective + (mu * after.m).sum() + (sigma * after.s).sum()
    expected = torch.autograd.grad(objective, leaves)
    with torch.no_grad():
        gamma, before = optimizer.pullback(v, later, gradient, after)
    assert torch.allclose(gamma, expected[0], rtol=1e-10, atol=1e-14)
    if name == "adam":
        assert torch.allclose(before.mu, expected[1], rtol=1e-10, atol=1e-14)
        assert torch.allclose(before.sigma, expected[2], rtol=1e-10, atol=1e-14)
    else:
        assert before == Cotangents(None, None)


@pytest.mark.parametrize(("zero", "slope"), [("mask", 0.0), ("exact", -0.1 * 0.001 * 3.0 / (1 - 0.9) / 1e-8)])
def test_derivative_where_the_second_moment_is_zero(zero: str, slope: float) -> None:
    """For a parameter without a gradient so far: (1 − b₁) μ with μ = −rate·v / (c₁ ε), or 0 with the mask."""
    adam = Adam(0.001, zero=zero)
    phi = torch.zeros(1, 1, dtype=torch.float64)
    _, after = adam.step(phi, phi, adam.initial(phi))
    v = torch.full((1, 1), 3.0, dtype=torch.float64)
    gamma, before = adam.pullback(v, None, phi, after)
    assert float(gamma) == pytest.approx(slope, rel=1e-12)
    assert float(before.mu) == pytest.approx(9 * slope, rel=1e-12)
    assert float(before.sigma) == 0.0


@pytest.mark.parametrize("gradient", [0.99e-8, 1.01e-8])
def test_the_mask_covers_roots_of_at_most_epsilon(gradient: float) -> None:
    """After a first step m̂ = g and q = |g|: γ equals autograd's derivative of the whole step, or 0."""
    adam, g = Adam(0.001), torch.full((1, 1), gradient, dtype=torch.float64, requires_grad=True)
    phi, v = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 3.0, dtype=torch.float64)
    new, after = adam.step(phi, g, adam.initial(phi))
    (expected,) = torch.autograd.grad((v * new).sum(), g)
    assert float(expected) == pytest.approx(-0.003 * 1e-8 / (gradient + 1e-8) ** 2, rel=1e-9)
    after = Moments(after.m.detach(), after.s.detach(), 1)
    gamma, before = adam.pullback(v, None, g.detach(), after)
    if gradient < adam.epsilon:
        assert (float(gamma), float(before.mu), float(before.sigma)) == (0.0, 0.0, 0.0)
    else:
        assert float(gamma) == pytest.approx(float(expected), rel=1e-9)


def test_dead_parameters() -> None:
    adam = Adam(0.001)
    # Bias-corrected, the roots after the first step are 0, 1e-8 · √0.9 and 1e-8 · √1.1; two are at most ε = 1e-8.
    s = torch.tensor([[0.0, 1.0, 0.9e-19, 1.1e-19], [1.0, 1.0, 1.0, 0.9e-19]], dtype=torch.float64)
    assert adam.dead(Moments(s, s, 1)).tolist() == [[True, False, True, False], [False, False, False, True]]


def test_autograd_through_a_zero_second_moment_is_not_nan() -> None:
    adam = Adam(0.001)
    gradient = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    phi = torch.zeros(1, 2, dtype=torch.float64)
    new, _ = adam.step(phi, gradient, adam.initial(phi))
    (slope,) = torch.autograd.grad(new.sum(), gradient)
    assert slope[0].tolist() == pytest.approx([-0.001 / 1e-8] * 2, rel=1e-9)
