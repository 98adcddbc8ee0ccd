"""A batch of datapoints for all replicates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """N datapoints per replicate.

    A batch holds no task id.

    Attributes:
        x: images in 0…1, float [R, N, C, H, W] (pairs: [R, N, 2, C, H, W]), on the learner's device.
        y: labels, int64 [R, N], on the learner's device.
        ids: image ids, int [R, N, V], on the CPU. They are for storing datapoints and for reading their images again
            (`ImageTable.gather`). On a stream with views an id is `view * count + row`, so it reveals the task of
            Rainbow's datapoints: a learner must not compute with ids, and none of this package does.
    """

    x: Tensor
    y: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return self.y.shape[1]

    def concatenate(self, other: Batch) -> Batch:
        """The datapoints of this batch followed by those of `other`."""
        return Batch(
            torch.cat([self.x, other.x], 1), torch.cat([self.y, other.y], 1), torch.cat([self.ids, other.ids], 1)
        )
