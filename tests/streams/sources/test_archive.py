"""An archive gives the images, classes and notices of the folder that was packed; shards those of a label file."""

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streams.build import build
from streams.errors import SourceError
from streams.images import SingleImages
from streams.recipe import Collected

CLASSES = ("ant", "bee", "cow")
SIZE = 8


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_folder(root: Path, count: int = 4) -> Path:
    for row, label in enumerate(CLASSES):
        (root / label).mkdir(parents=True)
        for number in range(count):
            (root / label / f"{number}.png").write_bytes(png(10 * row + number))
    return root


def tar(root: Path, path: Path, mode: Any = "w") -> Path:
    """The folder in a TAR file, with itself as one more folder, as `tar -cf path root` writes it."""
    with tarfile.open(path, mode) as archive:
        archive.add(root, "photos")
    return path


def pack_zip(root: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(each for each in root.rglob("*") if each.is_file()):
            archive.write(file, f"photos/{file.relative_to(root)}")
    return path


def write_tar(path: Path, files: Mapping[str, bytes | str]) -> Path:
    """A TAR file of contents and of symbolic links, which are texts."""
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def recipe_of(data: Path, **options: Any) -> SingleImages:
    return SingleImages(data=str(data), size=SIZE, **{"validation_share": 0.25, "test_share": 0.25, **options})


def assert_same(one: Collected, other: Collected) -> None:
    """The same images, classes, pools and notices; digests are over names, which are relative in both."""
    np.testing.assert_array_equal(one.pixels, other.pixels)
    np.testing.assert_array_equal(one.images.classes, other.images.classes)
    np.testing.assert_array_equal(one.images.splits, other.images.splits)
    assert one.images.class_names == other.images.class_names
    assert {**one.source, "name": ""} == {**other.source, "name": ""}
    assert one.remarks == other.remarks


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_links_to_files_in_a_tar_file_are_followed(mode: str, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos")
    os.link(root / "ant" / "0.png", root / "bee" / "hard.png")
    (root / "cow" / "soft.png").symlink_to("../ant/1.png")
    (root / "ant" / "before its target.png").symlink_to("../cow/over a link.png")
    (root / "cow" / "over a link.png").symlink_to("./soft.png")
    os.link(root / "cow" / "soft.png", root / "bee" / "hard link to a link.png", follow_symlinks=False)
    data = tar(root, tmp_path / ("photos.tar" if mode == "w" else "photos.tar.gz"), mode)
    with tarfile.open(data) as archive:
        assert sum(member.islnk() or member.issym() for member in archive) == 5
    folder = recipe_of(root).collect()
    assert len(folder.pixels) == 17
    assert_same(recipe_of(data).collect(), folder)


def test_a_link_to_no_file_of_the_tar_file_is_a_bad_image(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos")
    links = {"photos/ant/x.png": "/outside/x.png", "photos/ant/y.png": "z.png", "photos/ant/z.png": "y.png"}
    images = {f"photos/{path.relative_to(root).as_posix()}": path.read_bytes() for path in root.rglob("*.png")}
    data = write_tar(tmp_path / "photos.tar", images | links)
    with pytest.raises(SourceError) as raised:
        recipe_of(data).collect()
    reason = "cannot be read (got the archive does not hold the file that this link names)"
    assert raised.value.faults == tuple(f"{data}/ant/{name}.png: {reason}" for name in "xyz")
    rest = recipe_of(data, skip_bad=True).collect()
    np.testing.assert_array_equal(rest.pixels, recipe_of(root).collect().pixels)
    assert rest.source["skipped"] == ["ant/x.png", "ant/y.png", "ant/z.png"]


def test_links_to_folders_in_a_tar_file_are_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_folder(tmp_path / "photos")
    folder = recipe_of(root).collect()
    (root / "newest").symlink_to("ant")
    (root / "outside").symlink_to(tmp_path)
    archive = recipe_of(tar(root, tmp_path / "photos.tar")).collect()
    words = "2 links to folders, or to files that are not in the archive, are left out"
    assert archive.remarks == (f"{words}: photos/newest, photos/outside",)
    assert {**archive.source, "name": ""} == {**folder.source, "name": ""}  # and so is the hash of the store


def test_a_file_given_to_tar_twice_is_one_image(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos")
    data = tar(root, tmp_path / "photos.tar")
    with tarfile.open(data, "a") as archive:  # GNU tar writes the second occurrence as a link to itself
        member = tarfile.TarInfo("photos/ant/0.png")
        member.type, member.linkname = tarfile.LNKTYPE, member.name
        archive.addfile(member)
    assert_same(recipe_of(data).collect(), recipe_of(root).collect())


def test_a_newer_version_that_was_appended_to_a_tar_file_is_the_image(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos")
    data = tar(root, tmp_path / "photos.tar")
    (root / "ant" / "0.png").write_bytes(png(99))
    with tarfile.open(data, "a") as archive:
        archive.add(root / "ant" / "0.png", "./photos/ant/0.png")
    assert_same(recipe_of(data).collect(), recipe_of(root).collect())


@pytest.mark.parametrize("pack", [tar, pack_zip])
@pytest.mark.parametrize("name", ["README.json", "ant/about.json", "0.cls", "._ant.json"])
def test_a_label_file_beside_images_makes_no_shard_of_an_archive(
    pack: Callable[[Path, Path], Path], name: str, tmp_path: Path
) -> None:
    root = write_folder(tmp_path / "photos")
    (root / "ant" / "._0.png").write_bytes(b"AppleDouble")
    (root / name).write_text("{}")
    data = pack(root, tmp_path / ("photos.tar" if pack is tar else "photos.zip"))
    assert_same(recipe_of(data).collect(), recipe_of(root).collect())


def test_a_shard_whose_label_files_come_first_is_recognized(tmp_path: Path) -> None:
    labels = {f"{number:02}.json": json.dumps({"label": CLASSES[number % 3]}).encode() for number in range(24)}
    images = {f"{number:02}.png": png(number) for number in range(24)}
    collected = recipe_of(write_tar(tmp_path / "shard.tar", labels | images)).collect()
    assert collected.source["name"] == "WebDataset shards"
    assert collected.images.classes.tolist() == [number % 3 for number in range(24)]


@pytest.mark.parametrize("pack", [tar, pack_zip])
@pytest.mark.parametrize("name", ["preview.png", "ant/.thumbnails/a/0.png", ".thumbnails/a/b/0.png"])
def test_a_picture_beside_the_class_folders_of_an_archive_is_left_out(
    pack: Callable[[Path, Path], Path], name: str, tmp_path: Path
) -> None:
    root = write_folder(tmp_path / "photos")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(png(99))
    data = pack(root, tmp_path / ("photos.tar" if pack is tar else "photos.zip"))
    folder = recipe_of(root).collect()
    assert folder.images.class_names == CLASSES
    assert len(folder.source["notices"]) == 1
    assert_same(recipe_of(data).collect(), folder)


def test_hidden_folders_in_a_class_do_not_make_it_the_folder_of_an_archive(tmp_path: Path) -> None:
    names = ["ant/0.png", "ant/1.png", "ant/@eaDir/a/0.png", "ant/.thumbnails/b/1.png"]
    data = write_tar(tmp_path / "a.tar", {name: png(number) for number, name in enumerate(names)})
    listing = recipe_of(data).listing()
    assert (list(listing.files), list(listing.labels)) == (["ant/0.png", "ant/1.png"], ["ant", "ant"])


def write_shard(path: Path, labels: list[str], first: int = 0) -> None:
    samples = enumerate(labels, start=first)
    write_tar(
        path,
        {
            name: content
            for number, label in samples
            for name, content in ((f"{number:05}.png", png(number)), (f"{number:05}.cls", label.encode()))
        },
    )


@pytest.mark.parametrize(
    ("labels", "class_names"),
    [
        (["0", "1", "A", "B"], ("0", "1", "A", "B")),
        (["01", "1", "02", "2"], ("01", "02", "1", "2")),
        (["10", "2", "1", "0"], ("0", "1", "2", "10")),
        (["-1", "1", "0", "2"], ("-1", "0", "1", "2")),
        (["٣", "a", "b", "c"], ("a", "b", "c", "٣")),
    ],
)
def test_labels_of_shards_are_the_classes_of_a_label_file(
    labels: list[str], class_names: tuple[str, ...], tmp_path: Path
) -> None:
    """And so are those in JSON: whole numbers are sorted by value, and all else as text."""
    (tmp_path / "folder").mkdir()
    lines = ["file_name,label"]
    for number, label in enumerate(labels * 4):
        (tmp_path / "folder" / f"{number:05}.png").write_bytes(png(number))
        lines.append(f"{number:05}.png,{label}")
    (tmp_path / "folder" / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    write_shard(tmp_path / "shard.tar", labels * 4)
    folder, shard = recipe_of(tmp_path / "folder").collect(), recipe_of(tmp_path / "shard.tar").collect()
    assert shard.images.class_names == folder.images.class_names == class_names
    np.testing.assert_array_equal(shard.images.classes, folder.images.classes)


def test_labels_in_cls_and_in_json_files_are_of_one_kind(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for number in range(12):
        files[f"{number:02}.png"] = png(number)
        name = f"{number:02}.{'cls' if number % 2 else 'json'}"
        files[name] = str(8 + number % 3).encode()
    collected = recipe_of(write_tar(tmp_path / "a.tar", files)).collect()
    assert collected.images.class_names == ("8", "9", "10")
    assert collected.images.classes.tolist() == [0, 1, 2] * 4


def test_links_in_a_shard_are_followed(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {}
    for number in range(12):
        files |= {f"{number:02}.png": png(number), f"{number:02}.cls": CLASSES[number % 3].encode()}
    files |= {"99.png": "00.png", "99.cls": "01.cls"}
    collected = recipe_of(write_tar(tmp_path / "a.tar", files)).collect()
    assert len(collected.pixels) == 13
    (row,) = np.flatnonzero((collected.pixels[:12] == collected.pixels[12]).all(axis=(1, 2, 3)))
    assert (row, collected.images.classes[12]) == (0, 1)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["cifar-train-0.tar", "cifar-test-0.tar"], [0, 2]),
        (["cifar_val_0.tar", "cifar.Training.0.tar", "cifar-testing-0.tar"], [1, 0, 2]),
        (["cifar-train/0.tar", "cifar-test/0.tar"], [0, 2]),
        (["train/a-test-0.tar", "test/a-train-0.tar"], [0, 2]),  # a folder before a later word
        (["a-train-0.tar", "b-train-0.tar"], None),
        (["a-test-0.tar", "b-0.tar"], None),
        (["a-train-0.tar", "a-test-0.tar", "a-0.tar"], "must give a split, or none of them (got a-0.tar)"),
    ],
)
def test_any_word_of_a_file_name_can_be_its_split(
    names: list[str], splits: list[int] | str | None, tmp_path: Path
) -> None:
    """If they name training and held-out images; a first word or a whole folder's name counts before other words."""
    root = tmp_path / "shards"
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_shard(root / name, [*CLASSES] * 4, 100 * number)
    if isinstance(splits, str):
        with pytest.raises(SourceError) as raised:
            recipe_of(root).listing()
        assert splits in str(raised.value)
        assert recipe_of(root, given_split=False).listing().splits is None
        return
    listing = recipe_of(root).listing()
    by_file = {file.rpartition("/")[0]: split for file, split in zip(listing.files, listing.splits or [], strict=False)}
    assert by_file == ({} if splits is None else dict(zip(names, splits, strict=True)))


def test_shards_with_a_common_first_word_give_their_split_to_a_store(tmp_path: Path) -> None:
    root = tmp_path / "shards"
    root.mkdir()
    write_shard(root / "cifar-train-000000.tar", [*CLASSES] * 8)
    write_shard(root / "cifar-test-000000.tar", [*CLASSES] * 4, 100)
    recipe = recipe_of(root, tasks=1, classes_per_task=3, train=6, validation=3, test=3)
    store = build(recipe, [0], tmp_path / "store")
    tested = {store.pixels[row].tobytes() for row in np.flatnonzero(store.splits_of == 2)}
    wanted = {
        np.asarray(Image.open(io.BytesIO(png(100 + number)))).transpose(2, 0, 1).tobytes() for number in range(12)
    }
    assert tested == wanted
