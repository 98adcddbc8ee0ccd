"""Writes task stores: a folder is filled under a temporary name, synchronized to disk, and renamed."""

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streams.errors import StoreError, fault
from streams.recipe import Collected, Recipe, SeedTable
from streams.store import manifest as manifests
from streams.store.tables import DATAPOINTS, IMAGES, datapoint_schema, image_schema
from streams.views import Views


def temporary_prefix(folder: Path) -> str:
    """The start of the names of unfinished folders beside `folder`, which are never read and may be removed."""
    return f".{folder.name}.unfinished-"


def publish(folder: Path, write: Callable[[Path], object]) -> None:
    """Fill a temporary folder beside `folder` by `write`, then rename it to `folder`.

    If another process published `folder` meanwhile, that folder stays: both are the same pure function of a recipe.

    Raises:
        OSError: the folder cannot be written, or exists without a manifest and cannot be replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.parent / f"{temporary_prefix(folder)}{secrets.token_hex(8)}"
    unfinished.mkdir()
    try:
        write(unfinished)
        for path in [*unfinished.rglob("*"), unfinished]:
            _flush(path)
        try:
            unfinished.rename(folder)
        except OSError:
            if not (folder / manifests.NAME).is_file():
                raise
        else:
            _flush(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def require_replaceable(folder: Path) -> None:
    """Check that `publish` can replace an empty folder, by renaming it and renaming it back.

    Raises:
        StoreError: the folder cannot be replaced: it is a mount point, for example.
    """
    other = folder.parent / f"{temporary_prefix(folder)}{secrets.token_hex(8)}"
    try:
        folder.rename(other)
    except OSError as error:
        rule, remedy = "a new store replaces this empty folder, which must be possible", "name a new folder in it"
        raise StoreError(fault(folder, rule, error.strerror, remedy)) from None
    other.rename(folder)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished folders of killed builds of `folder`; the caller must hold the folder's lock."""
    for unfinished in folder.parent.glob(f"{temporary_prefix(folder)}*"):
        shutil.rmtree(unfinished, ignore_errors=True)


def _format_version(views: Views | None, channels: int) -> int:
    """The oldest version that reads a store with these views of images with this many channels."""
    if views is None:
        return manifests.FORMAT_VERSION
    return manifests.COLOUR_VIEWS_VERSION if channels == 3 else max(view.format_version for view in views.items)


def write_images(folder: Path, recipe: Recipe, collected: Collected) -> dict[str, Any]:
    """Write `images.arrow` and the store's manifest into `folder`, and return the manifest."""
    pixels, images, views = collected.pixels, collected.images, recipe.views()
    count, *stored = pixels.shape
    classes, splits = images.classes.astype(np.int32), images.splits.astype(np.uint8)
    width = int(np.prod(stored))
    buffer = pa.py_buffer(np.ascontiguousarray(pixels).reshape(-1))
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, buffer])
    _write_table(folder / IMAGES, [column, pa.array(classes), pa.array(splits)], image_schema(width))
    manifest: dict[str, Any] = {
        "format_version": _format_version(views, stored[0]),
        "name": recipe.name,
        "recipe": recipe.identity(),
        "source": collected.source,
        "image": {"count": count, "stored_shape": stored, "shape": stored if views is None else [3, *stored[1:]]},
        "class_names": list(images.class_names),
        "classes": recipe.labels(images),
        "images_per_datapoint": recipe.images_per_datapoint,
        "views": None if views is None else views.to_json(),
        "content": manifests.content_digest(pixels, classes, splits),
        "files": {IMAGES: manifests.file_entry(folder / IMAGES)},
    }
    if images.tasks:
        manifest["image_tasks"] = [{"name": name, "images": count} for name, count in images.tasks]
    return _write_manifest(folder, manifest)


def write_seed(folder: Path, seed: int, table: SeedTable, store_hash: str) -> dict[str, Any]:
    """Write `datapoints.arrow` and the seed's manifest into `folder`, and return the manifest."""
    rows, per_datapoint = table.image_ids.shape
    schema = datapoint_schema(per_datapoint)
    task, split = table.task.astype(np.int32), table.split.astype(np.uint8)
    image_ids, label = table.image_ids.astype(np.int32), table.label.astype(np.int32)
    ids = pa.FixedSizeListArray.from_arrays(pa.array(image_ids.reshape(-1)), type=schema.field("image_ids").type)
    _write_table(folder / DATAPOINTS, [pa.array(task), pa.array(split), ids, pa.array(label)], schema)
    counts = np.zeros((3, len(table.tasks)), dtype=np.int64)
    np.add.at(counts, (split, task), 1)
    described = [
        {**about, "train": int(train), "validation": int(validation), "test": int(test)}
        for (train, validation, test), about in zip(counts.T, table.tasks, strict=True)
    ]
    manifest: dict[str, Any] = {
        "format_version": manifests.FORMAT_VERSION,
        "store": store_hash,
        "seed": seed,
        "rows": rows,
        "tasks": described,
        "content": manifests.content_digest(task, split, image_ids, label),
        "files": {DATAPOINTS: manifests.file_entry(folder / DATAPOINTS)},
    }
    return _write_manifest(folder, manifest)


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    manifest["hash"] = manifests.identity(manifest)
    (folder / manifests.NAME).write_text(manifests.text(manifest), encoding="utf-8", newline="\n")
    return manifest


def _write_table(path: Path, columns: list[pa.Array], schema: pa.Schema) -> None:
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
