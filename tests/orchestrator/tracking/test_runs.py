"""The runs of a sweep in MLflow: their tree, names and content."""

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from orchestrator.errors import OrchestratorError
from orchestrator.plan.plan import Trial
from orchestrator.report.comparison import compare
from orchestrator.tracking import requests
from orchestrator.tracking import writer as tracking
from orchestrator.tracking.names import run_name
from orchestrator.tracking.reader import curves_of, find_sweep, load_curves
from orchestrator.tracking.writer import Writer
from tests.orchestrator import synthetic_sweep as synthetic
from tests.orchestrator.tracked_sweep import TrackedRuns, assert_seed_runs_hold, writer_of

NASTY = "Größe 'a' \"b\" `c` ../../d %s \\ ;--"


@pytest.fixture
def sweep(tmp_path):
    """FOML and `tfs`, three seeds each."""
    trials = [Trial(synthetic.configuration("foml", K=5), (0, 1, 2)), Trial(synthetic.configuration("tfs"), (0, 1, 2))]
    return synthetic.make_sweep(tmp_path / "results", "sweep", *trials)


def test_runs_become_children_of_a_new_sweep_run_after_the_old_one_was_deleted(sweep, tracking_uri):
    old = synthetic.write_all(sweep, tracking_uri)
    TrackedRuns(tracking_uri).client.delete_run(old)
    writer = writer_of(tracking_uri, sweep)
    for trial in sweep.plan.trials:
        writer.finished(trial.key)
    assert writer.drain() == []
    parent = writer.close("FINISHED")
    tracked = TrackedRuns(tracking_uri)
    assert parent != old and tracked.one("sweep").info.run_id == parent
    assert [run.data.tags["mlflow.parentRunId"] for run in tracked.of("configuration")] == [parent] * 2


def test_run_tree_names_tags_and_parameters(sweep, tracking_uri):
    parent_id = synthetic.write_all(sweep, tracking_uri)
    tracked = TrackedRuns(tracking_uri)
    parent = tracked.one("sweep")
    assert parent.info.run_id == parent_id
    assert parent.info.run_name == "sweep" and parent.info.start_time == synthetic.START_MS
    assert parent.data.tags["foml.git_commit"] == "abc"
    assert "mlflow.parentRunId" not in parent.data.tags
    best = min(tracked.one("configuration", t.configuration.hash).data.metrics["objective"] for t in sweep.plan.trials)
    assert parent.data.metrics == {"trials": 2, "trials_finished": 2, "trials_failed": 0, "best_objective": best}
    assert parent.data.params == {"objective.metric": "cumulative_error", "objective.mode": "min"}
    assert parent.data.tags["foml.seeds"] == "0-2" and parent.data.tags["foml.search"] == "{}"
    assert (
        json.loads(Path(tracked.client.download_artifacts(parent_id, "sweep.json")).read_text()) == sweep.plan.resolved
    )
    assert len(tracked.of("configuration")) == 2 and len(tracked.of("seed")) == 6
    for trial in sweep.plan.trials:
        configuration = trial.configuration
        run = tracked.one("configuration", configuration.hash)
        assert run.info.run_name == configuration.label
        assert run.data.tags["mlflow.parentRunId"] == parent_id
        assert run.data.tags["foml.sweep"] == "sweep"
        assert run.data.tags["foml.learner"] == configuration.learner
        assert run.data.tags["foml.needs_boundaries"] == {"foml": "false", "tfs": "true"}[configuration.learner]
        assert run.data.tags["foml.seeds"] == "0-2"
        options = {"foml": {"K": "5"}, "tfs": {}}[configuration.learner]
        assert run.data.params == options | {
            "alpha1": "0.001", "learner": configuration.learner, "network": "rainbow", "batch_size": "10",
            "stream": "rainbow_digits", "stream.options.tasks": "6", "stream.schedule.name": "sequential",
            "stream.store": "0" * 64,
        }  # fmt: skip
        for seed in trial.seeds:
            seed_run = tracked.one("seed", configuration.hash, seed)
            assert seed_run.info.run_name == f"{configuration.label} · seed {seed}"
            assert seed_run.data.tags["mlflow.parentRunId"] == run.info.run_id
            assert seed_run.data.params == run.data.params | {"seed": str(seed)}
            assert seed_run.info.start_time == synthetic.START_MS + 500
            assert seed_run.info.end_time == synthetic.START_MS + 3_000
    assert len({run.data.tags["foml_internal.run_key"] for run in tracked.runs}) == 9


