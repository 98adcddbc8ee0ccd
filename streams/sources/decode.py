"""Decodes image files into one array on all cores, and reports each file that is not an image."""

import hashlib
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streams.errors import fault
from streams.recipe import Progress, silent

if TYPE_CHECKING:
    from PIL import Image

_MODES = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"})


@dataclass(frozen=True)
class Decoded:
    """The images of n files.

    Attributes:
        pixels: uint8 [n, C, size, size]; rows of bad files are undefined.
        bad: one line for each file that is not a complete image, by its index.
        digest: sha256 (hex) over the names and contents of all n files, in their order.
    """

    pixels: npt.NDArray[np.uint8]
    bad: dict[int, str]
    digest: str


def decode(
    root: Path, names: Sequence[str], size: int, channels: int, crop: int | None = None, progress: Progress = silent
) -> Decoded:
    """Decode images, crop the middle square of each, and resize it.

    Pillow releases the interpreter's lock, so that threads use all cores.

    Args:
        root: the folder that `names` are relative to.
        names: paths of n files.
        size: side of the results, in pixels.
        channels: 1 (grey) or 3 (red, green, blue).
        crop: side of the square, in pixels of the source; the shorter side of the image if None or larger.
        progress: called with the number of decoded files.
    """
    pixels = np.empty((len(names), channels, size, size), dtype=np.uint8)
    bad: dict[int, str] = {}
    digest = hashlib.sha256()

    def one(row: int) -> bytes:
        path = root / names[row]
        try:
            content = path.read_bytes()
        except OSError as error:
            bad[row] = fault(path, "cannot be read", error.strerror)
            return b""
        try:
            pixels[row] = _image(content, size, channels, crop)
        except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error, ...
            bad[row] = fault(path, "is not a complete image", _reason(content, error))
        return hashlib.sha256(content).digest()

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done, content_digest in enumerate(pool.map(one, range(len(names)))):
            digest.update(names[done].encode() + b"\0" + content_digest)
            progress("decoding images", done + 1, len(names))
    return Decoded(pixels, dict(sorted(bad.items())), digest.hexdigest())


def _reason(content: bytes, error: Exception) -> str:
    if not content:
        return "0 bytes"
    kind = type(error).__name__
    return "not an image format that Pillow knows" if kind == "UnidentifiedImageError" else f"{kind}: {error}"


def _has_end(kind: str | None, content: bytes) -> bool:
    if kind == "PNG":
        return b"IEND\xaeB`\x82" in content
    return kind != "GIF" or content.rstrip(b"\0\r\n ").endswith(b";")


def read_picture(content: bytes) -> "Image.Image":
    """A complete image from a file's bytes, rotated upright by its EXIF data, with at most 8 bits per channel.

    Raises:
        PIL.UnidentifiedImageError: the bytes are not an image.
        ValueError: the pixels have more than 8 bits per channel.
        Exception: the image is damaged; Pillow's decoders raise many types.
    """
    from PIL import Image, ImageOps  # imported late: only reading images needs it

    with Image.open(io.BytesIO(content)) as opened:
        opened.load()
        if not _has_end(opened.format, content):  # Pillow does not check the end if it has all pixels
            raise OSError("the end of the file is missing")
        if opened.mode not in _MODES:
            raise ValueError(f"{opened.mode} pixels have more than 8 bits; convert the image")
        return ImageOps.exif_transpose(opened)


def _image(content: bytes, size: int, channels: int, crop: int | None) -> npt.NDArray[np.uint8]:
    from PIL import Image

    shown = read_picture(content).convert("RGB" if channels == 3 else "L")
    width, height = shown.size
    side = min(width, height, crop or width)
    left, top = (width - side) // 2, (height - side) // 2
    middle = shown.crop((left, top, left + side, top + side))
    resized = middle.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized, dtype=np.uint8).reshape(size, size, channels).transpose(2, 0, 1)
