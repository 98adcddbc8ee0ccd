"""The examples of docs/task-store.md run, if their package is installed."""

import contextlib
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streams
from streams import inspect, recipes, verify
from streams.errors import StoreError, StreamsError
from streams.inspect import contact_sheet
from streams.store import manifest as manifests
from streams.store.task_store import TaskStore
from streams.stream import Stream

PAGE = Path(__file__).resolve().parents[3] / "docs" / "task-store.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def title(block: str) -> str:
    return next(
        (word for word in ("polars", "duckdb", "pandas", "localise", "Stripes", "hashlib") if word in block), block[:20]
    )


@pytest.mark.parametrize("block", BLOCKS, ids=title)
def test_an_example_runs(digits_store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str) -> None:
    for package in re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE):
        pytest.importorskip(package)
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    names: dict[str, Any] = {
        "STORE": str(digits_store.path),
        "OUT": str(out),
        "TaskStore": TaskStore,
        "__name__": "page",
    }
    exec(compile(block, str(PAGE), "exec"), names)
    if out.exists():
        TaskStore.open(out, verify=True)


def test_a_store_written_by_hand_is_read(tmp_path: Path) -> None:
    (block,) = (block for block in BLOCKS if "def write_manifest" in block)
    names: dict[str, Any] = {"OUT": str(tmp_path / "store")}
    exec(compile(block, str(PAGE), "exec"), names)
    store = TaskStore.open(tmp_path / "store", verify=True)
    np.testing.assert_array_equal(store.pixels, names["pixels"])
    assert store.table(0).label.tolist() == [0, 1] * 4
    assert store.table(0).starts.tolist() == [[0, 4], [4, 6], [6, 8]]


def written(out: Path, *changes: tuple[str, str]) -> Path:
    """The store that the page's writer writes after these changes of its text, with matching hashes."""
    (block,) = (block for block in BLOCKS if "def write_manifest" in block)
    for old, new in changes:
        assert old in block
        block = block.replace(old, new)
    exec(compile(block, str(PAGE), "exec"), {"OUT": str(out)})
    return out


DATAPOINTS, SEED, STORE = "seed-0/datapoints.arrow", "seed-0/manifest.json", "manifest.json"
IDS = 'np.arange(8, dtype="<i4")'
SHAPES = '"stored_shape": [1, 4, 4], "shape": [1, 4, 4]'
COUNTS = '[{"train": 4, "validation": 2, "test": 2}]'


