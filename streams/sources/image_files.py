"""Reads image files of known classes, and splits the images of each class into pools."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.pools import Rows, first_copies, split_pools
from streams.randomness import generator
from streams.recipe import TEST, TRAIN, VALIDATION, Collected, Images, Progress
from streams.sources.decode import ImageFormat, decode

READER_VERSION = 2
"""Part of the names of cached stores: raised when the same files give other images or pools."""


@dataclass(frozen=True)
class FileSource:
    """Image files and the class of each.

    Attributes:
        name: of the source, for the manifest.
        root: the folder that `files` are relative to.
        files: n paths, sorted.
        labels: n class names.
        notices: lines about the choice of files, for the manifest.
        remarks: lines about the choice of files that are printed only.
        splits: n numbers of the pools that the source gives (see `Images`); None if all pools are drawn.
    """

    name: str
    root: Path
    files: Sequence[str]
    labels: Sequence[str]
    notices: Sequence[str] = ()
    remarks: Sequence[str] = ()
    splits: Sequence[int] | None = None


@dataclass(frozen=True)
class Pools:
    """The sizes of the pools of a class.

    Attributes:
        validation_share: share of the images that only validate.
        test_share: share of the images that only test.
        least: the smallest number of images in each pool.
        least_images: the smallest number of images of a class; smaller classes are left out and counted.
    """

    validation_share: float
    test_share: float
    least: int
    least_images: int = 1

    def held_out(self, count: int) -> tuple[int, int]:
        """The numbers of validation and of test images among `count` images."""
        validation, test = (
            max(self.least, int(count * share + 0.5)) for share in (self.validation_share, self.test_share)
        )
        return validation, test


def collect_files(
    source: FileSource, form: ImageFormat, pools: Pools, skip_bad: bool, purpose: str, progress: Progress
) -> Collected:
    """Decode the files and split the images of each class into the pools.

    Images with the same stored pixels are copies and are always in one pool: that of the first, or, if the source gives
    pools, the most withheld of theirs (test, validation, train).

    Args:
        source: the files and their classes.
        form: the format of stored images.
        pools: the sizes of the pools.
        skip_bad: leave bad files out and record them; otherwise they are an error.
        purpose: of the random split (see `randomness.generator`).
        progress: called with the number of decoded files.

    Raises:
        SourceError: one line for every bad file, or for every class with too few images.
    """
    decoded = decode(source.root, source.files, form, progress)
    if decoded.bad and not skip_bad:
        raise SourceError(*shortened([*decoded.bad.values()], f"{source.root}: {{}} more images are bad"))
    good = np.setdiff1d(np.arange(len(source.files)), np.array([*decoded.bad], dtype=np.int64), assume_unique=True)
    labels = np.array(source.labels)[good]
    notices = list(source.notices)
    distinct, counts = np.unique(labels, return_counts=True)
    small = distinct[counts < pools.least_images]
    if len(small):
        notices.append(f"{len(small)} classes have fewer than {pools.least_images} images and are left out")
        large = ~np.isin(labels, small)
        good, labels = good[large], labels[large]
    if not len(good):
        raise SourceError(fault(source.root, "must hold at least one image of a class that is large enough"))
    classes, names = classes_from_labels(labels, source.root)
    # A copy of possibly many gigabytes only if files are left out.
    pixels = decoded.pixels if len(good) == len(source.files) else decoded.pixels[good]
    first = first_copies(pixels)
    notices += _copy_notices([source.files[row] for row in good], classes, first)
    pool_of = np.full(len(good), TRAIN) if source.splits is None else np.array(source.splits)[good]
    if not pool_of.any():
        distinct_of = np.bincount(np.unique(np.stack([classes, first]), axis=1)[0])
        _check_sizes(names, np.bincount(classes), distinct_of, pools)
    splits = _split(classes, first, pool_of, pools, generator(0, purpose))
    record: dict[str, Any] = {"name": source.name, "files": {f"{len(source.files)} images": decoded.digest}}
    record["notices"] = notices
    record["skipped"] = [source.files[row] for row in decoded.bad]
    remarks = (*source.remarks, *decoded.remarks)
    if decoded.bad:
        remarks += (f"{len(decoded.bad)} images that cannot be read are left out",)
    return Collected(pixels, Images(classes, splits, tuple(names)), record, remarks)


def shortened(lines: Sequence[str], rest: str, most: int = 50) -> list[str]:
    """The first lines, and `rest` with the number of the others."""
    return [*lines[:most], *([rest.format(len(lines) - most)] if len(lines) > most else [])]


def _split(
    classes: npt.NDArray[np.int32],
    first: Rows,
    pool_of: npt.NDArray[np.int64],
    pools: Pools,
    rng: np.random.Generator,
) -> npt.NDArray[np.uint8]:
    """uint8 [n]: the pool of each image; validation and test pools that the source does not give are drawn."""
    splits = pool_of.astype(np.uint8)
    np.maximum.at(splits, first, pool_of.astype(np.uint8))
    rows = np.flatnonzero((splits == TRAIN) & (first == np.arange(len(first))))

    def held_out(count: int) -> tuple[int, int]:
        validation, test = pools.held_out(count)
        return (0 if VALIDATION in pool_of else validation), (0 if TEST in pool_of else test)

    splits[rows] = split_pools(classes[rows], held_out, rng)
    return splits[first]


def _copy_notices(files: Sequence[str], classes: npt.NDArray[np.int32], first: Rows) -> list[str]:
    """One line with the number of copies, and one for each picture that is in two classes."""
    copies = np.flatnonzero(first != np.arange(len(first)))
    if not len(copies):
        return []
    contradicting = np.unique(first[copies[classes[copies] != classes[first[copies]]]])
    lines = [f"{len(copies)} images are copies of others and are in the same pool as these"]
    for row in contradicting[:10].tolist():
        names = shortened([files[copy] for copy in np.flatnonzero(first == row).tolist()], "{} more", 4)
        lines.append(f"one picture in several classes: {', '.join(names)}")
    if len(contradicting) > 10:
        lines.append(f"{len(contradicting) - 10} more pictures are in several classes")
    return lines


def _check_sizes(names: Sequence[str], counts: Any, distinct_counts: Any, pools: Pools) -> None:
    """Raise `SourceError` if a class has too few images, of which copies of one picture count once."""
    faults = []
    for name, images, count in zip(names, counts.tolist(), distinct_counts.tolist(), strict=True):
        got = count if images == count else f"{count}, and {images - count} copies"
        training = count - sum(pools.held_out(count))
        if training >= pools.least:
            continue
        if count < 3 * pools.least:
            rule = f"must have at least {3 * pools.least} images, {pools.least} to train, validate and test each"
            faults.append(fault(f"class {name}", rule, got, "add images or leave the class out"))
        else:
            shares = f"validation_share {pools.validation_share} and test_share {pools.test_share}"
            rule = f"{shares} must leave at least {pools.least} of its {count} images to train with"
            faults.append(fault(f"class {name}", rule, max(training, 0), "lower the shares"))
    if faults:
        raise SourceError(*faults)


def classes_from_labels(
    labels: Sequence[Any] | npt.NDArray[Any], where: object
) -> tuple[npt.NDArray[np.int32], list[Any]]:
    """Number the distinct labels in sorted order, from 0.

    Whole numbers, texts and booleans are classes. Floats are an error: 0.1 + 0.2 and 0.3 would be two classes.

    Args:
        labels: n labels, all of one type.
        where: the start of the error's line.

    Returns:
        int32 [n] class numbers, and the distinct labels in order.

    Raises:
        SourceError: the labels are empty, of several types, or floats.

    >>> numbers, distinct = classes_from_labels(["dog", "cat", "dog"], "pets.csv")
    >>> numbers.tolist(), distinct
    ([1, 0, 1], ['cat', 'dog'])
    """
    if isinstance(labels, np.ndarray) and labels.ndim != 1:
        rule, remedy = "labels must be one value for each image, [n]", "one-hot labels: take labels.argmax(axis=1)"
        raise SourceError(fault(where, rule, list(labels.shape), remedy))
    values = [value.item() if isinstance(value, np.generic) else value for value in labels]
    kinds = sorted({type(value).__name__ for value in values})
    if len(kinds) != 1 or kinds[0] not in ("int", "str", "bool"):
        remedy = "whole numbers, text or true/false name classes; round or name these yourself"
        raise SourceError(
            fault(where, "labels must be of one kind that names classes", ", ".join(kinds) or "none", remedy)
        )
    distinct = sorted(set(values))
    number_of = {value: index for index, value in enumerate(distinct)}
    return np.array([number_of[value] for value in values], dtype=np.int32), distinct
