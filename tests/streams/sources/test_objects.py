"""Data sets in Python: map-style ones of PyTorch, and objects with the attributes of Hugging Face's."""

import io
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
from streams.sources.decode import ImageFormat, decode
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
        (wrong(3, label=10**20), "Pairs: labels must be whole numbers or text; an image has one label"),
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


def numbered(classes: tuple[str, ...] | None, labels: list[int], first: int = 0) -> Pairs:
    """The pictures from `first`, with numbers of their own names."""
    part = Pairs([Image.fromarray(pixels) for pixels in PIXELS[first : first + len(labels)]], labels)
    part.classes = classes  # type: ignore[assignment]
    return part


def labels_of(store: TaskStore) -> list[str]:
    """The name of each picture's class, in the order of `PIXELS`."""
    names = {
        pixels.tobytes(): store.label_names[number]
        for pixels, number in zip(store.pixels, store.classes_of, strict=True)
    }
    return [names[pixels.tobytes()] for pixels in PIXELS.transpose(0, 3, 1, 2)]


def test_parts_that_number_their_classes_differently_are_matched_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def parts() -> dict[str, Pairs]:
        train, test = ("ant", "bee", "cow", "dog"), ("ant", "bee", "elk")
        return {"train": numbered(train, [0, 0, 1, 1, 2, 2, 3, 3]), "test": numbered(test, [0, 2, 1, 1], 8)}

    few = {**OPTIONS, "validation_share": 0.3}
    with pytest.raises(SourceError, match="elk") as raised:  # as the same pictures in folders
        from_dataset(parts(), tmp_path / "few", **few)
    assert "class dog: must have at least 1 test images (got 0)" in str(raised.value)
    listing = list_dataset(parts(), Columns())
    assert listing.labels == ["ant", "ant", "bee", "bee", "cow", "cow", "dog", "dog", "ant", "elk", "bee", "bee"]
    assert listing.class_names == ["ant", "bee", "cow", "dog", "elk"]
    other = {
        "train": numbered(("cat", "dog", "owl"), [0, 0, 1, 1, 2, 2]),
        "test": numbered(("owl", "dog", "cat"), [0, 1, 2], 6),
        "val": numbered(("bat", "dog", "owl", "cat"), [1, 2, 3], 9),
    }
    store = from_dataset(other, tmp_path / "store", **OPTIONS)
    assert labels_of(store) == ["cat", "cat", "dog", "dog", "owl", "owl", "owl", "dog", "cat", "dog", "owl", "cat"]
    line = "2 of 3 parts number their classes differently; classes are matched by their names"
    assert f"images: {line}\n" in capsys.readouterr().err
    assert line in store.manifest["source"]["notices"]


def test_parts_with_one_numbering_keep_it_and_a_part_without_names_needs_them() -> None:
    train, test = numbered(("owl", "cat"), [0, 1]), numbered(("owl", "cat", "ant"), [2, 1], 2)
    listing = list_dataset({"train": train, "test": test}, Columns())
    assert (listing.labels, listing.class_names) == (["owl", "cat", "ant", "cat"], ["owl", "cat", "ant"])
    assert listing.notices == []
    bare = numbered(None, [1], 4)
    assert list_dataset({"train": train, "test": bare}, Columns()).labels == ["owl", "cat", "cat"]
    assert list_dataset({"train": bare, "test": train}, Columns()).class_names == ["0", "1"]
    other = numbered(("cat", "owl"), [0, 2], 2)
    with pytest.raises(SourceError) as raised:
        list_dataset({"train": train, "val": bare, "test": other}, Columns())
    assert list(raised.value.faults) == [
        "val: must have names of its classes, since the others number theirs differently (got number 1); "
        "name classes by text",
        "test: labels must be within 0..1, the classes that it names (got 2)",
    ]
    named = list_dataset({"train": train, "val": bare, "test": other}, Columns(), "abc")
    assert named.labels == ["a", "b", "b", "a", "c"]


def opened(image: Image.Image, form: str = "PNG", share: float = 1, **options: Any) -> Image.Image:
    """The image as `Image.open` returns it, not yet loaded, of the first part of its file."""
    file = io.BytesIO()
    image.save(file, format=form, **options)
    content = file.getvalue()
    return Image.open(io.BytesIO(content[: int(len(content) * share)]))


GREY = Image.fromarray(np.full((8, 8), 100, dtype=np.uint8))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGB", "RGBA", "CMYK", "HSV", "RGBX", "1"])
def test_pil_images_of_all_usual_modes_are_read(mode: str, channels: int) -> None:
    decoded = decoded_of([((GREY.convert("RGB") if mode == "HSV" else GREY).convert(mode), 0)], channels)
    assert decoded.bad == {}
    if mode != "1":
        assert decoded.pixels.min() == decoded.pixels.max() == 100


