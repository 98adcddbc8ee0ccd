"""The task store, read: a folder of Arrow tables that never change, mapped and shared by every process of a node.

    STORE/manifest.json, images.arrow                distinct images, each once
    STORE/seed-0/manifest.json, datapoints.arrow     the datapoints of one stream seed; more seeds can be added later

`docs/task-store.md` describes the format for readers and writers in other tools; `streams.publish` writes it.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streams import manifest as manifests
from streams.errors import StoreError, fault
from streams.recipe import SPLITS, Images
from streams.views import Views, draw

IMAGES = "images.arrow"
DATAPOINTS = "datapoints.arrow"
_KEYS = (
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


def image_schema(bytes_per_image: int) -> pa.Schema:
    """Columns of `images.arrow`: pixels (uint8, CHW), class, and the source's pool (0 train, 1 validation, 2 test)."""
    pixels = pa.field("pixels", pa.binary(bytes_per_image), nullable=False)
    return pa.schema(
        [pixels, pa.field("class", pa.int32(), nullable=False), pa.field("split", pa.uint8(), nullable=False)]
    )


def datapoint_schema(images_per_datapoint: int) -> pa.Schema:
    """Columns of `datapoints.arrow`: task, split (0 train, 1 validation, 2 test), image ids, label."""
    ids = pa.list_(pa.field("item", pa.int32(), nullable=False), images_per_datapoint)
    return pa.schema(
        [
            pa.field("task", pa.int32(), nullable=False),
            pa.field("split", pa.uint8(), nullable=False),
            pa.field("image_ids", ids, nullable=False),
            pa.field("label", pa.int32(), nullable=False),
        ]
    )


@dataclass(frozen=True)
class Table:
    """The datapoints of one seed, mapped: n rows sorted by (split, task), within a task in the order of the stream.

    Attributes:
        task: int32 [n].  split: uint8 [n].  image_ids: int32 [n, V].  label: int32 [n].
        starts: int64 [3, tasks + 1]; rows starts[s, t] to starts[s, t + 1] are task t's in split s.
        manifest: the seed's manifest.
    """

    task: npt.NDArray[np.int32]
    split: npt.NDArray[np.uint8]
    image_ids: npt.NDArray[np.int32]
    label: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    manifest: dict[str, Any]


