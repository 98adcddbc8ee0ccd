"""Decodes image files into one array on all cores, and reports each file that is not an image."""

import hashlib
import io
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault, readable
from streams.recipe import WHITE, Progress, silent
from streams.store.cache import cache_folder

if TYPE_CHECKING:
    from PIL import Image

_MODES = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"})
_DEEP_MODES = ("I", "F")
_DEEP_RAW_MODE = re.compile(r";16[BLN]$")  # not `BGR;16`, which is 16 bits per pixel
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"})

_BLOCK = 256
"""Images that are decoded together, whose contents are in memory."""
_MOST_IN_MEMORY = 1 << 28
"""Bytes of decoded images; more are in a temporary file, whose pages the system can move to the disk."""


@dataclass(frozen=True)
class Picture:
    """A decoded image.

    Attributes:
        image: in the mode L or RGB, upright, without transparency.
        transparent: whether the file has transparent pixels.
    """

    image: "Image.Image"
    transparent: bool


Content = Path | bytes | np.ndarray[Any, np.dtype[np.uint8]] | Picture | Exception | None
"""A file, a file's bytes, pixels [H, W] or [H, W, 3], an image, why it cannot be read, or None for no image."""


@dataclass(frozen=True)
class ImageFormat:
    """The format of stored images.

    Attributes:
        size: side in pixels.
        channels: 1 (grey) or 3 (red, green, blue).
        crop: side of the square, in pixels of the source; the shorter side of the image if None or larger.
        background: the colour that shows through transparent pixels, a name or a code that Pillow knows.
    """

    size: int
    channels: int
    crop: int | None = None
    background: str = WHITE


@dataclass(frozen=True)
class Decoded:
    """The images of n files.

    Attributes:
        pixels: uint8 [n, C, size, size]; rows of bad files are undefined.
        bad: one line for each file that is not a complete image, by its index.
        digest: sha256 (hex) over the names and contents of all n files, in their order.
        remarks: one line about transparent images, and one for each kind of Pillow's warnings.
    """

    pixels: npt.NDArray[np.uint8]
    bad: dict[int, str]
    digest: str
    remarks: tuple[str, ...]


def decode(
    root: Path,
    names: Sequence[str],
    form: ImageFormat,
    progress: Progress = silent,
    contents: Iterable[Content] | None = None,
) -> Decoded:
    """Decode images, crop the middle square of each, and resize it.

    Pillow releases the interpreter's lock, so that threads use all cores. Contents are read block by block.

    Args:
        root: the folder that `names` are relative to.
        names: the names of n images; paths of files without `contents`.
        form: the format of the results.
        progress: called with the number of decoded images.
        contents: of the n images; the files if None.

    Raises:
        SourceError: there are more or fewer contents than names.
    """
    pixels = pixel_table((len(names), form.channels, form.size, form.size))
    bad: dict[int, str] = {}
    transparent: list[int] = []
    digest = hashlib.sha256()

    def one(row: int, content: Content) -> bytes:
        path = root / names[row]
        if line := name_fault(root, names[row]):
            bad[row] = line
            return b""
        try:
            read = content.read_bytes() if isinstance(content, Path) else content
        except OSError as error:
            bad[row] = fault(path, "cannot be read", error.strerror)
            return b""
        if read is None or isinstance(read, Exception):
            bad[row] = fault(path, "holds no image") if read is None else fault(path, "cannot be read", read)
            return b""
        try:
            picture = _picture(read, form)
            pixels[row] = _middle(picture.image, form)
            if picture.transparent:
                transparent.append(row)
        except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error, ...
            bad[row] = fault(path, "is not a complete image", _reason(read, error))
        return hashlib.sha256(_stored_bytes(read)).digest()

    queue = iter((root / name for name in names) if contents is None else contents)
    done = 0
    with pillow_warnings() as remarks, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        while block := list(islice(queue, min(_BLOCK, len(names) - done + 1))):
            if done + len(block) > len(names):
                break
            for content_digest in pool.map(one, range(done, done + len(block)), block):
                digest.update(names[done].encode(errors="surrogateescape") + b"\0" + content_digest)
                done += 1
                progress("decoding images", done, len(names))
    if done != len(names) or block:
        raise SourceError(fault(root, f"must hold {len(names)} images, as listed", f"{done} or more", "it was changed"))
    if transparent:
        remarks.insert(0, transparency_remark(len(transparent), form.background))
    return Decoded(pixels, dict(sorted(bad.items())), digest.hexdigest(), tuple(remarks))


def name_fault(folder: Path, name: str) -> str:
    """One line if a file's name is not UTF-8, which manifests and tables are; empty otherwise."""
    return "" if readable(name) == name else fault(folder / name, "must have a name in UTF-8", remedy="rename it")


def pixel_table(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """A new table of pixels; a large one is mapped from a temporary file in the cache folder.

    Raises:
        OSError: the disk is full.
    """
    size = int(np.prod(shape))
    if size <= _MOST_IN_MEMORY:
        return np.empty(shape, dtype=np.uint8)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache_folder()) as file:
        if hasattr(os, "posix_fallocate"):  # a full disk is an error now, and not a signal when a page is written
            os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, dtype=np.uint8, mode="w+", shape=shape)


def is_colour(text: str) -> bool:
    """Whether Pillow knows an opaque colour by this name or code."""
    from PIL import ImageColor

    try:
        return len(ImageColor.getrgb(text)) == 3
    except ValueError:
        return False


def transparency_remark(count: int, background: str) -> str:
    """The line about images with transparent pixels."""
    return f"{count} images have transparent pixels, which are composited on {background}"


