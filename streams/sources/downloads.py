"""Data sets that torchvision downloads into the cache folder, once per node."""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from streams.errors import SourceError, fault
from streams.store.cache import cache_folder, locked


def downloaded(
    dataset: str,
    folder: str,
    complete: Callable[[Path], bool],
    options: Sequence[Mapping[str, Any]] = ({},),
    inside: str = "",
) -> Path:
    """The folder of a data set in the cache, downloaded by torchvision if it is missing or incomplete.

    Args:
        dataset: the name of a class in `torchvision.datasets`.
        folder: the folder of that class's files, relative to its root.
        complete: returns whether a folder holds all files.
        options: arguments of that class, once for each download.
        inside: the folder that is the class's root, for a class that gives its files none.

    Raises:
        SourceError: torchvision is not installed, or the download failed.
    """
    root = cache_folder() / "downloads" / inside
    target, unfinished = root / folder, root / f".{dataset}.unfinished"
    with locked(root / dataset):
        if unfinished.exists():  # a killed process may have left a cut file, which torchvision would take for complete
            shutil.rmtree(target, ignore_errors=True)
        if not complete(target):
            try:
                from torchvision import datasets  # imports torch
            except ImportError:
                remedy = f"pip install torchvision, or name a folder with {dataset} by data"
                raise SourceError(
                    fault("torchvision", f"must be installed to download {dataset}", remedy=remedy)
                ) from None
            try:
                unfinished.touch()
                for arguments in options:
                    getattr(datasets, dataset)(str(root), download=True, **arguments)
            except (OSError, RuntimeError) as error:
                remedy = f"name a folder with {dataset} by data"
                raise SourceError(fault(dataset, "could not be downloaded", error, remedy)) from None
            unfinished.unlink()
    return target


def fingerprint(paths: Iterable[Path]) -> str:
    """sha256 (hex) over the paths, sizes and modification times of files: changes when a file is added or changed.

    A file that cannot be found is missing, and no error.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            facts = path.stat()
            state = f"{facts.st_size}\0{facts.st_mtime_ns}"
        except OSError:  # such as a broken link: whether that is a fault is decided when the file is read
            state = "missing"
        digest.update(f"{path.absolute()}\0{state}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
