"""PCOC, probabilistic clustering for online classification: Harrison, Sharma, Finn & Pavone 2020.

In features z [F] a class c is a Gaussian with diagonal noise, N(z; μ_c, σ_c²), with an unknown mean
μ_c ~ N(m_c, σ_c²/κ_c); class probabilities are Dirichlet(α). m, σ, κ and α are the meta-learned prior. Given the
counts n_c and the feature sums S_c of a task's datapoints,

    μ_c | data ~ N((κ_c m_c + S_c) / (κ_c + n_c), σ_c² / (κ_c + n_c)),      p(c | data) = (α_c + n_c) / Σ(α + n).

κ, a number of datapoints, has an entry per class and feature like m and σ, so that it can express any diagonal
prior variance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor


class Prior(NamedTuple):
    """The distribution that all tasks share, in unconstrained parameters.

    Attributes:
        mean: m [R, C, F].
        log_noise: log σ² [R, C, F].
        log_strength: log κ [R, C, F].
        log_counts: log α [R, C].
    """

    mean: Tensor
    log_noise: Tensor
    log_strength: Tensor
    log_counts: Tensor

    @staticmethod
    def size(classes: int, features: int) -> int:
        """Number of parameters of one replicate."""
        return classes * (3 * features + 1)

    @classmethod
    def unflatten(cls, flat: Tensor, classes: int) -> Prior:
        """The prior whose tensors are views into flat [R, size]."""
        each = (flat.shape[1] - classes) // 3
        mean, log_noise, log_strength, log_counts = flat.split([each, each, each, classes], dim=1)
        shape = (classes, each // classes)
        return cls(
            mean.unflatten(1, shape), log_noise.unflatten(1, shape), log_strength.unflatten(1, shape), log_counts
        )


def log_density(deviation: Tensor, certainty: Tensor, volume: Tensor) -> Tensor:
    """log N(deviation; 0, σ² + σ²/strength), summed over the last axis, the features.

    The predictive density of a class at distance `deviation` from its posterior mean, whose strength is κ + n
    datapoints. `certainty` is the value of `precision`, `volume` that of `log_volume`.
    """
    return -0.5 * ((deviation.square() * certainty).sum(-1) + volume)


def precision(log_noise: Tensor, strength: Tensor) -> Tensor:
    """1 / (σ² + σ²/strength)."""
    return (-log_noise).exp() * strength / (strength + 1)


def log_volume(log_noise: Tensor, strength: Tensor) -> Tensor:
    """Σ log 2π(σ² + σ²/strength) over the features."""
    return (log_noise + strength.reciprocal().log1p() + math.log(2 * math.pi)).sum(-1)


def log_joint(prior: Prior, counts: Tensor, sums: Tensor, z: Tensor) -> Tensor:
    """log p(z, c | hypothesis) [R, B, H, C] for z [R, B, F], counts [R, H, C] and sums [R, H, C, F]."""
    kappa = prior.log_strength.exp().unsqueeze(1)
    strength = kappa + counts.unsqueeze(-1)
    mean = (kappa * prior.mean.unsqueeze(1) + sums) / strength
    deviation = z[:, :, None, None] - mean.unsqueeze(1)
    volume = log_volume(prior.log_noise.unsqueeze(1), strength)
    certainty = precision(prior.log_noise.unsqueeze(1), strength)
    density = log_density(deviation, certainty.unsqueeze(1), volume.unsqueeze(1))
    return density + log_class(prior, counts).unsqueeze(1)


def log_class(prior: Prior, counts: Tensor) -> Tensor:
    """log p(c | hypothesis) without the features, for counts [R, ..., C]."""
    pseudo: Tensor = prior.log_counts.exp().unflatten(0, (-1, *[1] * (counts.dim() - 2))) + counts
    return pseudo.log() - pseudo.sum(-1, keepdim=True).log()
