"""The belief over the start of the current task: Bayesian online changepoint detection, Adams & MacKay 2007.

A hypothesis is a datapoint of the stream at which the current task may have started, with the statistics since then.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from learners.changepoint.pcoc import Prior, log_joint


class Belief(NamedTuple):
    """H hypotheses about the start of the current task.

    Attributes:
        log_weight: normalised log probabilities [R, H].
        start: number of the task's first datapoint, int64 [R, H].
        counts: datapoints per class since the start, [R, H, C].
        sums: sums of their features, [R, H, C, F].
        settled_counts: the part of `counts` that has left the window and is no longer recomputed.
        settled_sums: the part of `sums` that has left the window and is no longer recomputed.
    """

    log_weight: Tensor
    start: Tensor
    counts: Tensor
    sums: Tensor
    settled_counts: Tensor
    settled_sums: Tensor

    @classmethod
    def fresh(cls, prior: Prior, start: int = 0) -> Belief:
        """One hypothesis: a task starts with datapoint number `start`."""
        replicates, classes, features = prior.mean.shape
        none = prior.mean.new_zeros(replicates, 1)
        counts, sums = none.new_zeros(replicates, 1, classes), none.new_zeros(replicates, 1, classes, features)
        return cls(none, torch.full_like(none, start, dtype=torch.int64), counts, sums, counts, sums)

    def predict(self, prior: Prior, z: Tensor) -> Tensor:
        """log p(y | x) [R, B, C] for z [R, B, F]: the mixture over hypotheses, weighted by their p(x)."""
        joint = log_joint(prior, self.counts, self.sums, z) + self.log_weight[:, None, :, None]
        return joint.logsumexp(2).log_softmax(-1)

    def run_length(self, seen: int) -> Tensor:
        """Expected number of datapoints [R] in the current task, after `seen` datapoints of the stream."""
        return (self.log_weight.exp() * (seen - self.start)).sum(1)

    def learn(self, prior: Prior, z: Tensor, y: Tensor, first: int, hazard: float, most: int) -> Belief:
        """The belief after datapoints z [R, N, F] with labels y [R, N], numbered from `first`.

        At most `most` hypotheses are kept after each datapoint, the most probable.
        """
        belief = self
        for n in range(y.shape[1]):
            belief = belief._learn_one(prior, z[:, n], y[:, n], first + n, hazard)._keep(most)
        return belief

    def _learn_one(self, prior: Prior, z: Tensor, y: Tensor, number: int, hazard: float) -> Belief:
        _, hypotheses, classes = self.counts.shape
        joint = log_joint(prior, self.counts, self.sums, z.unsqueeze(1))[:, 0]
        # The belief is weighted by p(x) and then by p(y | x): together by p(x, y).
        weight = self.log_weight + joint.gather(2, y[:, None, None].expand(-1, hypotheses, 1))[..., 0]
        weight = weight.log_softmax(1) + math.log1p(-hazard)
        label = F.one_hot(y, classes).to(z.dtype)
        continued = Belief(
            weight,
            self.start,
            self.counts + label[:, None],
            self.sums + label[:, None, :, None] * z[:, None, None],
            self.settled_counts,
            self.settled_sums,
        )
        fresh = Belief.fresh(prior, number + 1)
        fresh = fresh._replace(log_weight=fresh.log_weight + math.log(hazard))
        return Belief(*(torch.cat(pair, 1) for pair in zip(continued, fresh, strict=True)))

    def _keep(self, most: int) -> Belief:
        """The `most` most probable hypotheses, ordered by start."""
        if self.log_weight.shape[1] <= most:
            return self
        best = self.log_weight.argsort(dim=1, descending=True, stable=True)[:, :most].sort(dim=1).values
        row = torch.arange(len(best), device=best.device).unsqueeze(1)
        belief = Belief(*(tensor[row, best] for tensor in self))
        return belief._replace(log_weight=belief.log_weight.log_softmax(1))

    def settle(self, z: Tensor, y: Tensor, first: int) -> Belief:
        """Add datapoints z [R, N, F] that leave the window, numbered from `first`, to the settled statistics."""
        counts, sums = self._statistics(z, y, first)
        return self._replace(settled_counts=self.settled_counts + counts, settled_sums=self.settled_sums + sums)

    def recompute(self, z: Tensor, y: Tensor, first: int) -> Belief:
        """Recompute the statistics from the settled ones and the window's z [R, T, F], numbered from `first`."""
        counts, sums = self._statistics(z, y, first)
        return self._replace(counts=self.settled_counts + counts, sums=self.settled_sums + sums)

    def _statistics(self, z: Tensor, y: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Counts [R, H, C] and feature sums [R, H, C, F] of the datapoints since each hypothesis's start."""
        number = torch.arange(first, first + y.shape[1], device=y.device)
        since = (number >= self.start.unsqueeze(2)).to(z.dtype)
        label = F.one_hot(y, self.counts.shape[-1]).to(z.dtype)
        return since @ label, torch.einsum("rhn,rnc,rnf->rhcf", since, label, z)
