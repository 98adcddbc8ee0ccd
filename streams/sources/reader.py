"""Recognizes the form of a source by its files, and lists its images with the reader of that form."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from streams.errors import SourceError, fault
from streams.sources.archive import ZIP, holds_samples, is_tar, list_archive, list_shards
from streams.sources.arrays import FILES as ARRAYS
from streams.sources.arrays import list_arrays
from streams.sources.decode import SUFFIXES
from streams.sources.downloads import fingerprint
from streams.sources.folder import list_names, walk, with_tasks
from streams.sources.image_files import Listing, shortened
from streams.sources.label_file import FILES, label_files, list_labelled
from streams.sources.labels import Columns
from streams.sources.parquet import SPLITS_FILE, STATE, holds_images, list_parquet, list_saved

FORMS = "a folder that exists, or a .parquet, .csv, .jsonl, .npz, .zip or .tar file"


def list_source(data: str | None, columns: Columns, given_split: bool = True, nested_classes: bool = False) -> Listing:
    """List the images of a source in any form, with their classes and splits.

    Args:
        data: a file or a folder.
        columns: the columns of a table.
        given_split: whether the split of the source is used.
        nested_classes: see `folder.list_names`.

    Raises:
        SourceError: one line for every fault; or the form is not known.
    """
    root = Path(data or "").expanduser()
    if data is None or not root.exists():
        raise SourceError(fault(data, f"data: must be {FORMS}"))
    if columns.tasks and not nested_classes:
        listing = list_source(data, columns, given_split, True)
        if listing.tasks is None and listing.order is None:
            named = {"task_column": columns.task, "order_column": columns.order}
            if faults := [
                fault(root, f"has no columns, of which {key} names one", name) for key, name in named.items() if name
            ]:
                raise SourceError(*faults)
            listing = with_tasks(listing, root)
        return listing
    if root.is_file():
        return _list_file(root, columns, given_split, nested_classes)
    if (root / SPLITS_FILE).is_file() or (root / STATE).is_file():
        return list_saved(root, columns, given_split)
    if files := label_files(root):
        return list_labelled(files, columns, given_split)
    for path in _files(root):
        suffix = path.suffix.lower()
        if suffix in SUFFIXES:
            break
        if suffix == ".parquet":
            return list_parquet(root, columns, given_split)
        if is_tar(path):
            return list_shards(root, columns, given_split)
        if suffix in ARRAYS:
            return _list_array_files(root, path, given_split)
    return list_names(root, walk(root), given_split, nested_classes)


def source_fingerprint(
    data: str | None, columns: Columns, given_split: bool = True, nested_classes: bool = False
) -> str:
    """A digest of the names, sizes and times of a source's files.

    Raises:
        SourceError: see `list_source`.
    """
    root = Path(data or "").expanduser()
    if data is not None and root.is_file() and _is_one(root):
        return fingerprint([root])
    return list_source(data, columns, given_split, nested_classes).fingerprint()


def _list_file(root: Path, columns: Columns, given_split: bool, nested_classes: bool) -> Listing:
    suffix = root.suffix.lower()
    if suffix in FILES or (suffix == ".parquet" and not _is_one(root)):
        return list_labelled([root], columns, given_split)
    if suffix in ARRAYS:
        return list_arrays(root, given_split)
    if suffix == ".parquet":
        return list_parquet(root, columns, given_split)
    if is_tar(root) and holds_samples(root):
        return list_shards(root, columns, given_split)
    if is_tar(root) or suffix in ZIP:
        return list_archive(root, given_split, nested_classes)
    raise SourceError(fault(root, f"data: must be {FORMS}", root.suffix or "no suffix"))


def _list_array_files(root: Path, first: Path, given_split: bool) -> Listing:
    """The images of a folder whose first file is one of arrays, with a remark about such files that are not read.

    Raises:
        SourceError: there are several `.npz` files; or see `list_arrays`.
    """
    files = [path for path in _files(root) if path.suffix.lower() in ARRAYS]
    packed = [str(path.relative_to(root)) for path in files if path.suffix.lower() == ".npz"]
    is_packed = first.suffix.lower() == ".npz"
    if is_packed and len(packed) > 1:
        names = ", ".join(shortened(packed, "{} more", 5))
        raise SourceError(fault(root, "data: must hold one .npz file", names, "name one of them by data"))
    listing = list_arrays(first if is_packed else root, given_split)
    others = [str(path.relative_to(root)) for path in files if path not in (listing.paths or ())]
    if not others:
        return listing
    remark = f"{len(others)} other files of arrays are left out: {', '.join(shortened(others, '{} more', 5))}"
    return replace(listing, remarks=[*listing.remarks, remark])


def _files(root: Path) -> Iterator[Path]:
    """The files of a folder down to the third level, those of hidden folders left out, folder by folder in order."""
    for folder, below, names in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        below[:] = sorted(name for name in below if not name.startswith(".") and depth < 3)
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))


def _is_one(path: Path) -> bool:
    """Whether a file holds its images, rather than their names."""
    return is_tar(path) or path.suffix.lower() in ZIP or (path.suffix.lower() == ".parquet" and holds_images(path))
