"""3×3 convolutions with padding 1 by Winograd's F(2×2, 3×3): 16 multiplications give a 2×2 tile of outputs, not 36.

The picture is cut into overlapping 4×4 tiles, one for each 2×2 tile of outputs, and taken to a basis of 16 components
in which a convolution is one matrix product per component. Inputs, weights and outputs go in and out of that basis by
linear maps, so tangents use the same maps, and gradients their transposes:

    tiles V = Bᵀ d B,   weights U = G w Gᵀ,   products M_c = V_c U_cᵀ for c = 1 … 16,   outputs Y = A M Aᵀ.

Source: Lavin & Gray 2016, "Fast Algorithms for Convolutional Neural Networks", section 4.1. All entries of B and A are
0 and ±1, so where a tile repeats along an axis, the equal outputs are equal to the last bit, as with a plain
convolution: max-pool's ties stay ties.

Axes: R replicates, N pictures, H×W pixels, C channels (last, so that every operation runs along them).
"""

from __future__ import annotations

import torch
from torch import Tensor

COMPONENTS = 16
BIAS = 10
"""The component that alone enters all four outputs of a tile with factor 1: a bias is added there."""

# Along one axis, component by component in the order that lets `Tiles` make two at a time: d0 − d2, d1 − d3, d1 + d2,
# d2 − d1 (Lavin & Gray's 1st, 4th, 2nd and 3rd).
_G = ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5))
_A = ((1.0, 0.0, 1.0, 1.0), (0.0, -1.0, 1.0, -1.0))


def weight_map(like: Tensor) -> Tensor:
    """From the 9 weights of a kernel to its 16 components: [16, 9]."""
    g = like.new_tensor(_G)
    return torch.kron(g, g)


def output_map(like: Tensor) -> Tensor:
    """From 16 components to the 4 outputs of a tile, row by row: [4, 16]."""
    a = like.new_tensor(_A)
    return torch.kron(a, a)


class Tiles:
    """From pictures [R, N, H, W, C] to their tiles [R, 16, T, C], T = N ⌊H/2⌋ ⌊W/2⌋, and the transpose of that.

    Made once for a shape: the scratch space and every view into it are ready before the first call, for at these sizes
    making them costs as much as the arithmetic. A last odd row or column of outputs is dropped, as max-pool drops it.
    """

    def __init__(self, shape: tuple[int, int, int, int, int], like: Tensor) -> None:
        R, N, H, W, C = self.shape = shape
        h, w = self._tiles = H // 2, W // 2
        self.count = N * h * w
        self._odd_height, self._odd_width = H % 2 == 1, W % 2 == 1

        # The padded picture, columns sorted by parity, so that a tile's columns are runs over all tiles of a row. The
        # padding is written here and never again.
        padded = like.new_zeros(R, N, 2 * h + 2, 2, w + 1, C)
        interior = padded[:, :, 1 : H + 1]
        self._even_columns = interior[:, :, :, 1, : (W + 1) // 2]
        self._odd_columns = interior[:, :, :, 0, 1 : W // 2 + 1]
        pairs = padded.unflatten(2, (h + 1, 2))
        self._row_01, self._row_23 = pairs[:, :, :h], pairs[:, :, 1:]
        self._row_1, self._row_2 = self._row_01[:, :, :, 1], self._row_23[:, :, :, 0]
        # With rows done: components by row [R, 4, N, h, parity, w + 1, C].
        rows = like.new_empty(R, 4, N, h, 2, w + 1, C)
        self._rows = rows[:, 0:2].permute(0, 2, 3, 1, 4, 5, 6), rows[:, 2], rows[:, 3]
        self._column_01 = rows[..., :w, :].permute(0, 1, 4, 2, 3, 5, 6)
        self._column_23 = rows[..., 1:, :].permute(0, 1, 4, 2, 3, 5, 6)
        self._column_1, self._column_2 = self._column_01[:, :, 1], self._column_23[:, :, 0]

        # The transpose: components by column [R, 4, N, H, w, C] after the rows, then pictures.
        folded = like.new_empty(R, 4, N, H, w, C)
        self._even_rows, self._odd_rows = folded[:, :, :, 0::2], folded[:, :, :, 1::2]
        self._components = folded.unbind(1)
        self._picture = like.new_empty(shape)
        self._even, self._odd = self._picture[..., 0::2, :], self._picture[..., 1::2, :]

    def cut(self, x: Tensor, out: Tensor) -> None:
        """Write the tiles of x [R, N, H, W, C] into `out` [R, 16, T, C]."""
        self._even_columns.copy_(x[..., 0::2, :])
        self._odd_columns.copy_(x[..., 1::2, :])
        differences, sums, reverse = self._rows
        torch.sub(self._row_01, self._row_23, out=differences)
        torch.add(self._row_1, self._row_2, out=sums)
        torch.sub(self._row_2, self._row_1, out=reverse)
        v = self._by_axis(out)
        torch.sub(self._column_01, self._column_23, out=v[:, :, 0:2])
        torch.add(self._column_1, self._column_2, out=v[:, :, 2])
        torch.sub(self._column_2, self._column_1, out=v[:, :, 3])

    def paste(self, tiles: Tensor) -> Tensor:
        """The transpose of `cut`: [R, 16, T, C] to [R, N, H, W, C], valid until the next call."""
        h, w = self._tiles
        v0, v3, v1, v2 = self._by_axis(tiles).unbind(1)
        # d1 = v1 − v2 + v3 and d3 = −v3 fall on even pixels, d2 = v1 + v2 − v0 and d0 = v0 on odd ones.
        even, odd = self._even_rows, self._odd_rows
        torch.sub(v1, v2, out=even[:, :, :, :h]).add_(v3)
        even[:, :, :, 1:h].sub_(v3[:, :, :, :-1])
        if self._odd_height:
            torch.neg(v3[:, :, :, -1], out=even[:, :, :, h])
        torch.add(v1, v2, out=odd).sub_(v0)
        odd[:, :, :, : h - 1].add_(v0[:, :, :, 1:])

        v0, v3, v1, v2 = self._components
        even, odd = self._even, self._odd
        torch.sub(v1, v2, out=even[..., :w, :]).add_(v3)
        even[..., 1:w, :].sub_(v3[..., :-1, :])
        if self._odd_width:
            torch.neg(v3[..., -1, :], out=even[..., w, :])
        torch.add(v1, v2, out=odd).sub_(v0)
        odd[..., : w - 1, :].add_(v0[..., 1:, :])
        return self._picture

    def _by_axis(self, tiles: Tensor) -> Tensor:
        R, N, _, _, C = self.shape
        return tiles.view(R, 4, 4, N, *self._tiles, C)