def test_a_sweep_run_has_its_task_store_as_data_set_and_the_stream_as_parameters(sweep, tracking_uri):
    stream = {"name": "rainbow_digits", "options": {"tasks": 6}, "store": "0" * 64, "schedule": {"name": "sequential"}}
    sweep.plan.resolved.update(stream=stream, network="rainbow", batch_size=10, seeds=[0, 1, 2, 7])
    store = {"foml_internal.store": "0123456789abcdef" * 4, "foml.store_path": "/stores/rainbow"}
    for search in ("random", "optuna"):  # a later start can change the search
        sweep.plan.resolved["search"] = {"algorithm": search, "samples": 20}
        writer = Writer(tracking_uri, "experiment", sweep.plan, sweep.root, store, synthetic.START_MS)
        writer.start()
        writer.close("FINISHED")
    run = TrackedRuns(tracking_uri).one("sweep")
    assert run.data.params == {
        "stream": "rainbow_digits", "stream.options.tasks": "6", "stream.schedule.name": "sequential",
        "stream.store": "0" * 64, "network": "rainbow", "batch_size": "10", "objective.metric": "cumulative_error",
        "objective.mode": "min",
    }  # fmt: skip
    assert run.data.tags["foml.seeds"] == "0-2,7"
    assert json.loads(run.data.tags["foml.search"]) == {"algorithm": "optuna", "samples": 20}
    assert "best_objective" not in run.data.metrics and run.data.metrics["trials_finished"] == 0
    (data,) = run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("rainbow_digits", "0123456789abcdef0123456789abcdef0123")
    assert json.loads(data.dataset.source) == {"uri": "/stores/rainbow"} and data.dataset.source_type == "local"


def test_names_of_runs_fit_every_database():
    assert run_name("x" * 250) == "x" * 250 and run_name("x" * 251) == "x" * 249 + "…"
    assert run_name("x" * 300, 17) == "x" * 239 + "… · seed 17" and len(run_name("x" * 300, 17)) == 250


def test_artifacts_are_stored_beside_the_database(sweep, tracking_uri, tmp_path):
    synthetic.write_all(sweep, tracking_uri)
    tracked = TrackedRuns(tracking_uri)
    assert tracked.location.startswith((tmp_path / "store" / "mlartifacts").as_uri())
    trial = sweep.plan.trials[0]
    run = tracked.one("configuration", trial.configuration.hash)
    learner = tracked.client.download_artifacts(run.info.run_id, "checkpoint/learner.pt")
    assert Path(learner).read_bytes() == b"learner of " + trial.key.encode()
    frame = pd.read_parquet(tracked.client.download_artifacts(run.info.run_id, "curves.parquet"))
    for seed in trial.seeds:
        points = tracked.points(tracked.one("seed", trial.configuration.hash, seed))
        flat = {(name, step): value for name, steps in points.items() for step, (value, _) in steps.items()}
        mine = frame[frame.seed == seed]
        table = dict(zip(zip(mine.metric, mine.step, strict=True), mine.value, strict=True))
        means = {key for key in flat if key[0] == "diagnostics/distance"}  # MLflow has means, the table every value
        assert {key: flat[key] for key in flat.keys() - means} == {
            key: value for key, value in table.items() if key[0] != "diagnostics/distance"
        }
        assert sum(key[0] == "diagnostics/distance" for key in table) == synthetic.BATCHES - 1
        assert "test_error" not in points, "no configuration may be selected by it"
    held_back = pd.read_parquet(tracked.client.download_artifacts(run.info.run_id, "test_error.parquet"))
    expected = sweep.whole[trial.key].evaluations["test_error"].reshape(-1, len(trial.seeds))
    assert held_back.pivot(index="step", columns="seed", values="value").to_numpy().tolist() == expected.tolist()
    assert set(held_back.metric) == {"test_error"}


