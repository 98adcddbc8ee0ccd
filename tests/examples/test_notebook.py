"""The notebook of the examples: its code cells run in order in one namespace, as a kernel runs them."""

import ast
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from learners import checkpoint
from orchestrator.protocol import metrics

NOTEBOOK = Path(__file__).parents[2] / "examples/first_run.ipynb"


def shown(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line if that is an expression, as a notebook displays it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), namespace)


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4 and len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == 6 and all(cell["outputs"] == [] for cell in cells), "stored without outputs"
    namespace: dict[str, Any] = {}
    values = [shown("".join(cell["source"]), namespace) for cell in cells]
    foml, replay = values[1], values[2]
    for result, label in ((foml, "foml K=2"), (replay, "replay")):
        assert f"<b>{label} on rainbow_digits, 2 seeds</b>" in result._repr_html_()
        assert result.measured.batches == 50 and len(result.summary) == 6
        cumulative = metrics.cumulative(metrics.held_out(result.measured))[:, -1]
        assert result.values.tolist() == cumulative.tolist()
    assert values[3].tolist() == (foml.values - replay.values).tolist()
    table = namespace["table"]
    assert table.shape == (5, 2) and [line.get_label() for line in namespace["axes"].lines] == ["foml K=2", "replay"]
    assert table["replay"].iloc[-1] == pytest.approx(metrics.held_out(replay.measured)[:, -1].mean())
    assert isinstance(values[5], pd.DataFrame) and values[5]["mean"].tolist() == pytest.approx(
        foml.measured.by_batch["online_error"].mean(axis=1).tolist()
    )
    assert checkpoint.load(tmp_path / "first_run.pt").setting.seeds == [0, 1]
