"""Checks of a recipe's images and tables: one line for each fault, before anything is written."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from streams.build import build
from streams.errors import SourceError
from streams.recipe import Collected, Images, Progress, Recipe, SeedTable, silent
from streams.sources.image_files import classes_from_labels
from streams.store.task_store import TaskStore


def good_collected() -> Collected:
    images = Images(np.arange(12, dtype=np.int32) % 3, np.zeros(12, dtype=np.uint8), ("a", "b", "c"))
    return Collected(np.zeros((12, 1, 4, 4), dtype=np.uint8), images, {"name": "made", "files": {}})


def good_table() -> SeedTable:
    split = np.repeat([0, 1, 2], 4).astype(np.uint8)
    task = np.tile([0, 0, 1, 1], 3).astype(np.int32)
    ids = np.arange(12, dtype=np.int32)
    return SeedTable(task, split, ids[:, None], ids % 3, [{}, {}])


@dataclass(frozen=True)
class Mine(Recipe):
    name: ClassVar[str] = "mine"
    spoil_source: ClassVar[Callable[[Collected], Collected]] = staticmethod(lambda collected: collected)
    spoil_table: ClassVar[Callable[[SeedTable], SeedTable]] = staticmethod(lambda table: table)

    def collect(self, progress: Progress = silent) -> Collected:
        return type(self).spoil_source(good_collected())

    def seed_table(self, images: Images, seed: int) -> SeedTable:
        return type(self).spoil_table(good_table())

    def labels(self, images: Images) -> int:
        return 3


def faults_of(out: Path, source: Any = None, table: Any = None) -> tuple[str, ...]:
    spoils = {"spoil_source": source, "spoil_table": table}
    kind = type("Spoiled", (Mine,), {name: staticmethod(spoil) for name, spoil in spoils.items() if spoil})
    with pytest.raises(SourceError) as caught:
        build(kind(), [0], out / "store")
    assert not (out / "store").exists()
    return caught.value.faults


def test_a_valid_recipe_is_built(tmp_path: Path) -> None:
    TaskStore.open(build(Mine(), [0, 1], tmp_path / "store").path, verify=True)


def test_columns_of_other_widths_are_converted(tmp_path: Path) -> None:
    wide = {name: getattr(good_table(), name).astype(np.int64) for name in ("task", "split", "image_ids", "label")}
    images = replace(good_collected().images, classes=np.arange(12) % 3, splits=np.zeros(12, dtype=np.int16))
    kind = type(
        "Wide",
        (Mine,),
        {
            "spoil_source": staticmethod(lambda collected: replace(collected, images=images)),
            "spoil_table": staticmethod(lambda table: replace(table, **wide)),
        },
    )
    store = build(kind(), [0], tmp_path / "wide")
    TaskStore.open(store.path, verify=True)
    assert store.hash == build(Mine(), [0], tmp_path / "store").hash


def images_with(**columns: Any) -> Callable[[Collected], Collected]:
    return lambda collected: replace(collected, images=replace(collected.images, **columns))


@pytest.mark.parametrize(
    ("spoil", "lines"),
    [
        (
            lambda c: replace(c, pixels=c.pixels / 255),
            ["mine: pixels must be uint8 [n, C, H, W] (got float64 [12, 1, 4, 4])"],
        ),
        (
            lambda c: replace(c, pixels=c.pixels[:, 0]),
            ["mine: pixels must be uint8 [n, C, H, W] (got uint8 [12, 4, 4])"],
        ),
        (images_with(classes=np.zeros(12)), ["mine: classes must be whole numbers [12] (got float64 [12])"]),
        (images_with(classes=np.zeros(12, dtype=bool)), ["mine: classes must be whole numbers [12] (got bool [12])"]),
        (images_with(classes=np.array(["a"] * 12)), ["mine: classes must be whole numbers [12] (got <U1 [12])"]),
        (images_with(classes=["a"] * 12), ["mine: classes must be whole numbers [12] (got list)"]),
        (
            images_with(classes=np.arange(12), splits=np.arange(12)),
            ["mine: classes must be within 0..2 (got 0 to 11)", "mine: splits must be within 0..2 (got 0 to 11)"],
        ),
        (images_with(splits=np.zeros(11, dtype=int)), ["mine: splits must be whole numbers [12] (got int64 [11])"]),
    ],
)
def test_invalid_sources_are_refused(tmp_path: Path, spoil: Any, lines: list[str]) -> None:
    assert faults_of(tmp_path, source=spoil) == tuple(lines)


def table_with(**columns: Any) -> Callable[[SeedTable], SeedTable]:
    return lambda table: replace(table, **columns)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (table_with(label=np.linspace(0, 1, 12)), "label must be whole numbers [12] (got float64 [12])"),
        (table_with(label=np.ones(12, dtype=bool)), "label must be whole numbers [12] (got bool [12])"),
        (table_with(label=np.arange(12)), "label must be within 0..2 (got 0 to 11)"),
        (table_with(image_ids=np.arange(12)), "image_ids must be whole numbers [12, 1] (got int64 [12])"),
        (table_with(image_ids=np.arange(1, 13)[:, None]), "image_ids must be within 0..11 (got 1 to 12)"),
        (table_with(split=np.tile([0, 1, 2], 4)), "rows must be sorted by (split, task)"),
        (table_with(task=np.zeros(12, dtype=int)), "every task must have train points (got none in tasks [1])"),
        (table_with(image_ids=np.repeat([0, 1, 3], 4)[:, None]), None),
        (
            table_with(image_ids=np.repeat([0, 1, 0], 4)[:, None]),
            "no held-out image may be trained on (got 1 are, such as 0)",
        ),
    ],
)
def test_invalid_tables_are_refused(tmp_path: Path, spoil: Any, line: str | None) -> None:
    if line is None:
        kind = type("Spoiled", (Mine,), {"spoil_table": staticmethod(spoil)})
        assert build(kind(), [0], tmp_path / "store").seeds == [0]
    else:
        assert faults_of(tmp_path, table=spoil)[0] == f"mine: datapoints: {line}"


@pytest.mark.parametrize(
    ("labels", "numbers", "distinct"),
    [
        (["b", "a", "b"], [1, 0, 1], ["a", "b"]),
        ([30, 10, 20, 10], [2, 0, 1, 0], [10, 20, 30]),
        ([True, False, True], [1, 0, 1], [False, True]),
        (np.array([5, 3], dtype=np.uint8), [1, 0], [3, 5]),
        (np.array(["x", "x"]), [0, 0], ["x"]),
        ([np.int64(7), np.int64(5)], [1, 0], [5, 7]),
        ([np.uint8(7), 5], [1, 0], [5, 7]),
        ([np.str_("b"), "a"], [1, 0], ["a", "b"]),
    ],
)
def test_valid_labels_become_classes(labels: Any, numbers: list[int], distinct: list[Any]) -> None:
    found, names = classes_from_labels(labels, "labels.csv")
    assert found.tolist() == numbers
    assert found.dtype == np.int32
    assert names == distinct


@pytest.mark.parametrize(
    ("labels", "got"),
    [([0.5, 1.0], "float"), (np.array([1.0]), "float"), ([1, "a"], "int, str"), ([True, 2], "bool, int"), ([], "none")],
)
def test_invalid_labels_are_refused(labels: Any, got: str) -> None:
    with pytest.raises(SourceError) as caught:
        classes_from_labels(labels, "labels.csv")
    assert str(caught.value).startswith(f"labels.csv: labels must be of one kind that names classes (got {got}); ")


def test_one_hot_labels_are_refused() -> None:
    with pytest.raises(SourceError) as caught:
        classes_from_labels(np.eye(3, dtype=np.int64)[[0, 2, 1, 0]], "labels.csv")
    assert str(caught.value) == (
        "labels.csv: labels must be one value for each image, [n] (got [4, 3]); one-hot labels: take labels.argmax(axis=1)"
    )
