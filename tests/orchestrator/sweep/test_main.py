"""The sweep command from start to end, with a real Ray and a real MLflow database.

Each sweep runs as a user starts it: by the command line, in a folder of its own.
"""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from learners import checkpoint
from orchestrator import predict, rerun, run_one
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.plan.plan import Configuration
from orchestrator.protocol import metrics
from orchestrator.protocol import online as protocol
from orchestrator.report import write as report_write
from orchestrator.sweep import api, cost
from orchestrator.system import hardware
from orchestrator.tracking import provenance, requests, tables
from orchestrator.tracking.reader import load_curves
from streams import recipes
from streams.build import cached
from tests.orchestrator.sweep_command import (
    LEARNERS,
    PATIENCE_S,
    REPORTED,
    TINY,
    assert_same,
    curves_of,
    folder_with,
    run,
    run_here,
    statuses,
    uri,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = folder_with(tmp_path_factory.mktemp("finished"), REPORTED)
    return folder, run(folder, "sweep.yaml", "keep_checkpoints=all", fresh=True, slots=2)


def test_the_command_succeeds_and_names_its_files(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = finished
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "4/4 trials done · ETA 0:00" in done.stderr
    for words in ("K=1", "K=2", "foml", "online", "tfs", "best: ", "report: results/tiny/report", "learner.pt"):
        assert words in done.stdout
    assert "\ncurves: results/tiny/report/report.html\n" in done.stdout
    assert "curves in MLflow: foml ui tiny\n" in done.stdout
    assert (folder / "results/tiny/report/learning_curves.png").stat().st_size > 10_000
    assert (folder / "results/tiny/report/curves.csv").exists()


def test_curves_are_those_of_the_bare_protocol(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    recipe = recipes()["rainbow_digits"](tasks=3, train=50, validation=12, test=12)  # type: ignore[call-arg]
    bare = protocol.assemble(cached(recipe, [0, 1]), "foml", {"K": 2}, [0, 1])
    while not bare.finished:
        bare.advance(7)
    same = [
        curves
        for curves in curves_of(folder, "tiny").values()
        if np.array_equal(curves.by_batch["online_loss"], bare.curves.by_batch["online_loss"])
    ]
    assert len(same) == 1
    assert_same(same[0], bare.curves)


def test_run_one_has_the_curves_of_the_sweep(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    stream = {"name": "rainbow_digits", "tasks": 3, "train": 50, "validation": 12, "test": 12}
    one = run_one("foml", K=2, stream=stream, seeds=2, progress=False)
    (curves,) = [each for key, each in curves_of(folder, "tiny").items() if key.startswith(one.configuration.hash)]
    assert_same(one.measured, curves)
    costs = ["seconds", "peak_memory_mb"]  # of another process
    columns = ["configuration", "learner", "seed", "metric", "step", "value"]
    in_mlflow = load_curves("tiny", uri(folder))
    in_mlflow = in_mlflow[in_mlflow["configuration"] == one.configuration.hash]
    here, there = (
        frame[~frame["metric"].isin(costs)].sort_values(columns[:5])[columns].reset_index(drop=True)
        for frame in (one.curves, in_mlflow)
    )
    assert len(here) > 2 * 15 and here.equals(there.astype(here.dtypes))


def test_mlflow_has_every_point_once(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    assert statuses(folder) == ["FINISHED"] * (1 + 4 + 8)
    frame = load_curves("tiny", uri(folder))
    online = frame[(frame["metric"] == "online_error") & frame["seed"].notna()]
    assert len(online) == 4 * 2 * 15
    assert not online.duplicated(["configuration", "seed", "step"]).any()
    for key, curves in curves_of(folder, "tiny").items():
        own = online[online["configuration"] == key.split("-")[0]]
        for row, seed in enumerate(curves.seeds):
            values = own[own["seed"] == seed].sort_values("step")["value"].to_numpy()
            assert np.array_equal(values, curves.by_batch["online_error"][row])
        cumulative = frame[
            (frame["metric"] == "cumulative_error")
            & (frame["configuration"] == key.split("-")[0])
            & frame["seed"].notna()
        ]
        expected = metrics.cumulative(metrics.held_out(curves))
        for row, seed in enumerate(curves.seeds):
            values = cumulative[cumulative["seed"] == seed].sort_values("step")["value"].to_numpy()
            np.testing.assert_allclose(values, expected[row], rtol=0, atol=1e-12)


def test_a_checkpoint_from_mlflow_predicts_as_the_learner_did(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder, _ = finished
    client = MlflowClient(uri(folder))
    experiment = client.search_experiments(filter_string="name = 'tiny'")[0].experiment_id
    (configuration,) = client.search_runs([experiment], "tags.`foml.kind` = 'configuration' and params.K = '2'")
    saved = checkpoint.read(
        client.download_artifacts(configuration.info.run_id, "checkpoint/learner.pt", str(tmp_path))
    )
    assert (saved.class_names, saved.background) == (tuple("0123456789"), "white")
    recipe = recipes()["rainbow_digits"](tasks=3, train=50, validation=12, test=12)  # type: ignore[call-arg]
    bare = protocol.assemble(cached(recipe, [0, 1]), "foml", {"K": 2}, [0, 1])
    bare.advance(15)
    x = torch.rand(2, 4, 3, 28, 28)
    assert torch.equal(saved.learner.predict(x), bare.learner.predict(x))


def test_every_task_left_a_checkpoint_that_predicts(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = finished
    client = MlflowClient(uri(folder))
    experiment = client.search_experiments(filter_string="name = 'tiny'")[0].experiment_id
    (of,) = client.search_runs([experiment], "tags.`foml.kind` = 'configuration' and params.K = '2'")
    recipe = recipes()["rainbow_digits"](tasks=3, train=50, validation=12, test=12)  # type: ignore[call-arg]
    bare = protocol.assemble(cached(recipe, [0, 1]), "foml", {"K": 2}, [0, 1])
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 28, 28), dtype=np.uint8)
    x = torch.from_numpy(pixels).float().div(255).expand(2, -1, -1, -1, -1)
    (trial,) = folder.glob(f"results/tiny/{of.data.tags['foml_internal.configuration']}-*")
    for batches in (5, 10, 15):
        bare.advance(5)
        wanted = bare.learner.predict(x).softmax(-1).numpy()
        predictor = predict.load(of.info.run_id, uri(folder), step=batches)
        np.testing.assert_allclose(predictor.probabilities(pixels), wanted, atol=1e-6)
        if batches < 15:
            beside = predict.load(str(trial / "learner.pt"), step=batches)
            np.testing.assert_allclose(beside.probabilities(pixels), wanted, atol=1e-6)
    with pytest.raises(OrchestratorError) as caught:
        predict.load(of.info.run_id, uri(folder), step=7)
    assert str(caught.value) == "--step: must be a checkpoint that was kept: 5, 10, 15 (the last) (got 7)"


def test_the_same_command_again_runs_nothing_and_prints_the_same(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, first = finished
    before = {path: path.stat().st_mtime_ns for path in folder.glob("results/tiny/*/chunk-*")}
    again = run(folder, "sweep.yaml")
    assert again.returncode == 0, again.stderr
    assert again.stderr.strip() == "tiny: 4 trials, 4 of them ended before"
    assert again.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.glob("results/tiny/*/chunk-*")} == before
    assert statuses(folder) == ["FINISHED"] * (1 + 4 + 8)


def test_quiet_prints_only_the_final_line(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, first = finished
    done = run(folder, "sweep.yaml", "--quiet")
    best = next(line for line in first.stdout.splitlines() if line.startswith("best: "))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"tiny: {best}; exit code 0; report: results/tiny/report\n"


def test_the_result_as_one_json_document(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, first = finished
    done = run_here(folder, "sweep.yaml", "--json", "--quiet", f"tracking.uri={uri(folder)}")
    assert done.returncode == 0 and done.stderr == ""
    content = json.loads(done.stdout)
    assert (content["format"], content["sweep"], content["exit_code"], content["objective"]) == (
        1,
        "tiny",
        0,
        "cumulative_error",
    )
    assert (content["failures"], content["diverged"], content["problems"], content["resume"]) == ([], [], [], None)
    assert Path(content["report"], "report.html").exists() and Path(content["folder"], "sweep.json").exists()
    client = MlflowClient(uri(folder))
    assert client.get_run(content["parent_run_id"]).data.tags["foml.kind"] == "sweep"
    assert {one["label"] for one in content["configurations"]} == {"foml K=1", "foml K=2", "online", "tfs"}
    finals = {}
    for key, curves in curves_of(folder, "tiny").items():
        finals[key.split("-")[0]] = metrics.cumulative(metrics.held_out(curves))[:, -1]
    for one in content["configurations"]:
        values = finals[one["configuration"]]
        assert one["mean"] == pytest.approx(values.mean(), abs=1e-12)
        assert one["values"] == {"0": pytest.approx(values[0]), "1": pytest.approx(values[1])}
        assert (one["n"], one["seeds"], one["complete"], one["usable"]) == (2, [0, 1], True, True)
        assert one["low"] < one["mean"] < one["high"] or values[0] == values[1]
        assert client.get_run(one["run_id"]).data.tags["foml_internal.configuration"] == one["configuration"]
    assert content["winner"] == min(content["configurations"], key=lambda one: one["mean"])
    assert f"best: {content['winner']['label']}" in first.stdout


def test_a_refused_command_has_a_document_too(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, TINY.replace("chunk: 4", "chunk: 0"))
    done = run_here(folder, "sweep.yaml", "--json")
    content = json.loads(done.stdout)
    assert (done.returncode, content["exit_code"], content["sweep"], content["winner"]) == (2, 2, None, None)
    assert content["problems"] == done.stderr.strip().splitlines()
    assert content["problems"][0].startswith("sweep.yaml: chunk: must be")
    planned = run_here(folder, "sweep.yaml", "--json", "--plan")
    assert (planned.returncode, json.loads(planned.stdout)["problems"]) == (2, content["problems"])


def test_a_signal_while_the_report_is_written_leaves_a_document_with_the_command_that_resumes(
    finished: tuple[Path, subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = finished
    (folder / "results" / "tiny" / "result.json").unlink(missing_ok=True)  # else the result is printed again from it
    write = report_write.write_report

    def interrupted(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return write(*given)

    with monkeypatch.context() as changed:
        changed.setattr(report_write, "write_report", interrupted)
        done = run_here(folder, "sweep.yaml", "--json", "--quiet", f"tracking.uri={uri(folder)}")
    content = json.loads(done.stdout)
    resume = "python -m orchestrator.sweep --resume tiny"
    assert (done.returncode, content["exit_code"], content["sweep"], content["resume"]) == (130, 130, "tiny", resume)
    assert content["problems"] == ["interrupted"] and done.stderr == f"interrupted: resume with: {resume}\n"
    again = run_here(folder, "--resume", "tiny", "--quiet")
    assert again.returncode == 0 and "RUNNING" not in statuses(folder)


def test_arguments_that_exclude_each_other_are_one_line(
    finished: tuple[Path, subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = finished
    done = run_here(folder, "--resume", "tiny", "name=other")
    assert done.returncode == 2 and not (folder / "results/other").exists()
    assert done.stderr == (
        "command line: name: must be that of the sweep that is resumed, tiny (got other); "
        "another sweep is started with a file and no --resume\n"
    )
    monkeypatch.chdir(folder)
    given = {"name": "other", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}]}
    assert api.checked_sweep(given, ["seeds=9", "online.alpha1=0.5"], None).learners[0].fixed["alpha1"] == 0.5
    for arguments, line in (
        ({"sweep": given, "resume": "tiny"}, "run_sweep: sweep: resume='tiny' takes the sweep from its folder"),
        ({"sweep": "sweep.yaml", "resume": "tiny"}, "run_sweep: sweep: resume='tiny' takes the sweep from its folder"),
    ):
        with pytest.raises(ConfigError) as caught:
            api.run_sweep(**arguments)  # type: ignore[arg-type]
        assert str(caught.value).startswith(line) and len(caught.value.faults) == 1


def test_another_sweep_of_that_name_is_refused(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    done = run_here(folder, "sweep.yaml", "batch_size=5")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line == (
        "results/tiny/sweep.json: batch_size: another sweep has this name, with 10 (got 5); "
        "choose another name; or another storage, and another tracking.experiment with it"
    )


def test_another_sweep_of_that_name_is_refused_for_its_runs_in_mlflow(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """In a storage of its own the two would share the sweep's run, and `--rerun` would delete the other's."""
    folder, _ = finished
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    before = {run.info.run_id: run.to_dictionary() for kind in ("sweep", "seed") for run in runs_of(folder, kind)}
    done = run_here(folder, "sweep.yaml", "--rerun", "batch_size=5", "storage=elsewhere", f"tracking.uri={uri}")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line == (
        f"{uri}, experiment tiny: batch_size: another sweep has this name, with 10 (got 5); "
        "choose another name, or another tracking.experiment"
    )
    after = {run.info.run_id: run.to_dictionary() for kind in ("sweep", "seed") for run in runs_of(folder, kind)}
    assert len(before) == 9 and after == before and not (folder / "elsewhere").exists()


def test_curves_do_not_depend_on_the_number_of_slots(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """All four on two slots before; now three, with other chunks, one at a time on a Ray of one processor."""
    folder, _ = finished
    other = folder_with(tmp_path, TINY)
    script = (
        "import ray, sys\n"
        "from orchestrator.sweep import __main__ as sweep\n"
        "init = ray.init\n"
        "ray.init = lambda **given: init(num_cpus=1, **given)\n"
        "sys.exit(sweep.main(['--local', 'sweep.yaml', 'chunk=6', 'learners=[{name: foml, K: {grid: [2, 1]}}, {name: tfs, updates_per_task: 5}]']))\n"
    )
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=other, capture_output=True, text=True, timeout=PATIENCE_S, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "1 at a time" in done.stderr
    mine, theirs = curves_of(other, "tiny"), curves_of(folder, "tiny")
    assert len(mine) == 3
    for key, curves in mine.items():
        assert_same(curves, theirs[key])


def test_a_search_that_draws_and_stops(tmp_path: Path) -> None:
    text = TINY.replace(LEARNERS, "[{name: online, alpha1: {loguniform: [1.0e-4, 1.0e-1]}}]")
    search = "search={algorithm: optuna, samples: 6, scheduler: {name: asha, grace: 0.3, reduction: 2}}"
    folder = folder_with(tmp_path, text)
    done = run(folder, "sweep.yaml", "chunk=2", search, f"tracking.uri={uri(folder)}", slots=2)
    assert done.returncode == 0, done.stderr
    stopped = {path.parent.name for path in folder.glob("results/tiny/*/stopped.json")}
    finished = set(curves_of(folder, "tiny"))
    assert stopped and finished and not stopped & finished
    assert len(stopped | finished) == 6
    assert done.stdout.count("seeds 0 1 stopped at batch ") == len(stopped)
    assert sorted(statuses(folder)) == ["FINISHED"] * (1 + 3 * len(finished)) + ["KILLED"] * 3 * len(stopped)
    again = run_here(folder, "--resume", "tiny")
    assert again.returncode == 0, again.stderr
    assert again.stderr.strip() == "tiny: 6 trials, 6 of them ended before"
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (TINY.replace("chunk: 4", "chunk: 0\nseedz: 3"), [], ["sweep.yaml: seedz: unknown key", "sweep.yaml: chunk: must be"]),
        (TINY, ["resources.gpus=1"], ["sweep.yaml: resources.gpus: must be at most the 0 that this machine has (got 1.0)"]),
        (TINY, ["resources.cpus=1000"], ["sweep.yaml: resources.cpus: must be at most the"]),
        (TINY, ["stream={name: rainbow_mnist, data: nowhere}"], ["nowhere"]),
        (TINY, ["stream.store=nowhere"], ["nowhere"]),
        (TINY, ["tracking.uri=nonsense://x"], ["nonsense://x"]),
    ],
)  # fmt: skip
def test_bad_input_ends_before_ray_starts(tmp_path: Path, text: str, words: list[str], expected: list[str]) -> None:
    folder = folder_with(tmp_path, text)
    done = (run if "chunk: 0" in text else run_here)(folder, "sweep.yaml", *words)  # once as a command of its own
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == len(expected), done.stderr
    for line, words_of_it in zip(lines, expected, strict=True):
        assert words_of_it in line
    assert "trials done" not in done.stderr
    assert not (folder / "results").exists()


def test_plan_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path, TINY)
    monkeypatch.setattr(cost, "MEASURED_SECONDS", 0.0)  # four batches
    done = run_here(folder, "sweep.yaml", "--plan", "keep_checkpoints=1")
    assert done.returncode == 0, done.stderr
    rows = done.stdout.strip().splitlines()
    assert re.match(r"checkpoints: 8 are kept besides the last of each trial, of at most \d+ [KM]B;", rows[8])
    assert rows[0].split() == ["hash", "configuration", "trials", "seeds", "batches", "gradients/datapoint", "seconds"]
    assert [row[14:].split("  ")[0].strip() for row in rows[1:5]] == ["foml K=1", "foml K=2", "online", "tfs"]
    online = rows[3].split()
    assert online[2:6] == ["1", "2", "15", "1.0"]
    assert float(online[6]) >= 0
    assert rows[5].startswith("4 trials, 4 to run: ")
    assert re.fullmatch(
        r"disk: about \d+ MB in results/tiny; memory: about [\d.]+ .B for each of \d+ learner actors", rows[6]
    )
    assert re.fullmatch(r"cost: about \S+ CPU-hours \(on this machine's CPU; learning alone\)", rows[7])
    assert not (folder / "results").exists()
    assert not (folder / "mlflow.db").exists()


def runs_of(folder: Path, kind: str) -> list[Run]:
    client = MlflowClient(uri(folder))
    experiment = client.search_experiments(filter_string="name = 'tiny'")[0].experiment_id
    return list(
        client.search_runs([experiment], f"tags.`foml.kind` = '{kind}'", order_by=["tags.`foml_internal.run_key`"])
    )


def artifact(folder: Path, run_id: str, path: str, into: Path) -> str:
    return Path(MlflowClient(uri(folder)).download_artifacts(run_id, path, str(into))).read_text(encoding="utf-8")


def test_every_run_says_where_it_comes_from(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder, _ = finished
    (parent,) = runs_of(folder, "sweep")
    configurations, seeds = runs_of(folder, "configuration"), runs_of(folder, "seed")
    assert (len(configurations), len(seeds)) == (4, 8)
    commit, dirty = provenance.git_state()
    for run_ in [parent, *configurations, *seeds]:
        tags = run_.data.tags
        assert (tags["foml.git_commit"], tags["foml.git_dirty"]) == (commit, dirty)
        assert tags["foml.versions"] == provenance.versions()
        assert tags["foml.hostname"] == socket.gethostname()
        assert tags["foml.command"].startswith("python -m orchestrator.sweep --local ")
        if run_ is not parent:  # the sweep's own run says who wrote it last
            assert tags["foml.command"] == "python -m orchestrator.sweep --local sweep.yaml keep_checkpoints=all"
        assert len(tags["foml_internal.store"]) == 64
        assert ("foml.git_diff" in tags) == (dirty == "true")
    for run_ in [*configurations, *seeds]:
        assert run_.data.tags["foml.device"] == hardware.device_name(torch.device("cpu"))
        assert run_.data.tags["foml.threads"] == "1"
        assert 100 < run_.data.metrics["peak_memory_mb"] < 4_000
        assert "peak_gpu_memory_mb" not in run_.data.metrics
    manifest = json.loads(artifact(folder, parent.info.run_id, "provenance/store_manifest.json", tmp_path))
    assert manifest["recipe"]["name"] == "rainbow_digits"
    assert f"torch=={torch.__version__.split('+')[0]}" in artifact(
        folder, parent.info.run_id, "provenance/packages.txt", tmp_path
    )
    for run_ in configurations:
        described = json.loads(artifact(folder, run_.info.run_id, "configuration.json", tmp_path))
        assert described["hash"] == run_.data.tags["foml_internal.configuration"]
        assert Configuration(**described["configuration"]).hash == described["hash"]
        assert described["stacks"] == [[0, 1]]


def test_the_log_of_each_trial_is_kept(finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    folder, _ = finished
    for run_ in runs_of(folder, "configuration"):
        log = artifact(folder, run_.info.run_id, "log/trial.log", tmp_path).splitlines()
        assert "attempt 1: starts on" in log[0]
        assert "seeds [0, 1]" in log[0]
        assert "finished: batch 15 of 15" in log[-1]


def test_a_run_again_gives_the_same_curves(
    finished: tuple[Path, subprocess.CompletedProcess[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished
    for kind in ("configuration", "seed"):
        for run_ in runs_of(folder, kind)[:2]:
            assert rerun.main([run_.info.run_id, "--tracking-uri", uri(folder)]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert len(lines) == (2 if kind == "configuration" else 1)
            assert all(line.endswith("points, the same, bit for bit") for line in lines)


@pytest.mark.parametrize("source", ["the table", "points in MLflow"])
def test_another_value_is_found_by_a_rerun(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
    source: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the configuration's table of all values, and, where it is missing, in the points of the seed's run."""
    folder, _ = finished
    run = runs_of(folder, "seed")[0]
    parent = run.data.tags["mlflow.parentRunId"]
    shutil.copy(folder / "mlflow.db", tmp_path)
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    artifact(folder, parent, "configuration.json", artifacts)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute(f"update runs set artifact_uri = '{artifacts}' where run_uuid = '{parent}'")
        where = f"run_uuid = '{run.info.run_id}' and key = 'online_loss'"
        database.execute(f"update metrics set value = value + 0.25 where {where} and step = 7")
        database.execute(f"update metrics set value = value + 0.125 where {where} and step = 5")
    if source == "the table":
        client = MlflowClient(uri(folder))
        table = tables.read(client, parent, client.get_run(parent).info.artifact_uri, tables.CURVES_FILE, None)
        rows = (table.seed == int(run.data.tags["foml.seed"])) & (table.metric == "online_loss")
        table.loc[rows & (table.step == 7), "value"] += 0.25
        table.loc[rows & (table.step == 5), "value"] += 0.125
        other = MlflowClient(uri(tmp_path))
        tables.keep(other, parent, {tables.CURVES_FILE: table}, lambda tags: requests.write(other, parent, tags=tags))
    assert rerun.main([run.info.run_id, "--tracking-uri", uri(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed ") and lines[0].endswith("different")
    assert lines[1:] == ["  online_loss: differs at 2 of 15 steps, by at most 0.25 at step 7; first at step 5"]


def test_a_run_that_cannot_be_repeated_is_one_line(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished
    (parent,) = runs_of(folder, "sweep")
    run_id = runs_of(folder, "seed")[0].info.run_id
    shutil.copy(folder / "mlflow.db", tmp_path)
    other = cached(recipes()["rainbow_digits"](tasks=2, train=50, validation=12, test=12), [0]).path  # type: ignore[call-arg]
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute(f"update tags set value = '{other}' where key = 'foml.store_path' and run_uuid = '{run_id}'")
    for run_, where, words in (
        ("0" * 32, folder, "has none of this id"),
        (parent.info.run_id, folder, "must be a configuration's or a seed's, not a sweep's"),
        (run_id, tmp_path, "restore that store at this path"),
    ):
        assert rerun.main([run_, "--tracking-uri", uri(where)]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert words in line
