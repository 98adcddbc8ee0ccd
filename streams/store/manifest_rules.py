"""Rules for the values in the manifests of a store, which any tool may have written."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from streams.errors import fault
from streams.store.canonical_json import canonical
from streams.store.tables import DATAPOINTS, IMAGES
from streams.views import View, Views

STORE_KEYS = (
    "name",
    "recipe",
    "source",
    "image",
    "class_names",
    "classes",
    "images_per_datapoint",
    "views",
    "content",
    "files",
    "hash",
)
SEED_KEYS = ("seed", "rows", "tasks", "content", "store", "files", "hash")
_INT32 = 2**31 - 1
_LONG = 160
_AGAIN = "write the manifest again"
_VIEW = "must hold background (three whole numbers within 0..255), scale (1 or 0.5) and rotation (0..359)"


def store_faults(path: Path, manifest: dict[str, Any]) -> list[str]:
    """One line for every invalid value of a store's manifest, which has all `STORE_KEYS`."""
    return [fault(path, rule, _short(got), _AGAIN) for rule, got in _store_rules(manifest)]


def seed_faults(path: Path, manifest: dict[str, Any], seed: int, store_hash: str) -> list[str]:
    """One line for every invalid value of a seed's manifest, which has all `SEED_KEYS`.

    Args:
        path: of the manifest.
        manifest: its content.
        seed: the seed in the folder's name.
        store_hash: the hash of the store that holds the folder.
    """
    faults = []
    if manifest["store"] != store_hash:
        rule = f"store: must be the hash of the store it lies in, {store_hash}"
        faults.append(fault(path, rule, _short(manifest["store"]), "build this seed again"))
    if not _is_whole(manifest["seed"], 0) or manifest["seed"] != seed:
        rule = f"seed: must be {seed}, as the folder's name says"
        faults.append(fault(path, rule, _short(manifest["seed"]), "build this seed again"))
    if not _is_whole(manifest["rows"]):
        faults.append(fault(path, "rows: must be a whole number of at least 1", _short(manifest["rows"]), _AGAIN))
    tasks = manifest["tasks"]
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, dict) for task in tasks):
        faults.append(fault(path, "tasks: must be a list with a mapping for each task", _short(tasks), _AGAIN))
    if DATAPOINTS not in manifest["files"]:
        faults.append(fault(path, f"files: must name {DATAPOINTS}", _short(list(manifest["files"])), _AGAIN))
    return faults


def _store_rules(manifest: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if not isinstance(manifest["name"], str):
        yield "name: must be text", manifest["name"]
    source = manifest["source"]
    if not isinstance(source, dict):
        yield "source: must be a mapping", source
    else:
        for key in ("notices", "skipped"):
            if not isinstance(source.get(key, []), list):
                yield f"source.{key}: must be a list", source[key]
    names = manifest["class_names"]
    if not isinstance(names, list) or not names:
        yield "class_names: must be a list of at least one name", names
    for key, most in (("classes", 1_000_000), ("images_per_datapoint", 1_000)):
        if not _is_whole(manifest[key]) or manifest[key] > most:
            yield f"{key}: must be a whole number within 1..{most}", manifest[key]
    if IMAGES not in manifest["files"]:
        yield f"files: must name {IMAGES}", list(manifest["files"])
    image = manifest["image"]
    if not isinstance(image, dict):
        yield "image: must be a mapping", image
        return
    if not _is_whole(image.get("count")):
        yield "image.count: must be a whole number of at least 1", image.get("count")
    yield from _task_rules(manifest.get("image_tasks", []), image.get("count"))
    stored = image.get("stored_shape")
    if not isinstance(stored, list) or len(stored) != 3 or not all(map(_is_whole, stored)):
        yield "image.stored_shape: must be three whole numbers of at least 1", stored
        return
    if prod(stored) > _INT32:
        yield "image.stored_shape: an image must have less than 2**31 bytes", stored
    views = manifest["views"]
    shown = stored if views is None else [3, *stored[1:]]
    if image.get("shape") != shown:
        yield f"image.shape: must be {shown}", image.get("shape")
    if views is not None:
        yield from _view_rules(views, stored, image.get("count"))


def _task_rules(tasks: Any, count: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(tasks, list) or not all(
        isinstance(task, dict) and isinstance(task.get("name"), str) and _is_whole(task.get("images")) for task in tasks
    ):
        yield "image_tasks: must be a list of mappings with a name and a number of images", tasks
    elif tasks and sum(task["images"] for task in tasks) != count:
        yield f"image_tasks: must have image.count, {count}, images", sum(task["images"] for task in tasks)


def _view_rules(items: Any, stored: list[int], count: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(items, list) or not items:
        yield "views: must be null or a list of at least one view", items
        return
    wrong = [(f"views[{index}]: {_VIEW}", item) for index, item in enumerate(items) if not _is_view(item)]
    yield from wrong
    if stored[0] not in (1, 3):
        yield "image.stored_shape: must be of one or three channels where there are views", stored
    if _is_whole(count) and len(items) * count > _INT32:
        yield "views * image.count must be below 2**31", len(items) * count
    if not wrong:
        try:
            Views.from_json(items, *stored[1:])
        except ValueError as error:
            yield f"views: {error}", stored


def _is_view(item: Any) -> bool:
    try:
        background, scale, rotation = item["background"], item["scale"], item["rotation"]
        permutation = item.get("permutation")
        View(tuple(background), scale, rotation, permutation)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    if rotation % 1 or not (permutation is None or _is_whole(permutation, 0)):
        return False
    return all(_is_whole(channel, 0) for channel in background) and bool not in (type(scale), type(rotation))


def _is_whole(value: Any, least: int = 1) -> bool:
    return type(value) is int and value >= least


def _short(value: Any) -> str:
    """The value as JSON, which distinguishes "8" from 8."""
    line = canonical(value)
    return line if len(line) <= _LONG else f"{line[:_LONG]} ..."
