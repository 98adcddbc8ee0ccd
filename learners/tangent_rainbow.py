"""The Rainbow network by hand: four stages of convolution, max-pool and ReLU, then the mean and the linear layer.

Max-pool and ReLU commute, so a stage pools first and its ReLU works on a quarter of the values. Pooling picks one of
the four outputs of a 2×2 tile, and ReLU lets it pass or not: with the convolution in `components` c (the four places
of a tile, or Winograd's 16), a whole stage is

    y_tk = Σ_c s_ctk m_ctk,    m_c = patches_c weights_cᵀ,

where the selection s is constant wherever the network is differentiable. Hence (dots are tangents, δ gradients by y)

    ẏ = Σ_c s_c ṁ_c,   ṁ_c = patches_c ẇeights_cᵀ + ṗatches_c weights_cᵀ
    by m: μ_c = s_c δ,  μ̇_c = s_c δ̇;   by weights: μ_cᵀ patches_c,  and its tangent μ̇_cᵀ patches_c + μ_cᵀ ṗatches_c
    by patches: μ_c weights_c,  and its tangent μ̇_c weights_c + μ_c ẇeights_c.

Axes: R replicates, c components, T tiles (of all pictures), K filters, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from learners.tangent_tiles import BIAS, COMPONENTS, Tiles, output_map, weight_map

Shape = tuple[int, int, int, int, int]
"""R, N, H, W, C."""


@dataclass(frozen=True)
class Kept:
    """What a stage keeps of a pass: patches [R·c, T, C], weights [R·c, K, C], selection [R, c, T, K]."""

    patches: Tensor
    weights: Tensor
    selection: Tensor


def select(places: Tensor) -> tuple[Tensor, Tensor]:
    """Max-pool and ReLU of the four places of a tile [R, 4, T, K]: values [R, T, K], and which place passed, 1 or 0.

    The first of equal places is taken, and nothing passes at 0, as PyTorch has it. Overwrites `places`.
    """
    first, second, third, fourth = places.unbind(1)
    highest = torch.maximum(torch.maximum(first, second), torch.maximum(third, fourth))
    places.eq_(highest.unsqueeze(1))  # in place, to stay with floating-point numbers: bool costs five times as much
    second.addcmul_(second, first, value=-1)
    taken = first + second
    third.addcmul_(third, taken, value=-1)
    torch.sub(1, taken.add_(third), out=fourth)
    values = highest.clamp_min_(0)
    places.mul_(torch.sign(values).unsqueeze(1))
    return values, places


class FirstStage:
    """The stage that sees the pictures: few channels, and nothing asks for the gradient by them.

    Its components are the four places, its patches the 3×3×C inputs of each output and a 1 for the bias; all places
    share their weights.
    """

    def __init__(self, shape: Shape, filters: int, like: Tensor) -> None:
        R, N, H, W, C = shape
        h, w = H // 2, W // 2
        self.tiles, self.filters, self.channels = N * h * w, filters, C
        padded = like.new_zeros(R, N, 2 * h + 2, 2 * w + 2, C)
        self._used = min(H, 2 * h + 1), min(W, 2 * w + 1)
        self._interior = padded[:, :, 1 : self._used[0] + 1, 1 : self._used[1] + 1]
        r, n, row, column, one = padded.stride()
        self._windows = padded.as_strided(
            (R, 2, 2, N, h, w, 3, 3 * C), (r, row, column, n, 2 * row, 2 * column, row, one)
        )
        self._products = like.new_empty(R, 4, self.tiles, filters)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Kept]:
        """x [R, N, H, W, C] → values [R, T, K]."""
        R = x.shape[0]
        self._interior.copy_(x[:, :, : self._used[0], : self._used[1]])
        patches = x.new_empty(*self._windows.shape[:-2], 9 * self.channels + 1)
        patches[..., :-1].unflatten(-1, (3, 3 * self.channels)).copy_(self._windows)
        patches[..., -1] = 1
        patches = patches.view(R * 4, self.tiles, -1)
        weights = self._weights(weight, bias)
        places = torch.bmm(patches, weights.transpose(1, 2)).view(R, 4, self.tiles, self.filters)
        values, selection = select(places)
        return values, Kept(patches, weights, selection)

    def backward(self, kept: Kept, slope: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Write the gradients by weight and bias, for that by the values [R, T, K]. Serves tangents as it is."""
        R = slope.shape[0]
        torch.mul(kept.selection, slope.unsqueeze(1), out=self._products)
        by_weights = torch.bmm(
            kept.patches.view(R, 4 * self.tiles, -1).transpose(1, 2), self._products.view(R, 4 * self.tiles, -1)
        )
        kernels = by_weights[:, :-1].view(R, 3, 3, self.channels, self.filters)
        weight.view(R, self.filters, self.channels, 3, 3).copy_(kernels.permute(0, 4, 3, 1, 2))
        bias.copy_(by_weights[:, -1])

    def tangent(self, kept: Kept, weight: Tensor, bias: Tensor) -> Tensor:
        torch.bmm(
            kept.patches,
            self._weights(weight, bias).transpose(1, 2),
            out=self._products.view(kept.patches.shape[0], self.tiles, -1),
        )
        return self._products.mul_(kept.selection).sum(1)

    def _weights(self, weight: Tensor, bias: Tensor) -> Tensor:
        R = weight.shape[0]
        weights = weight.new_empty(R, self.filters, 9 * self.channels + 1)
        kernels = weight.view(R, self.filters, self.channels, 3, 3).permute(0, 1, 3, 4, 2)
        weights[..., :-1].unflatten(-1, (3, 3, self.channels)).copy_(kernels)
        weights[..., -1] = bias
        return weights.unsqueeze(1).expand(R, 4, -1, -1).reshape(R * 4, self.filters, -1)


