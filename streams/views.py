"""Views: a stored image, drawn on a colour, at full or half scale, rotated, or with its pixels permuted.

The Rainbow streams show the same digits in 56 views; others permute or rotate the pixels. A digit is stored once, and
an image id names a digit in a view:
`image_id = view * count + row`. `draw` is the reference implementation; learners compute the same on their device from
the arrays `source_index`, `geometry` and `background`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.randomness import generator

OUTSIDE_VALUE = 0.0


@dataclass(frozen=True)
class View:
    """One way to draw an image.

    Attributes:
        background: red, green and blue, each 0..255.
        scale: 1 or 0.5.
        rotation: degrees counter-clockwise, 0 to 359; multiples of 90 as `numpy.rot90`, others to the nearest pixel.
        permutation: the seed of a permutation of the pixels; None if they keep their places.

    Raises:
        ValueError: a colour outside 0..255, a scale other than 1 or 0.5, or a rotation outside 0..359; or a rotation
            that is no multiple of 90, or a permutation, with another change of place.
    """

    background: tuple[int, int, int]
    scale: float = 1.0
    rotation: int = 0
    permutation: int | None = None

    def __post_init__(self) -> None:
        if len(self.background) != 3 or not all(0 <= channel <= 255 for channel in self.background):
            raise ValueError(f"background must be three numbers within 0..255, but got {self.background}")
        if self.scale not in (1.0, 0.5):
            raise ValueError(f"scale must be 1 or 0.5, but got {self.scale}")
        if not 0 <= self.rotation < 360:
            raise ValueError(f"rotation must be within 0..359, but got {self.rotation}")
        if self.rotation % 90 and self.scale != 1.0:
            raise ValueError(f"a rotation by {self.rotation} degrees needs scale 1, but got {self.scale}")
        if self.permutation is not None and (self.permutation < 0 or self.rotation or self.scale != 1.0):
            raise ValueError(f"a permutation must be 0 or above, with scale 1 and rotation 0, but got {self}")

    @property
    def format_version(self) -> int:
        """The version of the store's format that introduced this view."""
        return 2 if self.rotation % 90 or self.permutation is not None else 1

    @property
    def geometry(self) -> tuple[float, int, int | None]:
        """What determines the places of pixels: scale, rotation and permutation."""
        return self.scale, self.rotation, self.permutation


@dataclass(frozen=True)
class Views:
    """The views in which the images of a store [1 or 3, height, width] are drawn.

    Attributes:
        items: the views, in the order of their numbers.
        height: of an image, in pixels.
        width: of an image, in pixels.

    Raises:
        ValueError: a scale of 0.5 with sides that are not multiples of 4 (2x2 means, an even border), or a rotation by
            other than 0 or 180 degrees with images that are not square.
    """

    items: tuple[View, ...]
    height: int
    width: int

    def __post_init__(self) -> None:
        if any(view.scale == 0.5 for view in self.items) and (self.height % 4 or self.width % 4):
            raise ValueError(f"half scale needs sides that are multiples of 4, but got {self.height}x{self.width}")
        if any(view.rotation % 180 for view in self.items) and self.height != self.width:
            raise ValueError(f"a quarter turn needs square images, but got {self.height}x{self.width}")

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def geometries(self) -> tuple[tuple[float, int, int | None], ...]:
        """The M distinct (scale, rotation, permutation), in order of first appearance."""
        return tuple(dict.fromkeys(view.geometry for view in self.items))

    @cached_property
    def source_index(self) -> npt.NDArray[np.int64]:
        """int64 [M, H*W, 4]: a drawn pixel is the mean of these four stored pixels; H*W stands for 0, outside."""
        return np.stack([_source_index(self.height, self.width, *geometry) for geometry in self.geometries])

    @cached_property
    def geometry(self) -> npt.NDArray[np.int64]:
        """int64 [views]: the index of the geometry of each view in `geometries`."""
        order = {key: index for index, key in enumerate(self.geometries)}
        return np.array([order[view.geometry] for view in self.items], dtype=np.int64)

    @cached_property
    def background(self) -> npt.NDArray[np.float32]:
        """float32 [views, 3]: the colour of each view, 0..1."""
        return np.array([view.background for view in self.items], dtype=np.float32) / np.float32(255)

    def to_json(self) -> list[dict[str, Any]]:
        """The entry of the manifest."""
        return [
            {
                **{key: value for key, value in asdict(view).items() if value is not None},
                "background": list(view.background),
            }
            for view in self.items
        ]

    @classmethod
    def from_json(cls, items: Sequence[dict[str, Any]], height: int, width: int) -> "Views":
        """The inverse of `to_json`, for images of `height` x `width`."""
        views = tuple(
            View(_rgb(item["background"]), float(item["scale"]), int(item["rotation"]), item.get("permutation"))
            for item in items
        )
        return cls(views, height, width)


