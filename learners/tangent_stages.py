"""Convolution, max-pool and ReLU as one stage: forward, backward, and the tangents of both.

Max-pool and ReLU commute, so a stage pools first and its ReLU works on a quarter of the values. Pooling picks one of
the four outputs of a 2×2 tile, and ReLU lets it pass or not: with the convolution in `components` c (the four places
of a tile, or Winograd's 16), a whole stage is

    y_tk = Σ_c s_ctk m_ctk,    m_c = patches_c weights_cᵀ,

where the selection s is constant wherever the network is differentiable. Hence (dots are tangents, δ gradients by y)

    ẏ = Σ_c s_c ṁ_c,   ṁ_c = patches_c ẇeights_cᵀ + ṗatches_c weights_cᵀ
    by m: μ_c = s_c δ,  μ̇_c = s_c δ̇;   by weights: μ_cᵀ patches_c,  and its tangent μ̇_cᵀ patches_c + μ_cᵀ ṗatches_c
    by patches: μ_c weights_c,  and its tangent μ̇_c weights_c + μ_c ẇeights_c.

A stage's tensors are made once for a shape of batch and written again and again; what a pass must remember it borrows
(`Kept`). At these sizes, fresh memory and new views would cost as much as the arithmetic.

Axes: R replicates, c components, T tiles (of all pictures), K filters, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from learners.tangent_tiles import BIAS, COMPONENTS, Tiles, output_map, weight_map


class Selection:
    """Max-pool and ReLU of the four places of a tile, [R, 4, T, K] → [R, T, K], with the choice as numbers 1 and 0.

    The first of equal places is taken, and nothing passes at 0, as PyTorch has it.
    """

    def __init__(self, places: Tensor, values: Tensor) -> None:
        self._places, self._each = places, places.unbind(1)
        self._values, self._spread = values, values.unsqueeze(1)
        self._scratch, self._passes = torch.empty_like(values), torch.empty_like(self._spread)

    def run(self) -> None:
        """Write the values, and over each place whether it was taken and passed."""
        first, second, third, fourth = self._each
        torch.maximum(torch.maximum(first, second, out=self._values), third, out=self._values)
        torch.maximum(self._values, fourth, out=self._values)
        self._places.eq_(self._spread)  # in place, to stay with floating-point numbers: bool costs five times as much
        second.addcmul_(second, first, value=-1)
        taken = torch.add(first, second, out=self._scratch)
        third.addcmul_(third, taken, value=-1)
        torch.sub(1, taken.add_(third), out=fourth)
        self._values.clamp_min_(0)
        self._places.mul_(torch.sign(self._spread, out=self._passes))


class FirstStage:
    """The stage that sees the pictures: few channels, and nothing asks for the gradient by them.

    Its components are the four places, its patches the 3×3×C inputs of each output and a 1 for the bias; all places
    share their weights, so that one product serves the four.
    """

    def __init__(self, x_shape: Sequence[int], filters: int, like: Tensor) -> None:
        R, N, C, H, W = x_shape
        h, w = H // 2, W // 2
        self.channels, self.filters = C, filters
        padded = like.new_zeros(R, N, 2 * h + 2, 2 * w + 2, C)
        self._used = slice(0, 2 * h + 1), slice(0, 2 * w + 1)
        self._interior = padded[:, :, 1 : H + 1, 1 : W + 1].permute(0, 1, 4, 2, 3)
        r, n, row, column, one = padded.stride()
        self.windows = padded.as_strided(
            (R, 2, 2, N, h, w, 3, 3 * C), (r, row, column, n, 2 * row, 2 * column, row, one)
        )
        self.products = like.new_empty(R, 4 * N * h * w, filters)
        self._selected = self.products.view(R, 4, N * h * w, filters)
        self.values, self.by_values = (like.new_empty(R, N * h * w, filters) for _ in range(2))
        self._slope = self.by_values.unsqueeze(1)
        self._weights, self._by_weights = (like.new_empty(R, 9 * C + 1, filters) for _ in range(2))
        self._kernels, self._by_kernels = (
            weights[:, :-1].view(R, 3, 3, C, filters).permute(0, 4, 3, 1, 2)
            for weights in (self._weights, self._by_weights)
        )
        self._bias, self._by_bias = self._weights[:, -1], self._by_weights[:, -1]

    def forward(self, kept: FirstKept, x: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Write `values`, for pictures [R, N, C, H, W]."""
        self._interior.copy_(x[..., self._used[0], self._used[1]])
        kept.windows.copy_(self.windows)
        self._set(weight, bias)
        torch.bmm(kept.patches, self._weights, out=kept.places)
        kept.selection.run()

    def backward(self, kept: FirstKept, weight: Tensor, bias: Tensor) -> None:
        """Write the gradients by weight and bias, from `by_values`. Serves tangents as it is."""
        torch.mul(kept.selected, self._slope, out=self._selected)
        torch.bmm(kept.patches_t, self.products, out=self._by_weights)
        weight.view(self._by_kernels.shape).copy_(self._by_kernels)
        bias.copy_(self._by_bias)

    def tangent(self, kept: FirstKept, weight: Tensor, bias: Tensor) -> None:
        """Write the tangent of the values into `values`."""
        self._set(weight, bias)
        torch.bmm(kept.patches, self._weights, out=self.products)
        self.products.mul_(kept.places)
        torch.sum(self._selected, 1, out=self.values)

    def _set(self, weight: Tensor, bias: Tensor) -> None:
        self._kernels.copy_(weight.view(self._kernels.shape))
        self._bias.copy_(bias)


