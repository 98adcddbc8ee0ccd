"""Reads the listed images of a source, and splits the images of each class into pools: the contract of all readers."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault, readable
from streams.pools import Rows, first_copies, split_pools
from streams.randomness import generator
from streams.recipe import TEST, TRAIN, VALIDATION, Collected, Images, Progress
from streams.sources.decode import Content, ImageFormat, decode, pixel_table
from streams.sources.downloads import fingerprint

READER_VERSION = 3
"""Part of the names of cached stores: raised when the same files give other images or pools."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_NUMBER_IN_TEXT = re.compile(r"((?<!\d\.)\d+\.\d+(?!\.?\d)|\d+)")


@dataclass(frozen=True)
class Listing:
    """The images of a source, listed with their classes before the first is decoded.

    Attributes:
        name: of the source, for the manifest.
        root: the folder or file that `files` are relative to.
        files: the names of n images, relative paths where each is a file; sorted where the source has no order.
        labels: n class names.
        notices: lines about the choice of images, for the manifest.
        remarks: lines about the choice of images that are printed only.
        splits: n numbers of the pools that the source gives (see `Images`); None if all pools are drawn.
        class_names: the source's own order of classes; the order of text if None.
        contents: returns the contents of the n images, in order; the files if None.
        paths: the files whose state is the source's fingerprint; `files` if None.
        tasks: n names of tasks; None if the source does not name them or they are not read.
        order: n numbers or times that order the images; None if the source does not order them or they are not read.
    """

    name: str
    root: Path
    files: Sequence[str]
    labels: Sequence[str]
    notices: Sequence[str] = ()
    remarks: Sequence[str] = ()
    splits: Sequence[int] | None = None
    class_names: Sequence[str] | None = None
    contents: Callable[[], Iterable[Content]] | None = None
    paths: Sequence[Path] | None = None
    tasks: Sequence[str] | None = None
    order: Sequence[Any] | None = None

    def fingerprint(self) -> str:
        """A digest of the names, sizes and times of the files."""
        return fingerprint((self.root / file for file in self.files) if self.paths is None else self.paths)


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
    source: Listing,
    form: ImageFormat,
    pools: Pools,
    skip_bad: bool,
    purpose: str,
    progress: Progress,
    stretches: int = 1,
) -> Collected:
    """Decode the images, and split those of each class into the pools; those of each task if the source gives tasks.

    Images with the same stored pixels are copies and are always in one pool: that of the first, or, if the source gives
    pools, the most withheld of theirs (test, validation, train).

    Args:
        source: the images and their classes.
        form: the format of stored images.
        pools: the sizes of the pools.
        skip_bad: leave bad images out and record them; otherwise they are an error.
        purpose: of the random split (see `randomness.generator`).
        progress: called with the number of decoded images.
        stretches: tasks of equal size that the images are cut into, if the source orders them and names no tasks.

    Raises:
        SourceError: one line for every bad image, or for every class or task with too few images.
    """
    contents = None if source.contents is None else source.contents()
    decoded = decode(source.root, source.files, form, progress, contents)
    if decoded.bad and not skip_bad:
        raise SourceError(*shortened([*decoded.bad.values()], f"{source.root}: {{}} more images are bad"))
    good = np.setdiff1d(np.arange(len(source.files)), np.array([*decoded.bad], dtype=np.int64), assume_unique=True)
    labels = np.array(source.labels)[good]
    notices = [readable(line) for line in source.notices]
    distinct, counts = np.unique(labels, return_counts=True)
    small = distinct[counts < pools.least_images]
    if len(small):
        notices.append(f"{len(small)} classes have fewer than {pools.least_images} images and are left out")
        large = ~np.isin(labels, small)
        good, labels = good[large], labels[large]
    if not len(good):
        raise SourceError(fault(source.root, "must hold at least one image of a class that is large enough"))
    classes, names = classes_from_labels(labels, source.root)
    if source.class_names is not None:
        nonempty = set(names)
        present = [name for name in source.class_names if name in nonempty]
        first_of = {name: number for number, name in reversed([*enumerate(present)])}
        classes = np.array([first_of[name] for name in names], dtype=np.int32)[classes]
        names = present
    task_of, task_names = _task_of(source, good, stretches)
    if task_names:
        order = np.lexsort((good, _ranks(source.order, good), task_of))
        good, classes, task_of = good[order], classes[order], task_of[order]
    pixels = _rows_of(decoded.pixels, good)
    first = first_copies(pixels)
    notices += _copy_notices([source.files[row] for row in good], classes, first)
    pool_of = np.full(len(good), TRAIN) if source.splits is None else np.array(source.splits)[good]
    group_of = task_of if task_names else classes
    if not pool_of.any():
        groups = [f"task {name}" for name in task_names] or [f"class {name}" for name in names]
        distinct_of = np.bincount(np.unique(np.stack([group_of, first]), axis=1)[0])
        _check_sizes(groups, np.bincount(group_of), distinct_of, pools)
    splits = _split(group_of, first, pool_of, pools, generator(0, purpose))
    record: dict[str, Any] = {"name": source.name, "files": {f"{len(source.files)} images": decoded.digest}}
    record["notices"] = notices
    record["skipped"] = [readable(source.files[row]) for row in decoded.bad]
    remarks = (*map(readable, source.remarks), *decoded.remarks)
    if decoded.bad:
        remarks += (f"{len(decoded.bad)} images that cannot be read are left out",)
    tasks = tuple(zip(task_names, np.bincount(task_of).tolist(), strict=True)) if task_names else ()
    return Collected(pixels, Images(classes, splits, tuple(names), tasks), record, remarks)


