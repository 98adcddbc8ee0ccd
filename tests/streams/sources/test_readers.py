"""The contract of all readers: the same twelve pictures in every form give the same images, classes and splits.

A new reader needs a line in `FORMS`, which writes the pictures in its form, and its lines in `DAMAGES`.
"""

import io
import json
import os
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from streams.build import build
from streams.errors import SourceError
from streams.images import ImagePairs, ImageTasks, SingleImages
from streams.recipe import SPLITS, Collected
from streams.sources import label_file
from streams.sources.folder import Names
from streams.sources.image_files import task_order
from streams.sources.labels import Columns
from streams.sources.reader import list_source
from streams.store.task_store import TaskStore

SIDE = 28
CLASSES = ("cat", "dog", "owl")
SPLIT_OF = ("train", "train", "validation", "test")
"""Of the four pictures of each class."""


@dataclass(frozen=True)
class Picture:
    """One of the twelve: grey in three equal channels, so that forms of one channel hold the same."""

    pixels: np.ndarray
    label: str
    split: str
    number: int

    @property
    def png(self) -> bytes:
        file = io.BytesIO()
        Image.fromarray(self.pixels).save(file, format="PNG")
        return file.getvalue()

    @property
    def name(self) -> str:
        return f"{self.label}-{self.number}.png"


def twelve() -> list[Picture]:
    grey = np.random.default_rng(0).integers(0, 256, (12, SIDE, SIDE), dtype=np.uint8)
    return [
        Picture(np.repeat(grey[4 * row + number, :, :, None], 3, axis=-1), label, split, number)
        for row, label in enumerate(CLASSES)
        for number, split in enumerate(SPLIT_OF)
    ]


PICTURES = twelve()
EXPECTED = {picture.pixels.transpose(2, 0, 1).tobytes(): (picture.label, picture.split) for picture in PICTURES}


def described(collected: Collected) -> dict[bytes, tuple[str, str]]:
    """The class and the split of each image by its pixels."""
    images, names = collected.images, list(SPLITS)
    assert len(collected.pixels) == len(images.classes) == len(images.splits)
    return {
        pixels.tobytes(): (images.class_names[number], names[split])
        for pixels, number, split in zip(collected.pixels, images.classes, images.splits, strict=True)
    }


# Writers: each writes the pictures into an empty folder, and returns what `data` names.


def write_folder(folder: Path) -> Path:
    for picture in PICTURES:
        path = folder / picture.split / picture.label / picture.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.png)
    return folder


def write_plain_folder(folder: Path) -> Path:
    for picture in PICTURES:
        (folder / picture.label).mkdir(parents=True, exist_ok=True)
        (folder / picture.label / picture.name).write_bytes(picture.png)
    return folder


def write_zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "pictures.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for picture in PICTURES[::-1]:
            archive.writestr(f"pictures/{picture.split}/{picture.label}/{picture.name}", picture.png)
        archive.writestr("__MACOSX/pictures/._cat-0.png", b"no image")
    return folder / "pictures.zip"


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_tar(mode: str, suffix: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        with tarfile.open(folder / f"pictures{suffix}", mode) as archive:  # type: ignore[call-overload]
            for picture in PICTURES[::-1]:
                add(archive, f"./{picture.split}/{picture.label}/{picture.name}", picture.png)
        return folder / f"pictures{suffix}"

    return write


def write_shards(folder: Path) -> Path:
    for split in SPLITS:
        with tarfile.open(folder / f"{split}-000000.tar", "w") as archive:
            for number, picture in enumerate(each for each in PICTURES if each.split == split):
                add(archive, f"{number:05d}.png", picture.png)
                add(archive, f"{number:05d}.cls", picture.label.encode())
    return folder


def write_json_shard(folder: Path) -> Path:
    with tarfile.open(folder / "shard.tar", "w") as archive:
        for number, picture in enumerate(PICTURES):
            add(archive, f"{number:05d}.json", json.dumps({"label": picture.label, "width": SIDE}).encode())
        for number, picture in reversed([*enumerate(PICTURES)]):
            add(archive, f"{number:05d}.seg.png", picture.png)
    return folder / "shard.tar"


def as_table(pictures: Sequence[Picture], metadata: bool = True, extra: bool = False) -> pa.Table:
    """A table as Hugging Face writes it."""
    structs = [{"bytes": picture.png, "path": picture.name} for picture in pictures]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns: dict[str, Any] = {"image": pa.array(structs, kind)}
    columns["label"] = pa.array([CLASSES.index(picture.label) for picture in pictures], pa.int64())
    if not metadata:
        columns["label"] = pa.array([picture.label for picture in pictures])
    if extra:
        columns["split"] = pa.array([picture.split for picture in pictures])
    features = {"image": {"_type": "Image"}, "label": {"names": [*CLASSES], "_type": "ClassLabel"}}
    table = pa.table(columns)
    return table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})} if metadata else {}
    )


def write_parquet(folder: Path) -> Path:
    (folder / "data").mkdir()
    for split in SPLITS:
        pictures = [each for each in PICTURES if each.split == split]
        for number, part in enumerate((pictures[:1], pictures[1:])):
            name = f"{split}-{number:05d}-of-00002.parquet"
            pq.write_table(as_table(part), folder / "data" / name, row_group_size=2)
    return folder


def write_parquet_file(folder: Path) -> Path:
    pq.write_table(as_table(PICTURES, metadata=False, extra=True), folder / "pictures.parquet")
    return folder / "pictures.parquet"


def write_parquet_paths(folder: Path) -> Path:
    """Images as paths beside the file, without bytes."""
    for picture in PICTURES:
        (folder / picture.name).write_bytes(picture.png)
    table = as_table(PICTURES, extra=True)
    structs = [{"bytes": None, "path": picture.name} for picture in PICTURES]
    column = pa.array(structs, table.schema.field("image").type)
    pq.write_table(table.set_column(0, "image", column), folder / "pictures.parquet")
    return folder / "pictures.parquet"


