"""Images by id, as float tensors on the learner's device."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ViewArrays:
    """Views of stored images: a geometric map, then the image as ink on a background colour.

    A drawn pixel is d + (1 − d) · background in each channel, where d is the mean of four stored pixels; a grey
    image has the same d in all three.

    Attributes:
        source_index: int64 [M, H·W, 4], for each of M maps the four stored pixels; index H·W is a pixel of value 0
            outside the image.
        geometry: int64 [views], the map of each view.
        background: float [views, 3], the colour of each view, in 0…1.
    """

    source_index: np.ndarray
    geometry: np.ndarray
    background: np.ndarray


class ImageTable:
    """All images of a stream, addressed by ids, which carry no information about tasks.

    Without views an id is a row of `pixels` (uint8 [n, C, H, W]); with views it is ``view * len(pixels) + row``. On the
    CPU rows are read from the memory-mapped array; on a GPU the table is copied to the device once.
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
        """(C, H, W) of the images that `gather` returns."""
        _, height, width = self._stored_shape
        return (self._stored_shape[0] if self._views is None else 3, height, width)

    def gather(self, ids: Tensor) -> Tensor:
        """Images in 0…1 for ids [..., V]: float [..., C, H, W] if V is 1, else [..., V, C, H, W]."""
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
        count, channels, height, width = pixels.shape
        ink = torch.nn.functional.pad(pixels.reshape(count, channels, height * width), (0, 1))
        index = source_index[geometry[view]].reshape(count, 1, -1).expand(-1, channels, -1)
        shade = ink.gather(2, index).reshape(count, channels, height * width, 4).mean(-1)
        colour = background[view].unsqueeze(-1)
        return shade + (1 - shade) * colour
