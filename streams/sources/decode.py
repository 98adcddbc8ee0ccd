"""Many image files into one array, on all cores, with every bad file named."""

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
    """What became of n files.

    Attributes:
        pixels: uint8 [n, C, size, size]; rows of bad files hold nothing of meaning.
        bad: one line for each file that is no whole image, by its place in the list.
        digest: sha256 (hex) over the names and contents of all n files, in their order.
    """

    pixels: npt.NDArray[np.uint8]
    bad: dict[int, str]
    digest: str


def decode(
    root: Path, names: Sequence[str], size: int, channels: int, crop: int | None = None, progress: Progress = silent
) -> Decoded:
    """Decode images, cut the middle square out of each, and resize it.

    Pillow decodes without the interpreter's lock, so threads use every core.

    Args:
        root: the folder that the names are below.
        names: paths of n files.
        size: side of the results, in pixels.
        channels: 1 (grey) or 3 (red, green, blue).
        crop: side of the square, in pixels of the source; the image's shorter side where that is less or None is given.
        progress: told of the number of files done.
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
        except Exception as error:  # Pillow's decoders raise many kinds: OSError, SyntaxError, struct.error, ...
            bad[row] = fault(path, "is no whole image", _reason(content, error))
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
    """A picture from a file's bytes, whole, upright as its camera was held, and of at most 8 bits a channel.

    Raises:
        PIL.UnidentifiedImageError: it is no picture.
        Exception: it is damaged (Pillow's decoders raise many kinds), or a ValueError where its pixels are deeper.
    """
    from PIL import Image, ImageOps  # only what reads pictures needs it

    with Image.open(io.BytesIO(content)) as opened:
        opened.load()
        if not _has_end(opened.format, content):  # Pillow does not ask for it where all pixels came
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