class Stage:
    """A stage in the middle, its convolution by Winograd's components."""

    def __init__(self, shape: Shape, filters: int, like: Tensor) -> None:
        R, _, _, _, C = self.shape = shape
        self._tiles = Tiles(shape, like)
        T = self.tiles = self._tiles.count
        self.filters, self.channels = filters, C
        self._weight_map, self._output_map = weight_map(like), output_map(like)
        self._selection_map = self._output_map.t().contiguous()
        # Scratch: `tangent` leaves its patches and weights here for `tangent_backward`.
        self._patches = like.new_empty(R, COMPONENTS, T, C)
        self._weights = like.new_empty(0)
        self._products = like.new_empty(R, COMPONENTS, T, filters)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Kept]:
        """x [R, N, H, W, C] (as tiles' order gives it) → values [R, T, K]."""
        R = self.shape[0]
        patches = torch.empty_like(self._patches)
        self._tiles.cut(x.view(self.shape), out=patches)
        weights = self._transformed(weight)
        products = self._products
        torch.bmm(patches.flatten(0, 1), weights.transpose(1, 2), out=products.flatten(0, 1))
        products[:, BIAS].add_(bias.unsqueeze(1))
        places = torch.matmul(self._output_map, products.flatten(2)).view(R, 4, self.tiles, self.filters)
        values, chosen = select(places)
        selection = torch.matmul(self._selection_map, chosen.flatten(2)).view(products.shape)
        return values, Kept(patches.flatten(0, 1), weights, selection)

    def backward(self, kept: Kept, slope: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """From the gradient by the values [R, T, K]: those by x [R, N, H, W, C] and by the products [R·c, T, K]."""
        by_products = (kept.selection * slope.view(self.shape[0], 1, self.tiles, self.filters)).flatten(0, 1)
        self._write(torch.bmm(by_products.transpose(1, 2), kept.patches), by_products, weight, bias)
        by_patches = torch.bmm(by_products, kept.weights, out=self._patches.flatten(0, 1))
        return self._tiles.paste(by_patches), by_products

    def tangent(self, kept: Kept, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        patches, products = self._patches.flatten(0, 1), self._products.flatten(0, 1)
        self._tiles.cut(x.view(self.shape), out=self._patches)
        self._weights = self._transformed(weight)
        torch.bmm(kept.patches, self._weights.transpose(1, 2), out=products)
        products.baddbmm_(patches, kept.weights.transpose(1, 2))
        self._products[:, BIAS].add_(bias.unsqueeze(1))
        return self._products.mul_(kept.selection).sum(1)

    def tangent_backward(self, kept: Kept, by_products: Tensor, slope: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The tangent of `backward`, after `tangent`: `by_products` as `backward` returned it, `slope` a tangent."""
        patches, by_products_dot = self._patches.flatten(0, 1), self._products.flatten(0, 1)
        torch.mul(kept.selection, slope.view(self.shape[0], 1, self.tiles, self.filters), out=self._products)
        by_weights = torch.bmm(by_products_dot.transpose(1, 2), kept.patches)
        by_weights.baddbmm_(by_products.transpose(1, 2), patches)
        self._write(by_weights, by_products_dot, weight, bias)
        by_patches = torch.bmm(by_products_dot, kept.weights, out=patches)
        by_patches.baddbmm_(by_products, self._weights)
        return self._tiles.paste(by_patches)

    def _transformed(self, weight: Tensor) -> Tensor:
        R, K, C = weight.shape[0], self.filters, self.channels
        return torch.matmul(self._weight_map, weight.view(R, K * C, 9).transpose(1, 2)).view(R * COMPONENTS, K, C)

    def _write(self, by_weights: Tensor, by_products: Tensor, weight: Tensor, bias: Tensor) -> None:
        R, K, C = weight.shape[0], self.filters, self.channels
        components = by_weights.view(R, COMPONENTS, K * C).transpose(1, 2)
        torch.bmm(components, self._weight_map.expand(R, COMPONENTS, 9), out=weight.view(R, K * C, 9))
        torch.sum(by_products.view(R, COMPONENTS, -1, K)[:, BIAS], 1, out=bias)


class RainbowStages:
    """All stages and their scratch space, for R replicates and N pictures."""

    def __init__(self, x_shape: Sequence[int], filters: Sequence[int], classes: int, like: Tensor) -> None:
        R, N, C, H, W = x_shape
        widths = [C, *filters]
        self.first = FirstStage((R, N, H, W, C), filters[0], like)
        self.rest: list[Stage] = []
        for c, k in pairwise(widths[1:]):
            H, W = H // 2, W // 2
            self.rest.append(Stage((R, N, H, W, c), k, like))
        self.pixels = (H // 2) * (W // 2)
        self.replicates, self.pictures, self.classes, self.features = R, N, classes, filters[-1]
        self.sizes = [n for c, k in pairwise(widths) for n in (9 * c * k, k)]
        self.sizes += [self.features * classes, classes]


class RainbowSweeps:
    """One pass through the stages, and what the three sweeps after it need of it."""

    def __init__(self, stages: RainbowStages, phi: Tensor, statistics: Tensor, x: Tensor) -> None:
        self._stages, self.statistics = stages, statistics  # there are none
        pieces = phi.split(stages.sizes, 1)
        y, kept = stages.first.forward(x.permute(0, 1, 3, 4, 2), pieces[0], pieces[1])
        self._kept = [kept]
        for depth, stage in enumerate(stages.rest, 1):
            y, kept = stage.forward(y, pieces[2 * depth], pieces[2 * depth + 1])
            self._kept.append(kept)
        self._by_products: list[Tensor] = []
        self._features = self._mean(y)
        self._head = pieces[-2].view(-1, stages.classes, stages.features)
        self.logits = torch.baddbmm(pieces[-1].unsqueeze(1), self._features, self._head.transpose(1, 2))

    def backward(self, slope: Tensor, gradient: Tensor) -> None:
        """Write the gradient [R, P] that belongs to the gradient by the logits, `slope` [R, N, classes]."""
        stages = self._stages
        pieces = gradient.split(stages.sizes, 1)
        self._slope = slope
        torch.bmm(slope.transpose(1, 2), self._features, out=pieces[-2].view(self._head.shape))
        torch.sum(slope, 1, out=pieces[-1])
        delta = self._unmean(torch.bmm(slope, self._head))
        for depth in range(len(stages.rest), 0, -1):
            stage, kept = stages.rest[depth - 1], self._kept[depth]
            delta, by_products = stage.backward(kept, delta, pieces[2 * depth], pieces[2 * depth + 1])
            self._by_products.insert(0, by_products)
        stages.first.backward(self._kept[0], delta.flatten(1, 3), pieces[0], pieces[1])

    def tangent(self, v: Tensor) -> Tensor:
        """The tangent of the logits along v [R, P]."""
        stages = self._stages
        pieces = v.split(stages.sizes, 1)
        y = stages.first.tangent(self._kept[0], pieces[0], pieces[1])
        for depth, stage in enumerate(stages.rest, 1):
            y = stage.tangent(self._kept[depth], y, pieces[2 * depth], pieces[2 * depth + 1])
        self._features_dot = self._mean(y)
        self._head_dot = pieces[-2].view(self._head.shape)
        logits = torch.baddbmm(pieces[-1].unsqueeze(1), self._features, self._head_dot.transpose(1, 2))
        return logits.baddbmm_(self._features_dot, self._head.transpose(1, 2))

    def tangent_backward(self, slope: Tensor, product: Tensor) -> None:
        """Write H v [R, P], for the tangent of the gradient by the logits; straight after `tangent`."""
        stages = self._stages
        pieces = product.split(stages.sizes, 1)
        by_head = torch.bmm(slope.transpose(1, 2), self._features)
        by_head.baddbmm_(self._slope.transpose(1, 2), self._features_dot)
        pieces[-2].copy_(by_head.flatten(1))
        torch.sum(slope, 1, out=pieces[-1])
        delta = self._unmean(torch.bmm(slope, self._head).baddbmm_(self._slope, self._head_dot))
        for depth in range(len(stages.rest), 0, -1):
            stage, kept, by_products = stages.rest[depth - 1], self._kept[depth], self._by_products[depth - 1]
            delta = stage.tangent_backward(kept, by_products, delta, pieces[2 * depth], pieces[2 * depth + 1])
        stages.first.backward(self._kept[0], delta.flatten(1, 3), pieces[0], pieces[1])

    def _mean(self, y: Tensor) -> Tensor:
        s = self._stages
        return y.view(s.replicates, s.pictures, s.pixels, s.features).mean(2) if s.pixels > 1 else y

    def _unmean(self, delta: Tensor) -> Tensor:
        s = self._stages
        return (delta / s.pixels).unsqueeze(2).expand(-1, -1, s.pixels, -1).reshape(s.replicates, -1, s.features)
