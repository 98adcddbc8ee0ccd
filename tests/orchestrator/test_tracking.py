"""What is in MLflow after a sweep, after one that was cut off and went on, and after all sorts of trouble."""

import json
import math
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from orchestrator import tracking
from orchestrator.plan import Plan, Trial
from orchestrator.run_names import parameters
from orchestrator.tracking import TrackingError, Writer, prepare
from orchestrator.tracking_projection import Projection

sys.path.insert(0, str(Path(__file__).parent))  # pytest imports tests by path, and what they share not at all

import made_sweep as made

ROOT = Path(__file__).resolve().parents[2]
NASTY = "Größe 'a' \"b\" `c` ../../d %s \\ ;--"


class Seen:
    """What MLflow holds of one experiment, read back by an ordinary client."""

    def __init__(self, uri: str, experiment: str = "experiment") -> None:
        self.client = MlflowClient(tracking_uri=uri)
        found = self.client.get_experiment_by_name(experiment)
        self.location = found.artifact_location
        self.runs = list(self.client.search_runs([found.experiment_id], max_results=1000))

    def of(self, kind: str) -> list:
        return [run for run in self.runs if run.data.tags["foml.kind"] == kind]

    def one(self, kind: str, configuration: str | None = None, seed: int | None = None):
        (run,) = [
            run
            for run in self.of(kind)
            if configuration in (None, run.data.tags.get("foml.configuration"))
            and (seed is None or run.data.tags.get("foml.seed") == str(seed))
        ]
        return run

    def statuses(self) -> Counter:
        return Counter(run.info.status for run in self.runs)

    def points(self, run) -> dict:
        """metric → step → (value, time); an assertion that no step is there twice."""
        out = {}
        for name in run.data.metrics:
            history = self.client.get_metric_history(run.info.run_id, name)
            out[name] = {point.step: (point.value, point.timestamp) for point in history}
            assert len(out[name]) == len(history), f"{name}: a step twice"
        return out


def assert_seed_runs_hold(uri, sweep, trial, experiment="experiment"):
    """Every value of the trial's curves, and nothing else, each with the time of its chunk."""
    seen, whole = Seen(uri, experiment), sweep.whole[trial.key]
    ends, times = whole.chunks["batches"], whole.chunks["time_ms"]

    def time_of(batch):
        return next(int(t) for end, t in zip(ends, times, strict=True) if batch < end)

    for row, seed in enumerate(trial.seeds):
        points = seen.points(seen.one("seed", trial.configuration.hash, seed))
        for name, curve in whole.by_batch.items():
            expected = {j: (v, time_of(j)) for j, v in enumerate(curve[row]) if math.isfinite(v)}
            if name == "distance":  # there is none at batch 0, so its first is at 1
                expected = {j: point for j, point in expected.items() if j == 1 or j % made.DIAGNOSTICS_EVERY == 0}
            assert points[name] == expected
        mine = whole.evaluations["seed"] == row
        errors, batches = whole.evaluations["error"][mine], whole.evaluations["batch"][mine]
        assert points["validation_error"] == {
            t: (e, time_of(j)) for t, (e, j) in enumerate(zip(errors, batches, strict=True))
        }
        cumulative = {t: (pytest.approx(np.mean(errors[: t + 1])), time_of(j)) for t, j in enumerate(batches)}
        assert points["cumulative_error"] == cumulative
        gradients = whole.chunks["gradient_evaluations"].sum() / (whole.batches * 10)
        assert points["gradient_evaluations_per_datapoint"] == {0: (gradients, times[-1])}
        assert points["seconds"] == {0: (whole.chunks["seconds"].sum(), times[-1])}
        within = whole.by_batch["online_error"][row].reshape(len(batches), -1).mean(axis=0)
        assert points["adaptation"] == {10 * k: (pytest.approx(v), times[-1]) for k, v in enumerate(within)}
        assert set(points) == {
            *whole.by_batch, "validation_error", "cumulative_error", "adaptation", "gradient_evaluations_per_datapoint",
            "seconds",
        }  # fmt: skip


def writer_of(uri, sweep, experiment="experiment") -> Writer:
    writer = Writer(uri, experiment, sweep.plan, sweep.root, {"foml.git_commit": "abc"}, 1_699_999_999_000)
    writer.start()
    return writer


@pytest.fixture
def tracking_uri(tmp_path_factory, tmp_path):
    return made.new_database(tmp_path_factory, tmp_path)


@pytest.fixture
def sweep(tmp_path):
    """FOML and `tfs`, three seeds each."""
    trials = [Trial(made.configuration("foml", K=5), (0, 1, 2)), Trial(made.configuration("tfs"), (0, 1, 2))]
    return made.make_sweep(tmp_path / "results", "sweep", *trials)


