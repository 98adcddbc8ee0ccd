"""PCOC, probabilistic clustering for online classification: Harrison, Sharma, Finn & Pavone 2020.

In features z [F] a class c is a Gaussian with diagonal noise, N(z; μ_c, σ_c²), whose mean is not known beforehand,
μ_c ~ N(m_c, σ_c²/κ_c); classes have Dirichlet(α) probabilities. m, σ, κ and α are the prior, which is meta-learned.
What a task has shown of itself are the counts n_c and the sums S_c of its features:

    μ_c | data ~ N((κ_c m_c + S_c) / (κ_c + n_c), σ_c² / (κ_c + n_c)),      p(c | data) = (α_c + n_c) / Σ(α + n).

κ, in points, has an entry per class and feature like m and σ, so that any diagonal prior variance can be had.

Axes: R replicates, H hypotheses, B datapoints, C classes, F features.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor


class Prior(NamedTuple):
    """What tasks have in common, each free to be any number: m, log σ², log κ [R, C, F] and log α [R, C]."""

    mean: Tensor
    log_noise: Tensor
    log_strength: Tensor
    log_counts: Tensor

    @staticmethod
    def size(classes: int, features: int) -> int:
        """How many numbers that is in one replicate."""
        return classes * (3 * features + 1)

    @classmethod
    def unflatten(cls, flat: Tensor, classes: int) -> Prior:
        """The prior with the numbers flat [R, size], as views into it."""
        each = (flat.shape[1] - classes) // 3
        mean, log_noise, log_strength, log_counts = flat.split([each, each, each, classes], dim=1)
        shape = (classes, each // classes)
        return cls(
            mean.unflatten(1, shape), log_noise.unflatten(1, shape), log_strength.unflatten(1, shape), log_counts
        )


def log_density(deviation: Tensor, certainty: Tensor, volume: Tensor) -> Tensor:
    """log N(deviation; 0, σ² + σ²/known), summed over the last axis, the features.

    The predictive density of a class at a point that lies `deviation` from the mean that it is expected to have, which
    is known as well as from `known` = κ + n points; `certainty` is `precision`'s, `volume` is `log_volume`'s.
    """
    return -0.5 * ((deviation.square() * certainty).sum(-1) + volume)


def precision(log_noise: Tensor, known: Tensor) -> Tensor:
    """1 / (σ² + σ²/known)."""
    return (-log_noise).exp() * known / (known + 1)


def log_volume(log_noise: Tensor, known: Tensor) -> Tensor:
    """Σ log 2π(σ² + σ²/known) over the features."""
    return (log_noise + known.reciprocal().log1p() + math.log(2 * math.pi)).sum(-1)


def log_joint(prior: Prior, counts: Tensor, sums: Tensor, z: Tensor) -> Tensor:
    """log p(z, c | hypothesis) [R, B, H, C] for z [R, B, F], counts [R, H, C] and sums [R, H, C, F]."""
    strength = prior.log_strength.exp().unsqueeze(1)
    known = strength + counts.unsqueeze(-1)
    mean = (strength * prior.mean.unsqueeze(1) + sums) / known
    deviation = z[:, :, None, None] - mean.unsqueeze(1)
    volume = log_volume(prior.log_noise.unsqueeze(1), known)
    certainty = precision(prior.log_noise.unsqueeze(1), known)
    density = log_density(deviation, certainty.unsqueeze(1), volume.unsqueeze(1))
    return density + log_class(prior, counts).unsqueeze(1)


def log_class(prior: Prior, counts: Tensor) -> Tensor:
    """log p(c | hypothesis), before z is seen, for counts [R, ..., C]."""
    pseudo: Tensor = prior.log_counts.exp().unflatten(0, (-1, *[1] * (counts.dim() - 2))) + counts
    return pseudo.log() - pseudo.sum(-1, keepdim=True).log()
