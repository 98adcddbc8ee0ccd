"""Reads image files of known classes, and splits the images of each class into pools."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.pools import split_pools
from streams.randomness import generator
from streams.recipe import Collected, Images, Progress
from streams.sources.decode import decode


@dataclass(frozen=True)
class FileSource:
    """Image files and the class of each.

    Attributes:
        name: of the source, for the manifest.
        root: the folder that `files` are relative to.
        files: n paths, sorted.
        labels: n class names.
        notices: lines about the choice of files, for the manifest.
    """

    name: str
    root: Path
    files: Sequence[str]
    labels: Sequence[str]
    notices: Sequence[str] = ()


@dataclass(frozen=True)
class ImageFormat:
    """The format of stored images.

    Attributes:
        size: side in pixels.
        channels: 1 or 3.
        crop: see `decode`.
    """

    size: int
    channels: int
    crop: int | None = None


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
    decoded = decode(source.root, source.files, form.size, form.channels, form.crop, progress)
    if decoded.bad and not skip_bad:
        raise SourceError(*decoded.bad.values())
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
    _check_sizes(names, np.bincount(classes), pools)
    splits = split_pools(classes, pools.held_out, generator(0, purpose))
    record: dict[str, Any] = {"name": source.name, "files": {f"{len(source.files)} images": decoded.digest}}
    record["notices"] = notices
    record["skipped"] = [source.files[row] for row in decoded.bad]
    # A copy of possibly many gigabytes only if files are left out.
    pixels = decoded.pixels if len(good) == len(source.files) else decoded.pixels[good]
    return Collected(pixels, Images(classes, splits, tuple(names)), record)


def _check_sizes(names: Sequence[str], counts: Any, pools: Pools) -> None:
    faults = []
    for name, count in zip(names, counts.tolist(), strict=True):
        training = count - sum(pools.held_out(count))
        if training >= pools.least:
            continue
        if count < 3 * pools.least:
            rule = f"must have at least {3 * pools.least} images, {pools.least} to train, validate and test each"
            faults.append(fault(f"class {name}", rule, count, "add images or leave the class out"))
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
    values = labels.reshape(-1).tolist() if isinstance(labels, np.ndarray) else list(labels)
    kinds = sorted({type(value).__name__ for value in values})
    if len(kinds) != 1 or kinds[0] not in ("int", "str", "bool"):
        remedy = "whole numbers, text or true/false name classes; round or name these yourself"
        raise SourceError(
            fault(where, "labels must be of one kind that names classes", ", ".join(kinds) or "none", remedy)
        )
    distinct = sorted(set(values))
    number_of = {value: index for index, value in enumerate(distinct)}
    return np.array([number_of[value] for value in values], dtype=np.int32), distinct
