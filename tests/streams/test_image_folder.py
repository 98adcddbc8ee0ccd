"""Folders of images: classes, cropping and resizing, bad files."""

import errno
import os
import shutil
import struct
import warnings
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streams.build import build, cached, main
from streams.errors import SourceError
from streams.images import ImageFolder, ImageFolderPairs
from streams.recipe import TEST, TRAIN, VALIDATION
from streams.sources.decode import ImageFormat, decode, pillow_warnings, read_picture
from streams.store.task_store import TaskStore
from tests.streams.conftest import write_image

OLDER_HASHES = {  # by the commit 626ca2c: of the store, and of seed 0
    ImageFolder: [
        "7ad64817dbfc1da243b9994e2647e4ecf81d069644bf3f8bc7d493f4fa4da5e9",
        "6391bc75e9b2a9ec9f9808f4c751f81bd91956d792a103ac55224c9c22e32345",
    ],
    ImageFolderPairs: [
        "baa73b5d23fc62cacc943802f4c29c95fe5a40b5d62f20d4a79f96ac8f154a96",
        "3ab500abbdcdb38287b533e96404974699b14a41bd9316f1db6e3cd0a9fc23d7",
    ],
}
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


def test_tasks_that_small_classes_shorten_are_reported_before_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"a": 3, "b": 4, "c": 60, "d": 300}
    for number, (name, size) in enumerate(sizes.items()):
        for image in range(size):
            write_image(tmp_path / "data" / name / f"{image:03d}.png", (number, image // 200, image % 200), (4, 4))
    data = str(tmp_path / "data")
    recipe = ImageFolder(data=data, size=4, tasks=3, classes_per_task=2)
    store = build(recipe, [0], tmp_path / "store")
    assert np.diff(store.table(0).starts, axis=1).tolist() == [[3] * 3, [2] * 3, [2] * 3]
    remedy = "leave small classes out (least_per_class), raise classes_per_task, or lower"
    words = "points, not {}: all that the smallest classes have"
    lines = [
        f"image_folder: every task has 3 train {words.format(400)}, a (1), b (2); {remedy} train",
        f"image_folder: every task has 2 validation {words.format(100)}, a (1), b (1); {remedy} validation",
        f"image_folder: every task has 2 test {words.format(100)}, a (1), b (1); {remedy} test",
    ]
    assert capsys.readouterr().err.splitlines() == lines
    build(recipe, [0, 1], tmp_path / "store")  # a store that exists is used with the same lines
    build(recipe, [0, 1], tmp_path / "store")
    assert capsys.readouterr().err.splitlines() == lines * 2
    large = ImageFolder(
        data=data, size=4, tasks=1, classes_per_task=2, least_per_class=60, train=250, validation=54, test=54
    )
    table = build(large, [0], tmp_path / "large").table(0)
    assert np.diff(table.starts, axis=1).tolist() == [[250], [54], [54]]
    assert capsys.readouterr().err == "image_folder: 2 classes have fewer than 60 images and are left out\n"


def test_pairs_and_deeper_folders(copy: Path, tmp_path: Path) -> None:
    for number in range(11):  # alphabet/character/drawing, as Omniglot has it
        target = copy / f"part {number % 2}"
        target.mkdir(exist_ok=True)
        (copy / f"class {number:02d}").rename(target / f"class {number:02d}")
    store = build(ImageFolderPairs(data=str(copy), nested_classes=True, **SMALL), [0], tmp_path / "store")
    assert store.manifest["class_names"][:2] == ["part 0/class 00", "part 0/class 02"]
    assert store.manifest["source"]["notices"] == []
    table = store.table(0)
    left, right = table.image_ids.T
    np.testing.assert_array_equal(table.label, store.classes_of[left] == store.classes_of[right])
    assert (left != right).all()
    assert table.label.mean() == 0.5


def test_nested_folders_are_one_class(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flat = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "flat")
    for number in range(11):  # cat/day1, cat/day2, and images beside them
        for day in (1, 2):
            target = copy / f"class {number:02d}" / f"day{day}"
            target.mkdir()
            for image in range(4):
                (target.parent / f"{4 * day + image:02d}.png").rename(target / f"{image}.png")
    store = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert store.manifest["class_names"] == flat.manifest["class_names"]
    assert (store.classes, store.count) == (11, 132)
    line = "22 nested folders are parts of their classes, which are 11; nested_classes=true makes each folder a class"
    assert store.manifest["source"]["notices"] == [line]
    assert capsys.readouterr().err == f"image_folder: {line}\n"
    apart = ImageFolder(data=str(copy), nested_classes=True, size=8).collect()
    assert apart.images.class_names[:3] == ("class 00", "class 00/day1", "class 00/day2")


def test_folders_that_are_not_classes_are_left_out_and_named(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "before")
    (copy / ".git").mkdir()  # holds no image: nothing to report
    assert build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "same").hash == before.hash
    assert capsys.readouterr().err == ""
    names = (".trash", "__MACOSX", "lost+found", "@eaDir", "class 04/.ipynb_checkpoints", "class 04/.thumbnails/large")
    for name in names:
        shutil.copytree(copy / "class 00", copy / name)
    (copy / ".trash" / "link").symlink_to(copy / "class 00")
    store = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert store.manifest["class_names"] == before.manifest["class_names"]
    np.testing.assert_array_equal(store.pixels, before.pixels)
    np.testing.assert_array_equal(store.splits_of, before.splits_of)
    line = (
        "6 folders that are not classes are left out, with 72 images: .trash, @eaDir, __MACOSX, "
        "class 04/.ipynb_checkpoints, class 04/.thumbnails and 1 more"
    )
    assert store.manifest["source"]["notices"] == [line]
    assert capsys.readouterr().err == f"image_folder: {line}\n"
    assert ImageFolder(data=str(copy)).fingerprint() == ImageFolder(data=str(copy)).fingerprint()


def _as_split(copy: Path, **names_of: tuple[int, ...]) -> None:
    """Move the images of each class into one folder for each name, by their numbers."""
    for folder in sorted(copy.iterdir()):
        for name, images in names_of.items():
            target = copy / name / folder.name
            target.mkdir(parents=True)
            for image in images:
                (folder / f"{image:02d}.png").rename(target / f"{image:02d}.png")
        folder.rmdir()


@pytest.mark.parametrize(("validation", "test"), [("val", "test"), ("Valid", "testing"), ("validation", "TEST")])
def test_a_given_split_is_used(
    copy: Path, tmp_path: Path, validation: str, test: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _as_split(copy, **{"train": tuple(range(7)), validation: (7, 8), test: (9, 10, 11)})
    store = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert (store.classes, store.manifest["class_names"][0]) == (11, "class 00")
    image = store.pixels[:, 1, 3, 3] // 20
    np.testing.assert_array_equal(store.splits_of, np.where(image < 7, TRAIN, np.where(image < 9, VALIDATION, TEST)))
    line = f"the folders give the split: train is train (77), {validation} is validation (22), {test} is test (33)"
    assert store.manifest["source"]["notices"] == [line]
    assert capsys.readouterr().err == f"image_folder: {line}\n"


def test_pools_that_a_given_split_does_not_have_are_drawn_from_its_training_images(copy: Path, tmp_path: Path) -> None:
    _as_split(copy, training=tuple(range(9)), test=(9, 10, 11))
    (copy / "test" / "loose.png").write_bytes((copy / "test" / "class 00" / "09.png").read_bytes())
    store = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert np.bincount(store.splits_of).tolist() == [11 * 8, 11 * 1, 11 * 3]
    np.testing.assert_array_equal(store.splits_of == TEST, store.pixels[:, 1, 3, 3] // 20 >= 9)
    assert store.manifest["source"]["notices"] == [
        "the folders give the split: training is train (99), test is test (33); validation images are drawn from training",
        "1 images outside any class folder are left out",
    ]
    shutil.rmtree(copy / "test")
    only = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "only")
    assert np.bincount(only.splits_of).tolist() == [11 * 7, 11 * 1, 11 * 1]


def test_the_hash_of_older_stores_stays(tmp_path: Path) -> None:
    """Of the same folder and options, as the version before `background` and the other additions built it."""
    for number in range(11):
        for image in range(12):
            write_image(tmp_path / "data" / f"class {number:02d}" / f"{image:02d}.bmp", (20 * number, 20 * image, 0))
    (tmp_path / "data" / "readme.txt").write_text("x")
    (tmp_path / "data" / "loose.bmp").write_bytes(b"x")
    (tmp_path / "data" / ".git").mkdir()
    (tmp_path / "data" / ".git" / "config").write_text("x")
    for kind, expected in OLDER_HASHES.items():
        store = build(kind(data=str(tmp_path / "data"), **SMALL), [0], tmp_path / kind.name)
        assert [store.hash, store.table(0).manifest["hash"]] == expected
        assert set(store.manifest["recipe"]) == {
            *("name", "tasks", "classes_per_task", "keep", "train", "validation", "test"),
            *("size", "channels", "validation_share", "test_share"),
        }
    other = ImageFolder(data="x", background="black", given_split=False, nested_classes=True, least_per_class=2)
    new = {"background": "black", "given_split": False, "nested_classes": True, "least_per_class": 2}
    assert other.identity() == ImageFolder(data="x").identity() | new


def test_split_names_may_be_classes(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in ((0, "train"), (1, "test")):
        (copy / f"class {number:02d}").rename(copy / name)
    store = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert store.manifest["class_names"][-2:] == ["test", "train"]  # among other classes, they are no split
    assert capsys.readouterr().err == (
        "image_folder: test, train are taken as classes and not as the split, since class 02 is beside them\n"
    )
    for number in range(2, 11):
        shutil.rmtree(copy / f"class {number:02d}")
    with pytest.raises(SourceError) as caught:
        ImageFolder(data=str(copy), size=8).collect()
    assert str(caught.value) == (
        f"{copy}: data: test, train give the split and must hold a folder per class; "
        "set given_split=false if they are classes"
    )
    assert ImageFolder(data=str(copy), size=8, given_split=False).collect().images.class_names == ("test", "train")


def test_copies_are_in_one_pool(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = ImageFolder(data=str(copy), size=8).collect()
    for number in range(1, 11):
        for image in range(12):
            original = copy / f"class {number:02d}" / f"{image:02d}.png"
            Image.open(original).save(original.with_name(f"copy of {image:02d}.png"), compress_level=0)
    store = build(ImageFolder(data=str(copy), **SMALL), [0, 1], tmp_path / "store")
    picture = store.classes_of * 12 + store.pixels[:, 1, 3, 3] // 20
    pools = [set(store.splits_of[picture == each].tolist()) for each in range(132)]
    assert all(len(pool) == 1 for pool in pools)
    assert [pool.pop() for pool in pools] == before.images.splits.tolist()  # as without the copies
    line = "120 images are copies of others and are in the same pool as these"
    assert store.manifest["source"]["notices"] == [line]
    assert capsys.readouterr().err == f"image_folder: {line}\n"


def test_a_picture_in_two_classes_is_reported_and_in_one_pool(copy: Path, tmp_path: Path) -> None:
    for image in range(12):
        shutil.copy(copy / "class 00" / f"{image:02d}.png", copy / "class 05" / f"again {image:02d}.png")
    store = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "store")
    red, green = store.pixels[:, 0, 3, 3], store.pixels[:, 1, 3, 3]
    for image in range(12):
        twice = (red == 0) & (green == 20 * image)
        assert store.classes_of[twice].tolist() == [0, 5]
        assert len(set(store.splits_of[twice].tolist())) == 1
    notices = store.manifest["source"]["notices"]
    assert notices[0] == "12 images are copies of others and are in the same pool as these"
    assert notices[1] == "one picture in several classes: class 00/00.png, class 05/again 00.png"
    assert notices[11:] == ["2 more pictures are in several classes"]


def test_a_copy_across_a_given_split_is_withheld(copy: Path, tmp_path: Path) -> None:
    _as_split(copy, train=tuple(range(7)), val=(7, 8), test=(9, 10, 11))
    shutil.copy(copy / "test" / "class 03" / "09.png", copy / "train" / "class 03" / "leak.png")
    shutil.copy(copy / "train" / "class 04" / "00.png", copy / "val" / "class 04" / "leak.png")
    store = build(ImageFolder(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert np.bincount(store.splits_of[store.classes_of == 3]).tolist() == [7, 2, 4]
    assert np.bincount(store.splits_of[store.classes_of == 4]).tolist() == [6, 4, 3]


def test_copies_count_once_where_a_class_is_too_small(copy: Path) -> None:
    for image in range(1, 12):
        shutil.copy(copy / "class 02" / "00.png", copy / "class 02" / f"{image:02d}.png")
    with pytest.raises(SourceError) as caught:
        ImageFolder(data=str(copy), size=8).collect()
    assert str(caught.value) == (
        "class class 02: must have at least 3 images, 1 to train, validate and test each (got 1, and 11 copies); "
        "add images or leave the class out"
    )


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
    (copy / "class 00" / "12.JFIF").write_bytes(b"x")
    assert ImageFolder(data=str(copy), size=8).collect().remarks == (
        "left out by suffix: 1 .db, 1 .jfif, 1 hidden; images have "
        ".bmp .gif .jpeg .jpg .pbm .pgm .png .ppm .tif .tiff .webp",
    )


def test_links_to_folders_are_followed_once(copy: Path, tmp_path: Path) -> None:
    (copy / "class 01").rename(tmp_path / "elsewhere")
    (copy / "class 01").symlink_to(tmp_path / "elsewhere")
    assert len(ImageFolder(data=str(copy), size=8).collect().pixels) == 132
    (copy / "class 02" / "loop").symlink_to("..")
    (copy / "class 03" / "above").symlink_to(tmp_path)
    (copy / "class 11").symlink_to("class 04")
    (copy / "a link").symlink_to("class 05")  # visited before the folder, and yet the link is to be removed
    rule = "a folder must be visited once, or its images would occur several times"
    for method in (ImageFolder(data=str(copy), size=8).collect, ImageFolder(data=str(copy), size=8).fingerprint):
        with pytest.raises(SourceError) as caught:
            method()
        assert sorted(caught.value.faults) == [
            f"{copy / 'a link'}: {rule} (got it is {copy / 'class 05'} again); remove the link",
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


def test_a_broken_link_and_a_name_that_is_not_utf_8_are_bad_images(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a cached store, which a sweep needs, ended in a traceback for both."""
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    before = ImageFolder(data=str(copy)).fingerprint()
    (copy / "class 00" / "link.png").symlink_to(tmp_path / "absent.png")
    name = os.fsdecode(b"caf\xe9")  # as Latin-1 writes it
    shutil.copyfile(copy / "class 00" / "00.png", copy / "class 00" / f"{name}.png")
    shutil.copytree(copy / "class 01", copy / name)
    shutil.copytree(copy / "class 01", copy / f".{name}")
    recipe = ImageFolder(data=str(copy), **SMALL)
    assert recipe.fingerprint() != before
    skipped = [*(rf"caf\xe9/{row:02d}.png" for row in range(12)), r"class 00/caf\xe9.png"]
    with pytest.raises(SourceError) as caught:
        cached(recipe, [0])
    assert list(caught.value.faults) == [
        *(f"{copy}/{each}: must have a name in UTF-8; rename it" for each in skipped),
        f"{copy}/class 00/link.png: cannot be read (got No such file or directory)",
    ]
    store = cached(ImageFolder(data=str(copy), skip_bad=True, **SMALL), [0])
    TaskStore.open(store.path, verify=True)
    assert (store.count, store.classes) == (132, 11)
    assert store.manifest["source"]["skipped"] == [*skipped, "class 00/link.png"]
    assert store.manifest["source"]["notices"] == [
        r"1 folders that are not classes are left out, with 12 images: .caf\xe9"
    ]


def test_a_folder_that_cannot_be_listed_is_one_line(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(SourceError) as caught:
        cached(ImageFolder(data=str(copy)), [0])
    assert str(caught.value) == f"{copy}: cannot be read (got Permission denied)"


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
    decoded = decode(tmp_path, ["wide.png", "tall.png"], ImageFormat(10, 3))
    assert decoded.bad == {}
    assert (decoded.pixels == np.array([0, 200, 0]).reshape(1, 3, 1, 1)).all()


def test_a_crop_keeps_a_square_in_the_middle(tmp_path: Path) -> None:
    pixels = np.zeros((30, 30), dtype=np.uint8)
    pixels[10:20, 10:20] = 250
    save(tmp_path / "grey.png", pixels)
    assert (decode(tmp_path, ["grey.png"], ImageFormat(5, 1, crop=10)).pixels == 250).all()
    whole = decode(tmp_path, ["grey.png"], ImageFormat(30, 1, crop=200)).pixels[0, 0]  # the image is smaller: all of it
    np.testing.assert_array_equal(whole, pixels)


def test_all_usual_pixel_modes_are_read(tmp_path: Path) -> None:
    grey = np.full((8, 8), 100, dtype=np.uint8)
    image = Image.fromarray(grey)
    for mode in ("L", "LA", "P", "RGB", "RGBA", "CMYK"):
        image.convert(mode).save(tmp_path / f"{mode}.tif")
    Image.fromarray(grey > 0).save(tmp_path / "1.png")
    names = ["L.tif", "LA.tif", "P.tif", "RGB.tif", "RGBA.tif", "CMYK.tif", "1.png"]
    decoded = decode(tmp_path, names, ImageFormat(4, 3))
    assert decoded.bad == {}
    assert decoded.pixels[:6].min() == decoded.pixels[:6].max() == 100
    assert (decoded.pixels[6] == 255).all()


def _ink(folder: Path) -> list[str]:
    """Write a black square on a transparent background, black underneath, in every mode that has transparency."""
    alpha = np.zeros((8, 8), dtype=np.uint8)
    alpha[2:6, 2:6] = 255
    black = np.zeros((8, 8), dtype=np.uint8)
    grey = Image.merge("LA", [Image.fromarray(black), Image.fromarray(alpha)])
    colour = grey.convert("RGBA")
    palette = Image.fromarray(alpha // 255, "P")
    palette.putpalette([0] * 6)
    plain = Image.fromarray(np.where(alpha == 0, 1, 0).astype(np.uint8))
    grey.save(folder / "LA.png")
    colour.save(folder / "RGBA.png")
    colour.save(folder / "RGBA.webp", lossless=True)
    colour.save(folder / "RGBA.tif")
    palette.save(folder / "P index.png", transparency=0)
    palette.save(folder / "P bytes.png", transparency=bytes([0, 255]))
    palette.save(folder / "P.gif", transparency=0)
    plain.save(folder / "L.png", transparency=1)
    plain.convert("RGB").save(folder / "RGB.png", transparency=(1, 1, 1))
    return ["LA.png", "RGBA.png", "RGBA.webp", "RGBA.tif", "P index.png", "P bytes.png", "P.gif", "L.png", "RGB.png"]


@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_pixels_show_the_background(tmp_path: Path, channels: int) -> None:
    names = _ink(tmp_path)
    expected = np.full((8, 8), 255)
    expected[2:6, 2:6] = 0
    decoded = decode(tmp_path, names, ImageFormat(8, channels))
    assert decoded.bad == {}
    for name, pixels in zip(names, decoded.pixels, strict=True):
        np.testing.assert_array_equal(pixels, np.broadcast_to(expected, (channels, 8, 8)), err_msg=name)
    assert decoded.remarks == ("9 images have transparent pixels, which are composited on white",)
    other = decode(tmp_path, names, ImageFormat(8, channels, background="#000000"))
    assert other.pixels.max() <= 1


@pytest.mark.parametrize("mode", ["La", "RGBa", "PA"])
def test_transparency_in_modes_that_files_rarely_have(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.new(mode, (4, 4), (0,) * (4 if mode == "RGBa" else 2))
    image.format = None
    monkeypatch.setattr(Image, "open", lambda _: image)
    for channels in (1, 3):
        picture = read_picture(b"", channels)
        assert picture.transparent
        assert np.asarray(picture.image).min() == 255


def test_half_transparent_pixels_are_mixed_and_opaque_ones_stay(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 4), dtype=np.uint8)
    pixels[..., 3] = 128
    save(tmp_path / "half.png", pixels)
    pixels[..., :] = (10, 20, 30, 255)
    save(tmp_path / "opaque.png", pixels)
    decoded = decode(tmp_path, ["half.png", "opaque.png"], ImageFormat(4, 3))
    assert (decoded.pixels[0] == 127).all()
    assert (decoded.pixels[1] == np.array([10, 20, 30]).reshape(3, 1, 1)).all()
    assert decoded.remarks == ("1 images have transparent pixels, which are composited on white",)


def test_the_background_is_an_option_of_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        (tmp_path / "data" / f"class {number}").mkdir(parents=True)
        for image in range(3):
            pixels = np.zeros((4, 4, 4), dtype=np.uint8)
            pixels[0, : image + 1, 3] = pixels[3, : number + 1, 3] = 255
            save(tmp_path / "data" / f"class {number}" / f"{image}.png", pixels)
    words = ["image_folder", f"data={tmp_path / 'data'}", "--seeds", "1", "tasks=1", "classes_per_task=2", "size=4"]
    words += ["train=2", "validation=2", "test=2"]
    assert main([*words, "--out", str(tmp_path / "store")]) == 0
    err = capsys.readouterr().err
    assert err.count("image_folder: 6 images have transparent pixels, which are composited on white\n") == 1
    store = TaskStore.open(tmp_path / "store")
    assert (store.background, store.pixels[0, :, 1:3].min()) == ("white", 255)
    assert main([*words, "--out", str(tmp_path / "green"), "background=#00ff00"]) == 0
    store = TaskStore.open(tmp_path / "green")
    assert (store.background, store.pixels[0, :, 1, 1].tolist()) == ("#00ff00", [0, 255, 0])
    capsys.readouterr()
    for colour in ("whitish", "#ffffff80"):  # unknown, and transparent itself
        assert main([*words, "--out", str(tmp_path / "no"), f"background={colour}"]) == 2
        assert capsys.readouterr().err == (
            f"image_folder.background: must be an opaque colour (got {colour}); "
            "write a name or a code, such as white or #ff8800\n"
        )


def test_rotated_photographs_are_upright(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter clockwise
    save(tmp_path / "turned.png", pixels, exif=exif)
    upright = decode(tmp_path, ["turned.png"], ImageFormat(8, 1)).pixels[0, 0]
    np.testing.assert_array_equal(upright, np.rot90(pixels[:, :, 0], -1))


def test_16_bit_images_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "deep.png", np.full((8, 8), 40_000, dtype=np.uint16))
    (line,) = decode(tmp_path, ["deep.png"], ImageFormat(4, 1)).bad.values()
    assert "pixels have more than 8 bits; convert the image" in line


def _png(width: int, height: int, bits: int, colour_type: int, content: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def test_16_bit_colour_is_refused_and_16_bits_of_a_pixel_are_not(tmp_path: Path) -> None:
    row = b"\0" + np.full((4, 3), 40_000, dtype=">u2").tobytes()
    (tmp_path / "deep.png").write_bytes(_png(4, 4, 16, 2, row * 4))
    row = b"\0" + np.full((4, 2), 40_000, dtype=">u2").tobytes()
    (tmp_path / "deep and transparent.png").write_bytes(_png(4, 4, 16, 4, row * 4))
    (tmp_path / "deep.ppm").write_bytes(b"P6 4 4 65535\n" + np.full((4, 4, 3), 40_000, dtype=">u2").tobytes())
    header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 86, 0, 0, 54, 40, 4, 4, 1, 16, 0, 32, 0, 0, 0, 0)
    (tmp_path / "5 bits each.bmp").write_bytes(header + np.full(16, 0x7FFF, dtype="<u2").tobytes())
    names = ["deep.png", "deep and transparent.png", "deep.ppm", "5 bits each.bmp"]
    decoded = decode(tmp_path, names, ImageFormat(4, 3))
    words = "is not a complete image (got {} pixels have more than 8 bits; convert the image)"
    assert [*decoded.bad.values()] == [
        f"{tmp_path / name}: {words.format(mode)}" for name, mode in zip(names, ("RGB", "RGBA", "RGB"), strict=False)
    ]
    assert (decoded.pixels[3] == 255).all()


def test_a_colour_space_that_is_not_converted_is_named(tmp_path: Path) -> None:
    Image.new("LAB", (4, 4)).save(tmp_path / "lab.tif")
    (line,) = decode(tmp_path, ["lab.tif"], ImageFormat(4, 3)).bad.values()
    assert line.endswith("(got LAB colours are not supported; convert the image to RGB)")


def test_an_image_of_too_many_pixels_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(_png(20_000, 10_000, 1, 0, b""))
    (line,) = decode(tmp_path, ["large.png"], ImageFormat(4, 3)).bad.values()
    assert "Image size (200000000 pixels) exceeds limit of 178956970 pixels" in line
    assert line.endswith("; make the image smaller)")


def test_warnings_of_pillow_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a.png", np.zeros((8, 8), dtype=np.uint8))
    save(tmp_path / "b.png", np.zeros((8, 8), dtype=np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded = decode(tmp_path, ["a.png", "b.png"], ImageFormat(8, 1))
    assert decoded.bad == {}
    (line,) = decoded.remarks
    assert line.startswith(
        "2 warnings of Pillow, such as DecompressionBombWarning: Image size (64 pixels) exceeds limit"
    )
    with pillow_warnings() as lines:  # while garbage is collected, about a file that is no image
        warnings.warn("unclosed file", ResourceWarning, stacklevel=1)
    assert lines == []


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_a_cut_file_of_any_format_is_detected(tmp_path: Path, form: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    save(tmp_path / "whole", pixels, format=form)
    content = (tmp_path / "whole").read_bytes()
    cuts = [*range(1, 30), *range(30, len(content), len(content) // 20), len(content)]
    for cut in cuts:
        (tmp_path / f"{cut}").write_bytes(content[:-cut])
    decoded = decode(tmp_path, ["whole", *map(str, cuts)], ImageFormat(8, 3))
    assert sorted(decoded.bad) == list(range(1, len(cuts) + 1))


def test_the_digest_depends_on_names_and_contents(made_folder: Path) -> None:
    names = ["class 00/00.png", "class 00/01.png"]
    first = decode(made_folder, names, ImageFormat(4, 3)).digest
    assert first == decode(made_folder, names, ImageFormat(8, 1)).digest
    assert first != decode(made_folder, names[::-1], ImageFormat(4, 3)).digest


def test_omniglot_as_pairs(real_data: Path, tmp_path: Path) -> None:
    archive = real_data / "omniglot" / "images_background_small1.zip"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    zipfile.ZipFile(archive).extractall(tmp_path)
    recipe = ImageFolderPairs(
        data=str(tmp_path / "images_background_small1"), tasks=30, size=28, channels=1, nested_classes=True
    )
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