def test_mean_curves_of_a_configuration(tmp_path, tracking_uri):
    trial = Trial(synthetic.configuration("online"), (0, 1))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", trial, batches=40)
    curves = sweep.whole[trial.key]
    curves.evaluations["error"][:] = [0.1, 0.3, 0.5, 0.1, 0.2, 0.2, 0.0, 0.4]  # (task, seed): (0, 0), (0, 1), (1, 0), …
    curves.by_batch["online_error"][:] = np.repeat([[0.2, 0.4], [0.6, 0.4]], 20, axis=1)
    synthetic.write_all(sweep, tracking_uri)
    tracked = TrackedRuns(tracking_uri)
    points = tracked.points(tracked.one("configuration"))
    t = 12.706204736  # Student's t at 97.5 % with one degree of freedom; two seeds a, b: half = t · |a − b| / 2
    end = synthetic.START_MS + 2_000

    def values(name):
        return {step: value for step, (value, _) in points[name].items()}

    assert values("validation_error") == pytest.approx({0: 0.2, 1: 0.3, 2: 0.2, 3: 0.2})
    assert values("interval/validation_error_low") == pytest.approx(
        {0: 0.2 - 0.1 * t, 1: 0.3 - 0.2 * t, 2: 0.2, 3: 0.2 - 0.2 * t}
    )
    assert values("interval/validation_error_high") == pytest.approx(
        {0: 0.2 + 0.1 * t, 1: 0.3 + 0.2 * t, 2: 0.2, 3: 0.2 + 0.2 * t}
    )
    # Seed 0: 0.1, 0.3, 0.8/3, 0.2. Seed 1: 0.3, 0.2, 0.2, 0.25.
    assert values("cumulative_error") == pytest.approx({0: 0.2, 1: 0.25, 2: 0.7 / 3, 3: 0.225})
    half = {0: 0.1, 1: 0.05, 2: 0.1 / 3, 3: 0.025}
    means = values("cumulative_error")
    assert values("interval/cumulative_error_high") == pytest.approx(
        {step: means[step] + half[step] * t for step in half}
    )
    assert values("online_error") == pytest.approx(dict.fromkeys(range(40), 0.4))
    first, later = dict.fromkeys(range(20), 0.4 + 0.2 * t), dict.fromkeys(range(20, 40), 0.4)
    assert values("interval/online_error_high") == pytest.approx(first | later)
    assert points["objective"] == {0: (pytest.approx(0.225), end)}
    assert points["interval/objective_low"] == {0: (pytest.approx(0.225 - 0.025 * t), end)}
    assert points["seconds"] == {0: (1.0, end)}
    assert points["adaptation"] == {10 * k: (pytest.approx(0.4), end) for k in range(10)}
    assert points["gradient_evaluations_per_datapoint"] == {0: (3.0, end)}
    assert {step: time for step, (_, time) in points["validation_error"].items()} == {
        0: synthetic.START_MS + 1_000, 1: synthetic.START_MS + 1_000, 2: end, 3: end
    }  # fmt: skip


def test_an_objective_of_another_kind_is_a_metric_of_each_seed(tmp_path, tracking_uri):
    trial = Trial(synthetic.configuration("online"), (0, 1))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", trial, batches=40)
    sweep.whole[trial.key].evaluations["error"][:] = [0.1, 0.3, 0.5, 0.1, 0.2, 0.2, 0.0, 0.4]
    sweep.plan.resolved["objective"] = {"metric": "validation_error", "mode": "min", "last": 2}
    synthetic.write_all(sweep, tracking_uri)
    tracked = TrackedRuns(tracking_uri)
    assert tracked.one("sweep").data.tags["foml.objective"] == "validation_error_last_2"
    by_seed = [tracked.one("seed", trial.configuration.hash, seed).data.metrics["objective"] for seed in (0, 1)]
    assert by_seed == pytest.approx([0.1, 0.3])
    assert tracked.one("configuration").data.metrics["objective"] == pytest.approx(0.2)
    (row,) = compare(sweep := find_sweep("sweep", tracking_uri), curves_of(sweep))
    assert row.values == pytest.approx({0: 0.1, 1: 0.3})