def write_saved(folder: Path) -> Path:
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(SPLITS)}))
    for split in SPLITS:
        write_saved_split(folder / split, [each for each in PICTURES if each.split == split])
    return folder


def write_saved_split(folder: Path, pictures: Sequence[Picture], extra: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    table = as_table(pictures, extra=extra)
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}], "_split": "train"}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


ROWS = [{"file_name": each.name, "label": each.label, "split": each.split} for each in PICTURES]


def write_flat(folder: Path) -> None:
    for picture in PICTURES:
        (folder / picture.name).write_bytes(picture.png)


def as_csv(rows: Sequence[dict[str, str]], separator: str = ",") -> str:
    return "".join(f"{separator.join(values)}\n" for values in [[*rows[0]], *([*row.values()] for row in rows)])


def write_csv(folder: Path) -> Path:
    """As Kaggle has it: a file of labels beside a folder, names without a suffix."""
    (folder / "train").mkdir()
    write_flat(folder / "train")
    rows = [{"id": row["file_name"].removesuffix(".png"), "breed": row["label"], "split": row["split"]} for row in ROWS]
    (folder / "labels.csv").write_text(as_csv(rows))
    return folder


def write_tsv(folder: Path) -> Path:
    write_flat(folder)
    (folder / "any name.tsv").write_text("\ufeff" + as_csv(ROWS, "\t"), encoding="utf-8")
    return folder / "any name.tsv"


def write_json_lines(folder: Path) -> Path:
    for split in SPLITS:
        (folder / split).mkdir()
        rows = [row for row in ROWS if row["split"] == split]
        for row in rows:
            (folder / split / row["file_name"]).write_bytes(
                next(each.png for each in PICTURES if each.name == row["file_name"])
            )
        lines = [json.dumps({"file_name": row["file_name"], "label": row["label"]}) for row in rows]
        (folder / split / "metadata.jsonl").write_text("\n".join(lines))
    return folder


def write_parquet_labels(folder: Path) -> Path:
    write_flat(folder)
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "metadata.parquet")
    return folder


X = np.stack([each.pixels for each in PICTURES])
Y = np.array([CLASSES.index(each.label) for each in PICTURES])


def write_xy(folder: Path) -> Path:
    """Channels first, and labels that are text."""
    np.savez(folder / "pictures.npz", x=X.transpose(0, 3, 1, 2), y=np.array([each.label for each in PICTURES]))
    return folder / "pictures.npz"


def write_npy(folder: Path) -> Path:
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", np.array([each.label for each in PICTURES]))
    return folder


def write_medmnist(folder: Path) -> Path:
    """Labels [n, 1], whole numbers."""
    arrays = {}
    for split, word in (("train", "train"), ("validation", "val"), ("test", "test")):
        mine = np.array([each.split == split for each in PICTURES])
        arrays |= {f"{word}_images": X[mine], f"{word}_labels": Y[mine, None].astype(np.uint8)}
    np.savez_compressed(folder / "pictures.npz", **arrays)
    return folder / "pictures.npz"


def write_keras(folder: Path) -> Path:
    train = np.array([each.split != "test" for each in PICTURES])
    np.savez(
        folder / "mnist.npz", x_train=X[train, :, :, 0], y_train=Y[train], x_test=X[~train, :, :, 0], y_test=Y[~train]
    )
    return folder / "mnist.npz"


def write_quick_draw(folder: Path) -> Path:
    for number, label in enumerate(CLASSES):
        np.save(folder / f"full_numpy_bitmap_{label}.npy", X[number == Y, :, :, 0].reshape(-1, SIDE * SIDE))
    return folder


@dataclass(frozen=True)
class Form:
    """A form of source.

    Attributes:
        write: writes the pictures.
        class_names: the names of the classes, which are numbers in forms without names.
        gives_split: whether the form holds the split; otherwise a quarter of each class validates and a quarter tests.
        options: of the recipe.
    """

    write: Callable[[Path], Path]
    gives_split: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = CLASSES


FORMS = {
    "folder": Form(write_folder),
    "folder without a split": Form(write_plain_folder, False),
    "zip": Form(write_zip),
    "tar": Form(write_tar("w", ".tar")),
    "tar.gz": Form(write_tar("w:gz", ".tar.gz")),
    "tgz": Form(write_tar("w:gz", ".tgz")),
    "tar.xz": Form(write_tar("w:xz", ".tar.xz")),
    "shards": Form(write_shards),
    "shard with json": Form(write_json_shard, False),
    "parquet folder": Form(write_parquet),
    "parquet file": Form(write_parquet_file),
    "parquet with paths": Form(write_parquet_paths),
    "saved dictionary": Form(write_saved),
    "saved data set": Form(lambda folder: write_saved_split(folder, PICTURES, extra=True)),
    "csv": Form(write_csv, options={"image_column": "id", "label_column": "breed"}),
    "tsv": Form(write_tsv),
    "json lines": Form(write_json_lines),
    "parquet labels": Form(write_parquet_labels),
    "arrays": Form(write_xy, False),
    "npy files": Form(write_npy, False),
    "MedMNIST": Form(write_medmnist, class_names=("0", "1", "2")),
    "Keras": Form(write_keras, False, class_names=("0", "1", "2")),
    "Quick, Draw!": Form(write_quick_draw, False),
}


def recipe_of(data: Path, form: Form = FORMS["folder"], **options: Any) -> SingleImages:
    shares = {"validation_share": 0.25, "test_share": 0.25}
    return SingleImages(data=str(data), size=SIDE, **{**shares, **form.options, **options})


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    yield
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert left == []  # temporary files are removed


