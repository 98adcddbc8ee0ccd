"""iCaRL's exemplar sets: Algorithms 4 and 5 of Rebuffi, Kolesnikov, Sperl & Lampert 2017, on positions in 𝓑."""

from collections.abc import Sequence

import torch
from torch import Tensor

ByClass = list[Tensor]
"""Positions in 𝓑 per class of one replicate, int64 [n_c] each."""


def no_exemplars(classes: int) -> ByClass:
    """No positions, for each class."""
    return [torch.empty(0, dtype=torch.int64)] * classes


def append_points(exemplars: ByClass, labels: Tensor, start: int) -> ByClass:
    """Exemplars per class, then the class's datapoints among those with `labels` [n] from position `start` on."""
    return [torch.cat([old, start + (labels == c).nonzero()[:, 0]]) for c, old in enumerate(exemplars)]


def evenly_spaced(points: Tensor, most: int) -> Tensor:
    """At most `most` of the points, evenly spaced, including the first and the last."""
    return points if len(points) <= most else points[torch.linspace(0, len(points) - 1, most).round().long()]


def select_exemplars(exemplars: ByClass, candidates: ByClass, features: Sequence[Tensor], most: int) -> ByClass:
    """The exemplars after a task: at most `most` per class, the most representative first.

    A class with candidates (features [n_c, F]) selects again by herding; a class without keeps the first of its list
    (Algorithm 5).
    """
    return [
        points[herding(z, most)] if len(points) else old[:most]
        for old, points, z in zip(exemplars, candidates, features, strict=True)
    ]


def herding(features: Tensor, count: int) -> Tensor:
    """Algorithm 4: indices [min(n, count)] into features [n, F], such that the first k have nearly the mean of all.

    Greedy: the next index brings the mean of the selection closest to the mean of all. Among indices equal up to
    rounding (the same image shown twice), it is the first.
    """
    return herding_on_device(features, min(len(features), count)).cpu()


def herding_on_device(features: Tensor, count: int) -> Tensor:
    """`herding` with count ≤ n, on the device of the features: no value is read, for which the host would wait."""
    rounding = 64 * torch.finfo(features.dtype).eps
    mean, total = features.mean(0), torch.zeros_like(features[0])
    free = torch.ones(len(features), dtype=torch.bool, device=features.device)
    order = [torch.empty(0, dtype=torch.int64, device=features.device)]
    for k in range(1, count + 1):
        distance = (mean - (total + features) / k).norm(dim=1).where(free, torch.inf)
        best = (distance <= distance.min() + rounding).int().argmax(0, keepdim=True)
        order.append(best)
        free = free.index_fill(0, best, False)
        total = total + features.index_select(0, best)[0]
    return torch.cat(order)
