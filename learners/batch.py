"""A batch of datapoints, one stack for all replicates."""

from dataclasses import dataclass

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