def test_one_seed_has_no_interval(tmp_path, tracking_uri):
    trial = Trial(synthetic.configuration("online"), (4,))
    synthetic.write_all(synthetic.make_sweep(tmp_path / "results", "sweep", trial), tracking_uri)
    run = TrackedRuns(tracking_uri).one("configuration")
    assert set(run.data.metrics) == {
        "validation_error", "cumulative_error", "online_error", "adaptation", "objective", "seconds",
        "gradient_evaluations_per_datapoint",
    }  # fmt: skip


def test_a_diverged_seed_is_marked_and_not_averaged_away(tmp_path, tracking_uri):
    trial = Trial(synthetic.configuration("foml", K=5), (0, 1, 2))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", trial)
    curves = sweep.whole[trial.key]
    curves.diverged[1] = 25
    for curve in curves.by_batch.values():
        curve[1, 25:] = math.nan
    gone = (curves.evaluations["seed"] == 1) & (curves.evaluations["batch"] >= 25)
    curves.evaluations["error"][gone] = math.nan
    curves.by_batch["distance"][2, 7] = math.inf  # a divergence that the learner did not report
    synthetic.write_all(sweep, tracking_uri)
    with closing(sqlite3.connect(tracking_uri.removeprefix("sqlite:///"))) as database:
        assert database.execute("SELECT count(*) FROM metrics WHERE is_nan OR abs(value) > 1e300").fetchone() == (0,)
    tracked = TrackedRuns(tracking_uri)
    runs = [tracked.one("seed", seed=seed) for seed in trial.seeds]
    assert [run.data.tags.get("foml.diverged_at") for run in runs] == [None, "25", "7"]
    assert list(tracked.points(runs[1])["online_error"]) == list(range(25))
    assert list(tracked.points(runs[1])["validation_error"]) == [0, 1]
    assert list(tracked.points(runs[1])["cumulative_error"]) == [0, 1]
    assert 7 not in tracked.points(runs[2])["diagnostics/distance"]
    configuration = tracked.one("configuration")
    assert list(tracked.points(configuration)["validation_error"]) == [0, 1]
    assert list(tracked.points(configuration)["online_error"]) == list(range(25))
    assert "objective" not in configuration.data.metrics, "it would be sorted to the top"
    assert configuration.data.tags["foml.diverged"] == "1 at batch 25, 2 at batch 7"


def test_nothing_stays_running(tmp_path, tracking_uri):
    learners = ("foml", "tfs", "online", "toe", "replay", "lwf")
    trials = [Trial(synthetic.configuration(learner), (0, 1)) for learner in learners]
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", *trials)
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
    tracked = TrackedRuns(tracking_uri)
    statuses = {
        trial.configuration.learner: [
            run.info.status
            for run in tracked.runs
            if run.data.tags.get("foml_internal.configuration") == trial.configuration.hash
        ]
        for trial in trials
    }
    assert statuses == {
        "foml": ["FINISHED"] * 3, "tfs": ["FAILED"] * 3, "online": ["KILLED"] * 3, "toe": ["FAILED"] * 3,
        "replay": [], "lwf": ["KILLED"] * 3,
    }  # fmt: skip
    assert tracked.one("sweep").info.status == "KILLED"
    assert tracked.one("seed", failed.configuration.hash, 1).data.tags["foml.error"] == "out of memory"