class TaskStore:
    """A store that is open: the manifest, the images mapped without a copy, and the tables of its seeds.

    Pickles as its path and hash, and maps again where it is loaded. Open with `TaskStore.open`.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._tables: dict[int, Table] = {}

    @classmethod
    def open(cls, path: str | Path, verify: bool = False) -> "TaskStore":
        """Map a store.

        Args:
            path: its folder.
            verify: re-hash every byte, all seeds included; otherwise manifests, structure and lengths are checked.

        Raises:
            StoreError: it is missing, of a newer version, cut, or (with `verify`) changed in any byte; one line for
                every file that is not as it was written.
        """
        folder = Path(path).absolute()
        store = cls(folder, manifests.read(folder, _KEYS))
        # Bytes come first: what is damaged is told before Arrow is asked to read it.
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
            raise StoreError(fault(folder / IMAGES, rule, store._images.num_rows, "build the store anew"))
        if verify:
            store._check_contents()
        return store

    def verify(self) -> None:
        """Re-hash every byte of the store, as it is on disk now.

        Raises:
            StoreError: one line for every file that differs from what was written.
        """
        TaskStore.open(self.path, verify=True)

    def _check_contents(self) -> None:
        tables = {seed: self.table(seed) for seed in self.seeds}  # listed once: another process may add one
        contents = {self.path / IMAGES: (self.manifest, (self.pixels, self.classes_of, self.splits_of))} | {
            self._seed_folder(seed) / DATAPOINTS: (t.manifest, (t.task, t.split, t.image_ids, t.label))
            for seed, t in tables.items()
        }
        faults = [
            fault(path, f"content must be {manifest['content']}", found, "build the store anew")
            for path, (manifest, columns) in contents.items()
            if (found := manifests.content_digest(*columns)) != manifest["content"]
        ]
        if faults:
            raise StoreError(*faults)

    @property
    def name(self) -> str:
        """The recipe's name."""
        return str(self.manifest["name"])

    @property
    def hash(self) -> str:
        """sha256 (hex): the store's identity; the same for every set of seeds."""
        return str(self.manifest["hash"])

    @property
    def count(self) -> int:
        """Number of distinct images."""
        return int(self.manifest["image"]["count"])

    @property
    def shape(self) -> tuple[int, int, int]:
        """[C, H, W] of an image as it is shown (with views: 3 channels)."""
        channels, height, width = self.manifest["image"]["shape"]
        return channels, height, width

    @property
    def classes(self) -> int:
        """Number of labels that a datapoint can have."""
        return int(self.manifest["classes"])

    @property
    def images_per_datapoint(self) -> int:
        """V: 1, or 2 where a datapoint is a pair."""
        return int(self.manifest["images_per_datapoint"])

    @cached_property
    def _images(self) -> pa.RecordBatch:
        return _map(self.path / IMAGES, image_schema(_bytes_per_image(self.manifest)))

    @cached_property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """uint8 [n, C, H, W] as stored: the mapped file itself, read-only."""
        stored = self.manifest["image"]["stored_shape"]
        return np.frombuffer(_values(self._images.column("pixels")), dtype=np.uint8).reshape(self.count, *stored)

    @cached_property
    def classes_of(self) -> npt.NDArray[np.int32]:
        """int32 [n]: the class of each stored image (of a pair stream too, where the label is same or different)."""
        return np.asarray(self._images.column("class").to_numpy())

    @cached_property
    def splits_of(self) -> npt.NDArray[np.uint8]:
        """uint8 [n]: the pool of each stored image in its source (0 train, 1 validation, 2 test)."""
        return np.asarray(self._images.column("split").to_numpy())

    @property
    def images(self) -> Images:
        """Classes, splits and class names of the stored images."""
        return Images(self.classes_of, self.splits_of, tuple(self.manifest["class_names"]))

    @cached_property
    def views(self) -> Views | None:
        """The looks in which images are drawn, or None where they are shown as stored."""
        items = self.manifest["views"]
        _, height, width = self.manifest["image"]["stored_shape"]
        return None if items is None else Views.from_json(items, height, width)

    def draw(self, image_ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Images as they are shown: float32 [..., C, H, W] in 0..1, for image ids of any shape [...]."""
        if self.views is not None:
            return draw(self.pixels, self.views, image_ids)
        chosen = self.pixels[np.asarray(image_ids, dtype=np.int64)].astype(np.float32)
        chosen /= 255
        return chosen

    @property
    def seeds(self) -> list[int]:
        """The stream seeds that the store holds, ascending."""
        names = (entry.name.removeprefix("seed-") for entry in self.path.glob("seed-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def table(self, seed: int) -> Table:
        """The datapoints of one seed, mapped.

        Raises:
            StoreError: the store has not this seed, or its table is damaged or belongs to another store.
        """
        if seed not in self._tables:
            self._tables[seed] = self._read_table(seed)
        return self._tables[seed]

    def _seed_folder(self, seed: int) -> Path:
        return self.path / f"seed-{seed}"

    def _seed_manifest(self, seed: int) -> dict[str, Any]:
        folder = self._seed_folder(seed)
        manifest = manifests.read(folder, SEED_KEYS)
        if manifest["store"] != self.hash:
            rule = f"store: must be the hash of the store it lies in, {self.hash}"
            raise StoreError(fault(folder / manifests.NAME, rule, manifest["store"], "build this seed anew"))
        return manifest

    def _read_table(self, seed: int) -> Table:
        folder = self._seed_folder(seed)
        if not folder.is_dir():
            raise StoreError(
                fault(self.path, f"has the seeds {self.seeds}", seed, "add it with python -m streams.build --seeds")
            )
        manifest = self._seed_manifest(seed)
        batch = _map(folder / DATAPOINTS, datapoint_schema(self.images_per_datapoint))
        ids = np.frombuffer(_values(batch.column("image_ids").values), dtype=np.int32)
        task, split = np.asarray(batch.column("task").to_numpy()), np.asarray(batch.column("split").to_numpy())
        tasks = len(manifest["tasks"])
        keys = split.astype(np.int64) * tasks + task
        if batch.num_rows != manifest["rows"] or np.any(keys[1:] < keys[:-1]):
            rule = f"must have {manifest['rows']} rows sorted by (split, task)"
            raise StoreError(fault(folder / DATAPOINTS, rule, batch.num_rows, "build this seed anew"))
        starts = np.searchsorted(keys, np.arange(len(SPLITS))[:, None] * tasks + np.arange(tasks + 1)[None, :])
        image_ids = ids.reshape(batch.num_rows, self.images_per_datapoint)
        return Table(task, split, image_ids, np.asarray(batch.column("label").to_numpy()), starts, manifest)

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return _reopen, (str(self.path), self.hash)


def _reopen(path: str, expected: str) -> TaskStore:
    store = TaskStore.open(path)
    if store.hash != expected:
        raise StoreError(fault(path, f"must be the store {expected}", store.hash, "another store took its place"))
    return store


def _bytes_per_image(manifest: dict[str, Any]) -> int:
    channels, height, width = manifest["image"]["stored_shape"]
    return int(channels * height * width)


def _map(path: Path, schema: pa.Schema) -> pa.RecordBatch:
    """Map an Arrow IPC file that must be one record batch of this schema (one batch: its columns are contiguous)."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            if not reader.schema.equals(schema):
                raise StoreError(
                    fault(path, f"must have the columns {_short(schema)}", _short(reader.schema), "build it anew")
                )
            if reader.num_record_batches != 1:
                raise StoreError(fault(path, "must be one record batch", reader.num_record_batches, "build it anew"))
            return reader.get_batch(0)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            fault(path, "cannot be read as an Arrow IPC file", error, "copy or build the store anew")
        ) from None


def _short(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _values(array: pa.Array) -> memoryview:
    """The bytes of a column of fixed width, as mapped."""
    width = array.type.byte_width if pa.types.is_fixed_size_binary(array.type) else array.type.bit_width // 8
    return memoryview(array.buffers()[-1])[array.offset * width : (array.offset + len(array)) * width]