@pytest.mark.parametrize("name", FORMS)
def test_images_classes_and_splits_are_the_same_in_every_form(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    (tmp_path / "data").mkdir()
    data = form.write(tmp_path / "data")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    recipe = recipe_of(data, form)
    fingerprint = recipe.fingerprint()
    collected = recipe.collect()
    assert collected.images.class_names == form.class_names
    named = replace(collected, images=replace(collected.images, class_names=CLASSES))
    result = described(named)
    assert {pixels: label for pixels, (label, _) in result.items()} == {
        pixels: label for pixels, (label, _) in EXPECTED.items()
    }
    if form.gives_split:
        assert result == EXPECTED
    else:
        for label in CLASSES:
            assert sorted(split for each, split in result.values() if each == label) == sorted(SPLIT_OF)
    again = recipe.collect()
    np.testing.assert_array_equal(again.pixels, collected.pixels)
    np.testing.assert_array_equal(again.images.splits, collected.images.splits)
    assert again.source == collected.source
    assert collected.source["files"] and collected.source["name"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == before  # nothing is written
    assert recipe.fingerprint() == fingerprint
    for path in [data] if data.is_file() else [path for path in data.rglob("*") if path.is_file()]:
        path.touch()
    assert recipe.fingerprint() != fingerprint


@pytest.mark.parametrize("name", FORMS)
def test_grey_images_are_the_same_in_every_form(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    collected = recipe_of(form.write(tmp_path), form, channels=1).collect()
    assert {image.tobytes() for image in collected.pixels} == {each.pixels[:, :, 0].tobytes() for each in PICTURES}


@pytest.mark.parametrize("name", FORMS)
def test_a_stream_of_each_form_is_built(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    (tmp_path / "data").mkdir()
    recipe = recipe_of(
        form.write(tmp_path / "data"), form, tasks=2, classes_per_task=2, keep=1, train=4, validation=2, test=2
    )
    store = build(recipe, [0], tmp_path / "store")
    TaskStore.open(store.path, verify=True)
    assert (store.count, store.classes, store.label_names) == (12, 3, form.class_names)
    np.testing.assert_array_equal(store.table(0).label, store.classes_of[store.table(0).image_ids[:, 0]])


# Damages: each changes what a writer wrote, and every line of the error must hold the words.


def cut(path: Path, share: float = 0.5) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path


def cut_first(pattern: str, share: float = 0.5) -> Callable[[Path], object]:
    return lambda data: cut(min(data.rglob(pattern)) if data.is_dir() else data, share)


def flip(data: Path) -> None:
    """Change a byte of the first image's pixels inside a ZIP file."""
    content = bytearray(data.read_bytes())
    content[200] ^= 0xFF
    data.write_bytes(bytes(content))


def change_table(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    return lambda data: pq.write_table(change(pq.read_table(data)), data)


def with_column(name: str, values: Sequence[Any]) -> Callable[[Path], object]:
    def change(table: pa.Table) -> pa.Table:
        column = pa.array([values[row % len(values)] for row in range(table.num_rows)])
        return table.set_column(table.schema.names.index(name), name, column)

    return change_table(change)


def rewrite_shard(samples: dict[str, bytes]) -> Callable[[Path], object]:
    def write(data: Path) -> None:
        with tarfile.open(data, "w") as archive:
            for name, content in samples.items():
                add(archive, name, content)

    return write


def change_text(pattern: str, old: str, new: str) -> Callable[[Path], object]:
    def change(data: Path) -> None:
        path = min(data.rglob(pattern)) if data.is_dir() else data
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def remove_first(pattern: str) -> Callable[[Path], object]:
    return lambda data: min(data.rglob(pattern)).unlink()


PNG = PICTURES[0].png
DAMAGES: list[tuple[str, str, Callable[[Path], object], str]] = [
    ("cut image", "folder", cut_first("*.png"), "is not a complete image"),
    ("no file", "folder", shutil.rmtree, "data: must be a folder that exists"),
    ("cut", "zip", cut_first("*.zip"), "pictures.zip: cannot be read as an archive (got File is not a zip file)"),
    ("changed byte", "zip", flip, "test/owl/owl-3.png: cannot be read (got Bad CRC-32"),
    ("cut", "tar", cut_first("*.tar"), "pictures.tar: cannot be read as an archive"),
    ("cut", "tar.gz", cut_first("*.tar.gz"), "pictures.tar.gz: cannot be read as an archive"),
    ("cut", "tar.xz", cut_first("*.tar.xz"), "pictures.tar.xz: cannot be read as an archive"),
    ("empty", "tar", cut_first("*.tar", 0), "pictures.tar: cannot be read as an archive (got file could not be opened"),
    ("cut shard", "shards", cut_first("train*.tar"), "train-000000.tar: cannot be read as an archive"),
    ("no label", "shard with json", rewrite_shard({"0.png": PNG, "0.json": b"{}"}), "must have one column of labels"),
    ("no json", "shard with json", rewrite_shard({"0.png": PNG, "0.txt": b"{}", "1.cls": b"1", "1.png": PNG}), "0: must have a label, in .cls or"),
    ("bad json", "shard with json", rewrite_shard({"0.png": PNG, "0.json": b"{"}), "shard.tar: 0: its label cannot"),
    ("half a character", "shard with json", rewrite_shard({"0.png": PNG, "0.json": rb'"\ud800"'}), "labels must be of one type (got 'utf-8' codec"),
    ("no image", "shard with json", rewrite_shard({"0.cls": b"1"}), "shard.tar: 0: must have one image (got cls)"),
    ("bad image", "shard with json", rewrite_shard({"0.png": PNG[:50], "0.cls": b"1"}), "0.png: is not a complete"),
    ("cut", "parquet file", cut_first("*.parquet"), "pictures.parquet: cannot be read (got Parquet magic bytes not"),
    ("cut", "parquet folder", cut_first("test*.parquet"), "test-00000-of-00002.parquet: cannot be read"),
    ("one split is not named", "parquet folder", lambda data: min(data.rglob("test*")).rename(data / "more.parquet"), "none of them (got more.parquet)"),
    ("floats", "parquet file", with_column("label", [0.5]), "regression is not supported (got double)"),
    ("several labels", "parquet file", with_column("label", [[1, 2]]), "several labels for an image are not supported"),
    ("null label", "parquet file", with_column("label", ["a", "b", None]), "has no label"),
    ("null image", "parquet file", with_column("image", [PNG, None]), "holds no image"),
    ("unknown split", "parquet file", with_column("split", ["train", "dev"]), "a split must be one of train"),
    ("no label column", "parquet file", change_table(lambda table: table.drop_columns("label")), "must have one column of labels"),
    ("no image column", "parquet file", change_table(lambda table: table.drop_columns("image")), "must have one column of images"),
    ("label beyond the names", "parquet with paths", with_column("label", [3]), "labels must be within 0..2"),
    ("a path of no file", "parquet with paths", lambda data: (data.parent / "dog-1.png").unlink(), "cannot be read"),
    ("cut", "saved data set", cut_first("*.arrow", 0.1), "data-00000-of-00001.arrow: cannot be read"),
    ("missing", "saved dictionary", remove_first("*.arrow"), "data-00000-of-00001.arrow: cannot be read (got"),
    ("no state", "saved dictionary", remove_first("state.json"), "state.json: cannot be read as JSON (got No such"),
    ("indices", "saved data set", lambda data: (data / "state.json").write_text('{"_indices_data_files": [1]}'), "call flatten_indices() before save_to_disk"),
    ("no image", "csv", change_text("*.csv", "dog-1,", "dog-9,"), "labels.csv: line 7: names no image (got dog-9)"),
    ("one value too few", "csv", change_text("*.csv", "dog-1,dog,", "dog-1,"), "labels.csv: line 7: must have 3 values (got 2)"),
    ("no label", "csv", change_text("*.csv", ",dog,", ",,"), "labels.csv: breed: row 4: has no label"),
    ("unknown split", "csv", change_text("*.csv", "validation", "dev"), "a split must be one of train"),
    ("measurements", "tsv", lambda data: data.write_text("file_name\tlabel\ncat-0.png\t0.5\ncat-1.png\t2"), "regression is not supported (got 0.5)"),
    ("an image twice", "tsv", change_text("*.tsv", "dog-1.png", "dog-2.png"), "several labels for an image are not supported"),
    ("no header", "tsv", lambda data: data.write_text(""), "must start with a line of distinct column names"),
    ("binary", "tsv", lambda data: data.write_bytes(b"\xff\xfe\x00"), "any name.tsv: cannot be read"),
    ("cut line", "json lines", cut_first("*.jsonl", 0.9), "metadata.jsonl: line 3: cannot be read as JSON"),
    ("list of labels", "json lines", change_text("*.jsonl", '"cat"', '["cat"]'), "metadata"),
    ("missing image", "json lines", remove_first("*.png"), "metadata.jsonl: line 1: names no image (got cat-3.png)"),
    ("cut", "arrays", cut_first("*.npz"), "pictures.npz: cannot be read as NumPy arrays"),
    ("one-hot labels", "arrays", lambda data: np.savez(data, x=X, y=np.eye(12)), "must have 12 labels, [n]; an image has one label"),
    ("too few labels", "arrays", lambda data: np.savez(data, x=X, y=Y[:5]), "x: must have 12 labels, [n]"),
    ("measurements", "arrays", lambda data: np.savez(data, x=X, y=Y / 2), "regression is not supported (got double)"),
    ("four channels", "arrays", lambda data: np.savez(data, x=np.zeros((12, 8, 8, 4), np.uint8), y=Y), "images must have 1 or 3 channels; others are not supported"),
    ("floats", "arrays", lambda data: np.savez(data, x=X / 255, y=Y), "images must be uint8, 0 to 255 (got float64)"),
    ("objects", "arrays", lambda data: np.savez(data, x=X, y=np.array([{}] * 12, object)), "cannot be read as NumPy arrays"),
    ("other names", "arrays", lambda data: np.savez(data, pixels=X, y=Y), "must hold arrays x and y, x_train and y_train, or"),
    ("flat images", "Keras", lambda data: np.savez(data, x=X.reshape(12, -1), y=Y), "images must be [n, H, W], [n, H, W, C]"),
    ("a changed byte", "MedMNIST", lambda data: data.write_bytes(data.read_bytes()[:300] + b"?" + data.read_bytes()[301:]), "cannot be read as NumPy"),
    ("no image", "arrays", lambda data: np.savez(data, x=X[:0], y=Y[:0]), "images must be [n, H, W], [n, H, W, C]"),
    ("one number", "arrays", lambda data: np.savez(data, x=np.uint8(5), y=np.array([], int)), "images must be [n, H, W]"),
    ("complex labels", "arrays", lambda data: np.savez(data, x=X, y=Y + 0j), "labels must be whole numbers or text (got complex128)"),
    ("labels of two kinds", "Keras", lambda data: np.savez(data, x_train=X, y_train=Y, x_test=X, y_test=Y.astype("M8[s]")), "labels must be whole numbers or text (got int64, datetime64[s])"),
    ("cut", "npy files", cut_first("*.npy"), "x.npy: cannot be read as NumPy arrays"),
    ("one number", "Quick, Draw!", lambda data: np.save(data / "full_numpy_bitmap_cat.npy", np.uint8(5)), "full_numpy_bitmap_cat: images must be [n, H, W]"),
    ("no image", "Quick, Draw!", lambda data: np.save(data / "full_numpy_bitmap_cat.npy", np.zeros((0, 784), np.uint8)), "full_numpy_bitmap_cat: images must be [n, H, W]"),
    ("cut", "Quick, Draw!", cut_first("*.npy"), "full_numpy_bitmap_cat.npy: cannot be read as NumPy arrays"),
    ("another shape", "Quick, Draw!", lambda data: np.save(data / "full_numpy_bitmap_cat.npy", np.zeros((4, 783), np.uint8)), "full_numpy_bitmap_cat: images must be [n, H, W]"),
    ("cut", "parquet labels", cut_first("*.parquet"), "metadata.parquet: cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "damage", "words"), [each[1:] for each in DAMAGES], ids=[f"{each[1]}, {each[0]}" for each in DAMAGES])  # fmt: skip
def test_a_damaged_source_is_named_in_one_line(
    form: str, damage: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    data = FORMS[form].write(tmp_path / "data")
    damage(data)
    with pytest.raises(SourceError) as raised:
        recipe_of(data, FORMS[form]).collect()
    assert 1 <= len(raised.value.faults) <= 6
    for line in raised.value.faults:
        assert words in line or "more rows" in line
        assert str(tmp_path) in line
        assert "\n" not in line


def test_every_form_is_damaged() -> None:
    assert {form for _, form, _, _ in DAMAGES} >= set(FORMS) - {"folder without a split", "tgz"}


def test_a_bad_image_in_an_archive_can_be_left_out(tmp_path: Path) -> None:
    flip(data := write_zip(tmp_path))
    collected = recipe_of(data, skip_bad=True).collect()
    assert len(collected.pixels) == 11
    assert len(collected.source["skipped"]) == 1
    assert described(collected).items() <= EXPECTED.items()


def test_a_class_label_gives_the_order_of_classes_and_unlabelled_rows_are_left_out(tmp_path: Path) -> None:
    table = as_table(PICTURES)
    features = {"image": {"_type": "Image"}, "label": {"names": ["owl", "bat", "cat", "dog"], "_type": "ClassLabel"}}
    labels = pa.array([2, 2, 2, 2, 3, 3, 3, -1, 0, 0, 0, 0], pa.int64())
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.set_column(1, "label", labels).replace_schema_metadata(metadata), tmp_path / "a.parquet")
    collected = recipe_of(tmp_path / "a.parquet").collect()
    assert collected.images.class_names == ("owl", "cat", "dog")
    assert collected.images.classes.tolist() == [1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0]
    assert collected.source["notices"] == ["1 rows without a label (-1) are left out"]


def write_numbered(path: Path, names: Sequence[str], pictures: Sequence[Picture], kind: pa.DataType) -> None:
    """A Parquet file whose classes are numbered by `names`."""
    features = {"image": {"_type": "Image"}, "label": {"names": [*names], "_type": "ClassLabel"}}
    labels = pa.array([names.index(picture.label) for picture in pictures], kind)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = as_table(pictures).set_column(1, "label", labels).replace_schema_metadata(metadata)
    pq.write_table(table.select(["label", "image"]), path)


@pytest.mark.parametrize("kind", [pa.int64(), pa.int8()], ids=str)
def test_files_that_number_their_classes_differently_are_matched_by_name(kind: pa.DataType, tmp_path: Path) -> None:
    names = {"train": ["cat", "dog", "owl"], "validation": ["owl", "cat", "dog"], "test": ["bat", "cat", "owl", "dog"]}
    for split, own in names.items():
        pictures = [each for each in PICTURES if each.split == split]
        write_numbered(tmp_path / f"{split}.parquet", own, pictures, kind)
    collected = recipe_of(tmp_path).collect()
    assert described(collected) == EXPECTED
    assert collected.images.class_names == ("cat", "owl", "dog")  # of the first file in order, test.parquet
    assert collected.source["notices"] == [
        "2 of 3 parts number their classes differently; classes are matched by their names"
    ]
    table = as_table([each for each in PICTURES if each.split == "validation"])
    pq.write_table(table.replace_schema_metadata({}), tmp_path / "validation.parquet")
    with pytest.raises(
        SourceError, match=r"validation\.parquet: must have names of its classes, since the others number"
    ):
        recipe_of(tmp_path).collect()


def test_whole_numbers_are_sorted_by_value_and_other_columns_can_be_named(tmp_path: Path) -> None:
    table = as_table(PICTURES, metadata=False)
    numbers = pa.array([10] * 4 + [2] * 4 + [1] * 4)
    fine = [f"fine {row % 3}" for row in range(12)]
    table = pa.table({"photo": table.column("image"), "number": numbers, "fine": pa.array(fine)})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="name the column by label_column"):
        recipe_of(tmp_path / "a.parquet").collect()
    by_number = recipe_of(tmp_path / "a.parquet", label_column="number").collect()
    assert by_number.images.class_names == ("1", "2", "10")
    assert by_number.images.classes.tolist() == [2] * 4 + [1] * 4 + [0] * 4
    assert recipe_of(tmp_path / "a.parquet", label_column="fine").collect().images.class_names == tuple(fine[:3])
    with pytest.raises(SourceError, match=r"must have the column other, which label_column names \(got photo, number"):
        recipe_of(tmp_path / "a.parquet", label_column="other").collect()


def test_a_given_split_can_be_ignored(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    collected = recipe_of(write_parquet(tmp_path / "data"), given_split=False, test_share=0.5).collect()
    assert np.bincount(collected.images.splits).tolist() == [3, 3, 6]


def test_pools_are_the_same_in_every_form_with_one_order(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    folder = recipe_of(write_plain_folder(tmp_path / "data")).collect()
    pq.write_table(as_table(PICTURES), tmp_path / "a.parquet")
    parquet = recipe_of(tmp_path / "a.parquet").collect()
    np.testing.assert_array_equal(parquet.pixels, folder.pixels)
    np.testing.assert_array_equal(parquet.images.splits, folder.images.splits)


def test_pairs_are_read_from_any_form(tmp_path: Path) -> None:
    pq.write_table(as_table(PICTURES * 2), tmp_path / "a.parquet")
    rng = np.random.default_rng(1)
    pictures = [Picture(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), label, "", 0) for label in CLASSES * 8]
    pq.write_table(as_table(pictures), tmp_path / "a.parquet")
    options = {"tasks": 1, "classes_per_task": 3, "train": 4, "validation": 2, "test": 2}
    store = build(ImagePairs(data=str(tmp_path / "a.parquet"), size=8, **options), [0], tmp_path / "store")
    assert (store.count, store.images_per_datapoint) == (24, 2)


def test_a_test_split_of_arrays_is_used_and_validation_images_are_drawn(tmp_path: Path) -> None:
    collected = recipe_of(write_keras(tmp_path), validation_share=0.34).collect()
    assert np.bincount(collected.images.splits).tolist() == [6, 3, 3]
    tested = {image.tobytes() for image in collected.pixels[collected.images.splits == 2]}
    assert tested == {each.pixels.transpose(2, 0, 1).tobytes() for each in PICTURES if each.split == "test"}


@pytest.mark.parametrize("place", ["train/x.npy", "quickdraw/full/cat.npy", "cat/0001.npy"])
def test_arrays_in_a_folder_below_are_one_line(place: str, tmp_path: Path) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    np.save(tmp_path / place, X)
    line = (
        rf"^{tmp_path}: data: must hold \.npy files in the folder itself \(got none\); name the folder that holds them$"
    )
    with pytest.raises(SourceError, match=line):
        recipe_of(tmp_path).collect()


def test_several_files_of_arrays_are_refused_or_named(tmp_path: Path) -> None:
    data = write_medmnist(tmp_path)
    (tmp_path / "._x.npy").write_bytes(b"written by macOS")
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "sub" / "z.npy", X)
    collected = recipe_of(tmp_path).collect()
    assert described(replace(collected, images=replace(collected.images, class_names=CLASSES))) == EXPECTED
    assert collected.remarks == ("1 other files of arrays are left out: sub/z.npy",)
    np.savez(tmp_path / "sub" / "more.npz", x=X, y=Y)
    line = r"data: must hold one \.npz file \(got pictures\.npz, sub/more\.npz\); name one of them by data"
    for failing in (recipe_of(tmp_path).collect, recipe_of(tmp_path).fingerprint):
        with pytest.raises(SourceError, match=line):
            failing()
    np.savez(tmp_path / "extra.npz", x=X, y=Y, mean=X.mean(), ids=Y)
    assert recipe_of(tmp_path / "extra.npz").collect().remarks == ("2 other arrays are left out: ids, mean",)
    (tmp_path / "extra.npz").unlink()
    data.rename(tmp_path / "zip.npz")
    write_quick_draw(tmp_path)
    classes = recipe_of(tmp_path).collect()
    assert {name for name, _ in described(classes).values()} == set(CLASSES)
    assert classes.remarks == ("3 other files of arrays are left out: zip.npz, sub/more.npz, sub/z.npy",)


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pictures.rar").write_bytes(b"Rar!")
    with pytest.raises(
        SourceError, match=r"pictures\.rar: data: must be a folder that exists, or a .*file \(got \.rar\)"
    ):
        recipe_of(tmp_path / "pictures.rar").collect()


def test_large_tables_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streams.sources import decode

    (tmp_path / "data").mkdir()
    data = write_folder(tmp_path / "data")
    in_memory = recipe_of(data).collect()
    monkeypatch.setattr(decode, "_MOST_IN_MEMORY", 1_000)
    mapped = recipe_of(data).collect()
    assert isinstance(mapped.pixels.base, np.memmap) or isinstance(mapped.pixels, np.memmap)
    np.testing.assert_array_equal(mapped.pixels, in_memory.pixels)
    cut(data / "train" / "cat" / "cat-0.png")
    rest = recipe_of(data, skip_bad=True).collect()
    first = PICTURES[0].pixels.transpose(2, 0, 1).tobytes()
    assert described(rest) == {pixels: about for pixels, about in EXPECTED.items() if pixels != first}


def test_a_tar_file_that_was_cut_between_two_files_is_refused(tmp_path: Path) -> None:
    data = write_tar("w", ".tar")(tmp_path)
    with tarfile.open(data) as archive:
        end = archive.getmembers()[5].offset
    data.write_bytes(data.read_bytes()[:end])
    with pytest.raises(SourceError, match="the end of the archive is missing"):
        recipe_of(data).collect()


def test_a_label_file_names_images_by_path_by_name_or_without_suffix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, place in enumerate(("a/x.png", "b/x.png", "b/y.png", "z.png", "left/out.png")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(PICTURES[number].png)
    labels = tmp_path / "labels.csv"
    labels.write_text('path,label\na/x.png,"1"\n./b/x.png,10\ny,2\n"z",2\n')
    collected = recipe_of(tmp_path, validation_share=0.01, test_share=0.01, given_split=False, least_per_class=1)
    listing = list_source(str(tmp_path), Columns())
    assert list(listing.files) == ["a/x.png", "b/x.png", "b/y.png", "z.png"]
    assert list(listing.class_names or ()) == ["1", "2", "10"]
    assert list(listing.remarks) == ["1 images have no row in the label file and are left out"]
    assert collected.fingerprint() != recipe_of(tmp_path, skip_bad=True).fingerprint()
    labels.write_text("path,label\nx.png,1\n")
    with pytest.raises(SourceError, match=r"line 2: names several images, such as a/x.png and b/x.png"):
        list_source(str(tmp_path), Columns())
    (tmp_path / "metadata.csv").write_text("")
    with pytest.raises(SourceError, match=r"must have one label file \(got labels.csv, metadata.csv\)"):
        list_source(str(tmp_path), Columns())


def test_only_the_named_columns_of_a_label_file_are_converted(tmp_path: Path) -> None:
    """A caption may hold any character, and a score any value."""
    write_flat(tmp_path)
    extra = [{"score": number or "n/a", "caption": "one\u2028two\u0085three"} for number in range(len(ROWS))]
    lines = [json.dumps({**row, **more}, ensure_ascii=False) for row, more in zip(ROWS, extra, strict=True)]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert described(recipe_of(tmp_path).collect()) == EXPECTED
    with pytest.raises(SourceError) as raised:
        recipe_of(tmp_path, label_column="score").collect()
    assert str(raised.value).startswith(f"{tmp_path}/labels.jsonl: score: must hold values of one type (got ")
    rows = [{**row, "label": 10**20 if row["label"] == "owl" else 1} for row in ROWS]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SourceError, match=r"labels\.jsonl: label: must hold values of one type \(got Python int too"):
        recipe_of(tmp_path).collect()
    (tmp_path / "labels.jsonl").unlink()
    (tmp_path / "labels.csv").write_text("path,label, label\ncat-0.png,1,2\n")
    with pytest.raises(SourceError, match=r"distinct column names \(got path, label, label\)"):
        recipe_of(tmp_path).collect()


def test_label_files_of_splits_need_the_same_named_columns(tmp_path: Path) -> None:
    data = write_json_lines(tmp_path)
    change_text("test/metadata.jsonl", '"label": "cat"', '"label": "cat", "score": 1')(data)
    change_text("train/metadata.jsonl", '"label": "cat"', '"label": "cat", "score": "n/a"')(data)
    assert described(recipe_of(data).collect()) == EXPECTED
    for split in ("validation", "train"):
        path = data / split / "metadata.jsonl"
        path.write_text(path.read_text().replace('"label"', '"kind"'))
    with pytest.raises(SourceError) as raised:
        recipe_of(data).collect()
    assert [line.partition(";")[0] for line in raised.value.faults] == [
        f"{data}/{split}/metadata.jsonl: must have the column label, as {data}/test/metadata.jsonl has (got {names})"
        for split, names in (("train", "file_name, kind, score"), ("validation", "file_name, kind"))
    ]


def test_the_time_of_a_label_file_grows_with_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of all paths was made for each image: 30,000 rows took half a minute."""
    names = Names()
    names.images = [f"{number}.png" for number in range(30_000)]
    monkeypatch.setattr(label_file, "walk", lambda _: names)
    (tmp_path / "labels.csv").write_text(as_csv([{"file_name": name, "label": "cat"} for name in names.images]))
    start = time.process_time()
    assert len(list_source(str(tmp_path), Columns()).files) == 30_000
    assert time.process_time() - start < 5


def break_link(data: Path) -> Path:
    """A first file that is a link to no file."""
    path = min(path for path in data.rglob("*") if path.is_file() and path.suffix != ".png")
    path.unlink()
    path.symlink_to(data / "absent")
    return path


def name_in_latin(data: Path) -> Path:
    path = min(path for path in data.rglob("*") if path.is_file())
    return path.rename(path.with_name(os.fsdecode(b"caf\xe9") + path.suffix))


@pytest.mark.parametrize("name", ["csv", "json lines", "shards", "parquet folder", "Quick, Draw!"])
def test_a_broken_link_is_one_line_in_every_form(name: str, tmp_path: Path) -> None:
    path = break_link(FORMS[name].write(tmp_path))
    with pytest.raises(SourceError, match=r"cannot be read.* \(got .*No such file or directory\)") as raised:
        recipe_of(tmp_path, FORMS[name]).fingerprint()
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize("name", ["parquet folder", "Quick, Draw!"])
def test_a_file_name_that_is_not_utf_8_is_one_line_in_every_form(name: str, tmp_path: Path) -> None:
    path = name_in_latin(FORMS[name].write(tmp_path))
    with pytest.raises(SourceError) as raised:
        recipe_of(tmp_path, FORMS[name], given_split=False).collect()
    assert str(raised.value) == rf"{path.parent}/caf\xe9{path.suffix}: must have a name in UTF-8; rename it"


def test_a_name_in_an_archive_that_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    with tarfile.open(write_tar("w", ".tar")(tmp_path), "a") as archive:
        add(archive, os.fsdecode(b"./train/cat/caf\xe9.png"), PICTURES[0].png)
    recipe = recipe_of(tmp_path / "pictures.tar")
    with pytest.raises(SourceError) as raised:
        recipe.collect()
    assert str(raised.value) == rf"{recipe.data}/train/cat/caf\xe9.png: must have a name in UTF-8; rename it"
    collected = replace(recipe, skip_bad=True).collect()
    assert described(collected) == EXPECTED
    assert collected.source["skipped"] == [r"train/cat/caf\xe9.png"]


def test_published_data_sets_have_no_tasks() -> None:
    (line,) = ImageTasks(dataset="omniglot", data="/data").check()
    assert line.startswith(
        "image_tasks.dataset: has no tasks and is not supported (got omniglot); use the stream images"
    )
    (line,) = ImageTasks().check_locations()
    assert line.startswith("image_tasks.data: must be given; name a folder that holds a folder per task")


def write_tasks(folder: Path) -> Path:
    """The pictures with tasks t2, t10 and t1, one picture of each class in each task, the fourth in t1 too."""
    tasks = ["t2", "t10", "t1", "t1"]
    write_flat(folder)
    rows = [{"file_name": each.name, "label": each.label, "task": tasks[each.number]} for each in PICTURES]
    (folder / "labels.csv").write_text(as_csv(rows))
    return folder


def tasks_of(data: Path, **options: Any) -> ImageTasks:
    return ImageTasks(data=str(data), size=SIDE, **options)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_column_gives_the_tasks(form: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data = write_tasks(tmp_path / "data")
    if form == "parquet":
        data = tmp_path / "a.parquet"
        tasks = pa.array(["t2", "t10", "t1", "t1"] * 3)
        pq.write_table(as_table(PICTURES).append_column("domain", tasks), data)
    store = build(tasks_of(data), [0, 1], tmp_path / "store")
    TaskStore.open(store.path, verify=True)
    assert store.images.tasks == (("t1", 6), ("t2", 3), ("t10", 3))
    assert store.label_names == CLASSES
    for seed in (0, 1):
        table = store.table(seed)
        assert [task["name"] for task in table.tasks] == ["t1", "t2", "t10"]
        assert np.diff(table.starts, axis=1).tolist() == [[4, 1, 1], [1, 1, 1], [1, 1, 1]]
        np.testing.assert_array_equal(table.label, store.classes_of[table.image_ids[:, 0]])
        for task, name in enumerate(["t1", "t2", "t10"]):
            for row in table.image_ids[table.task == task, 0]:
                picture = next(
                    each for each in PICTURES if each.pixels.transpose(2, 0, 1).tobytes() == store.pixels[row].tobytes()
                )
                assert ["t2", "t10", "t1", "t1"][picture.number] == name
    assert set(TaskStore.open(tmp_path / "store").table(0).image_ids.ravel().tolist()) == set(range(12))
    few = build(tasks_of(data, train=2), [0], tmp_path / "few")
    assert np.diff(few.table(0).starts, axis=1)[0].tolist() == [2, 1, 1]


def test_folders_give_the_tasks(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for split in SPLITS:
        for number, picture in enumerate(each for each in PICTURES if each.split == split):
            place = data / split / f"task{'10' if number % 2 else '9'}" / picture.label
            place.mkdir(parents=True, exist_ok=True)
            (place / picture.name).write_bytes(picture.png)
    store = build(tasks_of(data), [0], tmp_path / "store")
    assert [name for name, _ in store.images.tasks] == ["task9", "task10"]
    assert np.diff(store.table(0).starts, axis=1).tolist() == [[3, 3], [2, 1], [2, 1]]
    assert described(Collected(store.pixels, store.images, {})) == EXPECTED
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in data.rglob("*.png"):
            archive.write(path, f"top/{path.relative_to(data)}")
    assert (
        build(tasks_of(tmp_path / "a.zip"), [0], tmp_path / "zip").table(0).manifest["content"]
        == store.table(0).manifest["content"]
    )
    with pytest.raises(SourceError, match="must hold a folder per task, with a folder per class in each"):
        tasks_of(write_plain_folder(tmp_path / "flat")).collect()
    with pytest.raises(SourceError) as error:  # it was taken for the order of the files' names
        tasks_of(data, order_column="time").collect()
    assert error.value.faults == (f"{data}: has no columns, of which order_column names one (got time)",)


def test_a_column_of_times_gives_the_order_and_is_cut_into_tasks(tmp_path: Path) -> None:
    write_flat(tmp_path)
    days = [5, 3, 11, 1, 12, 7, 2, 9, 4, 10, 6, 8]
    rows = [
        {"file_name": each.name, "label": each.label, "day": f"2024-01-{day:02d}T00:00"}
        for each, day in zip(PICTURES, days, strict=True)
    ]
    (tmp_path / "labels.csv").write_text(as_csv(rows))
    recipe = tasks_of(tmp_path, tasks=2, order_column="day")
    collected = recipe.collect()
    assert collected.images.tasks == (("1", 6), ("2", 6))
    by_day = sorted(range(12), key=lambda row: days[row])
    for image, row in zip(collected.pixels, by_day, strict=True):
        assert image.tobytes() == PICTURES[row].pixels.transpose(2, 0, 1).tobytes()
    table = recipe.seed_table(collected.images, 0)
    train = table.image_ids[table.split == 0, 0]
    assert len(train) == 8 and (np.diff(train) > 0).all()  # in the order of time
    (tmp_path / "labels.csv").write_text(as_csv([{**row, "day": "soon"} for row in rows]))
    with pytest.raises(SourceError, match=r"labels.csv: day: must be numbers, or dates and times of ISO 8601"):
        recipe.collect()
    with pytest.raises(SourceError, match=r"must have the column when, which order_column names"):
        tasks_of(tmp_path, order_column="when").collect()
    with pytest.raises(SourceError, match=r"must have a column of tasks, such as task, or of times"):
        tasks_of(tmp_path).collect()


@pytest.mark.parametrize(
    "names",
    [
        ["0.1", "0.25", "0.5", "1"],
        ["-30", "0", "30"],
        ["1e-3", "+.1", "2.", "10"],
        ["noise_0.05", "noise_0.1", "noise_0.25", "noise_1"],
        ["2024.1.5", "2024.2.10", "2024.10.1"],
        ["a-1", "a-2.5", "a-10"],
        ["task01", "task1", "task02", "task2"],
        ["٢", "١٠"],
        ["a", "a" + "9" * 5_000],  # more digits than Python converts to an int
    ],
)
def test_tasks_are_in_the_order_of_their_names_and_numbers_by_value(names: list[str]) -> None:
    assert task_order([*names[::-1], *names]) == names


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["task", "day"])
def test_nan_is_no_task_and_has_no_place_in_an_order(form: str, column: str, tmp_path: Path) -> None:
    write_flat(tmp_path)
    values = [float("nan") if row == 7 else float(row) for row in range(12)]
    data = tmp_path / f"labels.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS).append_column(column, pa.array(values)), data)
    else:
        data.write_text(as_csv([{**row, column: str(value)} for row, value in zip(ROWS, values, strict=True)]))
    if (form, column) == ("csv", "task"):  # text, in which nan is a name as any other
        assert set(list_source(str(data), Columns(tasks=True)).tasks or ()) == {str(value) for value in values}
        return
    rule = "value in each row (got none in row 7)" if form == "parquet" else "numbers that have an order (got nan)"
    with pytest.raises(SourceError) as raised:
        tasks_of(data, **({"order_column": "day"} if column == "day" else {})).collect()
    assert rule in str(raised.value)
    assert str(raised.value).startswith(f"{data}: {column}: must ")


def test_a_task_with_too_few_images_is_named(tmp_path: Path) -> None:
    write_flat(tmp_path)
    rows = [
        {"file_name": each.name, "label": each.label, "task": "few" if row < 2 else "many"}
        for row, each in enumerate(PICTURES)
    ]
    (tmp_path / "labels.csv").write_text(as_csv(rows))
    with pytest.raises(
        SourceError, match=r"task few: must have at least 3 images, 1 to train, validate and test each \(got 2\)"
    ):
        tasks_of(tmp_path).collect()
