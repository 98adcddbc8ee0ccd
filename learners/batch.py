"""A batch of datapoints, one stack for all replicates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """What a learner is shown: pictures, labels, and opaque picture ids. There is no task in it.

    ``x`` float [R, N, C, H, W] (pairs: [R, N, 2, C, H, W]) in 0…1 on the learner's device; ``y`` int64 [R, N] on the
    same device; ``ids`` int [R, N, V] on the CPU.
    """

    x: Tensor
    y: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return self.y.shape[1]

    def concatenate(self, other: Batch) -> Batch:
        """This batch's datapoints, then the other's."""
        return Batch(
            torch.cat([self.x, other.x], 1), torch.cat([self.y, other.y], 1), torch.cat([self.ids, other.ids], 1)
        )
