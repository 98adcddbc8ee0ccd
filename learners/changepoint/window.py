"""The window of newest points, and MOCA's training loss on it: the belief's recursion, all at once and differentiable.

`Belief.learn` goes from point to point with the statistics of every hypothesis in hand. Here all labels are known
beforehand, and of the points s … t−1 those of class c are the same as of i … t−1, where i is the first of class c
from s on. So one density for every pair (i, t) serves all hypotheses, and only their evidence goes from point to point.

Axes: R replicates, S first point of a hypothesis, T point (S = T, the number of points), C classes, F features.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from learners.changepoint.pcoc import Prior, log_class, log_density, log_volume, precision


class Window(NamedTuple):
    """Successive points: pictures, labels [R, T], ids [R, T, V], features [R, T, F], and the first one's number."""

    x: Tensor
    y: Tensor
    ids: Tensor
    z: Tensor
    first: int

    def append(self, newest: Window) -> Window:
        """Both, one after the other."""
        x, y, ids, z = (torch.cat(pair, 1) for pair in zip(self[:4], newest[:4], strict=True))
        return Window(x, y, ids, z, self.first)

    def split(self, count: int) -> tuple[Window, Window]:
        """The first `count` points, and the others."""
        x, y, ids, z, first = self
        old = Window(x[:, :count], y[:, :count], ids[:, :count], z[:, :count], first)
        return old, Window(x[:, count:], y[:, count:], ids[:, count:], z[:, count:], first + count)


def window_loss(prior: Prior, z: Tensor, y: Tensor, hazard: float) -> Tensor:
    """The mean [R] of −log p(y_t | x_t, points before t) over points z [R, T, F] with labels y [R, T].

    A task begins with the window's first point, and may begin with any later one: no hypothesis is dropped here.
    """
    points = y.shape[1]
    joint = _log_joints(prior, z, y)
    x = joint.logsumexp(3)  # log p(x_t | points s … t−1), [R, S, T]
    xy = joint.gather(3, y[:, None, :, None].expand(-1, points, -1, 1)).squeeze(3)
    begun = torch.ones(points, points, dtype=torch.bool, device=z.device).triu()  # s ≤ t
    # Only hypotheses' ratios matter. Measured against the best, the sums below stay small, and precise.
    best = x.detach().masked_fill(~begun, -math.inf).amax(1, keepdim=True)
    x, xy = x - best, xy - best
    growth = (xy + math.log1p(-hazard)).masked_fill(~begun, 0)
    before = (growth.cumsum(2) - growth).masked_fill(~begun, -math.inf)  # log p(points s … t−1, no end | s)
    x, xy = before + x, before + xy
    begin = z.new_zeros(len(z), 1)  # log p(points before s, a task begins with s)
    evidence = []
    for t, of_t in enumerate(xy.unbind(2)):
        evidence.append((begin + of_t[:, : t + 1]).logsumexp(1, keepdim=True))
        begin = torch.cat([begin, evidence[t] + math.log(hazard)], 1)
    return ((begin[:, :points, None] + x).logsumexp(1) - torch.cat(evidence, 1)).mean(1)


def _log_joints(prior: Prior, z: Tensor, y: Tensor) -> Tensor:
    """log p(z_t, c | points s … t−1), [R, S, T, C]; for s > t, as if there were no points."""
    points, classes = y.shape[1], prior.log_counts.shape[1]
    row = torch.arange(len(y), device=y.device).unsqueeze(1)
    position = torch.arange(points, device=y.device)
    label = F.one_hot(y, classes)
    before = label.cumsum(1) - label  # points of each class before t, [R, T, C]

    # Pairs i ≤ t: the density at z_t of point i's class, known from its points among i … t−1.
    i, t = torch.triu_indices(points, points, device=y.device)
    own = y[:, i]
    count = before[row, t, own] - before[row, i, own]
    moved = label.unsqueeze(3) * (z - prior.mean[row, y]).unsqueeze(2)
    moved = moved.cumsum(1) - moved  # sums over the points before t, [R, T, C, F]
    # What depends on class and count alone is computed for each of these, [R, C, count, F].
    log_noise = prior.log_noise.unsqueeze(2)
    known = prior.log_strength.exp().unsqueeze(2) + position.unsqueeze(1)
    certainty, volume = precision(log_noise, known), log_volume(log_noise, known)
    shift = (moved[row, t, own] - moved[row, i, own]) * known.reciprocal()[row, own, count]
    deviation = z[:, t] - prior.mean[row, own] - shift
    seen = log_density(deviation, certainty[row, own, count], volume[row, own, count])
    # Density of each class, if no point of it comes from s on, [R, C, T].
    unseen = log_density(z.unsqueeze(1) - prior.mean.unsqueeze(2), certainty[:, :, :1], volume[:, :, :1])
    density = torch.cat([seen, unseen.flatten(1)], 1)

    first = torch.where(label > 0, position.unsqueeze(1), points).flip(1).cummin(1).values.flip(1)  # [R, S, C]
    first = first.unsqueeze(3)
    pair = first * points - first * (first + 1) // 2 + position  # where (first, t) stands among the pairs
    none = len(i) + torch.arange(classes, device=y.device).unsqueeze(1) * points + position
    place = torch.where(first <= position, pair, none)  # [R, S, C, T]
    density = density.gather(1, place.flatten(1)).view(place.shape)

    counts = (before.unsqueeze(1) - before.unsqueeze(2)).clamp(min=0)  # [R, S, T, C]
    return density.transpose(2, 3) + log_class(prior, counts)