def _task_of(source: Listing, rows: Rows, stretches: int) -> tuple[npt.NDArray[np.int32], list[str]]:
    """int32 [n]: the task of each row, and the tasks' names; no names if the source gives no tasks and no order."""
    if source.tasks is not None:
        tasks = [source.tasks[row] for row in rows.tolist()]
        names = task_order(tasks)
        number_of = {name: number for number, name in enumerate(names)}
        return np.array([number_of[task] for task in tasks], dtype=np.int32), names
    if source.order is None:
        return np.zeros(len(rows), dtype=np.int32), []
    if len(rows) < 3 * stretches:
        rule = f"must have at least {3 * stretches} images to cut them into {stretches} tasks"
        raise SourceError(fault(source.root, rule, len(rows), "lower tasks"))
    position = np.empty(len(rows), dtype=np.int64)
    position[np.lexsort((rows, _ranks(source.order, rows)))] = np.arange(len(rows))
    return (position * stretches // len(rows)).astype(np.int32), [str(number + 1) for number in range(stretches)]


def task_order(tasks: Sequence[str]) -> list[str]:
    """The distinct names of tasks: numbers by value; other names in the order of text, but numbers in them by value.

    Only names that are numbers as a whole have a sign: `task-1` holds no negative number. Of `2024.1.31` each part is a
    number.

    >>> task_order(["task10", "task2", "task10"]), task_order(["snow", "rain"])
    (['task2', 'task10'], ['rain', 'snow'])
    >>> task_order(["30", "-30", "0"]), task_order(["noise_0.25", "noise_0.5", "noise_0.1"])
    (['-30', '0', '30'], ['noise_0.1', 'noise_0.25', 'noise_0.5'])
    """
    names = sorted(set(tasks))  # task1 and task01 are equal in value, and stay in this order
    if all(_NUMBER.fullmatch(name) for name in names):
        return sorted(names, key=Decimal)

    def key(name: str) -> list[Decimal | str]:
        texts_and_numbers = _NUMBER_IN_TEXT.split(name)  # in turns, a text first
        return [Decimal(part) if at % 2 else part for at, part in enumerate(texts_and_numbers)]

    return sorted(names, key=key)


def _ranks(values: Sequence[Any] | None, rows: Rows) -> Rows:
    """int64 [n]: the rank of each row's value; all 0 if there are none."""
    if values is None:
        return np.zeros(len(rows), dtype=np.int64)
    chosen = [values[row] for row in rows.tolist()]
    rank_of = {value: rank for rank, value in enumerate(sorted(set(chosen)))}
    return np.array([rank_of[value] for value in chosen], dtype=np.int64)


def _rows_of(pixels: npt.NDArray[np.uint8], rows: Rows) -> npt.NDArray[np.uint8]:
    """These rows, without a second table in memory: in place if the rows ascend."""
    if np.array_equal(rows, np.arange(len(pixels))):
        return pixels
    table = pixels[: len(rows)] if (np.diff(rows) > 0).all() else pixel_table((len(rows), *pixels.shape[1:]))
    for start in range(0, len(rows), 4_096):
        table[start : start + 4_096] = pixels[rows[start : start + 4_096]]
    return table


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
    """Raise `SourceError` if a class or task has too few images, of which copies of one picture count once."""
    faults = []
    for name, images, count in zip(names, counts.tolist(), distinct_counts.tolist(), strict=True):
        got = count if images == count else f"{count}, and {images - count} copies"
        training = count - sum(pools.held_out(count))
        if training >= pools.least:
            continue
        if count < 3 * pools.least:
            rule = f"must have at least {3 * pools.least} images, {pools.least} to train, validate and test each"
            faults.append(fault(name, rule, got, f"add images or leave the {name.partition(' ')[0]} out"))
        else:
            shares = f"validation_share {pools.validation_share} and test_share {pools.test_share}"
            rule = f"{shares} must leave at least {pools.least} of its {count} images to train with"
            faults.append(fault(name, rule, max(training, 0), "lower the shares"))
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
