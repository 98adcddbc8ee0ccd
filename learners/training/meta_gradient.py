"""FOML's online step and its meta-gradient dJ/dθ through the last W steps, by two methods with equal values.

J(δ) = L(φ_j(δ); D_m) + β₂ Σ_{k=0..W} ‖θ + δ − φ_{j−k}(δ)‖² at δ = 0, where online step i used its own θ_i + δ, and φ
and the optimiser's moments before the window are constants. `adjoint` goes backwards through the steps with one
Hessian-vector product per step. `unrolled` reruns the steps under autograd and is the reference.

Decoupled, the pulls do not go through the optimisers, as AdamW's weight decay does not: an online step is
φ_i = φ_{i−1} − Opt₁(∇L(φ_{i−1}; D_i)) + β₁ (θ_i − φ_{i−1}), and J(δ) = L(φ_j(δ); D_m), without the β₂ term.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learners.batch import Batch
from learners.networks.network import Network, TrainingPass, cross_entropy
from learners.training.optim import Adam, Cotangents, Moments, Optimizer
from learners.training.replicate_options import Real, add_scaled, add_scaled_, multiply_


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
        gradient: that gradient plus 2 β₁ (φ_{i−1} − θ_i), [R, P]; decoupled, without the pull.
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


@dataclass(frozen=True)
class MetaGradient:
    """The meta-gradient.

    Attributes:
        total: dJ/dθ [R, P].
        direct: its direct part 2 β₂ Σ (θ − φ_{j−k}) [R, P], without the dependence of φ on θ; decoupled, zero.
    """

    total: Tensor
    direct: Tensor


@dataclass(frozen=True)
class MetaObjective:
    """J, for online steps g = ∇L(φ; D_j) + 2 β₁ (φ − θ), φ ← Opt₁(φ, g).

    A window holds the last W online steps, oldest first.

    Attributes:
        optimizer: Opt₁.
        beta1: β₁.
        beta2: β₂.
        first_order: drop every Hessian from the gradient.
        decoupled: whether the pulls do not go through the optimisers.
    """

    optimizer: Optimizer
    beta1: Real
    beta2: Real
    first_order: bool = False
    decoupled: bool = False

    def online_step(
        self,
        network: Network,
        batch: Batch,
        phi: Tensor,
        theta: Tensor,
        statistics: Tensor,
        before: Moments,
        twice: bool = True,
    ) -> OnlineStep:
        """One online step; `twice`: its pass supports Hessian-vector products."""
        training_pass = network.training_pass(phi, statistics, batch.x, cross_entropy(batch.y), twice=twice)
        if self.decoupled:
            gradient = training_pass.gradient
            new_phi, after = self.optimizer.step(phi, gradient, before)
            new_phi = add_scaled(new_phi, theta - phi, self.beta1)
        else:
            gradient = add_scaled(training_pass.gradient, phi - theta, 2 * self.beta1)
            new_phi, after = self.optimizer.step(phi, gradient, before)
        return OnlineStep(batch, phi, theta, statistics, before, training_pass, gradient, new_phi, after)

    def adjoint(self, window: Sequence[OnlineStep], theta: Tensor, meta_loss_gradient: Tensor) -> MetaGradient:
        """dJ/dθ in reverse mode: W − 1 Hessian-vector products (none with `first_order`).

        `meta_loss_gradient` is ∇L(φ_j; D_m) [R, P].
        """
        if self.decoupled:
            return self._decoupled_adjoint(window, meta_loss_gradient)
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
            add_scaled_(v, distance, -2 * self.beta2)
            gamma, later = self.optimizer.pullback(v, later, step.gradient, step.after)
            gammas += gamma
            if k < len(window) - 1:  # φ before the oldest step is a constant
                add_scaled_(v, gamma, 2 * self.beta1)
                if not self.first_order:
                    v += step.training_pass.hessian_vector_product(gamma)
            phi = step.phi
        distances += theta - phi
        direct = 2 * self.beta2 * distances
        return MetaGradient(add_scaled(direct, gammas, -2 * self.beta1), direct)

    def _decoupled_adjoint(self, window: Sequence[OnlineStep], meta_loss_gradient: Tensor) -> MetaGradient:
        # Each step contributes β₁ v to dJ/dθ; then γ ← pullback(v), v ← (1 − β₁) v + H_i γ.
        v, total = meta_loss_gradient.clone(), torch.zeros_like(meta_loss_gradient)
        later: Cotangents | None = None
        for k, step in enumerate(reversed(window)):
            add_scaled_(total, v, self.beta1)
            if k == len(window) - 1:  # φ before the oldest step is a constant
                break
            gamma, later = self.optimizer.pullback(v, later, step.gradient, step.after)
            multiply_(v, 1 - self.beta1)
            if not self.first_order:
                v += step.training_pass.hessian_vector_product(gamma)
        return MetaGradient(total, torch.zeros_like(total))

    def unrolled(
        self, network: Network, window: Sequence[OnlineStep], theta: Tensor, meta_batch: Batch
    ) -> MetaGradient:
        """dJ/dθ by its definition: autograd through a rerun of the window as a function of δ.

        Counts the same gradient evaluations as `adjoint`: differentiating through a step is a Hessian-vector product.
        """
        delta = torch.zeros_like(theta, requires_grad=True)
        with torch.enable_grad():
            (total,) = torch.autograd.grad(self.shifted(network, window, theta, delta, meta_batch).sum(), delta)
        if not self.first_order:
            network.gradient_evaluations += 2 * sum(len(step.batch) for step in list(window)[1:])
        if self.decoupled:
            return MetaGradient(total, torch.zeros_like(total))
        pull = 2 * self.beta2
        return MetaGradient(total, sum((pull * (theta - s.new_phi) for s in window), pull * (theta - window[0].phi)))

    def shifted(
        self, network: Network, window: Sequence[OnlineStep], theta: Tensor, delta: Tensor, meta_batch: Batch
    ) -> Tensor:
        """J(δ) [R] for δ [R, P]; its derivative at δ = 0 is the meta-gradient."""
        phi, moments = window[0].phi, window[0].before
        penalty = (theta + delta - phi).square().sum(1)
        for depth, step in enumerate(window):
            # φ before the window is a constant
            gradient = self._rerun(network, step, phi) if depth else step.training_pass.gradient
            pull = self.beta1 * (step.theta + delta - phi)
            if not self.decoupled:
                gradient = gradient + 2 * self.beta1 * (phi - step.theta - delta)
            new_phi, moments = self.optimizer.step(phi, gradient, moments)
            if isinstance(self.optimizer, Adam):
                new_phi, moments = _mask_zero(self.optimizer, phi, new_phi, moments)
            phi = new_phi + pull if self.decoupled else new_phi
            penalty = penalty + (theta + delta - phi).square().sum(1)
        meta_logits, _ = network.training_logits(phi, window[-1].statistics, meta_batch.x)
        loss = cross_entropy(meta_batch.y)(meta_logits)
        return loss if self.decoupled else loss + self.beta2 * penalty

    def _rerun(self, network: Network, step: OnlineStep, phi: Tensor) -> Tensor:
        """∇L(φ; D_i) [R, P] of a step at another φ, differentiable in φ unless `first_order`."""
        at = phi if phi.requires_grad else phi.detach().requires_grad_()
        with torch.enable_grad():
            losses = cross_entropy(step.batch.y)(network.training_logits(at, step.statistics, step.batch.x)[0])
            graph = phi.requires_grad and not self.first_order
            return torch.autograd.grad(losses.sum(), at, create_graph=graph)[0]


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
