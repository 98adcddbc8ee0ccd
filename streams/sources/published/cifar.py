"""Reads CIFAR-10 and CIFAR-100 from their pickles, of which nothing but arrays and plain values is loaded."""

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.recipe import TEST, TRAIN, Collected, Images, Progress, silent
from streams.sources.downloads import downloaded, fingerprint
from streams.sources.image_files import classes_from_labels


@dataclass(frozen=True)
class CifarSet:
    """One of the two data sets.

    Attributes:
        name: of the data set, for the manifest.
        dataset: the name of torchvision's class.
        folder: of the files in torchvision's root.
        md5: of each file as published: those that train, those that test, and the one with the names.
        test: the name of the file that tests.
        meta: the name of the file with the names.
        names_key: of the class names in it.
        labels_key: of the labels in the others.
    """

    name: str
    dataset: str
    folder: str
    md5: Mapping[str, str]
    test: str
    meta: str
    names_key: str
    labels_key: str

    def path(self, data: str | None) -> Path:
        """The folder of the files; downloaded into the cache if `data` is None.

        Raises:
            SourceError: the folder or all files are missing, or the download failed.
        """
        if data is None:
            return downloaded(
                self.dataset, self.folder, lambda folder: all((folder / name).is_file() for name in self.md5)
            )
        root = Path(data).expanduser()
        if not root.is_dir():
            remedy = f"name the folder that holds {self.folder}"
            raise SourceError(fault(data, "data: must be a folder that exists", remedy=remedy))
        for folder in (root / self.folder, root):
            if any((folder / name).is_file() for name in self.md5):
                return folder
        rule = f"data: must hold {self.folder} with the files {', '.join(self.md5)}"
        raise SourceError(fault(data, rule, remedy=f"leave data out to download {self.name}"))

    def paths(self, data: str | None) -> list[Path]:
        """The files that exist."""
        return [path for path in (self.path(data) / name for name in self.md5) if path.is_file()]

    def fingerprint(self, data: str | None) -> str:
        """The state of the data folder; empty for the download, which never changes."""
        return "" if data is None else fingerprint(self.paths(data))


CIFAR10 = CifarSet(
    "CIFAR-10",
    "CIFAR10",
    "cifar-10-batches-py",
    {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    "test_batch",
    "batches.meta",
    "label_names",
    "labels",
)
CIFAR100 = CifarSet(
    "CIFAR-100",
    "CIFAR100",
    "cifar-100-python",
    {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
    "test",
    "meta",
    "fine_label_names",
    "fine_labels",
)


def read_cifar(cifar: CifarSet, data: str | None, progress: Progress = silent) -> Collected:
    """All images in the order of the files; those of the file `test` test, the others train.

    Raises:
        SourceError: one line for every file that is missing or is not of the data set.
    """
    folder = cifar.path(data)
    pickles = {}
    faults: list[str] = []
    for done, name in enumerate(cifar.md5):
        progress(f"reading {cifar.name}", done, len(cifar.md5))
        try:
            pickles[name] = _read_pickle(folder / name, cifar)
        except SourceError as error:
            faults += error.faults
    if faults:
        raise SourceError(*faults)
    progress(f"reading {cifar.name}", len(cifar.md5), len(cifar.md5))
    names = _class_names(pickles[cifar.meta].content, folder / cifar.meta, cifar)
    pixels, classes, splits = [], [], []
    for name in cifar.md5:
        if name == cifar.meta:
            continue
        try:
            part = _images(pickles[name].content, len(names), folder / name, cifar)
        except SourceError as error:
            faults += error.faults
            continue
        pixels.append(part[0])
        classes.append(part[1])
        splits.append(np.full(len(part[1]), TEST if name == cifar.test else TRAIN, dtype=np.uint8))
    if faults:
        raise SourceError(*faults)
    source = {
        "name": cifar.name,
        "files": {name: file.sha256 for name, file in pickles.items()},
        "notices": [
            f"{name}: its md5 differs from the published one, {cifar.md5[name]}"
            for name, file in pickles.items()
            if file.md5 != cifar.md5[name]
        ],
    }
    return Collected(np.concatenate(pixels), Images(np.concatenate(classes), np.concatenate(splits), names), source)


@dataclass(frozen=True)
class _Pickle:
    content: dict[Any, Any]
    md5: str
    sha256: str


class _ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays and plain values, and no class or function that could run code."""

    _allowed = frozenset(
        {(module, "_reconstruct") for module in ("numpy.core.multiarray", "numpy._core.multiarray")}
        | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"holds {module}.{name}, which is not an array")
        return super().find_class(module, name)


def _read_pickle(path: Path, cifar: CifarSet) -> _Pickle:
    try:
        content = path.read_bytes()
        value = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except FileNotFoundError:
        raise SourceError(fault(path, "is missing", remedy=f"copy all of {cifar.folder} there")) from None
    except Exception as error:  # a damaged pickle may raise anything
        raise SourceError(fault(path, "cannot be read as a pickle of arrays", error, "replace this file")) from None
    if not isinstance(value, dict):
        raise SourceError(fault(path, "must hold a dictionary", type(value).__name__, f"this is not {cifar.name}"))
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return _Pickle(value, md5, hashlib.sha256(content).hexdigest())


def _class_names(meta: dict[Any, Any], path: Path, cifar: CifarSet) -> tuple[str, ...]:
    names = meta.get(cifar.names_key)
    if not isinstance(names, list) or not names:
        raise SourceError(fault(path, f"must hold {cifar.names_key}", remedy=f"this is not {cifar.name}"))
    return tuple(str(name) for name in names)


def _images(
    content: dict[Any, Any], class_count: int, path: Path, cifar: CifarSet
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    data, labels = content.get("data"), content.get(cifar.labels_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
        got = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise SourceError(fault(path, "data must be uint8 [n, 3072]", got, f"this is not {cifar.name}"))
    labelled = 0 if labels is None else len(labels)
    if labels is None or labelled != len(data):
        rule = f"must hold {cifar.labels_key} of {len(data)} images"
        raise SourceError(fault(path, rule, labelled, f"this is not {cifar.name}"))
    numbers, distinct = classes_from_labels(labels, f"{path}: {cifar.labels_key}")
    if not all(isinstance(label, int) and 0 <= label < class_count for label in distinct):
        rule = f"{cifar.labels_key} must be whole numbers within 0..{class_count - 1}"
        raise SourceError(fault(path, rule, f"{distinct[0]!r} to {distinct[-1]!r}"))
    return data.reshape(-1, 3, 32, 32), np.array(distinct, dtype=np.int32)[numbers]
