"""Pictures by id, as float tensors on the learner's device.

Axis legend of this package: R replicates, N or B datapoints, V images per datapoint, C channels or
classes, H and W pixels, P parameters of one network, S batch-norm statistics of one network,
F features.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ViewArrays:
    """How a stored grey picture is drawn: geometry, then white ink on a background colour.

    ``source_index`` int64 [M, H·W, 4]: each drawn pixel is the mean of four stored ones; the index H·W
    stands for "outside the picture" and has the value 0. ``geometry`` int64 [views] chooses one of the M
    maps; ``background`` float [views, 3] lies in 0…1. Drawn pixel = d + (1 − d) · background.
    """

    source_index: np.ndarray
    geometry: np.ndarray
    background: np.ndarray


class ImageTable:
    """Every picture of a stream, addressed by id; ids say nothing about tasks.

    Without views an id is a row of ``pixels``; with views it is ``view * len(pixels) + row``. On the CPU the
    rows are read from the (memory-mapped) array; on a GPU the table is copied there once.
    """

    def __init__(
        self,
        pixels: np.ndarray,
        views: ViewArrays | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if pixels.dtype != np.uint8 or pixels.ndim != 4:
            raise ValueError(f"pixels must be uint8 [n, C, H, W], got {pixels.dtype} with shape {list(pixels.shape)}")
        self.device = torch.device(device)
        self.dtype = dtype
        self._rows = len(pixels)
        self._stored_shape = tuple(int(n) for n in pixels.shape[1:])
        self._host = pixels
        self._on_device = None if self.device.type == "cpu" else torch.from_numpy(pixels.copy()).to(self.device)
        self._views: tuple[Tensor, Tensor, Tensor] | None = None
        if views is not None:
            self._views = (
                torch.from_numpy(views.source_index.astype(np.int64)).to(self.device),
                torch.from_numpy(views.geometry.astype(np.int64)).to(self.device),
                torch.from_numpy(views.background.astype(np.float64)).to(self.device, dtype),
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a picture as the learner sees it."""
        _, height, width = self._stored_shape
        return (self._stored_shape[0] if self._views is None else 3, height, width)

    def gather(self, ids: Tensor) -> Tensor:
        """Pictures in 0…1 for ids [..., V]: [..., C, H, W] where V is 1, else [..., V, C, H, W]."""
        leading = ids.shape[:-1] if ids.shape[-1] == 1 else ids.shape
        flat = ids.reshape(-1)
        view, row = torch.div(flat, self._rows, rounding_mode="floor"), flat % self._rows
        if self._on_device is None:
            stored = torch.from_numpy(self._host[row.numpy()])
        else:
            stored = self._on_device[row.to(self.device)]
        pixels = stored.to(self.dtype).div_(255)
        if self._views is not None:
            pixels = self._draw(pixels, view.to(self.device))
        return pixels.reshape(*leading, *self.shape)

    def _draw(self, pixels: Tensor, view: Tensor) -> Tensor:
        assert self._views is not None
        source_index, geometry, background = self._views
        count, _, height, width = pixels.shape
        ink = torch.nn.functional.pad(pixels.reshape(count, height * width), (0, 1))
        index = source_index[geometry[view]].reshape(count, -1)
        drawn = ink.gather(1, index).reshape(count, 1, height * width, 4).mean(-1)
        colour = background[view].unsqueeze(-1)
        return drawn + (1 - drawn) * colour
