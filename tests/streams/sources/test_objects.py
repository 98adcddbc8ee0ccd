"""Data sets in Python: map-style ones of PyTorch, and objects with the attributes of Hugging Face's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streams import from_dataset
from streams.build import build
from streams.errors import OptionError, SourceError
from streams.images import SingleImages
from streams.sources.labels import Columns
from streams.sources.objects import list_dataset
from streams.store.task_store import TaskStore

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = [0] * 4 + [1] * 4 + [2] * 4
OPTIONS: dict[str, Any] = {
    "size": 8,
    "tasks": 2,
    "classes_per_task": 2,
    "keep": 1,
    "train": 4,
    "validation": 2,
    "test": 2,
}


class Pairs:
    """A map-style data set of pairs, as PyTorch's are; `reads` counts what is read."""

    classes = ("cat", "dog", "owl")

    def __init__(self, images: Any, labels: Any, targets: Any = None) -> None:
        self.images, self.labels, self.reads = images, labels, 0
        if targets is not None:
            self.targets = targets

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        if not 0 <= row < len(self):
            raise IndexError(row)
        self.reads += 1
        return self.images[row], self.labels[row]


class ClassLabel:
    names = ("cat", "dog", "owl")


class HuggingFace:
    """The part of a `datasets.Dataset` that is used."""

    column_names = ("image", "label")
    features = {"image": object(), "label": ClassLabel()}  # noqa: RUF012

    def __init__(self) -> None:
        self.column_names = ["image", "label"]  # type: ignore[assignment]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int | str) -> Any:
        return LABELS if key == "label" else {"image": Image.fromarray(PIXELS[int(key)]), "label": LABELS[int(key)]}


def check(store: TaskStore, names: tuple[str, ...] = ("cat", "dog", "owl")) -> None:
    TaskStore.open(store.path, verify=True)
    assert store.label_names == names
    rows = {pixels.tobytes(): number for pixels, number in zip(PIXELS.transpose(0, 3, 1, 2), LABELS, strict=True)}
    assert {pixels.tobytes(): number for pixels, number in zip(store.pixels, store.classes_of, strict=True)} == rows


def tensors() -> dict[str, Any]:
    import torch

    first = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    dataset = torch.utils.data.TensorDataset(first, torch.tensor(LABELS))
    dataset.classes = ["cat", "dog", "owl"]
    floats = Pairs(first.float() / 255, torch.tensor(LABELS))
    return {"TensorDataset": dataset, "floats": floats}


@pytest.mark.parametrize("kind", ["PIL", "arrays", "targets", "Hugging Face", "TensorDataset", "floats", "mappings"])
def test_the_images_of_each_kind_are_the_same(kind: str, tmp_path: Path) -> None:
    if kind in ("TensorDataset", "floats"):
        pytest.importorskip("torch")
        dataset = tensors()[kind]
    else:
        images = [Image.fromarray(pixels) for pixels in PIXELS]
        mappings = [{"img": image, "target": Pairs.classes[label]} for image, label in zip(images, LABELS, strict=True)]
        dataset = {
            "PIL": Pairs(images, LABELS),
            "arrays": Pairs(PIXELS, np.array(LABELS)),
            "targets": Pairs(images, LABELS, targets=LABELS),
            "Hugging Face": HuggingFace(),
            "mappings": mappings,
        }[kind]
    check(from_dataset(dataset, tmp_path / "store", **OPTIONS))
    if kind == "targets":
        assert dataset.reads == 12  # images only: labels are in `targets`


def test_grey_images_class_names_and_pairs(tmp_path: Path) -> None:
    grey = Pairs(PIXELS[:, None, :, :, 0], LABELS)
    options = {**OPTIONS, "channels": 1, "tasks": 1, "train": 2}
    many = Pairs(np.concatenate([PIXELS[:, None, :, :, 0], 255 - PIXELS[:, None, :, :, 0]]), LABELS * 2)
    store = from_dataset(many, tmp_path / "pairs", pairs=True, class_names="abc", **options)
    assert (store.name, store.shape, store.images_per_datapoint) == ("image_pairs", (1, 8, 8), 2)
    assert store.manifest["class_names"] == ["a", "b", "c"]
    single = from_dataset(grey, tmp_path / "store", **{**options, "train": 4})
    np.testing.assert_array_equal(single.pixels, PIXELS[:, None, :, :, 0])


