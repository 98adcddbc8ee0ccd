"""Folders of images: classes, cropping and resizing, bad files."""

import shutil
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streams.build import build, main
from streams.errors import SourceError
from streams.image_folder import ImageFolder, ImageFolderPairs
from streams.recipe import TEST, TRAIN, VALIDATION
from streams.sources.decode import decode
from streams.store.task_store import TaskStore

SMALL: dict[str, Any] = {"tasks": 4, "train": 20, "validation": 6, "test": 6, "size": 8}


@pytest.fixture
def copy(made_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(made_folder, tmp_path / "images")
    return tmp_path / "images"


def save(path: Path, pixels: np.ndarray, **options: Any) -> None:
    Image.fromarray(pixels).save(path, **options)


def test_single_images(made_folder: Path, tmp_path: Path) -> None:
    store = build(ImageFolder(data=str(made_folder), **SMALL), [0, 1], tmp_path / "store")
    assert (store.shape, store.classes, store.images_per_datapoint, store.count) == ((3, 8, 8), 11, 1, 132)
    assert store.manifest["class_names"][:2] == ["class 00", "class 01"]
    assert np.bincount(store.splits_of).tolist() == [11 * 8, 11 * 2, 11 * 2]  # 15 % of 12 are 2
    np.testing.assert_array_equal(store.pixels[:, 0, 3, 3], 20 * store.classes_of)
    for seed in (0, 1):
        table = store.table(seed)
        np.testing.assert_array_equal(table.label, store.classes_of[table.image_ids[:, 0]])
        for task in range(4):
            mine = table.task == task
            assert len(set(table.label[mine])) == 5
            assert len(set(table.image_ids[mine, 0])) == mine.sum()  # no image twice in a task
        for split in (TRAIN, VALIDATION, TEST):
            assert set(store.splits_of[table.image_ids[table.split == split, 0]]) == {split}
        classes = [set(about["classes"]) for about in table.manifest["tasks"]]
        assert not any(a & b for a, b in pairwise(classes))


def test_no_task_is_larger_than_one_of_the_smallest_classes(copy: Path, tmp_path: Path) -> None:
    for image in range(6):
        (copy / "class 03" / f"{image:02d}.png").unlink()
    store = build(ImageFolder(data=str(copy), tasks=7, size=8), [0, 1, 2], tmp_path / "store")
    assert np.bincount(store.classes_of[store.splits_of == TRAIN]).tolist() == [8, 8, 8, 4, *[8] * 7]
    for seed in range(3):
        assert np.diff(store.table(seed).starts, axis=1).tolist() == [[36] * 7, [9] * 7, [9] * 7]


def test_pairs_and_deeper_folders(copy: Path, tmp_path: Path) -> None:
    for number in range(11):  # alphabet/character/drawing, as Omniglot has it
        target = copy / f"part {number % 2}"
        target.mkdir(exist_ok=True)
        (copy / f"class {number:02d}").rename(target / f"class {number:02d}")
    store = build(ImageFolderPairs(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert store.manifest["class_names"][:2] == ["part 0/class 00", "part 0/class 02"]
    table = store.table(0)
    left, right = table.image_ids.T
    np.testing.assert_array_equal(table.label, store.classes_of[left] == store.classes_of[right])
    assert (left != right).all()
    assert table.label.mean() == 0.5


def test_other_files_are_left_out_and_counted(copy: Path) -> None:
    (copy / "class 00" / "Thumbs.db").write_bytes(b"x")
    (copy / "class 00" / ".hidden.png").write_bytes(b"x")
    (copy / "loose.png").write_bytes(b"x")  # in no class folder
    collected = ImageFolder(data=str(copy), size=8).collect()
    assert len(collected.pixels) == 132
    assert collected.source["notices"] == [
        "1 images outside any class folder are left out",
        "2 files that are not images are left out",
    ]


def test_links_to_folders_are_followed_once(copy: Path, tmp_path: Path) -> None:
    (copy / "class 01").rename(tmp_path / "elsewhere")
    (copy / "class 01").symlink_to(tmp_path / "elsewhere")
    assert len(ImageFolder(data=str(copy), size=8).collect().pixels) == 132
    (copy / "class 02" / "loop").symlink_to("..")
    (copy / "class 03" / "above").symlink_to(tmp_path)
    (copy / "class 11").symlink_to("class 04")
    rule = "a folder must be visited once, or its images would occur several times"
    for method in (ImageFolder(data=str(copy), size=8).collect, ImageFolder(data=str(copy), size=8).fingerprint):
        with pytest.raises(SourceError) as caught:
            method()
        assert sorted(caught.value.faults) == [
            f"{copy / 'class 02' / 'loop'}: {rule} (got it is {copy} again); remove the link",
            f"{copy / 'class 03' / 'above'}: {rule} (got it is {tmp_path} again); remove the link",
            f"{copy / 'class 11'}: {rule} (got it is {copy / 'class 04'} again); remove the link",
        ]


def test_each_bad_image_is_reported_before_anything_is_written(copy: Path, tmp_path: Path) -> None:
    empty, cut, text = (copy / name for name in ("class 00/00.png", "class 05/03.png", "class 10/11.png"))
    empty.write_bytes(b"")
    cut.write_bytes(cut.read_bytes()[:-4])
    text.write_text("not an image")
    with pytest.raises(SourceError) as caught:
        build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert caught.value.faults == (
        f"{empty}: is not a complete image (got 0 bytes)",
        f"{cut}: is not a complete image (got OSError: the end of the file is missing)",
        f"{text}: is not a complete image (got not an image format that Pillow knows)",
    )
    assert not (tmp_path / "store").exists()


def test_skip_bad_leaves_bad_images_out_and_records_them(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "class 00" / "00.png").write_bytes(b"")
    (copy / "class 05" / "03.png").write_text("not an image")
    out = tmp_path / "store"
    words = ["image_folder", "--data", str(copy), "--out", str(out), "--seeds", "1", "size=8", "tasks=2"]
    assert main(words) == 2
    assert len([line for line in capsys.readouterr().err.splitlines() if "is not a complete image" in line]) == 2
    assert main([*words, "--skip-bad"]) == 0
    store = TaskStore.open(out, verify=True)
    assert store.count == 130
    assert store.manifest["source"]["skipped"] == ["class 00/00.png", "class 05/03.png"]
    np.testing.assert_array_equal(store.pixels[:, 0, 3, 3], 20 * store.classes_of)
    assert "skip_bad" not in store.manifest["recipe"]


@pytest.mark.parametrize(("kind", "least"), [(ImageFolder, 3), (ImageFolderPairs, 6)])
def test_each_class_with_too_few_images_is_reported(copy: Path, kind: type, least: int) -> None:
    for number in (2, 7):
        for image in range(1, 12):
            (copy / f"class {number:02d}" / f"{image:02d}.png").unlink()
    with pytest.raises(SourceError) as caught:
        kind(data=str(copy), size=8).collect()
    assert caught.value.faults == tuple(
        f"class class {number:02d}: must have at least {least} images, {least // 3} to train, validate and test each "
        "(got 1); add images or leave the class out"
        for number in (2, 7)
    )


def test_shares_that_leave_no_training_images_are_reported(copy: Path) -> None:
    for number in range(11):
        for image in range(10, 12):
            (copy / f"class {number:02d}" / f"{image:02d}.png").unlink()
    with pytest.raises(SourceError) as caught:
        ImageFolder(data=str(copy), size=8, validation_share=0.5, test_share=0.45).collect()
    assert caught.value.faults == tuple(
        f"class class {number:02d}: validation_share 0.5 and test_share 0.45 must leave at least 1 of its 10 images to "
        "train with (got 0); lower the shares"
        for number in range(11)
    )


def test_fewer_classes_than_a_task_needs(copy: Path, tmp_path: Path) -> None:
    for number in range(4, 11):
        shutil.rmtree(copy / f"class {number:02d}")
    with pytest.raises(SourceError) as caught:
        build(ImageFolderPairs(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert str(caught.value) == (
        "image_folder_pairs: tasks of 5 classes that keep 2 need at least 8 classes (got 4); "
        "add classes, lower classes_per_task, or raise keep"
    )
    few = {**SMALL, "classes_per_task": 3}
    assert build(ImageFolderPairs(data=str(copy), **few), [0], tmp_path / "store").table(0).label.mean() == 0.5


def test_class_folders_named_like_numbers_or_booleans_are_text(made_folder: Path, tmp_path: Path) -> None:
    for name, origin in (("1.5", 0), ("2.0", 1), ("True", 2), ("10", 3), ("False", 4), ("9", 5)):
        shutil.copytree(made_folder / f"class {origin:02d}", tmp_path / "images" / name)
    collected = ImageFolder(data=str(tmp_path / "images"), size=8).collect()
    assert collected.images.class_names == ("1.5", "10", "2.0", "9", "False", "True")


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="data: must hold folders with images"):
        ImageFolder(data=str(tmp_path)).collect()
    with pytest.raises(SourceError, match="data: must be a folder that exists"):
        ImageFolder(data=str(tmp_path / "no")).collect()


def test_the_middle_square_is_resized(tmp_path: Path) -> None:
    pixels = np.zeros((20, 60, 3), dtype=np.uint8)
    pixels[:, :20], pixels[:, 20:40], pixels[:, 40:] = (255, 0, 0), (0, 200, 0), (0, 0, 255)
    save(tmp_path / "wide.png", pixels)
    save(tmp_path / "tall.png", pixels.transpose(1, 0, 2).copy())
    decoded = decode(tmp_path, ["wide.png", "tall.png"], 10, 3)
    assert decoded.bad == {}
    assert (decoded.pixels == np.array([0, 200, 0]).reshape(1, 3, 1, 1)).all()


def test_a_crop_keeps_a_square_in_the_middle(tmp_path: Path) -> None:
    pixels = np.zeros((30, 30), dtype=np.uint8)
    pixels[10:20, 10:20] = 250
    save(tmp_path / "grey.png", pixels)
    assert (decode(tmp_path, ["grey.png"], 5, 1, crop=10).pixels == 250).all()
    whole = decode(tmp_path, ["grey.png"], 30, 1, crop=200).pixels[0, 0]  # the image is smaller: all of it
    np.testing.assert_array_equal(whole, pixels)


def test_all_usual_pixel_modes_are_read(tmp_path: Path) -> None:
    grey = np.full((8, 8), 100, dtype=np.uint8)
    image = Image.fromarray(grey)
    for mode in ("L", "LA", "P", "RGB", "RGBA", "CMYK"):
        image.convert(mode).save(tmp_path / f"{mode}.tif")
    Image.fromarray(grey > 0).save(tmp_path / "1.png")
    names = ["L.tif", "LA.tif", "P.tif", "RGB.tif", "RGBA.tif", "CMYK.tif", "1.png"]
    decoded = decode(tmp_path, names, 4, 3)
    assert decoded.bad == {}
    assert decoded.pixels[:6].min() == decoded.pixels[:6].max() == 100
    assert (decoded.pixels[6] == 255).all()


def test_rotated_photographs_are_upright(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter clockwise
    save(tmp_path / "turned.png", pixels, exif=exif)
    upright = decode(tmp_path, ["turned.png"], 8, 1).pixels[0, 0]
    np.testing.assert_array_equal(upright, np.rot90(pixels[:, :, 0], -1))


def test_16_bit_images_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "deep.png", np.full((8, 8), 40_000, dtype=np.uint16))
    (line,) = decode(tmp_path, ["deep.png"], 4, 1).bad.values()
    assert "pixels have more than 8 bits; convert the image" in line


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_a_cut_file_of_any_format_is_detected(tmp_path: Path, form: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    save(tmp_path / "whole", pixels, format=form)
    content = (tmp_path / "whole").read_bytes()
    cuts = [*range(1, 30), *range(30, len(content), len(content) // 20), len(content)]
    for cut in cuts:
        (tmp_path / f"{cut}").write_bytes(content[:-cut])
    decoded = decode(tmp_path, ["whole", *map(str, cuts)], 8, 3)
    assert sorted(decoded.bad) == list(range(1, len(cuts) + 1))


def test_the_digest_depends_on_names_and_contents(made_folder: Path) -> None:
    names = ["class 00/00.png", "class 00/01.png"]
    first = decode(made_folder, names, 4, 3).digest
    assert first == decode(made_folder, names, 8, 1).digest
    assert first != decode(made_folder, names[::-1], 4, 3).digest


def test_omniglot_as_pairs(real_data: Path, tmp_path: Path) -> None:
    archive = real_data / "omniglot" / "images_background_small1.zip"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    zipfile.ZipFile(archive).extractall(tmp_path)
    recipe = ImageFolderPairs(data=str(tmp_path / "images_background_small1"), tasks=30, size=28, channels=1)
    store = build(recipe, [0], tmp_path / "store")
    assert store.shape == (1, 28, 28)
    assert store.count == 20 * len(store.manifest["class_names"])
    assert np.bincount(store.splits_of).tolist() == [
        14 * store.count // 20,
        3 * store.count // 20,
        3 * store.count // 20,
    ]
    table = store.table(0)
    left, right = table.image_ids.T
    np.testing.assert_array_equal(table.label, store.classes_of[left] == store.classes_of[right])
    # drawings of one character are more alike than of two
    far = np.abs(store.pixels[left].astype(float) - store.pixels[right]).mean(axis=(1, 2, 3))
    assert far[table.label == 1].mean() < 0.95 * far[table.label == 0].mean()
