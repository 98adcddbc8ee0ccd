"""The window of newest datapoints, and MOCA's differentiable training loss on it.

The loss follows the recursion of `Belief.learn`, which updates the statistics of every hypothesis datapoint by
datapoint. Here all labels are known in advance: the datapoints of class c among s … t−1 are those among i … t−1, where
i is the first of class c from s on. Hence one density per pair (i, t) serves all hypotheses s, and only the evidence
needs a loop over datapoints.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from learners.changepoint.pcoc import Prior, log_class, log_density, log_volume, precision

FARTHEST = 1e6
"""Bound on a feature, so that sums of squares stay far inside float32."""


class Window(NamedTuple):
    """T successive datapoints.

    Attributes:
        x: images [R, T, C, H, W] (pairs: [R, T, 2, C, H, W]).
        y: labels [R, T].
        ids: image ids [R, T, V].
        z: features [R, T, F].
        first: number of the first datapoint in the stream.
    """

    x: Tensor
    y: Tensor
    ids: Tensor
    z: Tensor
    first: int

    def append(self, newest: Window) -> Window:
        """This window followed by `newest`."""
        x, y, ids, z = (torch.cat(pair, 1) for pair in zip(self[:4], newest[:4], strict=True))
        return Window(x, y, ids, z, self.first)

    def split(self, count: int) -> tuple[Window, Window]:
        """The first `count` datapoints, and the rest."""
        x, y, ids, z, first = self
        old = Window(x[:, :count], y[:, :count], ids[:, :count], z[:, :count], first)
        return old, Window(x[:, count:], y[:, count:], ids[:, count:], z[:, count:], first + count)


def window_loss(prior: Prior, z: Tensor, y: Tensor, hazard: float) -> Tensor:
    """The mean [R] of −log p(y_t | x_t, datapoints before t) over datapoints z [R, T, F] with labels y [R, T].

    A task starts with the first datapoint, and may start with any later one: all T hypotheses are kept.
    """
    points = y.shape[1]
    joint = _log_joints(prior, z, y)
    x = joint.logsumexp(3)  # log p(x_t | datapoints s … t−1), [R, S, T]
    xy = joint.gather(3, y[:, None, :, None].expand(-1, points, -1, 1)).squeeze(3)
    started = torch.ones(points, points, dtype=torch.bool, device=z.device).triu()  # s ≤ t
    # Only ratios between hypotheses matter. Relative to the best one, the sums below stay small, hence precise.
    best = x.detach().masked_fill(~started, -math.inf).amax(1, keepdim=True)
    x, xy = x - best, xy - best
    growth = (xy + math.log1p(-hazard)).masked_fill(~started, 0)
    before = (growth.cumsum(2) - growth).masked_fill(~started, -math.inf)  # log p(datapoints s … t−1, no end | s)
    x, xy = before + x, before + xy
    begin = z.new_zeros(len(z), 1)  # log p(datapoints before s, a task starts with s)
    evidence = []
    for t, joint_t in enumerate(xy.unbind(2)):
        evidence.append((begin + joint_t[:, : t + 1]).logsumexp(1, keepdim=True))
        begin = torch.cat([begin, evidence[t] + math.log(hazard)], 1)
    return ((begin[:, :points, None] + x).logsumexp(1) - torch.cat(evidence, 1)).mean(1)


def window_gradient(
    features: Tensor, prior: Tensor, y: Tensor, origin: Tensor, unit: Tensor, classes: int, hazard: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The window's losses [R], and their gradients with respect to features [R, T, F] and the flat prior [R, size].

    The same operations for any values, so that they can be recorded as a CUDA graph.

    Args:
        features: of the network, [R, T, F].
        prior: flat, [R, `Prior.size`].
        y: labels [R, T].
        origin: of `normalise`.
        unit: of `normalise`.
        classes: C.
        hazard: probability that a task ends after a given datapoint.
    """
    features, prior = features.detach().requires_grad_(), prior.detach().requires_grad_()
    with torch.enable_grad():
        losses = window_loss(Prior.unflatten(prior, classes), normalise(features, origin, unit), y, hazard)
        by_features, by_prior = torch.autograd.grad(losses.sum(), [features, prior])
    return losses.detach(), by_features, by_prior


def normalise(features: Tensor, origin: Tensor, unit: Tensor) -> Tensor:
    """z [R, T, F]: features in the unit [R, 1, 1], centred at the origin [R, 1, F] and bounded by `FARTHEST`."""
    return ((features - origin) / unit).clamp(-FARTHEST, FARTHEST)


def _log_joints(prior: Prior, z: Tensor, y: Tensor) -> Tensor:
    """log p(z_t, c | datapoints s … t−1), [R, S, T, C]; for s > t the value without datapoints."""
    points, classes = y.shape[1], prior.log_counts.shape[1]
    row = torch.arange(len(y), device=y.device).unsqueeze(1)
    position = torch.arange(points, device=y.device)
    label = (y.unsqueeze(2) == torch.arange(classes, device=y.device)).long()  # `F.one_hot` would read the labels
    before = label.cumsum(1) - label  # datapoints of each class before t, [R, T, C]

    # Pairs i ≤ t: the density at z_t of the class of i, given the datapoints of that class among i … t−1.
    i, t = torch.triu_indices(points, points, device=y.device)
    c_i = y[:, i]
    count = before[row, t, c_i] - before[row, i, c_i]
    deviations = label.unsqueeze(3) * (z - prior.mean[row, y]).unsqueeze(2)
    sums = deviations.cumsum(1) - deviations  # Σ (z − m_c) over the datapoints of class c before t, [R, T, C, F]
    # Factors that depend only on class and count are computed once for each of these, [R, C, count, F].
    log_noise = prior.log_noise.unsqueeze(2)
    strength = prior.log_strength.exp().unsqueeze(2) + position.unsqueeze(1)
    certainty, volume = precision(log_noise, strength), log_volume(log_noise, strength)
    shift = (sums[row, t, c_i] - sums[row, i, c_i]) * strength.reciprocal()[row, c_i, count]
    deviation = z[:, t] - prior.mean[row, c_i] - shift
    seen = log_density(deviation, certainty[row, c_i, count], volume[row, c_i, count])
    # The density of each class without datapoints from s on, [R, C, T].
    unseen = log_density(z.unsqueeze(1) - prior.mean.unsqueeze(2), certainty[:, :, :1], volume[:, :, :1])
    density = torch.cat([seen, unseen.flatten(1)], 1)

    first = torch.where(label > 0, position.unsqueeze(1), points).flip(1).cummin(1).values.flip(1)  # [R, S, C]
    first = first.unsqueeze(3)
    pair = first * points - first * (first + 1) // 2 + position  # index of the pair (first, t)
    unseen_index = len(i) + torch.arange(classes, device=y.device).unsqueeze(1) * points + position
    index = torch.where(first <= position, pair, unseen_index)  # [R, S, C, T]
    density = density.gather(1, index.flatten(1)).view(index.shape)

    counts = (before.unsqueeze(1) - before.unsqueeze(2)).clamp(min=0)  # [R, S, T, C]
    return density.transpose(2, 3) + log_class(prior, counts)
