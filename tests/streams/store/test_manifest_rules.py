"""Rules for the values in manifests: those of a valid store, changed one at a time."""

from pathlib import Path
from typing import Any

import pytest

from streams.rainbow import RainbowDigits
from streams.store.manifest_rules import SEED_KEYS, STORE_KEYS, seed_faults, store_faults

WHERE = Path("store/manifest.json")


def good() -> dict[str, Any]:
    return {
        "name": "noise",
        "recipe": {"name": "noise"},
        "source": {"name": "random numbers", "files": {}},
        "image": {"count": 8, "stored_shape": [1, 4, 4], "shape": [1, 4, 4]},
        "class_names": ["even", "odd"],
        "classes": 2,
        "images_per_datapoint": 1,
        "views": None,
        "content": "",
        "files": {"images.arrow": {}},
        "hash": "",
    }


def viewed(stored: list[int], *views: Any) -> dict[str, Any]:
    return {"views": [*views], "image": {"count": 8, "stored_shape": stored, "shape": [3, *stored[1:]]}}


def look(**changed: Any) -> dict[str, Any]:
    return {"background": [0, 127, 255], "scale": 1.0, "rotation": 90, **changed}


LOOK = "must hold background (three whole numbers within 0..255), scale (1 or 0.5) and rotation (0..359)"


def test_valid_manifests_have_no_fault() -> None:
    assert set(good()) == set(STORE_KEYS)
    assert store_faults(WHERE, good()) == []
    assert store_faults(WHERE, {**good(), **viewed([1, 4, 4], look(), look(scale=0.5))}) == []
    views = RainbowDigits().views().to_json()
    assert store_faults(WHERE, {**good(), **viewed([1, 28, 28], *views)}) == []


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"name": 3}, "name: must be text (got 3)"),
        ({"source": []}, "source: must be a mapping (got [])"),
        ({"source": {"notices": None}}, "source.notices: must be a list (got null)"),
        ({"class_names": []}, "class_names: must be a list of at least one name (got [])"),
        ({"classes": True}, "classes: must be a whole number within 1..1000000 (got true)"),
        ({"classes": "2"}, 'classes: must be a whole number within 1..1000000 (got "2")'),
        ({"images_per_datapoint": 0}, "images_per_datapoint: must be a whole number within 1..1000 (got 0)"),
        ({"files": {}}, "files: must name images.arrow (got [])"),
        ({"image": None}, "image: must be a mapping (got null)"),
        (
            {"image": {"stored_shape": [1, 4, 4], "shape": [1, 4, 4]}},
            "image.count: must be a whole number of at least 1 (got null)",
        ),
        (
            {"image": {"count": 8, "stored_shape": [4, 4], "shape": [4, 4]}},
            "image.stored_shape: must be three whole numbers of at least 1 (got [4,4])",
        ),
        (
            {"image": {"count": 8, "stored_shape": [1, 4, 4], "shape": [3, 4, 4]}},
            "image.shape: must be [1, 4, 4] (got [3,4,4])",
        ),
        (
            {"image": {"count": 8, "stored_shape": [1, 2**16, 2**16], "shape": [1, 2**16, 2**16]}},
            "image.stored_shape: an image must have less than 2**31 bytes (got [1,65536,65536])",
        ),
        ({**viewed([1, 4, 4], look()), "views": []}, "views: must be null or a list of at least one view (got [])"),
        (viewed([1, 4, 4], look(), look(background=[1, 2])), f"views[1]: {LOOK} "),
        (viewed([1, 4, 4], look(background="abc")), f"views[0]: {LOOK} "),
        (viewed([1, 4, 4], look(background=[0, 0, 256])), f"views[0]: {LOOK} "),
        (viewed([1, 4, 4], look(background=[0, 0, 0.5])), f"views[0]: {LOOK} "),
        (viewed([1, 4, 4], look(scale=0.7)), f"views[0]: {LOOK} "),
        (viewed([1, 4, 4], look(rotation=360)), f"views[0]: {LOOK} "),
        (viewed([1, 4, 4], look(rotation=0.5)), f"views[0]: {LOOK} "),
        (viewed([1, 4, 4], look(rotation=0, permutation="1")), f"views[0]: {LOOK} "),
        (
            {"image_tasks": [{"name": "a"}]},
            "image_tasks: must be a list of mappings with a name and a number of images",
        ),
        ({"image_tasks": [{"name": "a", "images": 1}]}, "image_tasks: must have image.count, "),
        (viewed([1, 4, 4], 7), f"views[0]: {LOOK} (got 7)"),
        (
            viewed([2, 4, 4], look()),
            "image.stored_shape: must be of one or three channels where there are views (got [2,4,4])",
        ),
        (viewed([1, 6, 6], look(scale=0.5)), "views: half scale needs sides that are multiples of 4, but got 6x6"),
        (viewed([1, 4, 8], look()), "views: a quarter turn needs square images, but got 4x8"),
    ],
)
def test_each_invalid_value_is_one_line(changed: dict[str, Any], rule: str) -> None:
    (line,) = store_faults(WHERE, {**good(), **changed})
    assert line.startswith(f"{WHERE}: {rule}")
    assert line.endswith("; write the manifest again")


def test_image_ids_must_fit_into_int32() -> None:
    changed = viewed([1, 4, 4], look(), look())
    changed["image"]["count"] = 2**30
    (line,) = store_faults(WHERE, {**good(), **changed})
    assert "views * image.count must be below 2**31 (got 2147483648)" in line


def test_several_faults_are_reported_together() -> None:
    changed = {"classes": 0, "class_names": None, "image": {"count": 0}}
    assert [line.split(": ")[1] for line in store_faults(WHERE, {**good(), **changed})] == [
        "class_names", "classes", "image.count", "image.stored_shape",
    ]  # fmt: skip


SEED = {
    "seed": 3,
    "rows": 8,
    "tasks": [{"train": 4, "validation": 2, "test": 2}],
    "content": "",
    "store": "abc",
    "files": {"datapoints.arrow": {}},
    "hash": "",
}


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({}, None),
        ({"store": "abd"}, 'store: must be the hash of the store it lies in, abc (got "abd"); build this seed again'),
        ({"seed": 0}, "seed: must be 3, as the folder's name says (got 0); build this seed again"),
        ({"seed": 3.0}, "seed: must be 3, as the folder's name says (got 3.0); build this seed again"),
        ({"rows": "8"}, 'rows: must be a whole number of at least 1 (got "8"); write the manifest again'),
        ({"tasks": []}, "tasks: must be a list with a mapping for each task (got []); write the manifest again"),
        ({"tasks": [4]}, "tasks: must be a list with a mapping for each task (got [4]); write the manifest again"),
        ({"files": {}}, "files: must name datapoints.arrow (got []); write the manifest again"),
    ],
)
def test_rules_of_a_seeds_manifest(changed: dict[str, Any], rule: str | None) -> None:
    assert set(SEED) == set(SEED_KEYS)
    expected = [] if rule is None else [f"{WHERE}: {rule}"]
    assert seed_faults(WHERE, {**SEED, **changed}, 3, "abc") == expected
