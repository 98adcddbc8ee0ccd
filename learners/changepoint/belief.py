"""The belief over when the present task began: Bayesian online changepoint detection, Adams & MacKay 2007.

Each hypothesis says at which point of the stream the present task began, and holds the statistics of the points since.
Axes: R replicates, H hypotheses, N or B datapoints, C classes, F features.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from learners.changepoint.pcoc import Prior, log_joint


class Belief(NamedTuple):
    """Normalised log probabilities [R, H], first points int64 [R, H], and statistics of what came since.

    `counts` [R, H, C] and `sums` [R, H, C, F] cover all points of a hypothesis; `settled_counts` and `settled_sums` the
    part of them that has left the window, whose features are never made again.
    """

    log_weight: Tensor
    start: Tensor
    counts: Tensor
    sums: Tensor
    settled_counts: Tensor
    settled_sums: Tensor

    @classmethod
    def fresh(cls, prior: Prior, start: int = 0) -> Belief:
        """Certain that a task begins with point number `start`."""
        replicates, classes, features = prior.mean.shape
        none = prior.mean.new_zeros(replicates, 1)
        counts, sums = none.new_zeros(replicates, 1, classes), none.new_zeros(replicates, 1, classes, features)
        return cls(none, torch.full_like(none, start, dtype=torch.int64), counts, sums, counts, sums)

    def predict(self, prior: Prior, z: Tensor) -> Tensor:
        """log p(y | x) [R, B, C], for z [R, B, F]: the mixture over hypotheses, each weighed by its own p(x) first."""
        joint = log_joint(prior, self.counts, self.sums, z) + self.log_weight[:, None, :, None]
        return joint.logsumexp(2).log_softmax(-1)

    def run_length(self, seen: int) -> Tensor:
        """Expected number of points [R] since the present task began, when `seen` points have been seen."""
        return (self.log_weight.exp() * (seen - self.start)).sum(1)

    def learn(self, prior: Prior, z: Tensor, y: Tensor, first: int, hazard: float, most: int) -> Belief:
        """After points z [R, N, F] with labels y [R, N], one by one, numbered from `first`; the best `most` stay."""
        belief = self
        for n in range(y.shape[1]):
            belief = belief._learn_one(prior, z[:, n], y[:, n], first + n, hazard)._keep(most)
        return belief

    def _learn_one(self, prior: Prior, z: Tensor, y: Tensor, number: int, hazard: float) -> Belief:
        _, hypotheses, classes = self.counts.shape
        joint = log_joint(prior, self.counts, self.sums, z.unsqueeze(1))[:, 0]
        # Weighing by p(x) and then by p(y | x) is weighing by their product.
        weight = self.log_weight + joint.gather(2, y[:, None, None].expand(-1, hypotheses, 1))[..., 0]
        weight = weight.log_softmax(1) + math.log1p(-hazard)
        label = F.one_hot(y, classes).to(z.dtype)
        begun = Belief(
            weight,
            self.start,
            self.counts + label[:, None],
            self.sums + label[:, None, :, None] * z[:, None, None],
            self.settled_counts,
            self.settled_sums,
        )
        fresh = Belief.fresh(prior, number + 1)
        fresh = fresh._replace(log_weight=fresh.log_weight + math.log(hazard))
        return Belief(*(torch.cat(pair, 1) for pair in zip(begun, fresh, strict=True)))

    def _keep(self, most: int) -> Belief:
        """The `most` most probable hypotheses, in the order of their beginnings."""
        if self.log_weight.shape[1] <= most:
            return self
        best = self.log_weight.argsort(dim=1, descending=True, stable=True)[:, :most].sort(dim=1).values
        row = torch.arange(len(best), device=best.device).unsqueeze(1)
        kept = Belief(*(tensor[row, best] for tensor in self))
        return kept._replace(log_weight=kept.log_weight.log_softmax(1))

    def settle(self, z: Tensor, y: Tensor, first: int) -> Belief:
        """The points z [R, N, F], from number `first` on, leave the window: their features stay as they now are."""
        counts, sums = self._statistics(z, y, first)
        return self._replace(settled_counts=self.settled_counts + counts, settled_sums=self.settled_sums + sums)

    def recompute(self, z: Tensor, y: Tensor, first: int) -> Belief:
        """Statistics made anew from what has settled and the window's points z [R, T, F], from number `first` on."""
        counts, sums = self._statistics(z, y, first)
        return self._replace(counts=self.settled_counts + counts, sums=self.settled_sums + sums)

    def _statistics(self, z: Tensor, y: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Counts [R, H, C] and sums [R, H, C, F] of those of the points that came since each hypothesis's beginning."""
        number = torch.arange(first, first + y.shape[1], device=y.device)
        since = (number >= self.start.unsqueeze(2)).to(z.dtype)
        label = F.one_hot(y, self.counts.shape[-1]).to(z.dtype)
        return since @ label, torch.einsum("rhn,rnc,rnf->rhcf", since, label, z)