def test_an_interrupted_trial_continues_in_the_same_runs(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    sweep.write_chunk(trial, 40)  # the second slice never arrived
    writer.interrupted(trial.key)
    writer.close("KILLED")
    before = {run.info.run_id for run in TrackedRuns(tracking_uri).runs}
    assert max(TrackedRuns(tracking_uri).points(TrackedRuns(tracking_uri).one("seed", seed=0))["online_error"]) == 39
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 40, 60))
    assert writer.drain() == []
    assert TrackedRuns(tracking_uri).statuses() == {"RUNNING": 5}
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    writer.drain()
    writer.close("FINISHED")
    assert {run.info.run_id for run in TrackedRuns(tracking_uri).runs} == before
    assert TrackedRuns(tracking_uri).statuses() == {"FINISHED": 5}
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_complete_runs_are_not_changed(sweep, tracking_uri):
    synthetic.write_all(sweep, tracking_uri)
    before = {run.info.run_id: (run.info.end_time, run.data.metrics) for run in TrackedRuns(tracking_uri).runs}
    writer = writer_of(tracking_uri, sweep)
    for trial in [*sweep.plan.trials, *sweep.plan.trials]:
        writer.finished(trial.key)
    assert writer.drain() == []
    assert [run.info.status for run in TrackedRuns(tracking_uri).of("seed")] == ["FINISHED"] * 6
    parent = writer.close("FINISHED")
    after = {run.info.run_id: (run.info.end_time, run.data.metrics) for run in TrackedRuns(tracking_uri).runs}
    assert before.pop(parent)[0] <= after.pop(parent)[0]
    assert after == before


def test_a_grown_configuration_is_over_all_its_seeds(tmp_path, tracking_uri):
    configuration = synthetic.configuration("foml", K=5)
    first, second = Trial(configuration, (0, 1, 2)), Trial(configuration, (3, 4))
    synthetic.write_all(synthetic.make_sweep(tmp_path / "results", "sweep", first), tracking_uri)
    seeds_before = {run.info.run_id for run in TrackedRuns(tracking_uri).of("seed")}
    grown = synthetic.make_sweep(tmp_path / "results", "sweep", first, second)
    synthetic.write_all(grown, tracking_uri)
    tracked = TrackedRuns(tracking_uri)
    assert tracked.statuses() == {"FINISHED": 1 + 1 + 5}
    run = tracked.one("configuration")
    assert run.data.tags["foml.seeds"] == "0-4"
    assert seeds_before < {run.info.run_id for run in tracked.of("seed")}
    assert {seed.data.tags["mlflow.parentRunId"] for seed in tracked.of("seed")} == {run.info.run_id}
    errors = [grown.whole[trial.key].evaluations["error"].reshape(6, -1) for trial in (first, second)]
    expected = np.concatenate(errors, axis=1).mean(axis=1)
    points = tracked.points(run)
    assert [points["validation_error"][task][0] for task in range(6)] == pytest.approx(expected)
    assert points["seconds"][0][0] == 2 * 1.5
    for trial in (first, second):
        assert_seed_runs_hold(tracking_uri, grown, trial)
    other = tracked.client.download_artifacts(run.info.run_id, f"checkpoint/{second.key}/learner.pt")
    assert Path(other).read_bytes() == b"learner of " + second.key.encode()


def test_the_same_seeds_in_another_stack_are_another_computation(tmp_path, tracking_uri):
    configuration = synthetic.configuration("foml", K=5)
    synthetic.write_all(
        synthetic.make_sweep(tmp_path / "results", "sweep", Trial(configuration, (0, 1, 2))), tracking_uri
    )
    fewer = Trial(configuration, (0, 1))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", fewer)
    synthetic.write_all(sweep, tracking_uri)
    assert len(TrackedRuns(tracking_uri).runs) == 4
    assert_seed_runs_hold(tracking_uri, sweep, fewer)


def failing(curves):
    raise RuntimeError("no value")