def _rgb(values: Sequence[int]) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in values)
    return red, green, blue


def _source_index(
    height: int, width: int, scale: float, rotation: int, permutation: int | None
) -> npt.NDArray[np.int64]:
    index = np.arange(height * width, dtype=np.int64).reshape(height, width)
    if permutation is not None:
        index = generator(permutation, "views/permutation").permutation(index.reshape(-1)).reshape(height, width)
    if rotation % 90:
        return np.repeat(_turned(index, rotation).reshape(-1, 1), 4, axis=1)
    if scale == 1.0:
        four = np.stack([index] * 4, axis=-1)
    else:
        corners = [index[row::2, column::2] for row in (0, 1) for column in (0, 1)]
        four = np.full((height, width, 4), height * width, dtype=np.int64)
        top, left = height // 4, width // 4
        four[top : top + height // 2, left : left + width // 2] = np.stack(corners, axis=-1)
    return np.rot90(four, rotation // 90).reshape(height * width, 4)


def _turned(index: npt.NDArray[np.int64], rotation: int) -> npt.NDArray[np.int64]:
    """The stored pixel nearest to each pixel of an image rotated about its centre; the number of pixels if outside."""
    side, angle = len(index), np.deg2rad(rotation)
    row, column = np.indices(index.shape) - (side - 1) / 2
    # The place before the rotation, to a millionth of a pixel, so that rounding is the same on all machines.
    source_row = np.round(row * np.cos(angle) + column * np.sin(angle), 6) + (side - 1) / 2
    source_column = np.round(-row * np.sin(angle) + column * np.cos(angle), 6) + (side - 1) / 2
    rows, columns = (np.floor(each + 0.5).astype(np.int64) for each in (source_row, source_column))
    inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
    return np.where(inside, index[rows.clip(0, side - 1), columns.clip(0, side - 1)], index.size)


def draw(pixels: npt.NDArray[np.uint8], views: Views, image_ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Images in their views: `d + (1 - d) * background` per channel for a value d, not rounded.

    Args:
        pixels: uint8 [n, 1 or 3, H, W], the stored images; the value of a grey one is that of all three channels.
        views: the views of the store.
        image_ids: integers of any shape [...], `view * n + row`.

    Returns:
        float32 [..., 3, H, W] in 0..1.

    Raises:
        ValueError: an image id outside 0..views*n-1.
    """
    ids = np.asarray(image_ids, dtype=np.int64)
    count, channels, height, width = pixels.shape
    if channels not in (1, 3) or (height, width) != (views.height, views.width):
        raise ValueError(f"pixels must be [n, 1 or 3, {views.height}, {views.width}], but got {list(pixels.shape)}")
    if ids.size and not (ids.min() >= 0 and ids.max() < len(views) * count):
        raise ValueError(f"image ids must be within 0..{len(views) * count - 1}, but got {ids.min()}..{ids.max()}")
    flat = ids.reshape(-1)
    view, row = flat // count, flat % count
    bordered = np.full((flat.size, channels, height * width + 1), OUTSIDE_VALUE, dtype=np.float32)
    bordered[:, :, :-1] = pixels[row].reshape(flat.size, channels, -1)
    index = views.source_index[views.geometry[view]].reshape(flat.size, 1, -1)
    four = np.take_along_axis(bordered, index, axis=2).reshape(flat.size, channels, height * width, 4)
    digit = four.sum(axis=-1) / np.float32(4 * 255)
    images: npt.NDArray[np.float32] = digit + (1 - digit) * views.background[view][:, :, None]
    return images.reshape(*ids.shape, 3, height, width)
