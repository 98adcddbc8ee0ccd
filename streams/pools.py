"""Splits images into the training, validation and test pools."""

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from streams.recipe import TEST, TRAIN, VALIDATION

Rows = npt.NDArray[np.int64]


def split_pools(
    classes: npt.NDArray[np.int32], held_out: Callable[[int], tuple[int, int]], rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Split the images of each class into the pools 0 train, 1 validation, 2 test.

    Args:
        classes: int32 [n], the class of each image.
        held_out: maps the size of a class to its number of validation and of test images.
        rng: the random numbers.

    Returns:
        uint8 [n], the pool of each image.
    """
    splits = np.full(len(classes), TRAIN, dtype=np.uint8)
    for rows in rows_by_class(classes):
        validation, test = held_out(len(rows))
        shuffled = rng.permutation(rows)
        splits[shuffled[:validation]] = VALIDATION
        splits[shuffled[validation : validation + test]] = TEST
    return splits


def first_copies(pixels: npt.NDArray[np.uint8]) -> Rows:
    """int64 [n]: the row of the first image with the same pixels (uint8 [n, ...])."""
    rows: dict[bytes, int] = {}
    digests = (hashlib.sha256(image.tobytes()).digest() for image in pixels)
    return np.array([rows.setdefault(digest, row) for row, digest in enumerate(digests)], dtype=np.int64)


def rows_by_class(classes: npt.NDArray[np.int32], count: int | None = None) -> list[Rows]:
    """The rows of each class, ascending; of `count` classes if given, of which the last may have no row."""
    sizes = np.bincount(classes, minlength=count or 0)
    return np.split(np.argsort(classes, kind="stable"), np.cumsum(sizes)[:-1])
