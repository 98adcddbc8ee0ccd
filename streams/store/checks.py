"""Checks of images and tables, before they are written and when a store is opened."""

from typing import Any

import numpy as np

from streams.errors import SourceError, fault
from streams.recipe import SPLITS, TRAIN, Collected, Images, Recipe, SeedTable
from streams.views import Views


def check_collected(recipe: Recipe, collected: Collected) -> None:
    """Check types, shapes and ranges of the result of `Recipe.collect`.

    Raises:
        SourceError: one line for every fault.
    """
    faults = image_faults(recipe.name, collected.pixels, collected.images, recipe.views())
    if faults:
        raise SourceError(*faults)


def check_table(recipe: Recipe, images: Images, table: SeedTable) -> None:
    """Check types, shapes, ranges and order of a seed's table, and that no held-out image is trained on.

    Raises:
        SourceError: one line for every fault.
    """
    where, views = f"{recipe.name}: datapoints", recipe.views()
    shown = len(images.classes) * (1 if views is None else len(views))
    faults = range_faults(where, table, shown, recipe.images_per_datapoint, recipe.labels(images))
    faults = faults or table_faults(where, table, len(images.classes))
    if faults:
        raise SourceError(*faults)


def image_faults(where: object, pixels: Any, images: Images, views: Views | None) -> list[str]:
    """One line, starting with `where`, for every wrong type, shape or range in a store's images."""
    faults = []
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 4:
        return [fault(where, "pixels must be uint8 [n, C, H, W]", _kind(pixels))]
    if not len(pixels):
        faults.append(fault(where, "must have at least one image", 0))
    for name, column in (("classes", images.classes), ("splits", images.splits)):
        if not isinstance(column, np.ndarray) or column.shape != (len(pixels),) or column.dtype.kind not in "iu":
            faults.append(fault(where, f"{name} must be whole numbers [{len(pixels)}]", _kind(column)))
    if not faults:
        faults += _range(where, "classes", images.classes, len(images.class_names))
        faults += _range(where, "splits", images.splits, len(SPLITS))
    if images.tasks and sum(count for _, count in images.tasks) != len(pixels):
        faults.append(fault(where, f"tasks must have {len(pixels)} images", sum(count for _, count in images.tasks)))
    if (1 if views is None else len(views)) * len(pixels) > np.iinfo(np.int32).max:
        faults.append(fault(where, "views * images must be below 2**31, so that image ids are int32", len(pixels)))
    if views is not None and (pixels.shape[1] not in (1, 3) or pixels.shape[2:] != (views.height, views.width)):
        rule = f"views need images of [1 or 3, {views.height}, {views.width}]"
        faults.append(fault(where, rule, list(pixels.shape[1:])))
    return faults


def range_faults(where: object, table: SeedTable, shown: int, images_per_datapoint: int, labels: int) -> list[str]:
    """One line for every column of a seed's table whose type, shape or range is wrong.

    Args:
        where: the start of each line.
        table: the datapoints.
        shown: images times views, the number of image ids.
        images_per_datapoint: V.
        labels: the number of labels.
    """
    rows = len(table.task)
    columns: dict[str, tuple[Any, tuple[int, ...], int]] = {
        "task": (table.task, (rows,), len(table.tasks)),
        "split": (table.split, (rows,), len(SPLITS)),
        "image_ids": (table.image_ids, (rows, images_per_datapoint), shown),
        "label": (table.label, (rows,), labels),
    }
    faults = []
    for name, (column, shape, limit) in columns.items():
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu" or column.shape != shape:
            faults.append(fault(where, f"{name} must be whole numbers {list(shape)}", _kind(column)))
        else:
            faults += _range(where, name, column, limit)
    return faults


def table_faults(where: object, table: SeedTable, count: int) -> list[str]:
    """One line for every fault among the rows of a seed's table: their order, a task without points, leaked images.

    Args:
        where: the start of each line.
        table: the datapoints; `range_faults` must have found none.
        count: the number of stored images, of which none may be both trained on and held out.
    """
    tasks, faults = len(table.tasks), []
    key = table.split.astype(np.int64) * tasks + table.task
    if np.any(key[1:] < key[:-1]):
        faults.append(fault(where, "rows must be sorted by (split, task)"))
    counts = np.bincount(key, minlength=len(SPLITS) * tasks).reshape(len(SPLITS), tasks)
    for split, number in SPLITS.items():
        empty = np.flatnonzero(counts[number] == 0)
        if len(empty):
            faults.append(fault(where, f"every task must have {split} points", f"none in tasks {empty.tolist()}"))
    trained, held_out = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    trained[table.image_ids[table.split == TRAIN] % count] = True
    held_out[table.image_ids[table.split != TRAIN] % count] = True
    both = np.flatnonzero(trained & held_out)
    if len(both):
        faults.append(fault(where, "no held-out image may be trained on", f"{len(both)} are, such as {both[0]}"))
    return faults


def _range(where: object, name: str, column: np.ndarray[Any, Any], limit: int) -> list[str]:
    if not len(column) or (column.min() >= 0 and column.max() < limit):
        return []
    return [fault(where, f"{name} must be within 0..{limit - 1}", f"{column.min()} to {column.max()}")]


def _kind(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
