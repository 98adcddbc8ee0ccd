"""A finished sweep given again is answered from its folder, as long as nothing has changed."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from orchestrator.config.load import load_sweep
from orchestrator.sweep import arguments, result_cache
from orchestrator.sweep.api import run_sweep
from orchestrator.sweep.result import SweepResult
from streams import recipes
from streams.build import cached
from tests.orchestrator.protocol_sweep import compute, flip
from tests.orchestrator.sweep_command import folder_with, uri

TEXT = """
name: tiny
stream: {name: rainbow_digits, tasks: 2, train: 50, validation: 12, test: 12}
learners: [{name: online}]
seeds: 1
"""
HEADLINE = "tiny: 1 trials, 1 of them ended before"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepResult]:
    """The folder of a finished sweep, and its result."""
    folder = folder_with(tmp_path_factory.mktemp("finished"), TEXT)
    with chdir(folder):
        compute(folder)
        result = run_sweep("sweep.yaml")
    assert result.exit_code == 0, result.problems
    return folder, result


@pytest.fixture
def folder(finished: tuple[Path, SweepResult]) -> Iterator[Path]:
    """That folder, restored after the test."""
    original, _ = finished
    copy = original.with_name(f"{original.name}-copy")
    shutil.copytree(original, copy)  # copies the times of modification, too
    yield original
    shutil.rmtree(original)
    copy.rename(original)


def recall(folder: Path, *words: str) -> result_cache.CachedResult | None:
    with chdir(folder):
        return result_cache.recall(arguments.read(words))


def test_the_same_command_has_the_same_result(finished: tuple[Path, SweepResult]) -> None:
    folder, result = finished
    for words in (["sweep.yaml"], ["--resume", "tiny"], ["seeds=1", "sweep.yaml", "--local"], ["sweep.yaml", "--json"]):
        kept = recall(folder, *words)
        assert kept is not None, words
        assert (kept.headline, kept.text, kept.line, kept.json) == (HEADLINE, result.text, result.line, result.json)
        assert (kept.exit_code, kept.problems) == (0, ())


def test_it_is_answered_without_ray_mlflow_torch_and_pandas(finished: tuple[Path, SweepResult]) -> None:
    folder, result = finished
    script = (
        "import sys\nfrom orchestrator.sweep import __main__ as sweep\n"
        "code = sweep.main(['sweep.yaml'])\n"
        "print(code, *sorted({'ray', 'mlflow', 'torch', 'pandas', 'matplotlib', 'bokeh', 'scipy'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=180, env=environment
    )
    assert done.stdout == f"{result.text}\n0\n", done.stderr
    assert done.stderr == f"{HEADLINE}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["sweep.yaml", "--rerun"],
        ["sweep.yaml", "--plan"],
        ["sweep.yaml", "seeds=2"],
        ["sweep.yaml", "chunk=7"],
        ["sweep.yaml", "nonsense=7"],
        ["sweep.yaml", "name=other"],
        ["sweep.yaml", "storage=elsewhere"],
        ["sweep.yaml", "storage=s3://bucket/results"],
        ["sweep.yaml", "tracking.uri=sqlite:///other.db"],
        ["sweep.yaml", "tracking.uri=http://127.0.0.1:9"],
        ["missing.yaml"],
        ["--resume", "other"],
        [],
    ],
)
def test_another_command_takes_the_usual_way(finished: tuple[Path, SweepResult], words: list[str]) -> None:
    assert recall(finished[0], *words) is None


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        assert database.execute(statement).rowcount > 0


def store() -> Path:
    return cached(recipes()["rainbow_digits"](tasks=2, train=50, validation=12, test=12), [0]).path


CHANGES: dict[str, Callable[[Path], object]] = {
    "a chunk file": lambda folder: flip(next(folder.glob("results/tiny/*/chunk-*"))),
    "the learner": lambda folder: next(folder.glob("results/tiny/*/learner.pt")).unlink(),
    "the journal": lambda folder: (folder / "results/tiny/sweep.json").touch(),
    "the report": lambda folder: (folder / "results/tiny/report/report.html").unlink(),
    "the kept result": lambda folder: flip(folder / "results/tiny/result.json"),
    "another trial": lambda folder: (folder / "results/tiny/abc").write_text(""),
    "the database": lambda folder: (folder / "mlflow.db").unlink(),
    "a damaged database": lambda folder: (folder / "mlflow.db").write_bytes(b"nothing"),
    "a deleted run": lambda folder: change(folder, "UPDATE runs SET lifecycle_stage = 'deleted'"),
    "a status": lambda folder: change(folder, "UPDATE runs SET status = 'KILLED'"),
    "a tag": lambda folder: change(folder, "UPDATE tags SET value = 'x' WHERE key = 'foml_internal.complete_for'"),
    "a lost point": lambda folder: change(folder, "DELETE FROM metrics WHERE step = 3"),
    "an artifact": lambda folder: flip(next(folder.rglob("curves.parquet"))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_the_usual_way_is_taken(folder: Path, name: str) -> None:
    assert recall(folder, "sweep.yaml") is not None
    CHANGES[name](folder)
    assert recall(folder, "sweep.yaml") is None


def test_a_change_of_the_task_store_or_of_the_results_version(
    finished: tuple[Path, SweepResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = finished
    manifest = store() / "manifest.json"
    before = manifest.stat()
    os.utime(manifest, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    try:
        assert recall(folder, "sweep.yaml") is None
    finally:
        os.utime(manifest, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert recall(folder, "sweep.yaml") is not None
    monkeypatch.setattr(result_cache, "RESULTS_VERSION", 0)
    assert recall(folder, "sweep.yaml") is None


def kept(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str, **change: object) -> bool:
    """Whether the result of a sweep that ended is kept, and the command is then answered from it."""
    text = yaml.safe_dump(yaml.safe_load(TEXT) | change)
    folder = folder_with(folder, text)
    monkeypatch.setattr(result_cache, "sweep_contents", lambda uri, name: ([], []))
    with chdir(folder):
        sweep = load_sweep("sweep.yaml", words)
        (folder / "results" / "tiny").mkdir(parents=True)
        result = SimpleNamespace(text="the table", line="", json="")
        result_cache.keep(sweep, Path("results/tiny"), Path("store"), HEADLINE, result)  # type: ignore[arg-type]
    answer = recall(folder, "sweep.yaml", *words)
    assert (answer is not None) == (folder / "results" / "tiny" / result_cache.FILE).exists()
    return answer is not None


def test_a_command_with_a_grid_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(tmp_path, monkeypatch, "learners.0.alpha1=0.1,0.2", "seeds=1,2")


@pytest.mark.parametrize(
    "change",
    [
        {"learners": [{"name": "examples.my_learners.averaged"}]},
        {"network": {"class": "examples.my_networks.strided.StridedNet"}},
        {"objective": {"function": "examples.my_objectives.worst.worst_task"}},
        {"stream": {"name": "images", "data": ".", "tasks": 1}},
        {"stream": {"name": "rainbow_digits", "store": "s3://bucket/store"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_no_result_is_kept_where_something_out_of_sight_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    assert kept(tmp_path / "plain", monkeypatch, **{"stream": {"name": "rainbow_mnist"}, "network": {"name": "mlp"}})
    assert kept(tmp_path / "named", monkeypatch, stream={"name": "images", "data": ".", "store": "store"})
    assert not kept(tmp_path / "own", monkeypatch, **change)


def test_an_incomplete_or_failed_sweep_keeps_no_result(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, TEXT + "budget: {hours: 1.0e-9}\nprice: {cpu_hour: 1}\n")
    with chdir(folder):
        compute(folder, lambda index: 4)
        result = run_sweep("sweep.yaml", [f"tracking.uri={uri(folder)}"])
    assert result.exit_code == 4, result.problems
    assert not (folder / "results" / "tiny" / result_cache.FILE).exists()
