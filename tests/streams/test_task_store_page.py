"""The examples of docs/task-store.md run, where the package that they show is installed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streams
from streams import recipes
from streams.store import TaskStore

PAGE = Path(__file__).resolve().parents[2] / "docs" / "task-store.md"
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


def test_a_file_of_the_users_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in BLOCKS if "class Stripes" in block)
    (tmp_path / "mine.py").write_text(block.partition("store = build(")[0])
    monkeypatch.setattr(streams, "__path__", [*streams.__path__, str(tmp_path)])
    assert recipes()["stripes"](tasks=2).identity() == {"name": "stripes", "tasks": 2}
