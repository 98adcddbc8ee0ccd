"""Published data sets by name, from a folder in torchvision's form or downloaded by torchvision."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.recipe import TEST, TRAIN, Collected, Images
from streams.sources.archive import list_archive
from streams.sources.decode import Content
from streams.sources.downloads import downloaded, fingerprint
from streams.sources.folder import list_names, walk
from streams.sources.image_files import Listing
from streams.sources.mnist import IDX_SETS, mnist_fingerprint, mnist_paths, read_mnist
from streams.sources.published.cifar import CIFAR10, CIFAR100, read_cifar

SVHN_FILES = {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}
OMNIGLOT = ("images_background", "images_evaluation")
_CIFAR = {"cifar10": CIFAR10, "cifar100": CIFAR100}
NAMES = tuple(sorted([*IDX_SETS, *_CIFAR, "svhn", "omniglot"]))
"""The names that the option `dataset` takes."""


def list_published(name: str, data: str | None) -> Listing:
    """List a data set of `NAMES`.

    Args:
        name: of the data set.
        data: torchvision's root folder, or the folder of the data set in it; downloaded into the cache if None.

    Raises:
        SourceError: one line for every file that is missing, cut, or not of the data set.
    """
    if name in IDX_SETS:
        return _listing(read_mnist(data, dataset=name), mnist_paths(data, name))
    if name in _CIFAR:
        return _listing(read_cifar(_CIFAR[name], data), _CIFAR[name].paths(data))
    return _svhn(data) if name == "svhn" else _omniglot(data)


def published_fingerprint(name: str, data: str) -> str:
    """A digest of the names, sizes and times of the files of a data set, which are not read.

    Raises:
        SourceError: the folder does not hold the data set.
    """
    if name in IDX_SETS:
        return mnist_fingerprint(data, name)
    if name in _CIFAR:
        return _CIFAR[name].fingerprint(data)
    if name == "svhn":
        folder = _svhn_folder(data)
        return fingerprint(path for path in (folder / file for file in SVHN_FILES) if path.is_file())
    return _omniglot(data).fingerprint()


def _listing(collected: Collected, paths: list[Path]) -> Listing:
    """The listing of a data set that was read into arrays."""
    images, name = collected.images, collected.source["name"]
    return Listing(
        name,
        paths[0].parent,
        [f"{name} {split}[{row}]" for row, split in enumerate(images.splits.tolist())],
        [images.class_names[number] for number in images.classes.tolist()],
        collected.source["notices"],
        splits=images.splits.tolist(),
        class_names=images.class_names,
        contents=lambda: (pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0] for pixels in collected.pixels),
        paths=paths,
    )


def _svhn(data: str | None) -> Listing:
    """House numbers, whose files hold X [32, 32, 3, n] and y [n, 1]; the label 10 is the digit 0."""
    folder = _svhn_folder(data)
    faults: list[str] = []
    parts: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], int]] = []
    for name, split in SVHN_FILES.items():
        try:
            parts.append((*_read_svhn(folder / name), split))
        except SourceError as error:
            faults += error.faults
    if faults:
        raise SourceError(*faults)
    splits = np.concatenate([np.full(len(labels), split, dtype=np.uint8) for _, labels, split in parts])
    images = Images(np.concatenate([labels for _, labels, _ in parts]), splits, tuple("0123456789"))
    pixels = np.concatenate([pixels for pixels, _, _ in parts])
    return _listing(Collected(pixels, images, {"name": "SVHN", "notices": []}), [folder / name for name in SVHN_FILES])


def _svhn_folder(data: str | None) -> Path:
    return _folder(data, "SVHN", "", [*SVHN_FILES], [{"split": "train"}, {"split": "test"}], "svhn")


def _read_svhn(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    from scipy import io  # imported late: only this data set needs it

    try:
        content = io.loadmat(path, variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"].reshape(-1) % 10
    except Exception as error:  # a damaged file may raise anything
        remedy = "replace this file"
        raise SourceError(fault(path, "cannot be read as a file of MATLAB with X and y", error, remedy)) from None
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2:] != (3, len(labels)):
        rule = f"X must be uint8 [H, W, 3, {len(labels)}], as y has labels"
        raise SourceError(fault(path, rule, f"{pixels.dtype} {list(pixels.shape)}", "this is not SVHN"))
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels.astype(np.int32)


def _omniglot(data: str | None) -> Listing:
    """The characters of both sets, as alphabet/character, from folders or the ZIP files."""
    files = [f"{name}.zip" for name in OMNIGLOT]
    options = [{"background": True}, {"background": False}]
    folder = _folder(data, "Omniglot", "omniglot-py", [*files, *OMNIGLOT], options, "")
    parts, prefixes = [], []
    for name in OMNIGLOT:
        if (folder / name).is_dir():
            parts.append(list_names(folder / name, walk(folder / name), given_split=False, nested_classes=True))
            prefixes.append(f"{name}/")
        elif (folder / f"{name}.zip").is_file():
            parts.append(list_archive(folder / f"{name}.zip", False, True))
            prefixes.append(f"{name}.zip/")

    def contents() -> Iterator[Content]:
        for part in parts:
            yield from (part.root / file for file in part.files) if part.contents is None else part.contents()

    return Listing(
        "Omniglot",
        folder,
        [prefix + file for prefix, part in zip(prefixes, parts, strict=True) for file in part.files],
        [label for part in parts for label in part.labels],
        [] if len(parts) == 2 else [f"one of {' and '.join(OMNIGLOT)} is missing"],
        contents=contents,
        paths=[path for part in parts for path in (part.paths or [part.root / file for file in part.files])],
    )


def _folder(
    data: str | None, dataset: str, folder: str, files: list[str], options: Sequence[dict[str, Any]], inside: str
) -> Path:
    """The folder with the files of a data set."""
    if data is None:
        needed = files[: len(options)]
        return downloaded(dataset, folder, lambda path: all((path / name).exists() for name in needed), options, inside)
    root = Path(data).expanduser()
    for path in (root / folder, root):
        if any((path / name).exists() for name in files):
            return path
    rule = f"data: must be a folder that holds {Path(folder) / files[0]}"
    raise SourceError(fault(data, rule, remedy=f"leave data out to download {dataset}"))
