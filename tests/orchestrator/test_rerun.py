"""`foml rerun` of a learner of the user's own; tests/orchestrator/sweep/test_main.py has those of this package."""

import importlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from learners import registry
from orchestrator import rerun
from orchestrator.plan.plan import Configuration
from orchestrator.tracking import reader
from streams import build, recipes
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


def recorded_run(recipe: str, path: Path, **options: object) -> rerun.RecordedRun:
    """A run of seed 2 that learned from the store at `path`."""
    options = recipes().get(recipe, recipes()["images"])().options() | options
    stream: dict[str, Any] = {"name": recipe, "options": options, "store": "0" * 64, "schedule": {"name": "sequential"}}
    configuration = Configuration("online", {}, "rainbow", 1, stream, "online")
    description = {"configuration": configuration.__dict__, "stacks": [[2]]}
    return rerun.RecordedRun(description, {2: {}}, {"foml.store_path": str(path)}, set(), None)


@pytest.mark.parametrize(
    ("recipe", "options", "reason"),
    [
        ("rainbow_digits", {"dots": 3}, "rainbow_digits.dots: unknown key (got 3); known are "),
        ("rainbow_digits", {"tasks": 999, "train": "x"}, "rainbow_digits.train: must be a whole number (got x)"),
        ("images", {"tasks": 7, "label": "a b"}, "images.label: unknown key (got a b)"),
        ("images", {"tasks": 7}, "images.data: must be given; name a folder that holds a folder per class, or "),
        ("rainbow_digit", {}, "stream: must be one of image_folder, "),
    ],
)
def test_a_store_that_can_neither_be_read_nor_built_is_one_line(
    tmp_path: Path, recipe: str, options: dict[str, object], reason: str
) -> None:
    path = tmp_path / "the store"
    with pytest.raises(rerun.OrchestratorError) as caught:
        rerun._store(recorded_run(recipe, path, **options), "abc")
    (line,) = caught.value.faults
    assert line.startswith(f"run: its task store does not exist at {path} and cannot be built again (")
    assert reason in line and "; restore it, or build it there with the version of the run: foml build " in line
    words = shlex.split(line.rpartition("foml build ")[2])
    assert words[0] == recipe and words[-4:] == ["--out", str(path), "--seeds", "3"]
    assert {f"{key}={value}" for key, value in options.items()} <= set(words)
    assert ("data=PLACE" in words) == (recipe != "rainbow_digits")


def test_the_command_of_that_line_builds_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"tasks": 2, "train": 20, "validation": 5, "test": 5}
    run = recorded_run("rainbow_digits", tmp_path / "store", **options)
    run.configuration.stream["store"] = build.cached(recipes()["rainbow_digits"](**options), [2]).hash

    def unreadable(*_: object) -> None:
        raise rerun.UserError("digits: unreadable", "labels: unreadable")

    monkeypatch.setattr(rerun, "cached", unreadable)
    with pytest.raises(
        rerun.OrchestratorError, match=r"\(digits: unreadable; labels: unreadable\) \(got abc\)"
    ) as caught:
        rerun._store(run, "abc")
    assert build.main(shlex.split(str(caught.value).rpartition("foml build ")[2])) == 0
    assert rerun._store(run, "abc").path == tmp_path / "store"


def test_a_run_of_a_later_version_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_database(tmp_path)
    client = MlflowClient(uri(tmp_path))
    run = client.create_run(
        client.create_experiment("later", str(tmp_path / "artifacts")), tags={"foml.kind": "configuration"}
    ).info.run_id
    configuration = recorded_run("rainbow_digits", tmp_path).description["configuration"] | {"dots": 3}
    client.log_text(run, json.dumps({"configuration": configuration}), rerun.CONFIGURATION_FILE)
    assert rerun.main([run, "--tracking-uri", uri(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("run: its configuration.json cannot be read (") and "'dots'" in line
    assert line.endswith(f"(got {run}); it is of another version: use that one, or run its sweep again")
