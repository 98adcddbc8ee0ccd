"""The Rainbow network by hand: four stages of convolution, max-pool and ReLU, then the mean and the linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from learners.tangent_stages import FirstKept, FirstStage, Kept, Stage


@dataclass
class Memory:
    """What the stages keep of one pass."""

    first: FirstKept
    rest: list[Kept]


class RainbowStages:
    """All stages for R replicates and N pictures, and memory for as many passes as are alive at once."""

    def __init__(self, x_shape: Sequence[int], filters: Sequence[int], classes: int, like: Tensor) -> None:
        R, N, C, H, W = x_shape
        self.first = FirstStage(x_shape, filters[0], like)
        before: FirstStage | Stage = self.first
        self.rest: list[Stage] = []
        for k in filters[1:]:
            H, W = H // 2, W // 2
            stage = Stage(before.values.view(R, N, H, W, -1), before.by_values.view(R, N, H, W, -1), k)
            self.rest.append(stage)
            before = stage
        features = filters[-1]
        shape = (R, N, (H // 2) * (W // 2), features)
        self.values, self.by_values = before.values.view(shape), before.by_values.view(shape)
        self.sizes = [n for c, k in pairwise([C, *filters]) for n in (9 * c * k, k)] + [features * classes, classes]
        self.head = (R, classes, features)
        self._free: list[Memory] = []

    def borrow(self) -> Memory:
        if self._free:
            return self._free.pop()
        return Memory(FirstKept(self.first), [Kept(stage) for stage in self.rest])

    def give_back(self, memory: Memory) -> None:
        self._free.append(memory)


class RainbowSweeps:
    """One pass through the stages, and what the three sweeps after it need of it."""

    def __init__(self, stages: RainbowStages, phi: Tensor, statistics: Tensor, x: Tensor) -> None:
        self._stages, self.statistics = stages, statistics  # there are none
        self._memory = stages.borrow()
        weights = phi.split(stages.sizes, 1)
        stages.first.forward(self._memory.first, x, *weights[:2])
        for stage, kept, weight, bias in self._layers(weights):
            stage.forward(kept, weight, bias)
        self._features = self._mean()
        self._head = weights[-2].view(stages.head)
        self.logits = torch.baddbmm(weights[-1].unsqueeze(1), self._features, self._head.transpose(1, 2))

    def __del__(self) -> None:
        self._stages.give_back(self._memory)

    def backward(self, slope: Tensor, gradient: Tensor) -> None:
        """Write the gradient [R, P] that belongs to the gradient by the logits, `slope` [R, N, classes]."""
        self._slope = slope
        parts = gradient.split(self._stages.sizes, 1)
        torch.bmm(slope.transpose(1, 2), self._features, out=parts[-2].view(self._head.shape))
        torch.sum(slope, 1, out=parts[-1])
        self._leave(torch.bmm(slope, self._head))
        for stage, kept, weight, bias in reversed(self._layers(parts)):
            stage.backward(kept, weight, bias)
        self._stages.first.backward(self._memory.first, *parts[:2])

    def tangent(self, v: Tensor) -> Tensor:
        """The tangent of the logits along v [R, P]."""
        weights = v.split(self._stages.sizes, 1)
        self._stages.first.tangent(self._memory.first, *weights[:2])
        for stage, kept, weight, bias in self._layers(weights):
            stage.tangent(kept, weight, bias)
        self._features_dot = self._mean()
        self._head_dot = weights[-2].view(self._head.shape)
        logits = torch.baddbmm(weights[-1].unsqueeze(1), self._features, self._head_dot.transpose(1, 2))
        return logits.baddbmm_(self._features_dot, self._head.transpose(1, 2))

    def tangent_backward(self, slope: Tensor, product: Tensor) -> None:
        """Write H v [R, P], for the tangent of the gradient by the logits; straight after `tangent`."""
        parts = product.split(self._stages.sizes, 1)
        by_head = torch.bmm(slope.transpose(1, 2), self._features)
        parts[-2].copy_(by_head.baddbmm_(self._slope.transpose(1, 2), self._features_dot).flatten(1))
        torch.sum(slope, 1, out=parts[-1])
        self._leave(torch.bmm(slope, self._head).baddbmm_(self._slope, self._head_dot))
        for stage, kept, weight, bias in reversed(self._layers(parts)):
            stage.tangent_backward(kept, weight, bias)
        self._stages.first.backward(self._memory.first, *parts[:2])

    def _layers(self, pieces: Sequence[Tensor]) -> list[tuple[Stage, Kept, Tensor, Tensor]]:
        return list(zip(self._stages.rest, self._memory.rest, pieces[2:-2:2], pieces[3:-2:2], strict=True))

    def _mean(self) -> Tensor:
        """The features [R, N, F]: means over the pixels of the last stage's values."""
        values = self._stages.values
        return values.mean(2) if values.shape[2] > 1 else values[:, :, 0].clone()

    def _leave(self, by_features: Tensor) -> None:
        """The transpose of `_mean`, left to the last stage."""
        by_values = self._stages.by_values
        by_values.copy_(by_features.unsqueeze(2))
        if by_values.shape[2] > 1:
            by_values /= by_values.shape[2]