def test_a_failed_configuration_keeps_the_objective_of_its_finished_seeds_or_has_that_so_far(tmp_path, tracking_uri):
    half, early = synthetic.configuration("foml", K=1), synthetic.configuration("foml", K=5)
    finished, failed, stopped = Trial(half, (0, 1, 2)), Trial(half, (3, 4)), Trial(early, (0, 1, 2))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", finished, failed, stopped)
    sweep.plan.resolved["objective"] = {"metric": "validation_error", "last": 2, "mode": "min"}
    curves = sweep.whole[stopped.key]
    curves.diverged[1] = 25
    for curve in curves.by_batch.values():
        curve[1, 25:] = math.nan
    writer = writer_of(tracking_uri, sweep)
    sweep.write_chunk(finished)
    sweep.write_chunk(failed, 20)
    sweep.write_chunk(stopped, 40)
    writer.finished(finished.key)
    writer.failed(failed.key, "out of memory")
    writer.stopped(stopped.key, 40)
    assert writer.drain() == []
    writer.close("FAILED")
    errors = {trial.key: sweep.whole[trial.key].evaluations["error"].reshape(6, -1) for trial in sweep.plan.trials}
    first, second = compare(runs := find_sweep("sweep", tracking_uri), curves_of(runs))
    assert first.values == dict(enumerate(pytest.approx(value) for value in errors[finished.key][4:].mean(axis=0)))
    assert first.so_far is None and first.missing_seeds == [3, 4]
    so_far = errors[stopped.key][2:4].mean(axis=0)
    assert second.values == {} and second.so_far.n == 2
    assert second.so_far.mean == pytest.approx(so_far[[0, 2]].mean()) and second.diverged_seeds == [1]
    seeds = TrackedRuns(tracking_uri).of("seed")
    assert {run.data.tags["foml.seed"] for run in seeds if "objective" in run.data.metrics} == {"0", "1", "2"}
    writer = writer_of(tracking_uri, sweep)  # resumed
    for trial in (failed, stopped):
        sweep.write_chunk(trial)
        writer.finished(trial.key)
    assert writer.drain() == []
    writer.close("FINISHED")
    rows = compare(runs := find_sweep("sweep", tracking_uri), curves_of(runs))
    values = {row.configuration.hash: row.values for row in rows}
    assert list(values[half.hash]) == [0, 1, 2, 3, 4] and list(values[early.hash]) == [0, 2]
    assert values[early.hash][0] == pytest.approx(errors[stopped.key][4:, 0].mean())


def test_a_trial_that_failed_for_its_own_objective_is_written(tmp_path, tracking_uri):
    trial = Trial(synthetic.configuration("foml", K=1), (0, 1))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", trial)
    sweep.plan.resolved["objective"] = {"function": f"{__name__}.failing", "mode": "min"}
    writer = writer_of(tracking_uri, sweep)
    sweep.write_chunk(trial)
    writer.failed(trial.key, "objective.function: raised RuntimeError: no value")
    assert writer.drain() == []
    writer.close("FAILED")
    frame = load_curves("sweep", tracking_uri)
    assert "objective" not in set(frame.metric) and len(frame[frame.metric == "online_error"]) == 2 * synthetic.BATCHES


def test_names_may_be_anything(tmp_path, tracking_uri):
    sweep = synthetic.make_sweep(tmp_path / "results", NASTY, Trial(synthetic.configuration("foml", K=5), (0, 1)))
    for _ in range(2):  # the second time finds them
        parent_id = synthetic.write_all(sweep, tracking_uri, NASTY)
    tracked = TrackedRuns(tracking_uri, NASTY)
    assert len(tracked.runs) == 4
    assert tracked.one("sweep").info.run_name == NASTY and tracked.one("sweep").info.run_id == parent_id
    location = Path(tracked.location.removeprefix("file://"))
    assert location.parent == tmp_path / "store" / "mlartifacts" and ".." not in location.name
    run = tracked.one("configuration")
    assert (location / run.info.run_id / "artifacts" / "checkpoint" / "learner.pt").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "store"]
    assert_seed_runs_hold(tracking_uri, sweep, sweep.plan.trials[0], NASTY)


def test_forget_does_not_change_other_sweeps(tmp_path, tracking_uri):
    trial = Trial(synthetic.configuration("foml"), (0,))
    for name in ("one", "one/two", NASTY):
        synthetic.write_all(synthetic.make_sweep(tmp_path / "results", name, trial), tracking_uri)
    tracking.forget(tracking_uri, "experiment", "one")
    tracking.forget(tracking_uri, "experiment", NASTY)
    tracking.forget(tracking_uri, "experiment", "never run")
    assert [run.info.run_name for run in TrackedRuns(tracking_uri).of("sweep")] == ["one/two"]
    assert len(TrackedRuns(tracking_uri).runs) == 3


