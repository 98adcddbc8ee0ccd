"""Dealing images into the pools that train, validate and test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from streams.recipe import TEST, TRAIN, VALIDATION

Rows = npt.NDArray[np.int64]


def deal_pools(
    classes: npt.NDArray[np.int32], held_out: Callable[[int], tuple[int, int]], draw: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Deal each class's images into the pools 0 train, 1 validation, 2 test.

    Args:
        classes: int32 [n].
        held_out: from a class's number of images to how many validate and how many test.
        draw: where chance comes from.

    Returns:
        uint8 [n].
    """
    splits = np.full(len(classes), TRAIN, dtype=np.uint8)
    for rows in rows_by_class(classes):
        validation, test = held_out(len(rows))
        dealt = draw.permutation(rows)
        splits[dealt[:validation]] = VALIDATION
        splits[dealt[validation : validation + test]] = TEST
    return splits


def rows_by_class(classes: npt.NDArray[np.int32], count: int | None = None) -> list[Rows]:
    """The rows of each class, ascending; `count` classes, where the last ones may have none."""
    sizes = np.bincount(classes, minlength=count or 0)
    return np.split(np.argsort(classes, kind="stable"), np.cumsum(sizes)[:-1])