@contextmanager
def pillow_warnings() -> Iterator[list[str]]:
    """Collects Pillow's warnings, which would be printed with a line of source code, as one line for each kind."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # about any file of the process, when garbage is collected
        yield lines
    counts = Counter(type(each.message).__name__ for each in recorded)
    firsts = {type(each.message).__name__: each.message for each in reversed(recorded)}
    lines += [
        " ".join(f"{count} warnings of Pillow, such as {kind}: {firsts[kind]}".split())
        for kind, count in counts.items()
    ]


def _picture(content: "bytes | npt.NDArray[np.uint8] | Picture", form: ImageFormat) -> "Picture":
    from PIL import Image

    if isinstance(content, bytes):
        return read_picture(content, form.channels, form.background)
    shown = content if isinstance(content, Picture) else Picture(Image.fromarray(content), False)
    return Picture(shown.image.convert("RGB" if form.channels == 3 else "L"), shown.transparent)


def _stored_bytes(content: "bytes | npt.NDArray[np.uint8] | Picture") -> bytes:
    if isinstance(content, bytes):
        return content
    return content.image.tobytes() if isinstance(content, Picture) else content.tobytes()


def _reason(content: "bytes | npt.NDArray[np.uint8] | Picture", error: Exception) -> str:
    if isinstance(content, bytes) and not content:
        return "0 bytes"
    kind = type(error).__name__
    if isinstance(error, UnsupportedImageError):
        return str(error)
    return "not an image format that Pillow knows" if kind == "UnidentifiedImageError" else f"{kind}: {error}"


def _has_end(kind: str | None, content: bytes) -> bool:
    if kind == "PNG":
        return b"IEND\xaeB`\x82" in content
    return kind != "GIF" or content.rstrip(b"\0\r\n ").endswith(b";")


class UnsupportedImageError(ValueError):
    """An image that is complete and cannot be stored; `str` says why and what to do."""


def read_picture(content: bytes, channels: int, background: str = WHITE) -> Picture:
    """A complete image from a file's bytes, rotated upright by its EXIF data, with 8 bits per channel.

    Args:
        content: the file's bytes.
        channels: 1 (grey) or 3 (red, green, blue).
        background: the colour that transparent pixels are composited on.

    Raises:
        PIL.UnidentifiedImageError: the bytes are not an image.
        UnsupportedImageError: the image has too many bits or pixels, or a colour space that is not converted.
        Exception: the image is damaged; Pillow's decoders raise many types.
    """
    from PIL import Image  # imported late: only reading images needs it

    try:
        with Image.open(io.BytesIO(content)) as opened:
            picture = shown_picture(opened, "RGB" if channels == 3 else "L", background)
            if not _has_end(opened.format, content):  # Pillow does not check the end if it has all pixels
                raise OSError("the end of the file is missing")
            return picture
    except Image.DecompressionBombError as error:
        raise UnsupportedImageError(f"{str(error).rstrip('.')}; make the image smaller") from None


def shown_picture(opened: "Image.Image", mode: str, background: str = WHITE) -> Picture:
    """An image of Pillow as viewers show it: rotated upright by its EXIF data, with 8 bits per channel.

    Args:
        opened: the image, loaded or not.
        mode: L or RGB.
        background: the colour that transparent pixels are composited on.

    Raises:
        UnsupportedImageError: the image has too many bits, or a colour space that is not converted.
        Exception: the image is damaged; Pillow's decoders raise many types.
    """
    from PIL import Image, ImageOps

    if opened.mode.startswith(_DEEP_MODES) or _is_deep_colour(opened):
        raise UnsupportedImageError(f"{opened.mode} pixels have more than 8 bits; convert the image")
    opened.load()
    if opened.mode not in _MODES:
        raise UnsupportedImageError(f"{opened.mode} colours are not supported; convert the image to RGB")
    upright = ImageOps.exif_transpose(opened)
    if upright.has_transparency_data:
        straight = upright.convert("LA") if upright.mode == "La" else upright  # Pillow has no step from La to RGBA
        layer = straight.convert("RGBA")
        if layer.getchannel("A").getextrema() != (255, 255):
            below = Image.new("RGBA", layer.size, background)
            return Picture(Image.alpha_composite(below, layer).convert(mode), True)
    return Picture(upright.convert(mode), False)


def _is_deep_colour(opened: "Image.Image") -> bool:
    """Whether a file has 16 bits per channel, of which Pillow silently keeps 8 in the mode RGB.

    The arguments of Pillow's decoder show it: a raw mode such as `RGB;16B`, or the largest value of a PPM file.
    """
    arguments = [each for tile in getattr(opened, "tile", []) for each in _flat(tile[3])]
    deepest = max((each for each in arguments if isinstance(each, int)), default=0) if opened.format == "PPM" else 0
    return deepest > 255 or any(isinstance(each, str) and _DEEP_RAW_MODE.search(each) for each in arguments)


def _flat(arguments: object) -> Sequence[object]:
    return arguments if isinstance(arguments, tuple | list) else (arguments,)


def _middle(shown: "Image.Image", form: ImageFormat) -> npt.NDArray[np.uint8]:
    from PIL import Image

    width, height = shown.size
    side = min(width, height, form.crop or width)
    left, top = (width - side) // 2, (height - side) // 2
    middle = shown.crop((left, top, left + side, top + side))
    resized = middle.resize((form.size, form.size), Image.Resampling.BILINEAR)
    return np.asarray(resized, dtype=np.uint8).reshape(form.size, form.size, form.channels).transpose(2, 0, 1)