def test_overlapping_slices_give_each_step_once(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    for start, stop in ((0, 20), (0, 20), (10, 30), (20, 40), (5, 15), (40, 60)):
        writer.results(trial.key, sweep.part(trial, start, stop))
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    assert writer.drain() == []
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_a_gap_is_filled_from_the_chunk_file(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    sweep.write_chunk(trial, 60)
    writer.results(trial.key, sweep.part(trial, 40, 60))
    writer.finished(trial.key)
    assert writer.drain() == []
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_a_gap_that_no_file_fills_is_told_and_filled_later(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    writer.results(trial.key, sweep.part(trial, 40, 60))
    (line,) = writer.drain()
    where = trial.folder(sweep.root)
    assert line == f"tracking: foml K=5: 60 batches were reported, but no chunk file in {where} has them (ValueError)"
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    assert [told.endswith("tried again, and all is written now") for told in writer.drain()] == [True]
    assert writer.drain() == []
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_a_database_that_fails_for_a_while_is_caught_up_with(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    path = tracking_uri.removeprefix("sqlite:///")
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    assert writer.drain() == []
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE latest_metrics RENAME TO away")
    sweep.write_chunk(trial, 40)
    writer.results(trial.key, sweep.part(trial, 20, 40))
    (line,) = writer.drain()
    assert line.startswith("tracking: foml K=5: ") and "latest_metrics" in line and "\n" not in line
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE away RENAME TO latest_metrics")
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    assert writer.drain() == [f"{line}; tried again, and all is written now"]
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_what_was_to_be_written_when_the_database_failed_is_not_lost(sweep, tracking_uri):
    """Runs are made, and then their first points fail: parameters and tags of the others come with the next try."""
    trial = sweep.plan.trials[0]
    path = tracking_uri.removeprefix("sqlite:///")
    writer = writer_of(tracking_uri, sweep)
    assert writer.drain() == []
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE metrics RENAME TO away")
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    (line,) = writer.drain()
    assert line.startswith("tracking: foml K=5: (sqlite3.OperationalError) no such table: ") and "metrics" in line
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE away RENAME TO metrics")
    assert writer.drain() == [f"{line}; tried again, and all is written now"]
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)
    seen = Seen(tracking_uri)
    assert seen.one("configuration").data.params == parameters(trial.configuration)
    assert seen.one("seed", seed=1).data.params == {**parameters(trial.configuration), "seed": "1"}
    assert seen.statuses() == {"FINISHED": 5}


def test_runs_hang_below_the_sweeps_run_when_that_was_deleted(sweep, tracking_uri):
    old = made.write_all(sweep, tracking_uri)
    Seen(tracking_uri).client.delete_run(old)
    writer = writer_of(tracking_uri, sweep)
    for trial in sweep.plan.trials:
        writer.finished(trial.key)
    assert writer.drain() == []
    parent = writer.close("FINISHED")
    seen = Seen(tracking_uri)
    assert parent != old and seen.one("sweep").info.run_id == parent
    assert [run.data.tags["mlflow.parentRunId"] for run in seen.of("configuration")] == [parent] * 2


FEED = """
import os, pickle, signal, sys, time
from mlflow import MlflowClient
from orchestrator.tracking import Writer
uri, experiment, plan, root, slices = pickle.load(open(sys.argv[1], "rb"))
sent, send = [], MlflowClient.log_batch
def counted(client, run_id, metrics=(), **more):
    send(client, run_id, metrics=metrics, **more)
    sent.extend(metrics)
    if "die" in sys.argv and len(sent) >= 500:
        os.kill(os.getpid(), signal.SIGKILL)
MlflowClient.log_batch = counted
writer = Writer(uri, experiment, plan, root, {}, 1)
writer.start()
first = slices[0][0]
for key, part in slices:
    if key != first and first:
        first = ""
        writer.drain()
        print("in the middle", flush=True)
        sys.stdin.readline()
    writer.results(key, part)
print(writer.drain(), flush=True)
if "close" in sys.argv:
    for trial in plan.trials:
        writer.finished(trial.key)
    print(writer.drain(), writer.close("FINISHED"))
"""


def in_another_process(tmp_path: Path, uri, sweep, slices, *words: str) -> subprocess.Popen:
    """A writer in a process of its own, that is given these slices; after those of the first trial it says that it is in
    the middle, and goes on with a line from us. `die`: it kills itself when some points are sent. `close`: it ends well."""
    file = tmp_path / f"{time.monotonic_ns()}.pickle"
    file.write_bytes(pickle.dumps((uri, "experiment", sweep.plan, sweep.root, slices)))
    return subprocess.Popen(
        [sys.executable, "-c", FEED, str(file), *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def count_points(uri: str) -> int:
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"), timeout=20)) as database:
        return int(database.execute("SELECT count(*) FROM metrics").fetchone()[0])


def test_a_writer_killed_in_the_middle_and_a_new_one(tmp_path, tracking_uri):
    trial = Trial(made.configuration("foml", K=5), (0, 1, 2))
    sweep = made.make_sweep(tmp_path / "results", "sweep", trial, batches=400)
    sweep.write_chunk(trial, 300)
    slices = [(trial.key, sweep.part(trial, at, at + 5)) for at in range(0, 300, 5)]
    process = in_another_process(tmp_path, tracking_uri, sweep, slices, "die")
    _, errors = process.communicate(timeout=540)
    assert process.returncode == -signal.SIGKILL, errors
    there = count_points(tracking_uri)
    assert 500 <= there < 300 * 3 * 3, "killed too late to tell anything"
    assert Seen(tracking_uri).statuses() == {"RUNNING": 5}

    writer = writer_of(tracking_uri, sweep)
    writer.results(
        trial.key, sweep.part(trial, 300, 320)
    )  # its chunk file is newer than what this one is asked to send
    sweep.write_chunk(trial)
    writer.results(trial.key, sweep.part(trial, 320, 400))
    writer.finished(trial.key)
    assert all("tried again" in line for line in writer.drain())
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)
    assert Seen(tracking_uri).statuses() == {"FINISHED": 5}, "the same runs have gone on"


def test_two_writers_of_two_sweeps_at_once(tmp_path, tracking_uri):
    def a_sweep(name):
        trials = [Trial(made.configuration(learner), (0, 1)) for learner in ("foml", "tfs", "online")]
        one = made.make_sweep(tmp_path / name, name, *trials, batches=200)
        for trial in trials:
            one.write_chunk(trial)
        return one, [(trial.key, part) for trial in trials for part in one.slices(trial)]

    one, two = a_sweep("one"), a_sweep("two")
    other = in_another_process(tmp_path, tracking_uri, *two, "close")
    writer = writer_of(tracking_uri, one[0])
    for number, (key, part) in enumerate(one[1]):
        if number == len(one[1]) // 3:  # each of the two has written a part, and goes on together with the other
            assert writer.drain() == []
            assert other.stdout.readline() == "in the middle\n"
            other.stdin.write("go on\n")
            other.stdin.flush()
        writer.results(key, part)
    for trial in one[0].plan.trials:
        writer.finished(trial.key)
    assert writer.drain() == []
    writer.close("FINISHED")
    out, err = other.communicate(timeout=540)
    assert out.splitlines()[0] == "[]" and out.splitlines()[1].startswith("[] "), out + err
    seen = Seen(tracking_uri)
    assert seen.statuses() == {"FINISHED": 2 * (1 + 3 + 6)}
    for name, (each, _) in (("one", one), ("two", two)):
        mine = [run for run in seen.of("seed") if run.data.tags["foml.sweep"] == name]
        assert len(mine) == 6
        for run in mine:
            trial = next(t for t in each.plan.trials if t.configuration.hash == run.data.tags["foml.configuration"])
            row = trial.seeds.index(int(run.data.tags["foml.seed"]))
            expected = dict(enumerate(each.whole[trial.key].by_batch["online_error"][row]))
            assert {step: value for step, (value, _) in seen.points(run)["online_error"].items()} == expected


def test_run_tree_names_tags_and_parameters(sweep, tracking_uri):
    parent_id = made.write_all(sweep, tracking_uri)
    seen = Seen(tracking_uri)
    parent = seen.one("sweep")
    assert parent.info.run_id == parent_id
    assert parent.info.run_name == "sweep" and parent.info.start_time == made.START_MS
    assert parent.data.tags["foml.git_commit"] == "abc"
    assert "mlflow.parentRunId" not in parent.data.tags
    assert json.loads(Path(seen.client.download_artifacts(parent_id, "sweep.json")).read_text()) == sweep.plan.resolved
    assert len(seen.of("configuration")) == 2 and len(seen.of("seed")) == 6
    for trial in sweep.plan.trials:
        of = trial.configuration
        run = seen.one("configuration", of.hash)
        assert run.info.run_name == of.label
        assert run.data.tags["mlflow.parentRunId"] == parent_id
        assert run.data.tags["foml.sweep"] == "sweep"
        assert run.data.tags["foml.learner"] == of.learner
        assert run.data.tags["foml.needs_boundaries"] == {"foml": "false", "tfs": "true"}[of.learner]
        assert run.data.tags["foml.seeds"] == "0-2"
        options = {"foml": {"K": "5"}, "tfs": {}}[of.learner]
        assert run.data.params == options | {
            "alpha1": "0.001", "learner": of.learner, "network": "rainbow", "batch_size": "10",
            "stream": "rainbow_digits", "stream.options.tasks": "6", "stream.schedule.name": "sequential",
            "stream.store": "0" * 64,
        }  # fmt: skip
        for seed in trial.seeds:
            seed_run = seen.one("seed", of.hash, seed)
            assert seed_run.info.run_name == f"seed {seed}"
            assert seed_run.data.tags["mlflow.parentRunId"] == run.info.run_id
            assert seed_run.data.params == run.data.params | {"seed": str(seed)}
            assert seed_run.info.start_time == made.START_MS + 500
            assert seed_run.info.end_time == made.START_MS + 3_000
    assert len({run.data.tags["foml.run_key"] for run in seen.runs}) == 9


def test_artifacts_lie_beside_the_database(sweep, tracking_uri, tmp_path):
    made.write_all(sweep, tracking_uri)
    seen = Seen(tracking_uri)
    assert seen.location.startswith((tmp_path / "store" / "mlartifacts").as_uri())
    trial = sweep.plan.trials[0]
    run = seen.one("configuration", trial.configuration.hash)
    learner = seen.client.download_artifacts(run.info.run_id, "checkpoint/learner.pt")
    assert Path(learner).read_bytes() == b"learner of " + trial.key.encode()
    frame = pd.read_parquet(seen.client.download_artifacts(run.info.run_id, "curves.parquet"))
    for seed in trial.seeds:
        points = seen.points(seen.one("seed", trial.configuration.hash, seed))
        flat = {(name, step): value for name, steps in points.items() for step, (value, _) in steps.items()}
        mine = frame[frame.seed == seed]
        table = dict(zip(zip(mine.metric, mine.step, strict=True), mine.value, strict=True))
        assert flat == {key: value for key, value in table.items() if key in flat}
        assert {key[0] for key in table.keys() - flat.keys()} == {"distance"}, "of a diagnostic the table has all"
        assert sum(key[0] == "distance" for key in table) == made.BATCHES - 1
        assert "test_error" not in points, "nobody is to choose by it"
    held_back = pd.read_parquet(seen.client.download_artifacts(run.info.run_id, "test_error.parquet"))
    expected = sweep.whole[trial.key].evaluations["test_error"].reshape(-1, len(trial.seeds))
    assert held_back.pivot(index="step", columns="seed", values="value").to_numpy().tolist() == expected.tolist()
    assert set(held_back.metric) == {"test_error"}


def test_mean_curves_of_a_configuration(tmp_path, tracking_uri):
    trial = Trial(made.configuration("online"), (0, 1))
    sweep = made.make_sweep(tmp_path / "results", "sweep", trial, batches=40)
    whole = sweep.whole[trial.key]
    whole.evaluations["error"][:] = [0.1, 0.3, 0.5, 0.1, 0.2, 0.2, 0.0, 0.4]  # (task, seed): (0, 0), (0, 1), (1, 0), …
    whole.by_batch["online_error"][:] = np.repeat([[0.2, 0.4], [0.6, 0.4]], 20, axis=1)
    made.write_all(sweep, tracking_uri)
    seen = Seen(tracking_uri)
    points = seen.points(seen.one("configuration"))
    t = 12.706204736  # Student's t at 97.5 % with one degree of freedom; two seeds a, b: half = t · |a − b| / 2
    end = made.START_MS + 2_000

    def values(name):
        return {step: value for step, (value, _) in points[name].items()}

    assert values("validation_error") == pytest.approx({0: 0.2, 1: 0.3, 2: 0.2, 3: 0.2})
    assert values("validation_error_low") == pytest.approx(
        {0: 0.2 - 0.1 * t, 1: 0.3 - 0.2 * t, 2: 0.2, 3: 0.2 - 0.2 * t}
    )
    assert values("validation_error_high") == pytest.approx(
        {0: 0.2 + 0.1 * t, 1: 0.3 + 0.2 * t, 2: 0.2, 3: 0.2 + 0.2 * t}
    )
    # Seed 0: 0.1, 0.3, 0.8/3, 0.2. Seed 1: 0.3, 0.2, 0.2, 0.25.
    assert values("cumulative_error") == pytest.approx({0: 0.2, 1: 0.25, 2: 0.7 / 3, 3: 0.225})
    half = {0: 0.1, 1: 0.05, 2: 0.1 / 3, 3: 0.025}
    means = values("cumulative_error")
    assert values("cumulative_error_high") == pytest.approx({step: means[step] + half[step] * t for step in half})
    assert values("online_error") == pytest.approx({19: 0.4, 39: 0.4})
    assert values("online_error_high") == pytest.approx({19: 0.4 + 0.2 * t, 39: 0.4})
    assert points["objective"] == {0: (pytest.approx(0.225), end)}
    assert points["objective_low"] == {0: (pytest.approx(0.225 - 0.025 * t), end)}
    assert points["seconds"] == {0: (1.0, end)}
    assert points["adaptation"] == {10 * k: (pytest.approx(0.4), end) for k in range(10)}
    assert points["gradient_evaluations_per_datapoint"] == {0: (3.0, end)}
    assert {step: time for step, (_, time) in points["validation_error"].items()} == {
        0: made.START_MS + 1_000, 1: made.START_MS + 1_000, 2: end, 3: end
    }  # fmt: skip


def test_one_seed_has_no_interval(tmp_path, tracking_uri):
    trial = Trial(made.configuration("online"), (4,))
    made.write_all(made.make_sweep(tmp_path / "results", "sweep", trial), tracking_uri)
    run = Seen(tracking_uri).one("configuration")
    assert set(run.data.metrics) == {
        "validation_error", "cumulative_error", "online_error", "adaptation", "objective", "seconds",
        "gradient_evaluations_per_datapoint",
    }  # fmt: skip


def test_a_diverged_seed_is_marked_and_not_averaged_away(tmp_path, tracking_uri):
    trial = Trial(made.configuration("foml", K=5), (0, 1, 2))
    sweep = made.make_sweep(tmp_path / "results", "sweep", trial)
    whole = sweep.whole[trial.key]
    whole.diverged[1] = 25
    for curve in whole.by_batch.values():
        curve[1, 25:] = math.nan
    gone = (whole.evaluations["seed"] == 1) & (whole.evaluations["batch"] >= 25)
    whole.evaluations["error"][gone] = math.nan
    whole.by_batch["distance"][2, 7] = math.inf  # a learner that did not notice
    made.write_all(sweep, tracking_uri)
    with closing(sqlite3.connect(tracking_uri.removeprefix("sqlite:///"))) as database:
        assert database.execute("SELECT count(*) FROM metrics WHERE is_nan OR abs(value) > 1e300").fetchone() == (0,)
    seen = Seen(tracking_uri)
    runs = [seen.one("seed", seed=seed) for seed in trial.seeds]
    assert [run.data.tags.get("foml.diverged_at") for run in runs] == [None, "25", "7"]
    assert list(seen.points(runs[1])["online_error"]) == list(range(25))
    assert list(seen.points(runs[1])["validation_error"]) == [0, 1]
    assert list(seen.points(runs[1])["cumulative_error"]) == [0, 1]
    assert 7 not in seen.points(runs[2])["distance"]
    configuration = seen.one("configuration")
    assert list(seen.points(configuration)["validation_error"]) == [0, 1]
    assert list(seen.points(configuration)["online_error"]) == [19]
    assert "objective" not in configuration.data.metrics, "nobody sorts it to the top"
    assert configuration.data.tags["foml.diverged"] == "1 at batch 25, 2 at batch 7"


def test_nothing_stays_running(tmp_path, tracking_uri):
    learners = ("foml", "tfs", "online", "toe", "replay", "lwf")
    trials = [Trial(made.configuration(learner), (0, 1)) for learner in learners]
    sweep = made.make_sweep(tmp_path / "results", "sweep", *trials)
    finished, failed, stopped, early, unstarted, forgotten = trials
    writer = writer_of(tracking_uri, sweep)
    for trial in (finished, failed, stopped, forgotten):
        writer.results(trial.key, sweep.part(trial, 0, 20))
    sweep.write_chunk(finished)
    sweep.write_chunk(stopped, 20)
    writer.finished(finished.key)
    writer.failed(failed.key, "out of memory")
    writer.failed(early.key, "could not begin")
    writer.interrupted(stopped.key)
    writer.interrupted(unstarted.key)
    writer.drain()
    writer.close("KILLED")
    seen = Seen(tracking_uri)
    statuses = {
        trial.configuration.learner: [
            run.info.status for run in seen.runs if run.data.tags.get("foml.configuration") == trial.configuration.hash
        ]
        for trial in trials
    }
    assert statuses == {
        "foml": ["FINISHED"] * 3, "tfs": ["FAILED"] * 3, "online": ["KILLED"] * 3, "toe": ["FAILED"] * 3,
        "replay": [], "lwf": ["KILLED"] * 3,
    }  # fmt: skip
    assert seen.one("sweep").info.status == "KILLED"
    assert seen.one("seed", failed.configuration.hash, 1).data.tags["foml.error"] == "out of memory"


def test_an_interrupted_trial_goes_on_in_the_same_runs(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    sweep.write_chunk(trial, 40)  # the second slice never arrived
    writer.interrupted(trial.key)
    writer.close("KILLED")
    before = {run.info.run_id for run in Seen(tracking_uri).runs}
    assert max(Seen(tracking_uri).points(Seen(tracking_uri).one("seed", seed=0))["online_error"]) == 39
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 40, 60))
    assert writer.drain() == []
    assert Seen(tracking_uri).statuses() == {"RUNNING": 5}
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    writer.drain()
    writer.close("FINISHED")
    assert {run.info.run_id for run in Seen(tracking_uri).runs} == before
    assert Seen(tracking_uri).statuses() == {"FINISHED": 5}
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_what_is_complete_is_left_alone(sweep, tracking_uri):
    made.write_all(sweep, tracking_uri)
    before = {run.info.run_id: (run.info.end_time, run.data.metrics) for run in Seen(tracking_uri).runs}
    writer = writer_of(tracking_uri, sweep)
    for trial in [*sweep.plan.trials, *sweep.plan.trials]:
        writer.finished(trial.key)
    assert writer.drain() == []
    assert [run.info.status for run in Seen(tracking_uri).of("seed")] == ["FINISHED"] * 6
    parent = writer.close("FINISHED")
    after = {run.info.run_id: (run.info.end_time, run.data.metrics) for run in Seen(tracking_uri).runs}
    assert before.pop(parent)[0] <= after.pop(parent)[0]
    assert after == before


def test_a_grown_configuration_is_over_all_its_seeds(tmp_path, tracking_uri):
    of = made.configuration("foml", K=5)
    first, second = Trial(of, (0, 1, 2)), Trial(of, (3, 4))
    made.write_all(made.make_sweep(tmp_path / "results", "sweep", first), tracking_uri)
    seeds_before = {run.info.run_id for run in Seen(tracking_uri).of("seed")}
    grown = made.make_sweep(tmp_path / "results", "sweep", first, second)
    made.write_all(grown, tracking_uri)
    seen = Seen(tracking_uri)
    assert seen.statuses() == {"FINISHED": 1 + 1 + 5}
    run = seen.one("configuration")
    assert run.data.tags["foml.seeds"] == "0-4"
    assert seeds_before < {run.info.run_id for run in seen.of("seed")}
    assert {seed.data.tags["mlflow.parentRunId"] for seed in seen.of("seed")} == {run.info.run_id}
    errors = [grown.whole[trial.key].evaluations["error"].reshape(6, -1) for trial in (first, second)]
    expected = np.concatenate(errors, axis=1).mean(axis=1)
    points = seen.points(run)
    assert [points["validation_error"][task][0] for task in range(6)] == pytest.approx(expected)
    assert points["seconds"][0][0] == 2 * 1.5
    for trial in (first, second):
        assert_seed_runs_hold(tracking_uri, grown, trial)
    other = seen.client.download_artifacts(run.info.run_id, f"checkpoint/{second.key}/learner.pt")
    assert Path(other).read_bytes() == b"learner of " + second.key.encode()


def test_the_same_seeds_in_another_stack_are_another_computation(tmp_path, tracking_uri):
    of = made.configuration("foml", K=5)
    made.write_all(made.make_sweep(tmp_path / "results", "sweep", Trial(of, (0, 1, 2))), tracking_uri)
    fewer = Trial(of, (0, 1))
    sweep = made.make_sweep(tmp_path / "results", "sweep", fewer)
    made.write_all(sweep, tracking_uri)
    assert len(Seen(tracking_uri).runs) == 4
    assert_seed_runs_hold(tracking_uri, sweep, fewer)


def test_names_may_be_anything(tmp_path, tracking_uri):
    sweep = made.make_sweep(tmp_path / "results", NASTY, Trial(made.configuration("foml", K=5), (0, 1)))
    for _ in range(2):  # found again the second time
        parent_id = made.write_all(sweep, tracking_uri, NASTY)
    seen = Seen(tracking_uri, NASTY)
    assert len(seen.runs) == 4
    assert seen.one("sweep").info.run_name == NASTY and seen.one("sweep").info.run_id == parent_id
    location = Path(seen.location.removeprefix("file://"))
    assert location.parent == tmp_path / "store" / "mlartifacts" and ".." not in location.name
    run = seen.one("configuration")
    assert (location / run.info.run_id / "artifacts" / "checkpoint" / "learner.pt").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "store"]
    assert_seed_runs_hold(tracking_uri, sweep, sweep.plan.trials[0], NASTY)


def test_forget_leaves_other_sweeps_alone(tmp_path, tracking_uri):
    trial = Trial(made.configuration("foml"), (0,))
    for name in ("one", "one/two", NASTY):
        made.write_all(made.make_sweep(tmp_path / "results", name, trial), tracking_uri)
    tracking.forget(tracking_uri, "experiment", "one")
    tracking.forget(tracking_uri, "experiment", NASTY)
    tracking.forget(tracking_uri, "experiment", "never run")
    assert [run.info.run_name for run in Seen(tracking_uri).of("sweep")] == ["one/two"]
    assert len(Seen(tracking_uri).runs) == 3


def test_points_go_in_by_the_thousand(tmp_path, tracking_uri, monkeypatch):
    """MLflow refuses more than 1,000 metrics a call, and takes 3.6 ms for each that comes alone."""
    sizes, log_batch = [], MlflowClient.log_batch

    def counted(self, run_id, metrics=(), *others, **named):
        sizes.append(len(metrics))
        return log_batch(self, run_id, metrics, *others, **named)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    trial = Trial(made.configuration("foml"), (0,))
    sweep = made.make_sweep(tmp_path / "results", "sweep", trial, batches=4_000)
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    assert writer.drain() == []
    sizes.clear()
    writer.results(trial.key, sweep.part(trial, 20, 4_000))
    assert writer.drain() == []
    run = Seen(tracking_uri).one("seed")
    points = sum(map(len, Seen(tracking_uri).points(run).values()))
    diagnostics = {1, *range(made.DIAGNOSTICS_EVERY, 4_000, made.DIAGNOSTICS_EVERY)}
    assert points == 2 * 4_000 + len(diagnostics) + 2 * 400
    new = points - 2 * 20 - sum(step < 20 for step in diagnostics) - 2 * 2
    assert sizes == [1_000] * (new // 1_000) + [new % 1_000]
    writer.close("FINISHED")


def test_six_processes_prepare_a_fresh_database_at_once(tmp_path):
    uri = f"sqlite:///{tmp_path}/new folder/mlflow.db"
    code = "import sys; from orchestrator.tracking_database import prepare; prepare(sys.argv[1], 'one experiment')"
    command = [sys.executable, "-c", code, uri]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(6)
    ]
    assert [(process.communicate()[0], process.returncode) for process in processes] == [(b"", 0)] * 6
    names = [experiment.name for experiment in MlflowClient(uri).search_experiments()]
    assert sorted(names) == ["Default", "one experiment"]


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("./mlruns", "keeps no runs in plain folders since 3.13 (got ./mlruns); use sqlite:///mlflow.db"),
        ("file:///tmp/mlruns", "keeps no runs in plain folders since 3.13 (got file:///tmp/mlruns)"),
        ("sqlite://", "must name a file: runs in memory are lost (got sqlite://)"),
        ("sqlite:///:memory:", "must name a file: runs in memory are lost"),
        (
            "sqlite:///{tmp}",
            "must be a database that can be written (got sqlite:///{tmp}); unable to open database file",
        ),
        (
            "sqlite:///{tmp}/text",
            "the database is damaged, or is none: file is not a database (got sqlite:///{tmp}/text); move text away",
        ),
        ("sqlite:///{tmp}/text/x.db", "must be a database that can be written"),
        ("http://127.0.0.1:9/", "no server answers ([Errno 111] Connection refused) (got http://127.0.0.1:9/); start "),
        (
            "gopher://there",
            "must begin with one of sqlite, postgresql, mysql, mssql, http, https, databricks (got gopher:",
        ),
    ],
)
def test_a_uri_that_cannot_serve(uri, told, tmp_path):
    (tmp_path / "text").write_text("this is not a database, it is a text of more than sixteen bytes" * 100)
    with pytest.raises(TrackingError) as caught:
        prepare(uri.format(tmp=tmp_path))
    line = str(caught.value)
    assert line.startswith("tracking.uri: ") and told.format(tmp=tmp_path) in line and "\n" not in line
    assert caught.value.exit_code == 2


