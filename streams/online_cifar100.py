"""Online-CIFAR100: 1,200 tasks of pairs, each over five classes of CIFAR-100 (METHODS §5)."""

import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from streams.class_tasks import PairTasks
from streams.errors import SourceError, fault
from streams.pools import split_pools
from streams.randomness import generator
from streams.recipe import TEST, Collected, Images, Progress, location, number, silent
from streams.sources.downloads import downloaded, fingerprint
from streams.sources.image_files import classes_from_labels

FOLDER = "cifar-100-python"
PUBLISHED_MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}


@dataclass(frozen=True)
class OnlineCifar100(PairTasks):
    """Online-CIFAR100 from the standard `cifar-100-python` pickles.

    Training pairs use 450 images per class of the train split, validation pairs its other 50, and test pairs the test
    split.
    """

    name: ClassVar[str] = "online_cifar100"

    data: str | None = location(f"folder that holds {FOLDER}; downloaded by torchvision if not given")
    tasks: int = number(1_200, "tasks in a stream", ge=1)
    validation_images: int = number(50, "images per class of the train split that only validate", ge=2)

    def collect(self, progress: Progress = silent) -> Collected:
        """Read the pickles.

        Raises:
            SourceError: one line for every file that is missing or is not part of CIFAR-100.
        """
        folder = _folder(self.data)
        pickles = {}
        faults: list[str] = []
        for done, name in enumerate(PUBLISHED_MD5):
            progress("reading CIFAR-100", done, len(PUBLISHED_MD5))
            try:
                pickles[name] = _read_pickle(folder / name)
            except SourceError as error:
                faults += error.faults
        if faults:
            raise SourceError(*faults)
        progress("reading CIFAR-100", len(PUBLISHED_MD5), len(PUBLISHED_MD5))
        parts, names = {}, _class_names(pickles["meta"].content, folder / "meta")
        for name in ("train", "test"):
            try:
                parts[name] = _images(pickles[name].content, len(names), folder / name)
            except SourceError as error:
                faults += error.faults
        if faults:
            raise SourceError(*faults)
        (train_pixels, train_classes), (test_pixels, test_classes) = parts["train"], parts["test"]
        pools = split_pools(train_classes, lambda _: (self.validation_images, 0), generator(0, f"{self.name}/pools"))
        splits = np.concatenate([pools, np.full(len(test_classes), TEST, dtype=np.uint8)])
        source = {
            "name": "CIFAR-100",
            "files": {name: file.sha256 for name, file in pickles.items()},
            "notices": [
                f"{name}: its md5 differs from the published one, {PUBLISHED_MD5[name]}"
                for name, file in pickles.items()
                if file.md5 != PUBLISHED_MD5[name]
            ],
        }
        images = Images(np.concatenate([train_classes, test_classes]), splits, names)
        return Collected(np.concatenate([train_pixels, test_pixels]), images, source)

    def fingerprint(self) -> str:
        """The state of the data folder; empty for the download, which never changes."""
        if self.data is None:
            return ""
        folder = _folder(self.data)
        return fingerprint(path for path in (folder / name for name in PUBLISHED_MD5) if path.is_file())


@dataclass(frozen=True)
class _Pickle:
    content: dict[Any, Any]
    md5: str
    sha256: str


def _folder(data: str | None) -> Path:
    if data is None:
        return downloaded("CIFAR100", FOLDER, lambda folder: all((folder / name).is_file() for name in PUBLISHED_MD5))
    root = Path(data).expanduser()
    if not root.is_dir():
        remedy = f"name the folder that holds {FOLDER}"
        raise SourceError(fault(data, "data: must be a folder that exists", remedy=remedy))
    for folder in (root / FOLDER, root):
        if any((folder / name).is_file() for name in PUBLISHED_MD5):
            return folder
    rule = f"data: must hold {FOLDER} with the files {', '.join(PUBLISHED_MD5)}"
    raise SourceError(fault(data, rule, remedy="leave data out to download CIFAR-100"))


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


def _read_pickle(path: Path) -> _Pickle:
    try:
        content = path.read_bytes()
        value = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except FileNotFoundError:
        raise SourceError(fault(path, "is missing", remedy=f"copy all of {FOLDER} there")) from None
    except Exception as error:  # a damaged pickle may raise anything
        raise SourceError(fault(path, "cannot be read as a pickle of arrays", error, "replace this file")) from None
    if not isinstance(value, dict):
        raise SourceError(fault(path, "must hold a dictionary", type(value).__name__, "this is not CIFAR-100"))
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return _Pickle(value, md5, hashlib.sha256(content).hexdigest())


def _class_names(meta: dict[Any, Any], path: Path) -> tuple[str, ...]:
    names = meta.get("fine_label_names")
    if not isinstance(names, list) or not names:
        raise SourceError(fault(path, "must hold fine_label_names", remedy="this is not CIFAR-100"))
    return tuple(str(name) for name in names)


def _images(
    content: dict[Any, Any], class_count: int, path: Path
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    data, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
        got = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise SourceError(fault(path, "data must be uint8 [n, 3072]", got, "this is not CIFAR-100"))
    labelled = 0 if labels is None else len(labels)
    if labels is None or labelled != len(data):
        rule = f"must hold fine_labels of {len(data)} images"
        raise SourceError(fault(path, rule, labelled, "this is not CIFAR-100"))
    numbers, distinct = classes_from_labels(labels, f"{path}: fine_labels")
    if not all(isinstance(label, int) and 0 <= label < class_count for label in distinct):
        rule = f"fine_labels must be whole numbers within 0..{class_count - 1}"
        raise SourceError(fault(path, rule, f"{distinct[0]!r} to {distinct[-1]!r}"))
    return data.reshape(-1, 3, 32, 32), np.array(distinct, dtype=np.int32)[numbers]
