"""Hand-written passes of the Rainbow network: four stages of convolution, max-pool and ReLU, mean, linear layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from learners.networks.conv_stages import (
    ConvolutionViews,
    ConvStage,
    FirstConvStage,
    FirstStageMemory,
    ScratchMemory,
    StageMemory,
)


@dataclass
class PassMemory:
    """The tensors of one pass, per stage."""

    first: FirstStageMemory
    rest: list[StageMemory]


class RainbowStages:
    """The stages for R replicates and N images, and memory for all passes that exist at the same time.

    The stages read `parameters` [R, P] (for tangents, the direction v) and write `gradient` [R, P].
    """

    def __init__(self, x_shape: Sequence[int], filters: Sequence[int], classes: int, like: Tensor) -> None:
        R, N, C, H, W = x_shape
        widths, features = [C, *filters], filters[-1]
        sizes = [n for c, k in pairwise(widths) for n in (9 * c * k, k)] + [features * classes, classes]
        self.parameters, self.gradient = (like.new_empty(R, sum(sizes)) for _ in range(2))
        *parts, self.head, self.head_bias = self.parameters.split(sizes, 1)
        *by_parts, self.by_head, self.by_head_bias = self.gradient.split(sizes, 1)
        self.head, self.by_head = (t.view(R, classes, features) for t in (self.head, self.by_head))
        self.head_bias = self.head_bias.unsqueeze(1)
        layers = [
            (
                ConvolutionViews(parts[2 * i], parts[2 * i + 1], c),
                ConvolutionViews(by_parts[2 * i], by_parts[2 * i + 1], c),
            )
            for i, c in enumerate(widths[:-1])
        ]
        later_sizes = [(H >> i, W >> i, c, k) for i, (c, k) in enumerate(pairwise(widths)) if i > 0]
        scratch = ScratchMemory(
            like,
            R * N * max(H * W * filters[0], *(16 * (h // 2) * (w // 2) * k for h, w, _, k in later_sizes)),
            R * N * max(4 * h * (w // 2) * c for h, w, c, _ in later_sizes),
        )
        self.first = FirstConvStage(x_shape, *layers[0], scratch)
        self.rest: list[ConvStage] = []
        values, by_values = self.first.values, self.first.by_values
        for (h, w, c, _), layer in zip(later_sizes, layers[1:], strict=True):
            shape = (R, N, h, w, c)
            stage = ConvStage(values.view(shape), by_values.view(shape), *layer, scratch)
            self.rest.append(stage)
            values, by_values = stage.values, stage.by_values
        self.values, self.by_values = (t.view(R, N, -1, features) for t in (values, by_values))
        self._free: list[PassMemory] = []

    def borrow(self) -> PassMemory:
        """Memory for one pass, new only if all is in use."""
        if self._free:
            return self._free.pop()
        return PassMemory(FirstStageMemory(self.first), [StageMemory(stage) for stage in self.rest])

    def give_back(self, memory: PassMemory) -> None:
        """Make the memory of a deleted pass available to the next one."""
        self._free.append(memory)


class RainbowPass:
    """A forward pass through the stages, and the three passes that can follow it (`HessianVectorPass`)."""

    def __init__(self, stages: RainbowStages, phi: Tensor, statistics: Tensor, x: Tensor) -> None:
        self._stages, self.statistics = stages, statistics  # [R, 0]: no batch norm
        self._memory = memory = stages.borrow()
        stages.parameters.copy_(phi)
        stages.first.forward(memory.first, x)
        for stage, stage_memory in zip(stages.rest, memory.rest, strict=True):
            stage.forward(stage_memory)
        self.features, self._head = self._mean(), stages.head.clone()
        self.logits = torch.baddbmm(stages.head_bias, self.features, self._head.transpose(1, 2))

    def __del__(self) -> None:
        self._stages.give_back(self._memory)

    def activity(self) -> Tensor:
        """The mean of each unit's values [R, U], which are not negative; of the last stage, that of the features."""
        *before, _ = self._stages.first, *self._stages.rest
        return torch.cat([*(stage.values.mean(1) for stage in before), self.features.mean(1)], 1)

    def backward(self, slope: Tensor, gradient: Tensor) -> None:
        stages = self._stages
        self._slope = slope
        torch.bmm(slope.transpose(1, 2), self.features, out=stages.by_head)
        torch.sum(slope, 1, out=stages.by_head_bias)
        self._backward(torch.bmm(slope, self._head), gradient)

    def backward_embedding(self, by_features: Tensor, gradient: Tensor) -> None:
        self._stages.by_head.zero_()
        self._stages.by_head_bias.zero_()
        self._backward(by_features, gradient)

    def _backward(self, by_features: Tensor, gradient: Tensor) -> None:
        stages, memory = self._stages, self._memory
        self._spread(by_features)
        for stage, stage_memory in zip(reversed(stages.rest), reversed(memory.rest), strict=True):
            stage.backward(stage_memory)
        stages.first.backward(memory.first)
        gradient.copy_(stages.gradient)

    def tangent(self, v: Tensor) -> Tensor:
        stages, memory = self._stages, self._memory
        stages.parameters.copy_(v)
        stages.first.tangent(memory.first)
        for stage, stage_memory in zip(stages.rest, memory.rest, strict=True):
            stage.tangent(stage_memory)
        self._features_dot = self._mean()
        logits = torch.baddbmm(stages.head_bias, self.features, stages.head.transpose(1, 2))
        return logits.baddbmm_(self._features_dot, self._head.transpose(1, 2))

    def tangent_backward(self, slope: Tensor, product: Tensor) -> None:
        stages, memory = self._stages, self._memory
        torch.bmm(slope.transpose(1, 2), self.features, out=stages.by_head)
        stages.by_head.baddbmm_(self._slope.transpose(1, 2), self._features_dot)
        torch.sum(slope, 1, out=stages.by_head_bias)
        self._spread(torch.bmm(slope, self._head).baddbmm_(self._slope, stages.head))
        for stage, stage_memory in zip(reversed(stages.rest), reversed(memory.rest), strict=True):
            stage.tangent_backward(stage_memory)
        stages.first.backward(memory.first)
        product.copy_(stages.gradient)

    def _mean(self) -> Tensor:
        """The features [R, N, F]: the mean of the last stage's values over the pixels."""
        values = self._stages.values
        return values.mean(2) if values.shape[2] > 1 else values[:, :, 0].clone()

    def _spread(self, by_features: Tensor) -> None:
        """Write the transpose of `_mean` to `by_values` of the last stage."""
        by_values = self._stages.by_values
        by_values.copy_(by_features.unsqueeze(2))
        if by_values.shape[2] > 1:
            by_values /= by_values.shape[2]
