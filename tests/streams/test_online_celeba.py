"""Online-CelebA on a synthetic folder in the official format."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams.build import build
from streams.errors import SourceError
from streams.online_celeba import OnlineCeleba

SMALL: dict[str, Any] = {"tasks": 5, "train": 40, "validation": 6, "test": 6, "size": 16}


@pytest.fixture
def copy(made_celeba: Path, tmp_path: Path) -> Path:
    shutil.copytree(made_celeba, tmp_path / "made")
    return tmp_path / "made"


def test_pairs_of_identities(made_celeba: Path, tmp_path: Path) -> None:
    store = build(OnlineCeleba(data=str(made_celeba), **SMALL), [0, 1], tmp_path / "store")
    assert (store.shape, store.classes, store.count) == ((3, 16, 16), 2, 180)
    assert store.manifest["class_names"] == [f"{identity:05d}" for identity in range(1, 10)]
    assert store.manifest["source"]["notices"] == ["1 of 10 identities have fewer than 20 images"]
    counts = np.zeros((3, 9), dtype=int)
    np.add.at(counts, (store.splits_of, store.classes_of), 1)
    assert (counts == [[14], [3], [3]]).all()  # split within each identity
    for seed in (0, 1):
        table = store.table(seed)
        left, right = table.image_ids.T
        np.testing.assert_array_equal(table.label, store.classes_of[left] == store.classes_of[right])
        assert (left != right).all()
        assert table.label.mean() == 0.5
    # red is the identity, within what JPEG changes
    assert np.abs(store.pixels[:, 0, 8, 8].astype(int) - 25 * (store.classes_of + 1)).max() <= 3


def test_the_defaults_are_those_of_the_methods() -> None:
    recipe = OnlineCeleba()
    assert (recipe.tasks, recipe.least_per_identity, recipe.crop, recipe.size) == (1_200, 20, 178, 64)
    assert (recipe.train, recipe.validation, recipe.test) == (400, 100, 100)


def test_the_middle_178_pixels_are_shown(tmp_path: Path, made_celeba: Path, copy: Path) -> None:
    from PIL import Image

    pixels = np.zeros((218, 178, 3), dtype=np.uint8)
    pixels[:20] = pixels[-20:] = (255, 255, 255)  # outside of the middle square
    Image.fromarray(pixels).save(copy / "celeba" / "img_align_celeba" / "000001.jpg", quality=100)
    collected = OnlineCeleba(data=str(copy), **SMALL).collect()
    assert collected.pixels[0].max() < 40


def test_each_missing_or_bad_image_is_reported(copy: Path) -> None:
    folder = copy / "celeba" / "img_align_celeba"
    (folder / "000003.jpg").unlink()
    (folder / "000077.jpg").write_bytes((folder / "000077.jpg").read_bytes()[:400])
    (folder / "000185.jpg").write_bytes(b"")  # of the identity that is left out: not asked for
    with pytest.raises(SourceError) as caught:
        OnlineCeleba(data=str(copy), **SMALL).collect()
    lines = caught.value.faults
    assert len(lines) == 2
    assert lines[0] == f"{folder / '000003.jpg'}: cannot be read (got No such file or directory)"
    assert lines[1].startswith(f"{folder / '000077.jpg'}: is not a complete image (got ")


def test_skipping_bad_images_may_leave_an_identity_out(copy: Path) -> None:
    (copy / "celeba" / "img_align_celeba" / "000003.jpg").unlink()
    collected = OnlineCeleba(data=str(copy), skip_bad=True, **SMALL).collect()
    assert len(collected.pixels) == 160
    assert collected.source["skipped"] == ["000003.jpg"]
    assert collected.source["notices"] == [
        "1 of 10 identities have fewer than 20 images",
        "1 classes have fewer than 20 images and are left out",
    ]


def test_the_images_may_be_unpacked_into_a_folder_of_their_name(copy: Path) -> None:
    before = OnlineCeleba(data=str(copy), **SMALL).collect()
    folder = copy / "celeba" / "img_align_celeba"
    folder.rename(copy / "celeba" / "inner")
    folder.mkdir()
    (copy / "celeba" / "inner").rename(folder / "img_align_celeba")
    collected = OnlineCeleba(data=str(copy), **SMALL).collect()
    assert (collected.pixels == before.pixels).all() and collected.source == before.source
    assert OnlineCeleba(data=str(copy), **SMALL).fingerprint()


def test_images_without_an_identity_are_counted_and_a_byte_order_mark_is_no_name(copy: Path) -> None:
    path = copy / "celeba" / "identity_CelebA.txt"
    lines = path.read_text().splitlines(keepends=True)
    path.write_bytes(b"\xef\xbb\xbf" + "".join(lines[:-5]).encode())  # the last five are of the smallest identity
    collected = OnlineCeleba(data=str(copy), **SMALL).collect()
    assert len(collected.pixels) == 180
    assert collected.remarks == (
        "5 images have no line in identity_CelebA.txt and are left out, such as 000195.jpg, 000196.jpg, 000197.jpg",
    )


def test_many_missing_images_are_fifty_lines_and_their_number(copy: Path) -> None:
    for path in sorted((copy / "celeba" / "img_align_celeba").iterdir())[:60]:
        path.unlink()
    with pytest.raises(SourceError) as caught:
        OnlineCeleba(data=str(copy), **SMALL).collect()
    lines = caught.value.faults
    assert len(lines) == 51
    assert lines[-1] == f"{copy / 'celeba' / 'img_align_celeba'}: 10 more images are bad"


def test_each_malformed_line_of_the_identities_is_reported(copy: Path) -> None:
    path = copy / "celeba" / "identity_CelebA.txt"
    path.write_text("000001.jpg 1\n000002.jpg\n\n000003.jpg 2.5\n000001.jpg 2\n000004.jpg true\n")
    with pytest.raises(SourceError) as caught:
        OnlineCeleba(data=str(copy)).collect()
    assert caught.value.faults == (
        f"{path}: line 2: must be a file's name and a whole number (got 000002.jpg)",
        f"{path}: line 4: must be a file's name and a whole number (got 000003.jpg 2.5)",
        f"{path}: line 5: a file must be named once (got 000001.jpg)",
        f"{path}: line 6: must be a file's name and a whole number (got 000004.jpg true)",
    )


def test_a_folder_that_is_not_celeba(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        OnlineCeleba(data=str(tmp_path)).collect()
    assert str(caught.value) == (
        f"{tmp_path}: data: must hold celeba/identity_CelebA.txt and the folder celeba/img_align_celeba; "
        "download them from the data set's page"
    )
