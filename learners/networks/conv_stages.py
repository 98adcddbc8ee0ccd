"""Convolution, max-pool and ReLU as one stage: forward, backward, and the tangents of both.

Max-pool and ReLU commute, so a stage pools first and its ReLU processes a quarter of the values. Pooling selects one of
the four places p of a 2×2 tile of outputs, and ReLU passes or blocks it. The convolution is decomposed into components
c (Winograd's 16, or the four places themselves with A = 1). A whole stage is

    y = Σ_p s_p z_p,    z_p = Σ_c A_pc m_c,    m_c = patches_c weights_cᵀ,

with a selection s of 0 and 1 that is constant wherever the network is differentiable. Hence, where a dot is a tangent
and δ is the gradient with respect to y,

    ẏ = Σ_p s_p ż_p,   ṁ_c = patches_c ẇeights_cᵀ + ṗatches_c weights_cᵀ
    gradient with respect to m:        μ_c = Σ_p A_pc s_p δ,   with tangent μ̇_c = Σ_p A_pc s_p δ̇
    gradient with respect to weights:  μ_cᵀ patches_c,         with tangent μ̇_cᵀ patches_c + μ_cᵀ ṗatches_c
    gradient with respect to patches:  μ_c weights_c,          with tangent μ̇_c weights_c + μ_c ẇeights_c.

A stage reads its parameters (or a direction v) from tensors, and writes its gradient to tensors, that are passed to its
constructor.

A stage allocates its tensors and their views once per batch shape and overwrites them in every pass. What a pass needs
later is in a `StageMemory` or `FirstStageMemory` of that pass. For networks this small, allocating memory and creating
views in every pass would cost as much as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from learners.networks.winograd import BIAS, COMPONENTS, TileTransform, output_map, weight_map


class ConvolutionViews:
    """Views of one convolution's weight [R, K·C·9] and bias [R, K] in flat parameters or in their gradient."""

    def __init__(self, weight: Tensor, bias: Tensor, channels: int) -> None:
        R, filters = bias.shape
        self.kernels, self.bias = weight.view(R, filters, channels, 3, 3), bias
        self.rows = weight.view(R, filters * channels, 9)
        self.columns, self.biases = self.rows.transpose(1, 2), bias.unsqueeze(1)


