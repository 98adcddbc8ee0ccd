"""3×3 convolutions with padding 1 by Winograd's F(2×2, 3×3): 16 multiplications give a 2×2 tile of outputs, not 36.

The picture is cut into overlapping 4×4 tiles, one for each 2×2 tile of outputs, and taken to a basis of 16 components
in which a convolution is one matrix product per component. Inputs, weights and outputs go in and out of that basis by
linear maps, so tangents use the same maps, and gradients their transposes:

    tiles V = Bᵀ d B,   weights U = G w Gᵀ,   products M_c = V_c U_cᵀ for c = 1 … 16,   outputs Y = A M Aᵀ.

Source: Lavin & Gray 2016, "Fast Algorithms for Convolutional Neural Networks", section 4.1. All entries of B and A are
0 and ±1, so where a tile repeats along an axis, the equal outputs are equal to the last bit, as with a plain
convolution: max-pool's ties stay ties.

Axes: R replicates, N pictures, H×W pixels, C channels (last, so that every operation runs along them), T tiles. At
these sizes making a view costs as much as the arithmetic on it, so all views are made beforehand, with the tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

COMPONENTS = 16
BIAS = 10
"""The component that alone enters all four outputs of a tile with factor 1: a bias is added there."""

# Along one axis the components are d0 − d2, d1 − d3, d1 + d2, d2 − d1 (Lavin & Gray's 1st, 4th, 2nd and 3rd): in this
# order the first two are one operation.
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


class _CutAxis:
    """Bᵀ along one axis. `d01` and `d23` have their two entries, `components` its four, in dimension `at`."""

    def __init__(self, d01: Tensor, d23: Tensor, components: Tensor, at: int) -> None:
        self._d01, self._d23, self._d1, self._d2 = d01, d23, d01.select(at, 1), d23.select(at, 0)
        self._first_two = components.narrow(at, 0, 2)
        self._sum, self._difference = components.select(at, 2), components.select(at, 3)

    def run(self) -> None:
        torch.sub(self._d01, self._d23, out=self._first_two)
        torch.add(self._d1, self._d2, out=self._sum)
        torch.sub(self._d2, self._d1, out=self._difference)


class _PasteAxis:
    """B along one axis, overlapping tiles added: `components` has its four in dimension `at`, pixels are along `axis`.

    Of tile j, d1 = v1 − v2 + v3 falls on pixel 2j and d2 = v1 + v2 − v0 on 2j + 1; d3 = −v3 on pixel 2j + 2 and d0 = v0
    on 2j − 1 belong to its neighbours.
    """

    def __init__(self, components: Tensor, at: int, pixels: Tensor, axis: int) -> None:
        self._v0, self._v3, self._v1, self._v2 = components.unbind(at)
        tiles, length = self._v0.shape[axis], pixels.shape[axis]
        even = pixels[(slice(None),) * axis + (slice(0, None, 2),)]
        self._even, self._odd = even.narrow(axis, 0, tiles), pixels[(slice(None),) * axis + (slice(1, None, 2),)]
        self._later_even, self._v3_before = even.narrow(axis, 1, tiles - 1), self._v3.narrow(axis, 0, tiles - 1)
        self._earlier_odd, self._v0_after = self._odd.narrow(axis, 0, tiles - 1), self._v0.narrow(axis, 1, tiles - 1)
        self._last = (self._v3.select(axis, tiles - 1), even.select(axis, tiles)) if length % 2 else None

    def run(self) -> None:
        torch.sub(self._v1, self._v2, out=self._even).add_(self._v3)
        self._later_even.sub_(self._v3_before)
        if self._last is not None:
            torch.neg(self._last[0], out=self._last[1])
        torch.add(self._v1, self._v2, out=self._odd).sub_(self._v0)
        self._earlier_odd.add_(self._v0_after)


class Tiles:
    """The way from pictures [R, N, H, W, C] to their tiles [R, 16, T, C], T = N ⌊H/2⌋ ⌊W/2⌋, and its transpose.

    `cut` reads `pictures`, `paste` writes `pasted`, of the same shape. A last odd row or column of outputs is dropped,
    as max-pool drops it.
    """

    def __init__(self, pictures: Tensor, pasted: Tensor) -> None:
        R, N, H, W, C = pictures.shape
        h, w = H // 2, W // 2
        self._by_axis = (R, 4, 4, N, h, w, C)
        self.shape = (R, COMPONENTS, N * h * w, C)
        # The padded picture, columns sorted by parity, so that a tile's columns are runs over all tiles of a row. The
        # padding is written here and never again.
        padded = pictures.new_zeros(R, N, 2 * h + 2, 2, w + 1, C)
        interior = padded[:, :, 1 : H + 1]
        self._columns = (
            (interior[:, :, :, 1, : (W + 1) // 2], pictures[..., 0::2, :]),
            (interior[:, :, :, 0, 1 : W // 2 + 1], pictures[..., 1::2, :]),
        )
        by_row = padded.unflatten(2, (h + 1, 2))
        half_cut = pictures.new_empty(R, 4, N, h, 2, w + 1, C)
        self._cut_rows = _CutAxis(by_row[:, :, :h], by_row[:, :, 1:], half_cut.permute(0, 2, 3, 1, 4, 5, 6), 3)
        by_column = half_cut.permute(0, 1, 4, 2, 3, 5, 6)
        self._d01, self._d23 = by_column[..., :w, :], by_column[..., 1:, :]

        self._half_pasted = pictures.new_empty(R, 4, N, H, w, C)
        self._paste_columns = _PasteAxis(self._half_pasted, 1, pasted, 3)

    def cutting(self, tiles: Tensor) -> _CutAxis:
        """The last step of `cut`, for tiles [R, 16, T, C] to be written to."""
        return _CutAxis(self._d01, self._d23, tiles.view(self._by_axis), 2)

    def cut(self, cutting: _CutAxis) -> None:
        """Write the tiles of `pictures`."""
        for inside, columns in self._columns:
            inside.copy_(columns)
        self._cut_rows.run()
        cutting.run()

    def pasting(self, tiles: Tensor) -> _PasteAxis:
        """The first step of `paste`, for tiles [R, 16, T, C] to be read from."""
        return _PasteAxis(tiles.view(self._by_axis), 1, self._half_pasted, 3)

    def paste(self, pasting: _PasteAxis) -> None:
        """Write `pasted`, the transpose of `cut` applied to the tiles."""
        pasting.run()
        self._paste_columns.run()