@pytest.mark.parametrize(
    ("changes", "name", "rule"),
    [
        ([(IDS, f"{IDS} + 5")], DATAPOINTS, "image_ids must be within 0..7 (got 5 to 12)"),
        ([(IDS, f"{IDS} - 1")], DATAPOINTS, "image_ids must be within 0..7 (got -1 to 6)"),
        ([('"classes": 2', '"classes": 1')], DATAPOINTS, "label must be within 0..0 (got 0 to 1)"),
        (
            [('np.zeros(8, dtype="<i4")', 'np.array([0, 0, 1, 1, 0, 0, 0, 0], dtype="<i4")')],
            DATAPOINTS,
            "task must be within 0..0 (got 0 to 1)",
        ),
        (
            [(IDS, 'np.array([0, 1, 2, 3, 0, 1, 6, 7], dtype="<i4")')],
            DATAPOINTS,
            "no held-out image may be trained on (got 2 are, such as 0)",
        ),
        ([(COUNTS, f"2 * {COUNTS}")], DATAPOINTS, "every task must have train points (got none in tasks [1])"),
        (
            [(COUNTS, '[{"train": 5, "validation": 2, "test": 1}]')],
            SEED,
            "tasks[0]: must count the points of the splits, {'train': 4, 'validation': 2, 'test': 2} "
            "(got {'train': 5, 'validation': 2, 'test': 1})",
        ),
        ([('"seed": 0', '"seed": 1')], SEED, "seed: must be 0, as the folder's name says (got 1)"),
        ([('"rows": 8', '"rows": "8"')], SEED, 'rows: must be a whole number of at least 1 (got "8")'),
        ([('["even", "odd"]', '["even"]')], "images.arrow", "classes must be within 0..0 (got 0 to 1)"),
        ([("1, 1, 2, 2]", "1, 1, 2, 3]")], "images.arrow", "splits must be within 0..2 (got 0 to 3)"),
        (
            [(f'"count": 8, {SHAPES}', SHAPES)],
            STORE,
            "image.count: must be a whole number of at least 1 (got null)",
        ),
        (
            [
                ('"shape": [1, 4, 4]', '"shape": [3, 4, 4]'),
                ('"views": None', '"views": [{"background": [1, 2], "scale": 1, "rotation": 0}]'),
            ],
            STORE,
            "views[0]: must hold background (three whole numbers within 0..255), scale (1 or 0.5) and rotation (0..359) "
            '(got {"background":[1,2],"rotation":0,"scale":1})',
        ),
        ([('{"name": "noise"}', '{"name": float("nan")}')], STORE, "cannot be read as JSON (got ValueError)"),
        ([('"format_version": 1', '"format_version": 0')], STORE, "format_version: must be a whole number (got 0)"),
        ([("    files,\n", "    {},\n")], STORE, "files: must name images.arrow (got [])"),
    ],
)
def test_an_invalid_store_is_reported_even_with_matching_hashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[tuple[str, str]], name: str, rule: str
) -> None:
    out = written(tmp_path / "store", *changes)
    assert verify.main([str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"{out / name}: {rule}")


@pytest.mark.parametrize("changes", [[(IDS, f"{IDS} + 5")], [('"classes": 2', '"classes": 1')]])
def test_ranges_are_checked_when_a_seed_is_opened(tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    store = TaskStore.open(written(tmp_path / "store", *changes))
    with pytest.raises(StoreError, match="must be within 0"):
        Stream(store, 0)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of the values in a JSON document, without the document itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in [(*at, key), *places(inner, (*at, key))]]


LEFT_OUT = object()
VALUES = [None, True, -1, 2**31, 10**30, 0.5, "8", [], {"a\0b": {"bytes": 1, "sha256": ""}}, LEFT_OUT]


def manifest_with_hash(folder: Path, manifest: dict[str, Any]) -> str:
    manifest["hash"] = manifests.identity(manifest)
    (folder / "manifest.json").write_text(manifests.text(manifest), encoding="utf-8")
    return str(manifest["hash"])


@pytest.mark.parametrize("part", ["", "seed-0"])
def test_no_value_in_a_manifest_causes_a_traceback(tmp_path: Path, part: str) -> None:
    """Each value of both manifests is replaced by each of `VALUES`; a store that opens is described, read and drawn."""
    looks = [{"background": [0, 9, 255], "scale": scale, "rotation": 90} for scale in (1.0, 0.5)]
    changes = ('"shape": [1, 4, 4]', '"shape": [3, 4, 4]'), ('"views": None', f'"views": {looks}')
    out = written(tmp_path / "store", *changes)
    texts = [(out / each / "manifest.json").read_text() for each in ("", "seed-0")]
    whole: set[tuple[Any, ...]] = set()
    for place, value in product(places(json.loads(texts[part != ""])), VALUES):
        both = [json.loads(text) for text in texts]
        changed = both[part != ""]
        for key in place[:-1]:
            changed = changed[key]
        if value is LEFT_OUT:
            del changed[place[-1]]
        else:
            changed[place[-1]] = value
        if part == "":
            both[1]["store"] = manifest_with_hash(out, both[0])
        manifest_with_hash(out / "seed-0", both[1])
        with contextlib.suppress(StreamsError):
            assert list(inspect.describe(TaskStore.open(out)))
        with contextlib.suppress(StreamsError):
            store = TaskStore.open(out, verify=True)
            assert contact_sheet(store, 0).ndim == 3
            assert store.draw(Stream(store, 0).read(0, 4).image_ids).shape == (4, 1, 3, 4, 4)
            whole.add(place)
    free = [("recipe",), ("recipe", "name"), ("source",), ("source", "files"), ("source", "name"), ("name",), ("hash",)]
    names = [("class_names", 0), ("class_names", 1)]
    looks_left = [("views", at, *key) for at in (0, 1) for key in ((), ("scale",))]  # one look will do, and scale 0.5
    assert whole == ({*free, *names, *looks_left} if part == "" else {("hash",)})


def test_a_column_with_nulls_is_refused(tmp_path: Path) -> None:
    out = written(
        tmp_path / "store", ("pa.array(classes)],\n    schema", "pa.array([None, 1] * 4, pa.int32())],\n    schema")
    )
    assert verify.main([str(out)]) == 2
    with pytest.raises(StoreError) as caught:
        TaskStore.open(out).table(0)
    assert str(caught.value) == f"{out / DATAPOINTS}: must have no nulls (got label); build it again"


def test_a_recipe_file_of_the_user_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in BLOCKS if "class Stripes" in block)
    (tmp_path / "stripes.py").write_text(block.partition("store = build(")[0])
    monkeypatch.setattr(streams, "__path__", [*streams.__path__, str(tmp_path)])
    assert recipes()["stripes"](tasks=2).identity() == {"name": "stripes", "tasks": 2}