class StackedMatrices:
    """A tensor [R, c, rows, columns], and its views for matrix products and for linear maps over c."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.matrices = tensor.flatten(0, 1)
        self.transposed = self.matrices.transpose(1, 2)
        self.vectors = tensor.flatten(2)


class ScratchMemory:
    """Temporary memory that all stages share, so that it stays in the cache; it holds nothing between two calls."""

    def __init__(self, like: Tensor, products: int, half: int) -> None:
        self._products, self._half = like.new_empty(products), like.new_empty(half)

    def products(self, *shape: int) -> Tensor:
        return self._products[: prod(shape)].view(shape)

    def half(self, *shape: int) -> Tensor:
        return self._half[: prod(shape)].view(shape)


class MaxPoolReLU:
    """Max-pool and ReLU of the four places of a tile, [R, 4, T, K] → [R, T, K], with the selection as numbers 0 and 1.

    As in PyTorch, the first of equal places is selected, and ReLU blocks a value of 0.
    """

    def __init__(self, places: Tensor, values: Tensor, scratch: tuple[Tensor, Tensor]) -> None:
        self._places, self._values = places.unbind(1), values
        self._upper, self._lower = scratch

    def run(self) -> None:
        """Write the values, and overwrite each place by 1 if it was selected and passed, else by 0."""
        first, second, third, fourth = self._places
        upper = torch.maximum(first, second, out=self._upper)
        lower = torch.maximum(third, fourth, out=self._lower)
        torch.maximum(upper, lower, out=self._values).clamp_min_(0)
        # From here on the places hold 0 and 1, in place: comparisons with a bool result cost five times as much.
        second.gt_(first)
        fourth.gt_(third)
        lower.gt_(upper)
        passes = torch.sign(self._values, out=upper)
        lower.mul_(passes)
        upper.sub_(lower)
        second.mul_(upper)
        torch.sub(upper, second, out=first)
        fourth.mul_(lower)
        torch.sub(lower, fourth, out=third)


class FirstConvStage:
    """The stage whose input are the images: few channels, and no gradient with respect to its input.

    Its components are the four places. A patch has the 3×3×C inputs of an output and a 1 for the bias. All places have
    the same weights, so that one matrix product computes all four.
    """

    def __init__(
        self, x_shape: Sequence[int], parameters: ConvolutionViews, gradient: ConvolutionViews, scratch: ScratchMemory
    ) -> None:
        R, N, C, H, W = x_shape
        h, w = H // 2, W // 2
        self.channels, self._parameters, self._gradient = C, parameters, gradient
        like, filters = parameters.bias, parameters.bias.shape[1]
        padded = like.new_zeros(R, N, 2 * h + 2, 2 * w + 2, C)
        self._used = slice(0, 2 * h + 1), slice(0, 2 * w + 1)
        self._interior = padded[:, :, 1 : H + 1, 1 : W + 1].permute(0, 1, 4, 2, 3)
        r, n, row, column, one = padded.stride()
        self.windows = padded.as_strided(
            (R, 2, 2, N, h, w, 3, 3 * C), (r, row, column, n, 2 * row, 2 * column, row, one)
        )
        self.places = scratch.products(R, 4, N * h * w, filters)
        self._products = self.places.flatten(1, 2)
        self.values, self.by_values = (like.new_empty(R, N * h * w, filters) for _ in range(2))
        self.pairs = self.by_values, torch.empty_like(self.by_values)
        self._slope = self.by_values.unsqueeze(1)
        self._weights, self._by_weights = (like.new_empty(R, 9 * C + 1, filters) for _ in range(2))
        self._kernels, self._by_kernels = (
            weights[:, :-1].view(R, 3, 3, C, filters).permute(0, 4, 3, 1, 2)
            for weights in (self._weights, self._by_weights)
        )
        self._bias, self._by_bias = self._weights[:, -1], self._by_weights[:, -1]

    def forward(self, memory: FirstStageMemory, x: Tensor) -> None:
        """Write `values`, for images x [R, N, C, H, W]."""
        self._interior.copy_(x[..., self._used[0], self._used[1]])
        for rows, windows in memory.windows:
            rows.copy_(windows)
        self._set_weights()
        torch.bmm(memory.patches, self._weights, out=memory.products)
        memory.pool.run()

    def backward(self, memory: FirstStageMemory) -> None:
        """Write the gradient from `by_values`; also the tangent of the gradient from the tangent of `by_values`."""
        torch.mul(memory.selection, self._slope, out=self.places)
        torch.bmm(memory.patches_t, self._products, out=self._by_weights)
        self._gradient.kernels.copy_(self._by_kernels)
        self._gradient.bias.copy_(self._by_bias)

    def tangent(self, memory: FirstStageMemory) -> None:
        """Write the tangent of the values to `values`."""
        self._set_weights()
        torch.bmm(memory.patches, self._weights, out=self._products)
        torch.sum(self.places.mul_(memory.selection), 1, out=self.values)

    def _set_weights(self) -> None:
        self._kernels.copy_(self._parameters.kernels)
        self._bias.copy_(self._parameters.bias)


class FirstStageMemory:
    """The tensors of one pass of the first stage: patches [R, 4·T, 9·C + 1] and selection [R, 4, T, K]."""

    def __init__(self, stage: FirstConvStage) -> None:
        R, _, _, N, h, w, _, _ = stage.windows.shape
        C = stage.channels
        self.patches = stage.values.new_ones(R, 4 * N * h * w, 9 * C + 1)
        self.patches_t = self.patches.transpose(1, 2)
        windows = self.patches.view(R, 2, 2, N, h, w, 9 * C + 1)[..., :-1].unflatten(-1, (3, 3 * C))
        # One copy per row of the kernel: a single copy, with one more dimension, takes twice as long.
        self.windows = list(zip(windows.unbind(-2), stage.windows.unbind(-2), strict=True))
        self.selection = torch.empty_like(stage.places)
        self.products = self.selection.flatten(1, 2)
        self.pool = MaxPoolReLU(self.selection, stage.values, stage.pairs)


class ConvStage:
    """A later stage, with its convolution in Winograd's components; it also writes the gradient with respect to x."""

    def __init__(
        self, x: Tensor, by_x: Tensor, parameters: ConvolutionViews, gradient: ConvolutionViews, scratch: ScratchMemory
    ) -> None:
        R, N, H, W, C = x.shape
        T, filters = N * (H // 2) * (W // 2), parameters.bias.shape[1]
        self._x, self._half = x, scratch.half(R, 4, N, H, W // 2, C)
        self._parameters, self._gradient = parameters, gradient
        self.values, self.by_values = (x.new_empty(R, T, filters) for _ in range(2))
        self.pairs = self.by_values, torch.empty_like(self.by_values)
        self.slope = self.by_values.unsqueeze(1)
        self._output_map = output_map(x).expand(R, -1, -1)
        self._selection_map = output_map(x).t().contiguous().expand(R, -1, -1)
        self._weight_map = weight_map(x).expand(R, -1, -1)
        self._kernel_map = weight_map(x).t().contiguous().expand(R, -1, -1)
        self._by_kernels = x.new_empty(R, 9, filters * C)
        self._by_kernels_t = self._by_kernels.transpose(1, 2)
        self._products = StackedMatrices(scratch.products(R, COMPONENTS, T, filters))
        self._bias = self._products.tensor[:, BIAS]
        self.places = StackedMatrices(x.new_empty(R, 4, T, filters))
        self.weights, self._by_weights = (StackedMatrices(x.new_empty(R, COMPONENTS, filters, C)) for _ in range(2))
        self.patches = StackedMatrices(x.new_empty(R, COMPONENTS, T, C))
        self._patch_transform, self._gradient_transform = (
            self.tiles(self.patches),
            TileTransform(by_x, self.patches.tensor, self._half),
        )
        # The selection in components: written by `tangent`, read by `tangent_backward`.
        self._selection = StackedMatrices(torch.empty_like(self._products.tensor))

    def tiles(self, patches: StackedMatrices) -> TileTransform:
        """The transform from x to `patches`."""
        return TileTransform(self._x, patches.tensor, self._half)

    def forward(self, memory: StageMemory) -> None:
        """Write `values`."""
        memory.tiles.forward()
        self._transform(memory.weights)
        torch.bmm(memory.patches.matrices, memory.weights.transposed, out=self._products.matrices)
        self._bias.add_(self._parameters.biases)
        torch.bmm(self._output_map, self._products.vectors, out=memory.selection.vectors)
        memory.pool.run()

    def backward(self, memory: StageMemory) -> None:
        """Write the gradient and the gradient with respect to x, from `by_values`."""
        memory.slope.copy_(self.slope)
        torch.mul(memory.selection.tensor, self.slope, out=self.places.tensor)
        torch.bmm(self._selection_map, self.places.vectors, out=self._products.vectors)
        torch.bmm(self._products.transposed, memory.patches.matrices, out=self._by_weights.matrices)
        self._write()
        torch.bmm(self._products.matrices, memory.weights.matrices, out=self.patches.matrices)
        self._gradient_transform.transpose()

    def tangent(self, memory: StageMemory) -> None:
        """Write the tangent of the values to `values`, from the tangent of x."""
        self._patch_transform.forward()
        self._transform(self.weights)
        torch.bmm(memory.patches.matrices, self.weights.transposed, out=self._products.matrices)
        self._products.matrices.baddbmm_(self.patches.matrices, memory.weights.transposed)
        self._bias.add_(self._parameters.biases)
        # Used three times, here and in `tangent_backward`: transformed to components once.
        torch.bmm(self._selection_map, memory.selection.vectors, out=self._selection.vectors)
        torch.sum(self._products.tensor.mul_(self._selection.tensor), 1, out=self.values)

    def tangent_backward(self, memory: StageMemory) -> None:
        """The tangent of `backward`. Call immediately after `tangent`, whose tensors it reads."""
        torch.mul(self._selection.tensor, self.slope, out=self._products.tensor)
        mu = self._selection  # overwritten by μ
        mu.tensor.mul_(memory.slope)
        torch.bmm(self._products.transposed, memory.patches.matrices, out=self._by_weights.matrices)
        self._by_weights.matrices.baddbmm_(mu.transposed, self.patches.matrices)
        self._write()
        torch.bmm(self._products.matrices, memory.weights.matrices, out=self.patches.matrices)
        self.patches.matrices.baddbmm_(mu.matrices, self.weights.matrices)
        self._gradient_transform.transpose()

    def _transform(self, weights: StackedMatrices) -> None:
        torch.bmm(self._weight_map, self._parameters.columns, out=weights.vectors)

    def _write(self) -> None:
        # As [9, K·C] and transposed: a product with only 9 columns takes four times as long.
        torch.bmm(self._kernel_map, self._by_weights.vectors, out=self._by_kernels)
        self._gradient.rows.copy_(self._by_kernels_t)
        torch.sum(self._bias, 1, out=self._gradient.bias)


class StageMemory:
    """The tensors of one pass of a later stage: patches, weights, selection [R, 4, T, K], and `by_values` as slope."""

    def __init__(self, stage: ConvStage) -> None:
        self.patches, self.weights, self.selection = (
            StackedMatrices(torch.empty_like(stack.tensor)) for stack in (stage.patches, stage.weights, stage.places)
        )
        self.slope = torch.empty_like(stage.slope)
        self.tiles = stage.tiles(self.patches)
        self.pool = MaxPoolReLU(self.selection.tensor, stage.values, stage.pairs)