def test_a_deleted_experiment(tracking_uri):
    prepare(tracking_uri, "mine")
    client = MlflowClient(tracking_uri)
    number = client.get_experiment_by_name("mine").experiment_id
    client.delete_experiment(number)
    with pytest.raises(TrackingError) as caught:
        prepare(tracking_uri, "mine")
    assert str(caught.value) == (
        "tracking.experiment: must not be a deleted one (got 'mine'); "
        f"mlflow experiments restore -x {number}, or choose another name"
    )


def test_a_writer_without_a_server_is_told_of_and_holds_nobody_up(sweep):
    started = time.monotonic()
    writer = writer_of("http://127.0.0.1:9", sweep)
    for trial in sweep.plan.trials:
        writer.results(trial.key, sweep.part(trial, 0, 20))
        writer.interrupted(trial.key)
    (line,) = writer.drain()
    assert line.startswith("tracking.uri: no server answers")
    with pytest.raises(TrackingError, match="the sweep's runs could not be ended"):
        writer.close("KILLED")
    assert time.monotonic() - started < 10


@pytest.fixture
def server(tmp_path):
    """Starts a real tracking server, always on the same port; what it gives back ends it."""
    port, running = made.free_port(), []

    def start():
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{tmp_path}/s.db", "--artifacts-destination", str(tmp_path / "a")]
        running.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        )
        uri, until = f"http://127.0.0.1:{port}", time.monotonic() + 200
        while True:
            try:
                prepare(uri)
                return uri, stop
            except TrackingError:
                assert time.monotonic() < until
                time.sleep(0.5)

    def stop():
        while running:
            process = running.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    yield start
    stop()


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back(sweep, server, capsys):
    trials = sweep.plan.trials
    uri, stop = server()
    writer = writer_of(uri, sweep)
    for trial in trials:
        sweep.write_chunk(trial, 40)
        writer.results(trial.key, sweep.part(trial, 0, 20))
    assert writer.drain() == []
    stop()
    started = time.monotonic()
    for trial in trials:
        writer.results(trial.key, sweep.part(trial, 20, 40))
    (line,) = writer.drain()
    assert line.startswith("tracking.uri: no server answers") and time.monotonic() - started < 30
    server()
    for trial in trials:
        sweep.write_chunk(trial)
        writer.finished(trial.key)
    assert writer.drain() == [f"{line}; tried again, and all is written now"]
    writer.close("FINISHED")
    assert Seen(uri).statuses() == {"FINISHED": 9}
    for trial in trials:
        assert_seed_runs_hold(uri, sweep, trial)
        run = Seen(uri).one("configuration", trial.configuration.hash)
        learner = Seen(uri).client.download_artifacts(run.info.run_id, "checkpoint/learner.pt")
        assert Path(learner).read_bytes() == b"learner of " + trial.key.encode()
    assert capsys.readouterr().out == ""