def decoded_of(dataset: Any, channels: int = 3, background: str = "white") -> Any:
    listing = list_dataset(dataset, Columns(), background=background)
    form = ImageFormat(8, channels, background=background)
    assert listing.contents is not None
    return decode(listing.root, listing.files, form, contents=listing.contents())


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)), "I;16 pixels have more than 8 bits; convert the image"),
        (Image.new("I", (8, 8), 40_000), "I pixels have more than 8 bits; convert the image"),
        (Image.new("F", (8, 8), 0.5), "F pixels have more than 8 bits; convert the image"),
        (Image.new("LAB", (8, 8)), "LAB colours are not supported; convert the image to RGB"),
        (opened(Image.fromarray(PIXELS[0]), share=0.7), "OSError: "),
    ],
    ids=["I;16", "I", "F", "LAB", "cut"],
)  # fmt: skip
def test_a_pil_image_that_cannot_be_stored_is_one_line_or_left_out(
    image: Image.Image, reason: str, tmp_path: Path
) -> None:
    images = [Image.fromarray(pixels) for pixels in PIXELS]
    images[5] = image
    with pytest.raises(SourceError) as raised:
        from_dataset(Pairs(images, LABELS), tmp_path / "store", **OPTIONS)
    (line,) = raised.value.faults
    assert line.startswith(f"Pairs/item[5]: cannot be read (got {reason}")
    images[5] = image.copy() if reason != "OSError: " else opened(Image.fromarray(PIXELS[0]), share=0.7)
    options = {**OPTIONS, "skip_bad": True}
    store = from_dataset(Pairs(images, LABELS), tmp_path / "store", **options)
    assert (store.count, store.manifest["source"]["skipped"]) == (11, ["item[5]"])


def test_a_file_of_16_bits_per_channel_that_is_not_loaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.ppm").write_bytes(b"P6 4 4 65535\n" + np.full((4, 4, 3), 40_000, dtype=">u2").tobytes())
    (line,) = decoded_of([(Image.open(tmp_path / "deep.ppm"), 0)]).bad.values()
    assert "RGB pixels have more than 8 bits" in line


def test_transparent_pil_images_show_the_background_and_rotated_ones_are_upright() -> None:
    pixels = np.zeros((8, 8, 4), dtype=np.uint8)
    pixels[:4, :, 3] = 255  # the upper half is black, the lower one transparent
    icon = Image.fromarray(pixels)
    palette = opened(Image.fromarray(pixels[:, :, 3] // 255, "P"), transparency=0)
    decoded = decoded_of([(icon, 0), (icon.convert("LA"), 0), (palette, 0)], 3, "#00ff00")
    assert (decoded.pixels[:2, :, :4].max(), decoded.pixels[:, 1, 4:].min()) == (0, 255)
    assert decoded.pixels[:, 0, 4:].max() == 0
    assert decoded.remarks == ("3 images have transparent pixels, which are composited on #00ff00",)
    exif = Image.Exif()
    exif[0x0112] = 6
    shown = np.where(pixels[:, :, 3] > 0, 255, 0).astype(np.uint8)
    (turned,) = decoded_of([(opened(Image.fromarray(shown), exif=exif), 0)], 1).pixels
    np.testing.assert_array_equal(turned[0], np.rot90(shown, -1))


def test_labels_and_images_that_are_tensors_are_read_and_one_that_raises_is_a_line(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Formatted(HuggingFace):
        """As after `with_format("torch")`."""

        def __getitem__(self, key: int | str) -> Any:
            if key == "label":
                return torch.tensor(LABELS)
            return {"image": torch.from_numpy(PIXELS[int(key)]).permute(2, 0, 1), "label": torch.tensor(LABELS)[key]}

    check(from_dataset(Formatted(), tmp_path / "store", **OPTIONS))
    with_gradient = wrong(3, torch.zeros((3, 8, 8), requires_grad=True))
    (line,) = decoded_of(with_gradient).bad.values()
    assert line.startswith("Pairs/item[3]: cannot be read (got RuntimeError: Can't call numpy() on Tensor")


def test_options_of_other_sources_are_refused_and_the_split_can_be_ignored(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as raised:
        from_dataset(Pairs(PIXELS, LABELS), tmp_path / "store", data="images", nested_classes=True, **OPTIONS)
    assert list(raised.value.faults) == [
        "images.data: has no effect with a data set in Python (got images); leave it out",
        "images.nested_classes: has no effect with a data set in Python (got True); leave it out",
    ]
    rows = [0, 1, 2, 4, 5, 6, 8, 9, 10], [3, 7, 11]
    train, test = (Pairs(PIXELS[part], [LABELS[row] for row in part]) for part in map(list, rows))
    shares = {"validation_share": 0.25, "test_share": 0.5, "train": 2, "test": 4}
    options = {**OPTIONS, **shares, "given_split": False}
    store = from_dataset({"train": train, "test": test}, tmp_path / "store", **options)
    assert np.bincount(store.splits_of).tolist() == [3, 3, 6]


def test_seeds_are_a_number_or_a_list_and_numpys_values_those_of_python(tmp_path: Path) -> None:
    dataset = Pairs(PIXELS, LABELS)
    stores = [
        from_dataset(dataset, tmp_path / "list", seeds=[0, 1], **OPTIONS),
        from_dataset(dataset, tmp_path / "number", seeds=2, **OPTIONS),
        from_dataset(dataset, tmp_path / "array", seeds=np.arange(2), **(OPTIONS | {"size": np.int64(8)})),
    ]
    assert [(store.seeds, store.hash) for store in stores] == [([0, 1], stores[0].hash)] * 3


@pytest.mark.parametrize("dataset", [[], {"train": [], "test": []}])
def test_a_data_set_without_items_is_named(dataset: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        from_dataset(dataset, tmp_path / "store", **OPTIONS)
    assert str(caught.value) == "dataset: must hold at least one image (got 0 items)"
