"""Opens task stores: folders of immutable Arrow tables, memory-mapped and shared by all processes of a node.

    STORE/manifest.json, images.arrow                each distinct image once
    STORE/seed-0/manifest.json, datapoints.arrow     the datapoints of one stream seed; seeds can be added later

`docs/task-store.md` describes the format for readers and writers in other tools; `streams.store.publish` writes it.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streams.errors import StoreError, fault
from streams.recipe import SPLITS, WHITE, Images, SeedTable
from streams.store import manifest as manifests
from streams.store.checks import image_faults, range_faults, table_faults
from streams.store.manifest_rules import SEED_KEYS, STORE_KEYS, seed_faults, store_faults
from streams.store.tables import DATAPOINTS, IMAGES, datapoint_schema, fixed_width, image_schema, map_table
from streams.views import Views, draw


@dataclass(frozen=True)
class Table(SeedTable):
    """The mapped datapoints of one seed (see `SeedTable`).

    Attributes:
        starts: int64 [3, tasks + 1]; task t in split s has the rows from starts[s, t] up to starts[s, t + 1].
        manifest: the seed's manifest.
    """

    starts: npt.NDArray[np.int64]
    manifest: dict[str, Any]


class TaskStore:
    """An open store: the manifest, the images mapped without a copy, and the tables of its seeds.

    It is opened by `TaskStore.open`, and pickled as its path and hash, so that unpickling maps the files again.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._tables: dict[int, Table] = {}

    @classmethod
    def open(cls, path: str | Path, verify: bool = False) -> "TaskStore":
        """Map a store.

        Args:
            path: the store's folder.
            verify: hash every byte, those of all seeds included, and check every datapoint. Without it, manifests,
                schemas, lengths and the classes of images are checked now, and a seed's datapoints in `table`.

        Raises:
            StoreError: the store is missing, of a newer version, cut, or invalid, or (with `verify`) any byte changed;
                one line for every fault.
        """
        folder = Path(path).absolute()
        store = cls(folder, manifests.read(folder, STORE_KEYS))
        if faults := store_faults(folder / manifests.NAME, store.manifest):
            raise StoreError(*faults)
        # Bytes first: Arrow must not read a damaged file.
        faults = manifests.verify_bytes(folder, store.manifest) if verify else []
        for seed in store.seeds:
            try:
                manifest = store._seed_manifest(seed)
                faults += manifests.verify_bytes(store._seed_folder(seed), manifest) if verify else []
            except StoreError as error:
                faults += error.faults
        if faults:
            raise StoreError(*faults)
        if store._images.num_rows != store.count:
            rule = f"must have {store.count} rows"
            raise StoreError(fault(folder / IMAGES, rule, store._images.num_rows, "build the store again"))
        if faults := image_faults(folder / IMAGES, store.pixels, store.images, store.views):
            raise StoreError(*faults)
        if verify:
            store._check_contents()
        return store

    def _check_contents(self) -> None:
        """Compare the columns with the digests of their content, and check every datapoint."""
        columns: tuple[npt.NDArray[Any], ...] = (self.pixels, self.classes_of, self.splits_of)
        faults = _content_faults(self.path / IMAGES, self.manifest, columns)
        for seed in self.seeds:
            path = self._seed_folder(seed) / DATAPOINTS
            try:
                table = self.table(seed)
            except StoreError as error:
                faults += error.faults
                continue
            faults += _content_faults(path, table.manifest, (table.task, table.split, table.image_ids, table.label))
            faults += table_faults(path, table, self.count)
            faults += _count_faults(path.with_name(manifests.NAME), table)
        if faults:
            raise StoreError(*faults)

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return str(self.manifest["name"])

    @property
    def hash(self) -> str:
        """sha256 (hex), the store's identity, which does not depend on its seeds."""
        return str(self.manifest["hash"])

    @property
    def count(self) -> int:
        """Number of distinct images."""
        return int(self.manifest["image"]["count"])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image as shown; 3 channels if the store has views."""
        channels, height, width = self.manifest["image"]["shape"]
        return channels, height, width

    @property
    def classes(self) -> int:
        """Number of labels that a datapoint can have."""
        return int(self.manifest["classes"])

    @property
    def images_per_datapoint(self) -> int:
        """V: 1, or 2 if a datapoint is a pair."""
        return int(self.manifest["images_per_datapoint"])

    @property
    def label_names(self) -> tuple[str, ...]:
        """The class names, if the labels of datapoints are classes; else empty."""
        names = self.manifest["class_names"]
        return tuple(names) if self.images_per_datapoint == 1 and len(names) == self.classes else ()

    @property
    def background(self) -> str:
        """The colour that transparent images were composited on."""
        recipe = self.manifest["recipe"]
        return str(recipe.get("background", WHITE)) if isinstance(recipe, dict) else WHITE

    @cached_property
    def _images(self) -> pa.RecordBatch:
        return map_table(self.path / IMAGES, image_schema(prod(self.manifest["image"]["stored_shape"])))

    @cached_property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """uint8 [n, C, H, W] as stored; read-only, a view of the mapped file."""
        stored = self.manifest["image"]["stored_shape"]
        return np.frombuffer(fixed_width(self._images.column("pixels")), dtype=np.uint8).reshape(self.count, *stored)

    @cached_property
    def classes_of(self) -> npt.NDArray[np.int32]:
        """int32 [n]: the class of each stored image, also if the label of a datapoint is same or different."""
        return np.asarray(self._images.column("class").to_numpy())

    @cached_property
    def splits_of(self) -> npt.NDArray[np.uint8]:
        """uint8 [n]: the pool of each stored image (0 train, 1 validation, 2 test)."""
        return np.asarray(self._images.column("split").to_numpy())

    @property
    def images(self) -> Images:
        """Classes, splits, class names and tasks of the stored images."""
        tasks = tuple((str(task["name"]), int(task["images"])) for task in self.manifest.get("image_tasks", []))
        return Images(self.classes_of, self.splits_of, tuple(self.manifest["class_names"]), tasks)

    @cached_property
    def views(self) -> Views | None:
        """The views in which images are drawn; None if images are shown as stored."""
        items = self.manifest["views"]
        _, height, width = self.manifest["image"]["stored_shape"]
        return None if items is None else Views.from_json(items, height, width)

    def draw(self, image_ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Images as shown: float32 [..., C, H, W] in 0..1, for image ids of any shape [...]."""
        if self.views is not None:
            return draw(self.pixels, self.views, image_ids)
        images = self.pixels[np.asarray(image_ids, dtype=np.int64)].astype(np.float32)
        images /= 255
        return images

    @property
    def seeds(self) -> list[int]:
        """The stream seeds of the store, ascending."""
        names = (entry.name.removeprefix("seed-") for entry in self.path.glob("seed-*"))
        return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)

    def table(self, seed: int) -> Table:
        """The datapoints of one seed, mapped.

        Raises:
            StoreError: the store does not have this seed, or its table is damaged or belongs to another store.
        """
        if seed not in self._tables:
            self._tables[seed] = self._read_table(seed)
        return self._tables[seed]

    def _seed_folder(self, seed: int) -> Path:
        return self.path / f"seed-{seed}"

    def _seed_manifest(self, seed: int) -> dict[str, Any]:
        folder = self._seed_folder(seed)
        manifest = manifests.read(folder, SEED_KEYS)
        if faults := seed_faults(folder / manifests.NAME, manifest, seed, self.hash):
            raise StoreError(*faults)
        return manifest

    def _read_table(self, seed: int) -> Table:
        folder = self._seed_folder(seed)
        if not folder.is_dir():
            raise StoreError(
                fault(self.path, f"has the seeds {self.seeds}", seed, "add it with python -m streams.build --seeds")
            )
        manifest = self._seed_manifest(seed)
        path = folder / DATAPOINTS
        batch = map_table(path, datapoint_schema(self.images_per_datapoint))
        rows, tasks = batch.num_rows, len(manifest["tasks"])
        if rows != manifest["rows"]:
            raise StoreError(fault(path, f"must have {manifest['rows']} rows", rows, "build this seed again"))
        task, split, label = (np.asarray(batch.column(name).to_numpy()) for name in ("task", "split", "label"))
        ids = np.frombuffer(fixed_width(batch.column("image_ids").values), dtype=np.int32)
        seed_table = SeedTable(task, split, ids.reshape(rows, self.images_per_datapoint), label, manifest["tasks"])
        shown = self.count * (1 if self.views is None else len(self.views))
        if faults := range_faults(path, seed_table, shown, self.images_per_datapoint, self.classes):
            raise StoreError(*faults)
        keys = split.astype(np.int64) * tasks + task
        if np.any(keys[1:] < keys[:-1]):
            raise StoreError(fault(path, "must have its rows sorted by (split, task)", remedy="build this seed again"))
        starts = np.searchsorted(keys, np.arange(len(SPLITS))[:, None] * tasks + np.arange(tasks + 1)[None, :])
        return Table(**vars(seed_table), starts=starts, manifest=manifest)

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return _reopen, (str(self.path), self.hash)


def _reopen(path: str, expected: str) -> TaskStore:
    store = TaskStore.open(path)
    if store.hash != expected:
        raise StoreError(fault(path, f"must be the store {expected}", store.hash, "the store was replaced"))
    return store


def _content_faults(path: Path, manifest: dict[str, Any], columns: tuple[npt.NDArray[Any], ...]) -> list[str]:
    content = manifests.content_digest(*columns)
    if content == manifest["content"]:
        return []
    return [fault(path, f"content must be {manifest['content']}", content, "build the store again")]


def _count_faults(path: Path, table: Table) -> list[str]:
    """One line for every task with other numbers of points in the manifest than in the table."""
    faults = []
    for number, (about, counts) in enumerate(zip(table.tasks, np.diff(table.starts).T, strict=True)):
        counted = dict(zip(SPLITS, counts.tolist(), strict=True))
        got = {split: about.get(split) for split in SPLITS}
        if got != counted:
            faults.append(fault(path, f"tasks[{number}]: must count the points of the splits, {counted}", got))
    return faults