def test_a_writer_that_was_never_started_says_so(sweep, tracking_uri):
    writer = Writer(tracking_uri, "experiment", Plan("x", (), sweep.plan.resolved), sweep.root, {}, 0)
    assert writer.drain() == [f"tracking: not everything could be written to {tracking_uri}"]


def eventually(condition, timeout=120):
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


@pytest.fixture
def written(monkeypatch):
    """What the projection is given to write: (key, last batches of the slices), as it comes."""
    calls, write_results = [], Projection.write_results

    def noted(self, key, slices):
        write_results(self, key, slices)
        calls.append((key, [slice_.batches for slice_ in slices]))

    monkeypatch.setattr(Projection, "write_results", noted)
    return calls


def test_curves_that_come_within_a_pause_are_written_in_one_go(sweep, tracking_uri, written, monkeypatch):
    monkeypatch.setattr(tracking, "PAUSE_S", 3_600.0)
    first, second = sweep.plan.trials
    writer = writer_of(tracking_uri, sweep)
    writer.results(first.key, sweep.part(first, 0, 10))
    eventually(lambda: len(written) == 1)
    writer.results(first.key, sweep.part(first, 10, 20))
    writer.results(second.key, sweep.part(second, 0, 10))  # another trial has a pause of its own
    eventually(lambda: len(written) == 2)
    writer.results(first.key, sweep.part(first, 20, 30))
    assert writer.drain() == []  # waits for no pause
    assert written == [(first.key, [10]), (second.key, [10]), (first.key, [20, 30])]
    writer.results(first.key, sweep.part(first, 30, 60))
    sweep.write_chunk(first)
    writer.finished(first.key)  # nor does an end
    writer.results(second.key, sweep.part(second, 10, 40))
    writer.close("KILLED")
    assert written[3:] == [(second.key, [40])]
    assert_seed_runs_hold(tracking_uri, sweep, first)
    seen = Seen(tracking_uri)
    points = seen.points(seen.one("seed", second.configuration.hash, 2))
    assert sorted(points["online_error"]) == list(range(40))


def test_after_a_pause_curves_are_written_by_themselves(sweep, tracking_uri, written, monkeypatch):
    monkeypatch.setattr(tracking, "PAUSE_S", 0.3)
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    for stop in (10, 20, 30):
        writer.results(trial.key, sweep.part(trial, stop - 10, stop))
    eventually(lambda: written and written[-1][1][-1] == 30)
    assert sorted(stop for _, stops in written for stop in stops) == [10, 20, 30]
    writer.close("KILLED")
