"""iCaRL's exemplars: Algorithms 4 and 5 of Rebuffi, Kolesnikov, Sperl & Lampert 2017, on positions in 𝓑."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ByClass = list[Tensor]
"""Of one replicate and for each class, positions in 𝓑, int64 [n_c]."""


def no_exemplars(classes: int) -> ByClass:
    """An empty list for each class."""
    return [torch.empty(0, dtype=torch.int64)] * classes


def append_points(exemplars: ByClass, labels: Tensor, start: int) -> ByClass:
    """Each class's exemplars, then its points among those with these labels [n], which begin at position `start`."""
    return [torch.cat([old, start + (labels == c).nonzero()[:, 0]]) for c, old in enumerate(exemplars)]


def evenly_spaced(points: Tensor, most: int) -> Tensor:
    """At most that many of the points, the first and the last among them."""
    return points if len(points) <= most else points[torch.linspace(0, len(points) - 1, most).round().long()]


def select_exemplars(exemplars: ByClass, candidates: ByClass, features: Sequence[Tensor], most: int) -> ByClass:
    """Exemplars after a task: at most `most` of each class, the most telling first.

    A class with candidates (features [n_c, F]) chooses anew; one without keeps the first of its list (Algorithm 5).
    """
    return [
        points[herding(z, most)] if len(points) else old[:most]
        for old, points, z in zip(exemplars, candidates, features, strict=True)
    ]


def herding(features: Tensor, count: int) -> Tensor:
    """Algorithm 4: the positions [min(n, count)] of features [n, F] whose first k have, for every k, a mean near all's.

    Greedy: the next is the one that brings the mean of those chosen nearest to the mean of all; of those that do so to
    within rounding (the same picture, shown twice), the first.
    """
    rounding = 64 * torch.finfo(features.dtype).eps
    mean, total = features.mean(0), torch.zeros_like(features[0])
    free, order = torch.ones(len(features), dtype=torch.bool, device=features.device), []
    for k in range(1, min(len(features), count) + 1):
        distance = (mean - (total + features) / k).norm(dim=1).where(free, torch.inf)
        best = int((distance <= distance.min() + rounding).int().argmax())
        order.append(best)
        free[best] = False
        total = total + features[best]
    return torch.tensor(order, dtype=torch.int64)
