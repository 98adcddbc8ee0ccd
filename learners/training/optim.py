"""SGD and Adam as functions on flat vectors [R, P], each with the exact derivative of its step.

`pullback` is the transpose of a step's derivative: it maps the derivative of an objective with respect to the step's
*results* (parameters and moments) to its derivative with respect to the step's gradient and the moments before it.
Source: Kingma & Ba 2015 (Adam, ε outside the root); the derivative is written out in docs/methods.md.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from learners.training.replicate_options import Real, add_quotient, add_scaled, multiply_

AdamZero = Literal["mask", "exact"]


class Moments(NamedTuple):
    """The state of an optimiser.

    Attributes:
        m: first moment [R, P]; None for SGD.
        s: second moment [R, P]; None for SGD.
        steps: number of steps taken.
    """

    m: Tensor | None
    s: Tensor | None
    steps: int


class Cotangents(NamedTuple):
    """Derivatives of an objective with respect to the moments after a step.

    Attributes:
        mu: derivative with respect to m [R, P]; None for SGD.
        sigma: derivative with respect to s [R, P]; None for SGD.
    """

    mu: Tensor | None
    sigma: Tensor | None


class Optimizer(ABC):
    """The step of an optimiser, and its derivative."""

    @abstractmethod
    def initial(self, phi: Tensor) -> Moments:
        """The moments before the first step, for parameters phi [R, P]."""

    @abstractmethod
    def step(self, phi: Tensor, gradient: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """New parameters [R, P] and moments. Nothing is changed in place, so that autograd can differentiate it."""

    @abstractmethod
    def pullback(
        self, v: Tensor, later: Cotangents | None, gradient: Tensor, after: Moments
    ) -> tuple[Tensor, Cotangents]:
        """The derivative with respect to `gradient` [R, P], and that with respect to the moments before the step.

        Args:
            v: derivative with respect to the step's new parameters, [R, P].
            later: derivative with respect to the moments after the step, through all later steps; None at the last.
            gradient: the gradient that the step used, [R, P].
            after: the moments after the step.
        """


@dataclass(frozen=True)
class SGD(Optimizer):
    """phi − rate · gradient."""

    rate: Real

    def initial(self, phi: Tensor) -> Moments:
        return Moments(None, None, 0)

    def step(self, phi: Tensor, gradient: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        return add_scaled(phi, gradient, -self.rate), Moments(None, None, moments.steps + 1)

    def pullback(
        self, v: Tensor, later: Cotangents | None, gradient: Tensor, after: Moments
    ) -> tuple[Tensor, Cotangents]:
        return -self.rate * v, Cotangents(None, None)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with ε outside the root.

    Where a second moment is zero, or a rounding error, Adam's derivative is rate/ε (1e5 at the defaults) per step.
    `zero="mask"` treats a parameter's update as constant wherever the root of its second moment is at most ε;
    `zero="exact"` keeps the derivative.
    """

    rate: Real
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    zero: AdamZero = "mask"

    def initial(self, phi: Tensor) -> Moments:
        return Moments(torch.zeros_like(phi), torch.zeros_like(phi), 0)

    def step(self, phi: Tensor, gradient: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        assert moments.m is not None and moments.s is not None
        count = moments.steps + 1
        m = torch.lerp(gradient, moments.m, self.b1)
        s = torch.lerp(gradient.square(), moments.s, self.b2)
        c1, c2 = 1 - self.b1**count, 1 - self.b2**count
        return add_quotient(phi, m, _root(s / c2) + self.epsilon, -self.rate / c1), Moments(m, s, count)

    def pullback(
        self, v: Tensor, later: Cotangents | None, gradient: Tensor, after: Moments
    ) -> tuple[Tensor, Cotangents]:
        assert after.m is not None and after.s is not None
        c1, c2 = 1 - self.b1**after.steps, 1 - self.b2**after.steps
        # In place: this makes many passes over the parameters, and allocating memory costs as much as the arithmetic.
        q = (after.s / c2).sqrt_()
        least = self.epsilon if self.zero == "mask" else 0.0
        alive = (q - least).clamp_min_(0).sign_()  # 1, or 0 where q is at most `least`
        d = q + self.epsilon
        mu = multiply_(v / d, -self.rate / c1)
        # The derivative of the root is infinite at 0. There m is 0 too, so that any root but 0 gives the limit 0.
        sigma = (mu * after.m).div_(q.add_(1 - alive).mul_(d)).mul_(-1 / (2 * c2))
        if later is not None:
            assert later.mu is not None and later.sigma is not None
            mu += later.mu
            sigma += later.sigma
        if self.zero == "mask":
            mu *= alive
            sigma *= alive
        gamma = (gradient * sigma).mul_(2 * (1 - self.b2)).add_(mu, alpha=1 - self.b1)
        return gamma, Cotangents(mu.mul_(self.b1), sigma.mul_(self.b2))

    def dead(self, after: Moments) -> Tensor:
        """The mask [R, P]: where the root of a step's bias-corrected second moment is at most ε."""
        assert after.s is not None
        return (after.s / (1 - self.b2**after.steps)).sqrt() <= self.epsilon


def _root(s: Tensor) -> Tensor:
    """√s, with derivative 0 instead of ∞ where s is 0: autograd would make NaN of ∞ even where it is masked."""
    if not s.requires_grad:
        return s.sqrt()
    zero = s == 0
    return s.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)


def create_optimizer(name: Literal["adam", "sgd"], rate: Real, zero: AdamZero = "mask") -> Optimizer:
    """The optimiser called `name` with this learning rate."""
    return Adam(rate, zero=zero) if name == "adam" else SGD(rate)
