"""`foml rerun` of a learner of the user's own; tests/orchestrator/sweep/test_main.py has those of this package."""

import importlib
import sys
from pathlib import Path

import pytest

from learners import registry
from orchestrator import rerun
from orchestrator.tracking import reader
from tests.orchestrator.protocol_sweep import compute
from tests.orchestrator.sweep_command import folder_with, run_here, uri, with_database

MODULE = "rerun_learners.averaged"
SWEEP = f"""
name: mine
stream: {{name: rainbow_digits, tasks: 2, train: 50, validation: 12, test: 12}}
learners: [{{name: {MODULE}}}]
seeds: 2
report: false
"""


def test_a_learner_of_the_users_own_is_found_where_the_sweep_found_it_and_its_errors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path / "folder", f"{SWEEP}tracking: {{uri: '{uri(tmp_path / 'folder')}'}}\n")
    example = Path(__file__).parents[2] / "examples/my_learners/averaged.py"
    file = folder / "rerun_learners/averaged.py"
    file.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # another file of the same second and size

    def as_in_a_new_process() -> None:
        """Nothing is imported, and Python's path is without the folder."""
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(folder))])
        for name in (MODULE, MODULE.partition(".")[0]):
            sys.modules.pop(name, None)
        registry.learner_class.cache_clear()
        importlib.invalidate_caches()

    def code_with(text: str | None) -> int:
        as_in_a_new_process()
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        return rerun.main([run, "--tracking-uri", uri(folder)])

    file.write_text(example.read_text())
    with_database(folder)
    compute(folder)
    assert run_here(folder, "sweep.yaml").returncode == 0
    run = reader.find_sweep("mine", uri(folder)).configurations[0].run_id
    capsys.readouterr()
    assert code_with(example.read_text()) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed ")]
    assert len(lines) == 2 and all(line.endswith("points, the same, bit for bit") for line in lines)
    remedy = f"{MODULE} must be as in the sweep, in its folder or on PYTHONPATH"
    for text, reason in (
        (None, f"{MODULE} must be a module that can be imported (ModuleNotFoundError: No module named '{MODULE}')"),
        (example.read_text().replace("decay: float", "rate: float"), "unexpected keyword argument 'decay'"),
        (example.read_text().replace("self.model.learn(", "{}[0, "), "SyntaxError"),
        (example.read_text().replace("loss = self.model.learn(batch)", "loss = {}[0]"), "(KeyError: 0)"),
    ):
        assert code_with(text) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("run: cannot be computed again (") and reason in line
        assert line.endswith(f" (got {run}); {remedy}")
    as_in_a_new_process()