def test_a_mapping_gives_the_split_and_the_store_is_that_of_the_recipe(tmp_path: Path) -> None:
    parts = {
        name: Pairs(PIXELS[rows], [LABELS[row] for row in rows])
        for name, rows in {"train": [0, 1, 4, 5, 8, 9], "valid": [2, 6, 10], "test": [3, 7, 11]}.items()
    }
    store = from_dataset(parts, tmp_path / "store", seeds=[0], **OPTIONS)
    assert np.bincount(store.splits_of).tolist() == [6, 3, 3]
    assert (store.pixels[store.splits_of == 2] == PIXELS[[3, 7, 11]].transpose(0, 3, 1, 2)).all()
    recipe = SingleImages(**OPTIONS)
    assert store.manifest["recipe"] == recipe.identity()
    more = build(recipe, [0, 1], tmp_path / "store")  # without the data set
    assert (more.seeds, more.hash) == ([0, 1], store.hash)
    with pytest.raises(OptionError, match=r"images\.data: must be given"):
        build(recipe, [0], tmp_path / "new")


class Iterable:
    def __iter__(self) -> Iterator[int]:
        return iter([1])


def wrong(row: int, image: Any = None, label: Any = 0) -> Pairs:
    images: list[Any] = [*PIXELS]
    labels: list[Any] = [*LABELS]
    if image is not None:
        images[row] = image
    labels[row] = label
    return Pairs(images, labels)


@pytest.mark.parametrize(
    ("dataset", "line"),
    [
        (Iterable(), "Iterable: must be map-style: it needs a length and items by index"),
        ({"train": Pairs(PIXELS, LABELS), "dev": Pairs(PIXELS, LABELS)}, "dataset: keys must be of train"),
        ({}, "dataset: must hold at least one data set"),
        ([1, 2], r"item[0]: an item must be an image and a label, or a mapping (got int)"),
        ([(1, 2, 3)], r"item[0]: an item must be an image and a label, or a mapping (got 3 values)"),
        ([{"image": 1}], r"item[0]: must have one column of labels, such as label (got image)"),
        (wrong(3, label=0.5), "Pairs: labels must name classes; regression is not supported"),
        (Pairs(PIXELS, [[0, 1]] * 12), "Pairs: an image has one label that names its class; several labels"),
        (Pairs(PIXELS, np.eye(12)), "Pairs: an image has one label that names its class; several labels"),
        (wrong(3, label=7), "Pairs: labels must be within 0..2, the classes that the source names (got 7)"),
        (wrong(3, label=-1), "Pairs: each item must have a label (got -1)"),
        (wrong(3, np.zeros((8, 8, 4), np.uint8)), "item[3]: an image must be of PIL, or [H, W], [C, H, W]"),
        (wrong(3, "a.png"), "item[3]: an image must be of PIL, or [H, W], [C, H, W]"),
        (wrong(3, np.full((8, 8, 3), -1.5)), "item[3]: an image of floats must be within 0..1 (got -1.5 to -1.5)"),
        (wrong(3, np.zeros((8, 8), np.int64)), "item[3]: an image must be uint8, or floats within 0..1 (got int64)"),
    ],
)
def test_what_is_not_supported_is_named(dataset: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as raised:
        from_dataset(dataset, tmp_path / "store", **OPTIONS)
    assert line in str(raised.value)
    assert not (tmp_path / "store").exists()


def test_an_item_that_raises_and_an_unknown_option(tmp_path: Path) -> None:
    class Broken(Pairs):
        def __getitem__(self, row: int) -> tuple[Any, Any]:
            if row == 5:
                raise RuntimeError("no such file")
            return super().__getitem__(row)

    with pytest.raises(SourceError, match=r"item\[5\]: cannot be read \(got RuntimeError: no such file\)"):
        list_dataset(Broken(PIXELS, LABELS), Columns())
    with pytest.raises(OptionError, match=r"images\.sise: unknown key \(got 8\); did you mean size\?"):
        from_dataset(Pairs(PIXELS, LABELS), tmp_path / "store", sise=8)