def test_points_are_written_by_the_thousand(tmp_path, tracking_uri, monkeypatch):
    """A server refuses more than 1,000 metrics per call, and needs 3.6 ms for a call with one."""
    monkeypatch.setattr(requests._Database, "of", lambda client: None)
    sizes, log_batch = [], MlflowClient.log_batch

    def counted(self, run_id, metrics=(), *others, **named):
        sizes.append(len(metrics))
        return log_batch(self, run_id, metrics, *others, **named)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    trial = Trial(synthetic.configuration("foml"), (0,))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", trial, batches=4_000)
    sweep.plan.resolved["tracking"]["points"] = 4_000
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    assert writer.drain() == []
    sizes.clear()
    writer.results(trial.key, sweep.part(trial, 20, 4_000))
    assert writer.drain() == []
    run = TrackedRuns(tracking_uri).one("seed")
    points = sum(map(len, TrackedRuns(tracking_uri).points(run).values()))
    diagnostics = -(-4_000 // synthetic.DIAGNOSTICS_EVERY)
    assert points == 2 * 4_000 + diagnostics + 2 * 400
    new = points - 2 * 20 - 20 // synthetic.DIAGNOSTICS_EVERY - 2 * 2
    assert sizes == [1_000] * (new // 1_000) + [new % 1_000]
    writer.close("FINISHED")


def test_seeds_without_runs(tmp_path, tracking_uri, monkeypatch):
    """The configuration's run has each seed's final values and fate, and its table every point."""
    done, stopped = Trial(synthetic.configuration("online"), (0, 1, 2)), Trial(synthetic.configuration("tfs"), (0, 1))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", done, stopped)
    sweep.plan.resolved["tracking"]["seed_runs"] = False
    curves = sweep.whole[done.key]
    curves.diverged[1] = 25
    for curve in curves.by_batch.values():
        curve[1, 25:] = math.nan
    curves.evaluations["error"][(curves.evaluations["seed"] == 1) & (curves.evaluations["batch"] >= 25)] = math.nan
    calls = []
    for name in ("create_run", "search_runs", "update_run"):
        call = getattr(MlflowClient, name)
        monkeypatch.setattr(
            MlflowClient,
            name,
            lambda *args, _call=call, _name=name, **named: calls.append(_name) or _call(*args, **named),
        )
    writer = writer_of(tracking_uri, sweep)
    assert writer.drain() == []
    calls.clear()
    for part in sweep.slices(done):
        writer.results(done.key, part)
    writer.results(stopped.key, sweep.part(stopped, 0, 20))
    assert writer.drain() == []
    assert calls == [], "nothing of a new configuration is searched, and its run is created by a transaction"
    running = find_sweep("sweep", tracking_uri)
    assert [seed.status for runs in running.configurations for seed in runs.seeds] == ["RUNNING"] * 5
    sweep.write_chunk(done)
    sweep.write_chunk(stopped, 20)
    writer.finished(done.key)
    writer.stopped(stopped.key, 20)
    assert writer.drain() == []
    writer.close("FINISHED")
    tracked = TrackedRuns(tracking_uri)
    assert [run.data.tags["foml.kind"] for run in tracked.runs].count("seed") == 0 and len(tracked.runs) == 3
    first, second = find_sweep("sweep", tracking_uri).configurations
    assert [(seed.seed, seed.status, seed.diverged_at) for seed in first.seeds] == [
        (0, "FINISHED", None), (1, "FINISHED", 25), (2, "FINISHED", None)
    ]  # fmt: skip
    assert [(seed.seed, seed.status, seed.stopped_at) for seed in second.seeds] == [
        (0, "KILLED", 20),
        (1, "KILLED", 20),
    ]
    frame = load_curves("sweep", tracking_uri)
    online = frame[frame.metric == "online_error"].groupby(["learner", "seed"]).size()
    assert online.to_dict() == {("online", 0): 60, ("online", 1): 25, ("online", 2): 60, ("tfs", 0): 20, ("tfs", 1): 20}
    values = pd.read_csv(tracked.client.download_artifacts(first.run_id, "seeds.csv"), index_col="seed")
    assert values.diverged_at.to_dict() == {
        0: pytest.approx(math.nan, nan_ok=True),
        1: 25,
        2: pytest.approx(math.nan, nan_ok=True),
    }
    errors = curves.evaluations["error"].reshape(-1, 3)
    assert values.cumulative_error[0] == pytest.approx(errors[:, 0].mean())
    assert values.online_loss[2] == pytest.approx(curves.by_batch["online_loss"][2].mean())


def scattered(tmp_path):
    """A sweep without runs of seeds, of 60 seeds that are not consecutive; half of them diverged."""
    trial = Trial(synthetic.configuration("online"), tuple(range(0, 120, 2)))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", trial)
    sweep.plan.resolved["tracking"]["seed_runs"] = False
    curves = sweep.whole[trial.key]
    for row in range(1, 60, 2):
        curves.diverged[row] = row
        for curve in curves.by_batch.values():
            curve[row, row:] = math.nan
    return sweep


def resume(sweep, uri):
    """As a resumed sweep does that finds its trials finished."""
    writer = writer_of(uri, sweep)
    for trial in sweep.plan.trials:
        writer.finished(trial.key)
    assert writer.drain() == []
    writer.close("FINISHED")


def test_seeds_and_their_fates_that_no_tag_holds(tmp_path, tracking_uri, monkeypatch):
    monkeypatch.setattr(requests, "TAG_LENGTH", 100)
    sweep = scattered(tmp_path)
    synthetic.write_all(sweep, tracking_uri)
    run = TrackedRuns(tracking_uri).one("configuration")
    assert {"foml.seeds.2", "foml_internal.seed_fates.2"} <= run.data.tags.keys()
    assert max(len(value) for key, value in run.data.tags.items() if key.startswith("foml")) == 100
    (runs,) = find_sweep("sweep", tracking_uri).configurations
    assert runs.complete and runs.planned == tuple(range(0, 120, 2))
    expected = {2 * row: row if row % 2 else None for row in range(60)}
    assert {seed.seed: seed.diverged_at for seed in runs.seeds} == expected
    assert {seed.status for seed in runs.seeds} == {"FINISHED"}
    resume(sweep, tracking_uri)
    after = TrackedRuns(tracking_uri).one("configuration")
    assert (after.info.run_id, after.info.end_time) == (run.info.run_id, run.info.end_time), (
        "complete, not written again"
    )


def test_fates_that_an_earlier_version_cut_off(tmp_path, tracking_uri, monkeypatch, caplog):
    sweep = scattered(tmp_path)
    synthetic.write_all(sweep, tracking_uri)
    client, run = MlflowClient(tracking_uri), TrackedRuns(tracking_uri).one("configuration")
    text = run.data.tags["foml_internal.seed_fates"]
    client.set_tag(run.info.run_id, "foml_internal.seed_fates", text[:500] + "…")
    (row,) = compare(find_sweep("sweep", tracking_uri), load_curves("sweep", tracking_uri))
    excluded = len(row.excluded) - len(row.diverged_seeds)
    assert 0 < excluded < 30 and set(row.values) == set(range(0, 120, 4)), "none that may have diverged"
    (line,) = {record.getMessage() for record in caplog.records}
    assert f"an earlier version cut off how {excluded} of its seeds ended, which are in no mean; python -m " in line
    resume(sweep, tracking_uri)
    assert TrackedRuns(tracking_uri).one("configuration").data.tags["foml_internal.seed_fates"] == text


def test_seeds_that_an_earlier_version_cut_off(tmp_path, tracking_uri):
    sweep = scattered(tmp_path)
    synthetic.write_all(sweep, tracking_uri)
    client, run = MlflowClient(tracking_uri), TrackedRuns(tracking_uri).one("configuration")
    for name in ("foml.seeds", "foml_internal.complete_for"):
        client.set_tag(run.info.run_id, name, run.data.tags[name][:50] + "…")
    with pytest.raises(
        OrchestratorError, match=r"^tracking: foml\.seeds: an earlier version cut off .* --resume sweep "
    ):
        find_sweep("sweep", tracking_uri)
    resume(sweep, tracking_uri)
    (runs,) = find_sweep("sweep", tracking_uri).configurations
    assert runs.complete and runs.planned == tuple(range(0, 120, 2))
