"""FOML's meta-gradient dJ/dθ through the last W online steps, by two methods with equal values.

J(δ) = L(φ_j(δ); D_m) + β₂ Σ_{k=0..W} ‖θ + δ − φ_{j−k}(δ)‖² at δ = 0, where online step i used its own θ_i + δ, and φ
and the optimiser's moments before the window are constants. `adjoint` goes backwards through the steps with one
Hessian-vector product per step. `unrolled` reruns the steps under autograd and is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learners.batch import Batch
from learners.networks.network import Network, TrainingPass, cross_entropy
from learners.training.optim import Adam, Cotangents, Moments, Optimizer


@dataclass(frozen=True)
class OnlineStep:
    """One online step φ_{i−1} → φ_i of the window.

    Attributes:
        batch: D_i.
        phi: φ_{i−1} [R, P].
        theta: θ_i [R, P].
        statistics: batch-norm statistics before the step, [R, S].
        before: optimiser moments before the step.
        training_pass: the pass that computed ∇L(φ_{i−1}; D_i).
        gradient: that gradient plus 2 β₁ (φ_{i−1} − θ_i), [R, P].
        new_phi: φ_i [R, P].
        after: optimiser moments after the step.
    """

    batch: Batch
    phi: Tensor
    theta: Tensor
    statistics: Tensor
    before: Moments
    training_pass: TrainingPass
    gradient: Tensor
    new_phi: Tensor
    after: Moments


def online_step(
    network: Network,
    batch: Batch,
    phi: Tensor,
    theta: Tensor,
    statistics: Tensor,
    before: Moments,
    optimizer: Optimizer,
    beta1: float,
    twice: bool,
) -> OnlineStep:
    """g = ∇L(φ; D_j) + 2 β₁ (φ − θ); φ ← Opt₁(φ, g).

    `twice`: the pass supports Hessian-vector products.
    """
    training_pass = network.training_pass(phi, statistics, batch.x, cross_entropy(batch.y), twice=twice)
    gradient = torch.add(training_pass.gradient, phi - theta, alpha=2 * beta1)
    new_phi, after = optimizer.step(phi, gradient, before)
    return OnlineStep(batch, phi, theta, statistics, before, training_pass, gradient, new_phi, after)


@dataclass(frozen=True)
class MetaGradient:
    """The meta-gradient.

    Attributes:
        total: dJ/dθ [R, P].
        direct: its direct part 2 β₂ Σ (θ − φ_{j−k}) [R, P], without the dependence of φ on θ.
    """

    total: Tensor
    direct: Tensor


def adjoint(
    window: Sequence[OnlineStep],
    theta: Tensor,
    meta_loss_gradient: Tensor,
    optimizer: Optimizer,
    beta1: float,
    beta2: float,
    first_order: bool = False,
) -> MetaGradient:
    """dJ/dθ in reverse mode: W − 1 Hessian-vector products (none with `first_order`).

    `window` holds the last W online steps, oldest first; `meta_loss_gradient` is ∇L(φ_j; D_m) [R, P].
    """
    # v = dJ/dφ_i while going back from i = j. Per step, with γ = dJ/dg_i from the optimiser's pullback:
    #   v ← v − 2 β₂ (θ − φ_i);   γ ← pullback(v);   v ← v + 2 β₁ γ + H_i γ,
    # because g_i = ∇L(φ_{i−1}; D_i) + 2 β₁ (φ_{i−1} − θ_i). Each g_i contributes −2 β₁ γ to dJ/dθ.
    v = meta_loss_gradient.clone()
    distances, gammas = torch.zeros_like(theta), torch.zeros_like(theta)  # Σ (θ − φ_{j−k}) and Σ γ
    later: Cotangents | None = None
    phi = window[-1].new_phi
    for k, step in enumerate(reversed(window)):
        distance = theta - phi
        distances += distance
        v.sub_(distance, alpha=2 * beta2)
        gamma, later = optimizer.pullback(v, later, step.gradient, step.after)
        gammas += gamma
        if k < len(window) - 1:  # φ before the oldest step is a constant
            v.add_(gamma, alpha=2 * beta1)
            if not first_order:
                v += step.training_pass.hessian_vector_product(gamma)
        phi = step.phi
    distances += theta - phi
    direct = 2 * beta2 * distances
    return MetaGradient(torch.sub(direct, gammas, alpha=2 * beta1), direct)


def unrolled(
    network: Network,
    window: Sequence[OnlineStep],
    theta: Tensor,
    meta_batch: Batch,
    optimizer: Optimizer,
    beta1: float,
    beta2: float,
    first_order: bool = False,
) -> MetaGradient:
    """dJ/dθ by its definition: autograd through a rerun of the window as a function of δ.

    Counts the same gradient evaluations as `adjoint`: differentiating through a step is a Hessian-vector product.
    """
    delta = torch.zeros_like(theta, requires_grad=True)
    with torch.enable_grad():
        objective = shifted_objective(network, window, theta, delta, meta_batch, optimizer, beta1, beta2, first_order)
        (total,) = torch.autograd.grad(objective.sum(), delta)
    if not first_order:
        network.gradient_evaluations += 2 * sum(len(step.batch) for step in list(window)[1:])
    direct = sum((2 * beta2 * (theta - step.new_phi) for step in window), 2 * beta2 * (theta - window[0].phi))
    return MetaGradient(total, direct)


def shifted_objective(
    network: Network,
    window: Sequence[OnlineStep],
    theta: Tensor,
    delta: Tensor,
    meta_batch: Batch,
    optimizer: Optimizer,
    beta1: float,
    beta2: float,
    first_order: bool = False,
) -> Tensor:
    """J(δ) [R] for δ [R, P]; its derivative at δ = 0 is the meta-gradient.

    Tests take finite differences of it.
    """
    phi, moments = window[0].phi, window[0].before
    penalty = (theta + delta - phi).square().sum(1)
    for depth, step in enumerate(window):
        if depth == 0:  # φ before the window is a constant
            gradient = step.training_pass.gradient
        else:
            at = phi if phi.requires_grad else phi.detach().requires_grad_()
            with torch.enable_grad():
                losses = cross_entropy(step.batch.y)(network.training_logits(at, step.statistics, step.batch.x)[0])
                (gradient,) = torch.autograd.grad(losses.sum(), at, create_graph=phi.requires_grad and not first_order)
        gradient = gradient + 2 * beta1 * (phi - step.theta - delta)
        new_phi, new_moments = optimizer.step(phi, gradient, moments)
        if isinstance(optimizer, Adam):
            new_phi, new_moments = _mask_zero(optimizer, phi, new_phi, new_moments)
        phi, moments = new_phi, new_moments
        penalty = penalty + (theta + delta - phi).square().sum(1)
    meta_logits, _ = network.training_logits(phi, window[-1].statistics, meta_batch.x)
    return cross_entropy(meta_batch.y)(meta_logits) + beta2 * penalty


def _mask_zero(adam: Adam, phi: Tensor, new_phi: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
    """Treat the update as constant where the root of the second moment is at most ε (`zero="mask"`)."""
    assert moments.m is not None and moments.s is not None
    dead = adam.dead(moments)
    if adam.zero == "exact" or not dead.any():
        return new_phi, moments
    constant_update = phi + (new_phi - phi).detach()
    return (
        torch.where(dead, constant_update, new_phi),
        Moments(
            torch.where(dead, moments.m.detach(), moments.m),
            torch.where(dead, moments.s.detach(), moments.s),
            moments.steps,
        ),
    )
