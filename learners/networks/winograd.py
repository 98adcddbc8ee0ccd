"""3×3 convolutions with padding 1 by Winograd's F(2×2, 3×3): 16 multiplications give a 2×2 tile of outputs, not 36.

The image is divided into overlapping 4×4 tiles, one for each 2×2 tile of outputs. In a basis of 16 components a
convolution is one matrix product per component. Inputs and weights are transformed into this basis, and outputs out of
it, by linear maps; so tangents use the same maps, and gradients their transposes:

    tiles V = Bᵀ d B,   weights U = G w Gᵀ,   products M_c = V_c U_cᵀ for c = 1 … 16,   outputs Y = A M Aᵀ.

Source: Lavin & Gray 2016, "Fast Algorithms for Convolutional Neural Networks", section 4.1. All entries of B and A are
0 and ±1, so where a tile repeats along an axis, equal outputs are equal bit for bit, as with a plain convolution:
ties of the max-pool stay ties.

Channels are the last axis, so that every operation is vectorised over them. For tensors this small, creating a view
costs as much as the arithmetic on it; all views are created once, with the tensors.
"""

import torch
from torch import Tensor

COMPONENTS = 16
BIAS = 10
"""The only component with factor 1 in all four outputs of a tile: the bias is added to it."""

# Along one axis the components are d0 − d2, d1 − d3, d1 + d2, d2 − d1: Lavin & Gray's 1st, 4th, 2nd and 3rd. In this
# order the first two are computed alike.
_G = ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5))
_A = ((1.0, 0.0, 1.0, 1.0), (0.0, -1.0, 1.0, -1.0))


def weight_map(like: Tensor) -> Tensor:
    """The map [16, 9] from the 9 weights of a kernel to its 16 components."""
    g = like.new_tensor(_G)
    return torch.kron(g, g)


def output_map(like: Tensor) -> Tensor:
    """The map [4, 16] from 16 components to the 4 outputs of a tile, row by row."""
    a = like.new_tensor(_A)
    return torch.kron(a, a)


class _AxisTransform:
    """The transform along one axis. Tile j has pixels 2j − 1, 2j, 2j + 1 and 2j + 2 as d0 … d3, 0 outside the image.

    `axis` is the axis of the pixels in `pixels` and of the tiles in `components`; the four components are dimension
    `at`. A last odd pixel starts no tile.
    """

    def __init__(self, pixels: Tensor, components: Tensor, at: int, axis: int) -> None:
        alternate = [(slice(None),) * axis + (slice(start, None, 2),) for start in (0, 1)]
        even, odd = (pixels[index] for index in alternate)
        tiles, pairs = odd.shape[axis], even.shape[axis] - 1
        self._v0, self._v3, self._v1, self._v2 = components.unbind(at)
        self._d1, self._d2 = even.narrow(axis, 0, tiles), odd
        # All tiles but the first have a d0, which is the d2 of the previous tile.
        self._d0, self._d2_with_d0 = odd.narrow(axis, 0, tiles - 1), odd.narrow(axis, 1, tiles - 1)
        self._v0_with_d0 = self._v0.narrow(axis, 1, tiles - 1)
        self._first = self._v0.select(axis, 0), odd.select(axis, 0)
        # All tiles have a d3 (pixels 2, 4, …), or all but the last.
        self._d3, self._d1_with_d3 = even.narrow(axis, 1, pairs), even.narrow(axis, 0, pairs)
        self._v3_with_d3 = self._v3.narrow(axis, 0, pairs)
        self._last = (self._v3.select(axis, pairs), even.select(axis, pairs)) if pairs < tiles else None
        # If all tiles have one, the last d3 is a pixel that is not the d1 of any tile.
        self._d3_and_d1, self._v3_before = even.narrow(axis, 1, tiles - 1), self._v3.narrow(axis, 0, tiles - 1)
        self._beyond = (even.select(axis, tiles), self._v3.select(axis, tiles - 1)) if pairs == tiles else None

    def forward(self) -> None:
        """Write the components from the pixels: Bᵀ."""
        torch.sub(self._d0, self._d2_with_d0, out=self._v0_with_d0)
        torch.neg(self._first[1], out=self._first[0])
        torch.sub(self._d1_with_d3, self._d3, out=self._v3_with_d3)
        if self._last is not None:
            self._last[0].copy_(self._last[1])
        torch.add(self._d1, self._d2, out=self._v1)
        torch.sub(self._d2, self._d1, out=self._v2)

    def transpose(self) -> None:
        """Write the pixels from the components, the sum over overlapping tiles: B."""
        torch.sub(self._v1, self._v2, out=self._d1).add_(self._v3)
        self._d3_and_d1.sub_(self._v3_before)
        if self._beyond is not None:
            torch.neg(self._beyond[1], out=self._beyond[0])
        torch.add(self._v1, self._v2, out=self._d2).sub_(self._v0)
        self._d0.add_(self._v0_with_d0)


class TileTransform:
    """The map from images [R, N, H, W, C] to their tiles [R, 16, T, C], T = N ⌊H/2⌋ ⌊W/2⌋, and its transpose.

    `half` [R, 4, N, H, ⌊W/2⌋, C] is temporary memory. A last odd row or column of outputs is dropped, as by max-pool.
    """

    def __init__(self, images: Tensor, tiles: Tensor, half: Tensor) -> None:
        R, N, H, W, C = images.shape
        self._columns = _AxisTransform(images, half, 1, 3)
        self._rows = _AxisTransform(half, tiles.view(R, 4, 4, N, H // 2, W // 2, C), 1, 3)

    def forward(self) -> None:
        """Write the tiles from the images."""
        self._columns.forward()
        self._rows.forward()

    def transpose(self) -> None:
        """Write the images from the tiles."""
        self._rows.transpose()
        self._columns.transpose()
