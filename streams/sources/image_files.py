"""From image files of known classes to a source: bad files named or left out, each class dealt into pools."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.pools import deal_pools
from streams.randomness import generator
from streams.recipe import Collected, Images, Progress
from streams.sources.decode import decode


@dataclass(frozen=True)
class FileSource:
    """Image files and the class of each.

    Attributes:
        name: of the source, for the manifest.
        root: the folder that `files` are below.
        files: n paths, sorted.
        labels: n class names.
        notices: what people should know of how the files were chosen.
    """

    name: str
    root: Path
    files: Sequence[str]
    labels: Sequence[str]
    notices: Sequence[str] = ()


@dataclass(frozen=True)
class ImageFormat:
    """How an image is stored: side in pixels, channels (1 or 3), and the square cut out of its middle (None: all)."""

    size: int
    channels: int
    crop: int | None = None


@dataclass(frozen=True)
class Pools:
    """How a class's images are dealt: the share that validates and that tests, and the least number in each pool."""

    validation_share: float
    test_share: float
    least: int
    least_images: int = 1
    """Images that a class must have; one with fewer is left out and counted."""

    def held_out(self, count: int) -> tuple[int, int]:
        """How many of `count` images validate, and how many test."""
        validation, test = (
            max(self.least, int(count * share + 0.5)) for share in (self.validation_share, self.test_share)
        )
        return validation, test


def collect_files(
    source: FileSource, form: ImageFormat, pools: Pools, skip_bad: bool, purpose: str, progress: Progress
) -> Collected:
    """Decode the files and deal each class's images into the pools.

    Args:
        source: the files and their classes.
        form: how images are stored.
        pools: how a class's images are dealt.
        skip_bad: leave bad files out and record them; otherwise they are an error.
        purpose: owner of the chance that deals the pools.
        progress: told of the number of files done.

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
        stays = ~np.isin(labels, small)
        good, labels = good[stays], labels[stays]
    if not len(good):
        raise SourceError(fault(source.root, "must hold at least one image of a class that is large enough"))
    classes, names = classes_from_labels(labels, source.root)
    _check_sizes(names, np.bincount(classes), pools)
    splits = deal_pools(classes, pools.held_out, generator(0, purpose))
    record: dict[str, Any] = {"name": source.name, "files": {f"{len(source.files)} images": decoded.digest}}
    record["notices"] = notices
    record["skipped"] = [source.files[row] for row in decoded.bad]
    # There may be gigabytes of them: no copy for nothing.
    pixels = decoded.pixels if len(good) == len(source.files) else decoded.pixels[good]
    return Collected(pixels, Images(classes, splits, tuple(names)), record)


def _check_sizes(names: Sequence[str], counts: Any, pools: Pools) -> None:
    faults = []
    for name, count in zip(names, counts.tolist(), strict=True):
        left = count - sum(pools.held_out(count))
        if left >= pools.least:
            continue
        if count < 3 * pools.least:
            rule = f"must have at least {3 * pools.least} images, {pools.least} to train, validate and test each"
            faults.append(fault(f"class {name}", rule, count, "bring more images or leave the class out"))
        else:
            shares = f"validation_share {pools.validation_share} and test_share {pools.test_share}"
            rule = f"{shares} must leave at least {pools.least} of its {count} images to train with"
            faults.append(fault(f"class {name}", rule, max(left, 0), "lower the shares"))
    if faults:
        raise SourceError(*faults)


def classes_from_labels(
    labels: Sequence[Any] | npt.NDArray[Any], where: object
) -> tuple[npt.NDArray[np.int32], list[Any]]:
    """Number the distinct labels 0, 1, 2 ... in their sorted order.

    Whole numbers, texts and booleans are classes. Floats are refused: a measurement is no class, and 0.1 + 0.2 would be
    another one than 0.3.

    Args:
        labels: n labels, all of one kind.
        where: named in the error.

    Returns:
        int32 [n] class numbers, and the distinct labels in order.

    Raises:
        SourceError: the labels are empty, of mixed kinds, or of a kind that is no class.

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
