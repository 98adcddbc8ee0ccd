"""Reads images in NumPy arrays: files with x and y, those of MedMNIST, and folders of one array per class."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streams.errors import SourceError, fault
from streams.sources.decode import Content, name_fault
from streams.sources.folder import SPLIT_OF
from streams.sources.image_files import Listing, shortened
from streams.sources.labels import ONE_LABEL, class_labels

FILES = frozenset({".npz", ".npy"})
_X = ("x", "images", "image", "data", "X")
_Y = ("y", "labels", "label", "targets", "Y")
_DAMAGE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


@dataclass(frozen=True)
class _Part:
    """Images of one array.

    Attributes:
        name: of the array, for errors.
        images: [n, H, W], [n, H, W, C] or [n, C, H, W]; mapped if it is a `.npy` file.
        labels: [n].
        split: the name of the pool; None if the source gives none.
    """

    name: str
    images: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    split: str | None = None


def list_arrays(root: Path, given_split: bool = True) -> Listing:
    """List the images of a `.npz` file, of a folder with `x.npy` and `y.npy`, or of one with a `.npy` file per class.

    An `.npz` file holds `x` and `y`, or `x_train`, `y_train`, `x_test`, ... as Keras does, or `train_images`,
    `train_labels`, `val_images`, ... as MedMNIST does. Files of classes hold [n, 784] bytes, as Quick, Draw! does.
    Images are uint8, grey or with three channels, first or last. A `.npy` file is mapped, and not read into memory.

    Raises:
        SourceError: one line for every array that cannot be read, has another shape or type, or has no labels.
    """
    is_npz = root.is_file() and root.suffix.lower() == ".npz"
    paths = [root] if is_npz else _npy_files(root if root.is_dir() else root.parent)  # x.npy is beside y.npy
    if not paths:
        rule, remedy = "data: must hold .npy files in the folder itself", "name the folder that holds them"
        raise SourceError(fault(root, rule, "none", remedy))
    arrays = _npz(root) if is_npz else {path.stem: _npy(path) for path in paths}
    remarks = []
    if root.is_dir() and not _pairs(arrays):
        if faults := [line for path in paths if (line := name_fault(path.parent, path.name))]:
            raise SourceError(*faults)
        parts, form = _class_parts(arrays), "one array per class"
    else:
        parts, form = _parts(arrays, root), "arrays of images and labels"
        if others := sorted({*arrays}.difference(*(pair[:2] for pair in _pairs(arrays)))):
            remarks = [f"{len(others)} other arrays are left out: {', '.join(shortened(others, '{} more', 5))}"]
    faults = [line for part in parts for line in _faults(part, root)]
    if faults:
        raise SourceError(*faults)
    names = [f"{part.name}[{row}]" for part in parts for row in range(len(part.images))]
    try:
        column = pa.chunked_array([pa.array(np.concatenate([part.labels for part in parts]))])
    except (pa.ArrowException, TypeError):
        kinds = ", ".join(dict.fromkeys(str(part.labels.dtype) for part in parts))
        raise SourceError(fault(root, "labels must be whole numbers or text", kinds)) from None
    labels = class_labels(column, root)
    splits = None
    if given_split and any(part.split for part in parts):
        splits = [SPLIT_OF[part.split or "train"] for part in parts for _ in range(len(part.images))]
        if 0 not in splits:
            raise SourceError(fault(root, "must have training images", ", ".join(part.name for part in parts)))
    return Listing(
        form,
        root,
        names,
        [str(label) for label in labels.of_rows],
        remarks=remarks,
        splits=splits,
        class_names=labels.names,
        contents=lambda: _contents(parts),
        paths=paths,
    )


def _npy_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() == ".npy" and not path.name.startswith("."))


def _npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except _DAMAGE as error:
        raise SourceError(_unreadable(path, error)) from None


def _npy(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except _DAMAGE as error:
        raise SourceError(_unreadable(path, error)) from None
    return array


def _pairs(arrays: dict[str, npt.NDArray[Any]]) -> list[tuple[str, str, str | None]]:
    """(name of images, name of labels, split) of the arrays whose names are usual, in the order of the pools."""
    pairs: list[tuple[str, str, str | None]] = []
    for x, y in zip(_X, _Y, strict=True):
        if x in arrays and y in arrays:
            pairs.append((x, y, None))
        for split in SPLIT_OF:
            for left, right in ((f"{x}_{split}", f"{y}_{split}"), (f"{split}_{x}", f"{split}_{y}")):
                if left in arrays and right in arrays:
                    pairs.append((left, right, split))
    return sorted(pairs, key=lambda pair: -1 if pair[2] is None else SPLIT_OF[pair[2]])


def _parts(arrays: dict[str, npt.NDArray[Any]], root: Path) -> list[_Part]:
    pairs = _pairs(arrays)
    if not pairs:
        rule = "must hold arrays x and y, x_train and y_train, or train_images and train_labels"
        raise SourceError(fault(root, rule, ", ".join(sorted(arrays)) or "none"))
    parts = []
    for x, y, split in pairs:
        labels = arrays[y]
        if labels.ndim == 2 and labels.shape[1] == 1:  # as MedMNIST has them
            labels = labels[:, 0]
        parts.append(_Part(x, arrays[x], labels, split))
    return parts


def _class_parts(arrays: dict[str, npt.NDArray[Any]]) -> list[_Part]:
    """One part for each file, whose name is the class; Quick, Draw! puts `full_numpy_bitmap_` before it."""
    parts = []
    for name, images in arrays.items():
        label = name.removeprefix("full_numpy_bitmap_")
        side = isqrt(images.shape[1]) if images.ndim == 2 else 0
        if side and side * side == images.shape[1]:
            images = images.reshape(-1, side, side)
        parts.append(_Part(name, images, np.full(images.shape[:1] or 0, label)))
    return parts


def _faults(part: _Part, root: Path) -> Iterator[str]:
    where, shape = f"{root}: {part.name}", part.images.shape
    if part.images.dtype != np.uint8:
        yield fault(where, "images must be uint8, 0 to 255", part.images.dtype, "round and convert them")
    if len(shape) not in (3, 4) or not all(shape):
        yield fault(where, "images must be [n, H, W], [n, H, W, C] or [n, C, H, W]", list(shape))
    elif len(shape) == 4 and not {shape[1], shape[3]} & {1, 3}:
        rule = "images must have 1 or 3 channels; others are not supported"
        yield fault(where, rule, list(shape), "choose three channels")
    count = shape[0] if shape else 0
    if part.labels.shape != (count,):
        rule = f"must have {count} labels, [n]; {ONE_LABEL}"
        yield fault(where, rule, list(part.labels.shape), "one-hot labels: take labels.argmax(axis=1)")


def _contents(parts: Sequence[_Part]) -> Iterator[Content]:
    for part in parts:
        first = part.images.ndim == 4 and part.images.shape[3] not in (1, 3)
        for image in part.images:
            pixels = image.transpose(1, 2, 0) if first else image
            yield np.ascontiguousarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)


def _unreadable(path: Path, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return fault(path, "cannot be read as NumPy arrays", reason, "it was cut or holds Python objects: save it again")
