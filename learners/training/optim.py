"""SGD and Adam as functions on flat vectors [R, P], each with the exact derivative of its step.

`pullback` is the transpose of a step's derivative: from the derivative of an objective by the step's *results*
(parameters and moments) to its derivative by the gradient that went in and by the moments before.
Source: Kingma & Ba 2015 (Adam, ε outside the root); the derivative is written out in docs/methods.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

AdamZero = Literal["mask", "exact"]


class Moments(NamedTuple):
    """What an optimiser remembers: m and s [R, P] (None for SGD) and the number of steps taken."""

    m: Tensor | None
    s: Tensor | None
    steps: int


class Cotangents(NamedTuple):
    """Derivatives of an objective by the moments m and s after a step, [R, P] each (None for SGD)."""

    mu: Tensor | None
    sigma: Tensor | None


class Optimizer(ABC):
    """One step of gradient descent, and its derivative."""

    rate: float

    @abstractmethod
    def initial(self, phi: Tensor) -> Moments:
        """The moments before the first step."""

    @abstractmethod
    def step(self, phi: Tensor, gradient: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """New parameters [R, P] and moments; nothing is changed in place, so autograd can follow."""

    @abstractmethod
    def pullback(
        self, v: Tensor, later: Cotangents | None, gradient: Tensor, after: Moments
    ) -> tuple[Tensor, Cotangents]:
        """The derivative by `gradient` [R, P], and by the moments before the step.

        `v` is the derivative by the step's parameters, `later` the derivative by the moments `after` it through
        all later steps (None at the last).
        """

    @abstractmethod
    def masked(self, after: Moments) -> Tensor:
        """The share [R] of parameters whose step has its derivative taken as zero."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """phi − rate · gradient."""

    rate: float

    def initial(self, phi: Tensor) -> Moments:
        return Moments(None, None, 0)

    def step(self, phi: Tensor, gradient: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        return torch.sub(phi, gradient, alpha=self.rate), Moments(None, None, moments.steps + 1)

    def pullback(
        self, v: Tensor, later: Cotangents | None, gradient: Tensor, after: Moments
    ) -> tuple[Tensor, Cotangents]:
        return -self.rate * v, Cotangents(None, None)

    def masked(self, after: Moments) -> Tensor:
        raise TypeError("SGD has no moments, and masks nothing")


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with ε outside the root.

    Where a second moment is zero, or a trace of rounding, Adam's derivative is rate/ε (1e5 at the defaults) per step.
    `zero="mask"` takes the derivative of that parameter's whole update as zero wherever the root of the second moment
    is at most ε; `zero="exact"` keeps it.
    """

    rate: float
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
        return torch.addcdiv(phi, m, _root(s / c2) + self.epsilon, value=-self.rate / c1), Moments(m, s, count)

    def pullback(
        self, v: Tensor, later: Cotangents | None, gradient: Tensor, after: Moments
    ) -> tuple[Tensor, Cotangents]:
        assert after.m is not None and after.s is not None
        c1, c2 = 1 - self.b1**after.steps, 1 - self.b2**after.steps
        # In place, for these are many passes over the parameters, and fresh memory costs as much as the arithmetic.
        q = (after.s / c2).sqrt_()
        least = self.epsilon if self.zero == "mask" else 0.0
        alive = (q - least).clamp_min_(0).sign_()  # 1, and 0 where q is at most that
        d = q + self.epsilon
        mu = (v / d).mul_(-self.rate / c1)
        # The derivative of the root is infinite at 0, but there m is 0 as well: any root but 0 gives the limit, 0.
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

    def masked(self, after: Moments) -> Tensor:
        assert after.s is not None
        return self.dead(after).to(after.s.dtype).mean(1)

    def dead(self, after: Moments) -> Tensor:
        """Where [R, P] the root of a step's second moment, bias taken off, is at most ε: what the mask covers."""
        assert after.s is not None
        return (after.s / (1 - self.b2**after.steps)).sqrt() <= self.epsilon


def _root(s: Tensor) -> Tensor:
    """√s, with derivative 0 instead of ∞ where s is 0: autograd would turn the ∞ into NaN even where it is cut off."""
    if not s.requires_grad:
        return s.sqrt()
    dead = s == 0
    return s.masked_fill(dead, 1).sqrt().masked_fill(dead, 0)


def create_optimizer(name: Literal["adam", "sgd"], rate: float, zero: AdamZero = "mask") -> Optimizer:
    """The optimiser called `name` at this rate."""
    return Adam(rate, zero=zero) if name == "adam" else SGD(rate)