class Stage:
    """A stage in the middle, its convolution in Winograd's components."""

    def __init__(self, x: Tensor, by_x: Tensor, filters: int) -> None:
        R, N, H, W, C = x.shape
        T = N * (H // 2) * (W // 2)
        self.tiles = Tiles(x, by_x)
        self.filters, self.channels = filters, C
        self.values, self.by_values = (x.new_empty(R, T, filters) for _ in range(2))
        self._slope = self.by_values.unsqueeze(1)
        outputs = output_map(x)
        self._output_map, self._selection_map = (m.expand(R, -1, -1) for m in (outputs, outputs.t().contiguous()))
        self._weight_map = weight_map(x).expand(R, -1, -1)
        self._kernel_map = self._weight_map[0].t().contiguous().expand(R, -1, -1)
        self._by_kernels = x.new_empty(R, 9, filters * C)
        self.patches = x.new_empty(R, COMPONENTS, T, C)
        self.flat_patches = self.patches.flatten(0, 1)
        self._cutting, self._pasting = self.tiles.cutting(self.patches), self.tiles.pasting(self.patches)
        self.products = x.new_empty(R, COMPONENTS, T, filters)
        self.flat_products = self.products.flatten(0, 1)
        self.flat_products_t, self._components_products = self.flat_products.transpose(1, 2), self.products.flatten(2)
        self._bias = self.products[:, BIAS]
        self._places = x.new_empty(R, 4, T * filters)
        self._selection = Selection(self._places.view(R, 4, T, filters), self.values)
        self.weights, self._by_weights = (x.new_empty(R * COMPONENTS, filters, C) for _ in range(2))
        self._weights_t = self.weights.transpose(1, 2)
        self.components, self._by_components = (
            weights.view(R, COMPONENTS, filters * C) for weights in (self.weights, self._by_weights)
        )

    def forward(self, kept: Kept, weight: Tensor, bias: Tensor) -> None:
        self.tiles.cut(kept.cutting)
        self._transform(weight, kept.components)
        torch.bmm(kept.patches, kept.weights_t, out=self.flat_products)
        self._bias.add_(bias.unsqueeze(1))
        torch.bmm(self._output_map, self._components_products, out=self._places)
        self._selection.run()
        torch.bmm(self._selection_map, self._places, out=kept.selected)

    def backward(self, kept: Kept, weight: Tensor, bias: Tensor) -> None:
        """From `by_values`: write the gradients by weight, bias and x; keep that by the products."""
        torch.mul(kept.selection, self._slope, out=kept.by_products)
        torch.bmm(kept.by_products_t, kept.patches, out=self._by_weights)
        self._write(weight)
        torch.sum(kept.by_bias, 1, out=bias)
        torch.bmm(kept.flat_by_products, kept.weights, out=self.flat_patches)
        self.tiles.paste(self._pasting)

    def tangent(self, kept: Kept, weight: Tensor, bias: Tensor) -> None:
        self.tiles.cut(self._cutting)
        self._transform(weight, self.components)
        torch.bmm(kept.patches, self._weights_t, out=self.flat_products)
        self.flat_products.baddbmm_(self.flat_patches, kept.weights_t)
        self._bias.add_(bias.unsqueeze(1))
        self.products.mul_(kept.selection)
        torch.sum(self.products, 1, out=self.values)

    def tangent_backward(self, kept: Kept, weight: Tensor, bias: Tensor) -> None:
        """The tangent of `backward`, straight after `tangent`, whose patches and weights it uses."""
        torch.mul(kept.selection, self._slope, out=self.products)
        torch.bmm(self.flat_products_t, kept.patches, out=self._by_weights)
        self._by_weights.baddbmm_(kept.by_products_t, self.flat_patches)
        self._write(weight)
        torch.sum(self._bias, 1, out=bias)
        torch.bmm(self.flat_products, kept.weights, out=self.flat_patches)
        self.flat_patches.baddbmm_(kept.flat_by_products, self.weights)
        self.tiles.paste(self._pasting)

    def _transform(self, weight: Tensor, out: Tensor) -> None:
        torch.bmm(self._weight_map, weight.view(-1, self.filters * self.channels, 9).transpose(1, 2), out=out)

    def _write(self, weight: Tensor) -> None:
        # By way of [9, K·C]: a product with so few columns as [K·C, 9] has takes four times as long.
        torch.bmm(self._kernel_map, self._by_components, out=self._by_kernels)
        weight.view(-1, self.filters * self.channels, 9).copy_(self._by_kernels.transpose(1, 2))


class FirstKept:
    """What the first stage keeps of a pass: patches [R, 4·T, 9·C + 1] and selection [R, 4·T, K]."""

    def __init__(self, stage: FirstStage) -> None:
        R, _, _, N, h, w, _, _ = stage.windows.shape
        C = stage.channels
        self.patches = stage.values.new_ones(R, 4 * N * h * w, 9 * C + 1)
        self.windows = self.patches.view(R, 2, 2, N, h, w, 9 * C + 1)[..., :-1].unflatten(-1, (3, 3 * C))
        self.patches_t = self.patches.transpose(1, 2)
        self.places = torch.empty_like(stage.products)
        self.selected = self.places.view(R, 4, N * h * w, stage.filters)
        self.selection = Selection(self.selected, stage.values)


class Kept:
    """What a stage keeps of a pass: patches [R·c, T, C], weights [R·c, K, C], selection [R, c, T, K], and the gradient
    by the products [R, c, T, K].
    """

    def __init__(self, stage: Stage) -> None:
        patches, self.selection, by_products = (
            torch.empty_like(t) for t in (stage.patches, stage.products, stage.products)
        )
        self.cutting = stage.tiles.cutting(patches)
        self.patches = patches.flatten(0, 1)
        self.selected = self.selection.flatten(2)
        self.weights, self.by_products = torch.empty_like(stage.weights), by_products
        self.flat_by_products = by_products.flatten(0, 1)
        self.by_bias = by_products[:, BIAS]
        self.weights_t, self.by_products_t = self.weights.transpose(1, 2), self.flat_by_products.transpose(1, 2)
        self.components = self.weights.view(stage.components.shape)
