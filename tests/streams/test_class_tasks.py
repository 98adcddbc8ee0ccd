"""Pairs and chains of classes: exact halves, no image paired with itself, the number of classes kept."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.build import build
from streams.class_tasks import class_chain, draw_pairs
from streams.errors import OptionError, SourceError
from streams.images import ImagePairs, SingleImages
from streams.pools import split_pools
from streams.randomness import generator


def of(seed: int) -> np.random.Generator:
    return generator(seed, "test")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(8, 60), st.integers(1, 40), st.integers(0, 2**31))
def test_a_task_keeps_two_classes_and_takes_three_new_ones(classes: int, tasks: int, seed: int) -> None:
    chain = class_chain(classes, tasks, 5, 2, of(seed))
    assert chain.min() >= 0
    assert chain.max() < classes
    for before, after in pairwise(chain):
        assert len(set(after)) == 5
        assert len(set(before) & set(after)) == 2


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 6), st.integers(0, 5), st.integers(0, 1_000))
def test_each_task_keeps_the_given_number_of_classes(per_task: int, keep: int, seed: int) -> None:
    keep = min(keep, per_task - 1)
    chain = class_chain(2 * per_task - keep, 12, per_task, keep, of(seed))
    assert all(len(set(row)) == per_task for row in chain)
    assert all(len(set(a) & set(b)) == keep for a, b in pairwise(chain))


def test_all_classes_occur_about_equally_often() -> None:
    share = np.bincount(class_chain(100, 1_200, 5, 2, of(0)).ravel(), minlength=100) / 6_000
    assert share.min() > 0.004
    assert share.max() < 0.017


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(2, 30), min_size=2, max_size=6),
    st.integers(1, 100).map(lambda half: 2 * half),
    st.integers(0, 2**31),
)
def test_pairs_are_halves_of_distinct_images(sizes: list[int], count: int, seed: int) -> None:
    class_of = np.repeat(np.arange(len(sizes)), sizes)
    pools = np.split(np.arange(len(class_of)), np.cumsum(sizes)[:-1])
    pairs = draw_pairs(pools, count, of(seed))
    assert pairs.shape == (count, 2)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    same = class_of[pairs[:, 0]] == class_of[pairs[:, 1]]
    assert same.sum() == count // 2


def test_pairs_are_uniform_over_classes_and_images() -> None:
    pools = np.split(np.arange(50), 5)
    pairs = draw_pairs(pools, 40_000, of(1))
    same = pairs[:, 0] // 10 == pairs[:, 1] // 10
    for side in (0, 1):
        np.testing.assert_allclose(np.bincount(pairs[:, side]) / 40_000, 0.02, atol=0.003)
    np.testing.assert_allclose(np.bincount(pairs[same, 0] // 10) / 20_000, 0.2, atol=0.015)
    between = np.zeros((5, 5))
    np.add.at(between, (pairs[~same, 0] // 10, pairs[~same, 1] // 10), 1 / 20_000)
    np.testing.assert_allclose(between[~np.eye(5, dtype=bool)], 0.05, atol=0.01)
    # same and different in no order that could be guessed
    assert abs(same[:-1].astype(int) @ same[1:].astype(int) / 40_000 - 0.25) < 0.01


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(3, 40), min_size=1, max_size=8), st.integers(0, 1_000))
def test_pools_are_split_within_each_class(sizes: list[int], seed: int) -> None:
    classes = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    splits = split_pools(generator(seed, "order").permutation(classes), lambda n: (n // 3, 1), of(seed))
    shuffled = generator(seed, "order").permutation(classes)
    for each, size in enumerate(sizes):
        counts = np.bincount(splits[shuffled == each], minlength=3).tolist()
        assert counts == [size - size // 3 - 1, size // 3, 1]


def test_the_same_seed_draws_the_same_points() -> None:
    pools = np.split(np.arange(50), 5)
    np.testing.assert_array_equal(draw_pairs(pools, 20, of(4)), draw_pairs(pools, 20, of(4)))
    assert not np.array_equal(draw_pairs(pools, 20, of(4)), draw_pairs(pools, 20, of(5)))


@pytest.mark.parametrize("purpose", ["a", "b"])
def test_generators_of_two_purposes_differ(purpose: str) -> None:
    other = {"a": "b", "b": "a"}[purpose]
    assert generator(0, purpose).integers(2**40) != generator(0, other).integers(2**40)


def test_a_generator_has_fixed_values() -> None:
    """If a version of NumPy changes these values, all streams change, and older results are not comparable."""
    draw = generator(7, "known values")
    assert draw.integers(1_000, size=5).tolist() == [198, 251, 302, 894, 123]
    assert draw.permutation(8).tolist() == [4, 1, 5, 0, 2, 6, 7, 3]
    assert draw.random().hex() == "0x1.419ba08794bf8p-1"


SMALL: dict[str, Any] = {"train": 20, "validation": 4, "test": 4, "size": 8}


def test_a_partition_has_each_class_in_one_task(made_folder: Path, tmp_path: Path) -> None:
    recipe = SingleImages(data=str(made_folder), tasks=5, classes_per_task=2, partition=True, **SMALL)
    store = build(recipe, [0, 1], tmp_path / "store")
    orders = []
    for seed in (0, 1):
        table = store.table(seed)
        names = [name for task in table.tasks for name in task["classes"]]
        assert len(names) == len(set(names)) == 10
        for task, about in enumerate(table.tasks):
            mine = table.task == task
            assert {store.label_names[label] for label in table.label[mine]} == set(about["classes"])
        orders.append(names)
    assert orders[0] != orders[1]
    with pytest.raises(SourceError, match=r"6 tasks of 2 classes, no class twice, need 12 classes \(got 11\)"):
        build(
            SingleImages(data=str(made_folder), tasks=6, classes_per_task=2, partition=True, **SMALL),
            [0],
            tmp_path / "no",
        )
    with pytest.raises(OptionError, match=r"images\.keep: must be 0 with partition \(got 1\)"):
        build(SingleImages(data=str(made_folder), partition=True, keep=1), [0], tmp_path / "no")


def test_the_classes_of_each_task_can_be_named(made_folder: Path, tmp_path: Path) -> None:
    chain: list[list[str | int]] = [["class 03", "class 01"], ["class 07"], ["class 01", "class 02", "class 10"]]
    store = build(SingleImages(data=str(made_folder), task_classes=chain, **SMALL), [0, 1], tmp_path / "store")
    for seed in (0, 1):
        table = store.table(seed)
        assert [task["classes"] for task in table.tasks] == chain
        assert [task["train"] for task in table.tasks] == [8, 8, 8]  # all that the smallest task, of one class, has
        for task, names in enumerate(chain):
            assert {store.label_names[label] for label in table.label[table.task == task]} <= set(names)
    assert not np.array_equal(store.table(0).image_ids, store.table(1).image_ids)
    pairs = build(ImagePairs(data=str(made_folder), task_classes=chain[:1], **SMALL), [0], tmp_path / "pairs").table(0)
    assert (len(pairs.tasks), pairs.label.mean()) == (1, 0.5)


def test_wrong_names_of_classes_are_reported(made_folder: Path, tmp_path: Path) -> None:
    recipe = SingleImages(data=str(made_folder), size=8, task_classes=[["class 01", "cat"], [5]])
    with pytest.raises(SourceError) as raised:
        build(recipe, [0], tmp_path / "store")
    known = ", ".join(f"class {number:02d}" for number in range(10))
    rule = f"images.task_classes: must be names of classes, such as {known}, ..."
    assert raised.value.faults == (f"{rule} (got 5)", f"{rule} (got cat)")
    with pytest.raises(OptionError) as wrong:
        build(ImagePairs(data=str(made_folder), task_classes=[["a"], ["b", "b"], ["c", "d"]]), [0], tmp_path / "store")
    assert wrong.value.faults == (
        "image_pairs.task_classes[0]: must name at least 2 classes, each once (got a)",
        "image_pairs.task_classes[1]: must name at least 2 classes, each once (got b, b)",
    )


def test_too_few_classes_for_a_chain_are_reported(made_folder: Path, tmp_path: Path) -> None:
    """A second task of 7 classes that keeps 2 has 5 that the first one does not have."""
    recipe = SingleImages(data=str(made_folder), tasks=2, classes_per_task=7, keep=2, **SMALL)
    rule = "images: tasks of 7 classes that keep 2 need at least 12 classes (got 11)"
    with pytest.raises(SourceError) as raised:
        build(recipe, [0], tmp_path / "store")
    assert raised.value.faults == (f"{rule}; add classes, lower classes_per_task, or raise keep",)
    for fits in (replace(recipe, keep=3), replace(recipe, tasks=1, classes_per_task=11)):
        store = build(fits, [0], tmp_path / f"{fits.keep}")
        assert [len(task["classes"]) for task in store.table(0).tasks] == [fits.classes_per_task] * fits.tasks


def test_a_stream_of_too_many_datapoints_is_reported() -> None:
    most = SingleImages(data="photos", tasks=10, train=9_999_998, validation=1, test=1)
    assert most.check() == []
    rule = "images.tasks: tasks * (train + validation + test) must be at most 100,000,000 (got 100,000,010)"
    assert replace(most, train=9_999_999).check() == [rule]
