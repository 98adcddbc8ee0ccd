"""`load_curves` returns the curves that were written."""

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from orchestrator.plan.plan import Trial
from orchestrator.protocol import metrics
from orchestrator.tracking import reader, requests
from orchestrator.tracking.reader import SweepNotFound, load_curves
from orchestrator.tracking.writer import TrackingError, Writer, prepare
from tests.orchestrator import synthetic_sweep as synthetic
from tests.orchestrator.protocol_sweep import empty, flip, garble, halve, spoil_a_value

NASTY = "Größe 'a' \"b\" ../../d $x"


def expected_points(sweep, stop=None):
    """(configuration, seed, metric, step) → value, straight from the curves."""
    out = {}
    for trial in sweep.plan.trials:
        curves = sweep.whole[trial.key]
        error = metrics.held_out(curves)
        by_batch = {"diagnostics/distance" if name == "distance" else name: c for name, c in curves.by_batch.items()}
        by_name = {**by_batch, "validation_error": error, "cumulative_error": metrics.cumulative(error)}
        within = curves.by_batch["online_error"].reshape(len(trial.seeds), -1, synthetic.BATCHES_PER_TASK).mean(axis=1)
        for name, curve in by_name.items():
            for row, seed in enumerate(trial.seeds):
                for step, value in enumerate(curve[row]):
                    if np.isfinite(value):
                        out[trial.configuration.hash, seed, name, step] = value
        for row, seed in enumerate(trial.seeds):
            for batch, value in enumerate(within[row]):
                out[trial.configuration.hash, seed, "adaptation", batch * synthetic.BATCH_SIZE] = pytest.approx(value)
            out[trial.configuration.hash, seed, "seconds", 0] = curves.chunks["seconds"].sum()
            out[trial.configuration.hash, seed, "gradient_evaluations_per_datapoint", 0] = 3.0
    return out


def in_histories(points):
    """The points that MLflow has as metrics: of the diagnostic, the mean of every n batches at the last of them."""
    every, blocks = synthetic.DIAGNOSTICS_EVERY, {}
    for (configuration, seed, name, step), value in points.items():
        if name == "diagnostics/distance":
            end = min((step // every + 1) * every, synthetic.BATCHES) - 1
            blocks.setdefault((configuration, seed, name, end), []).append(value)
    means = {key: pytest.approx(np.mean(values)) for key, values in blocks.items()}
    return {key: value for key, value in points.items() if key[2] != "diagnostics/distance"} | means


def as_points(frame):
    keys = zip(frame.configuration, frame.seed, frame.metric, frame.step, strict=True)
    points = dict(zip(keys, frame.value, strict=True))
    assert len(points) == len(frame), "a point twice"
    return points


@pytest.fixture
def sweep(tmp_path):
    trials = [
        Trial(synthetic.configuration("foml", K=5, meta_gradient="exact"), (0, 1, 2)),
        Trial(synthetic.configuration("foml", K=1, meta_gradient="exact"), (0, 1, 2)),
        Trial(synthetic.configuration("online"), (0, 1, 2)),
    ]
    return synthetic.make_sweep(tmp_path / "results", NASTY, *trials)


def test_every_value_and_the_options_that_vary(sweep, tracking_uri):
    synthetic.write_all(sweep, tracking_uri)
    frame = load_curves(NASTY, tracking_uri)
    assert as_points(frame) == expected_points(sweep)
    assert list(frame.columns) == ["configuration", "label", "learner", "seed", "metric", "step", "value", "K"]
    shown = frame[["label", "learner", "K"]].drop_duplicates().fillna(-1).to_numpy().tolist()
    assert shown == [
        ["foml K=5 meta_gradient=exact", "foml", 5],
        ["foml K=1 meta_gradient=exact", "foml", 1],
        ["online", "online", -1],
    ]
    assert frame.seed.dtype == "int64" and frame.value.dtype == "float64" and frame.step.dtype == "int64"


def test_lists_and_mappings_that_vary_are_json(tmp_path, tracking_uri):
    sizes = ([64, 64], [32], {"first": 8})
    trials = [Trial(synthetic.configuration("foml", sizes=value), (0, 1)) for value in sizes]
    trials.append(Trial(synthetic.configuration("online"), (0, 1)))
    synthetic.write_all(synthetic.make_sweep(tmp_path / "results", NASTY, *trials), tracking_uri)
    frame = load_curves(NASTY, tracking_uri)
    shown = frame[["learner", "sizes"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(shown) == [("foml", "[64, 64]"), ("foml", "[32]"), ("foml", '{"first": 8}'), ("online", None)]


def test_histories_and_tables_agree(sweep, tracking_uri, tmp_path):
    synthetic.write_all(sweep, tracking_uri)
    from_tables = load_curves(NASTY, tracking_uri)
    for table in (tmp_path / "store").rglob("curves.parquet"):
        table.unlink()
    from_histories = load_curves(NASTY, tracking_uri)
    assert as_points(from_tables) == expected_points(sweep)
    assert as_points(from_histories) == in_histories(expected_points(sweep))


@pytest.mark.parametrize("damage", [halve, empty, garble, flip])
def test_damaged_tables_are_never_read(sweep, tracking_uri, tmp_path, caplog, damage):
    synthetic.write_all(sweep, tracking_uri)
    for name in ("curves.parquet", "test_error.parquet"):
        damage(sorted((tmp_path / "store").rglob(name))[0])
    points, expected = as_points(load_curves(NASTY, tracking_uri)), expected_points(sweep)
    (thin,) = {trial.configuration.hash for trial in sweep.plan.trials} - {
        key[0] for key in expected.keys() & points.keys() if key[2:] == ("diagnostics/distance", 2)
    }  # its curves are read from the histories
    whole = {key: value for key, value in expected.items() if key[0] != thin}
    assert points == whole | {key: value for key, value in in_histories(expected).items() if key[0] == thin}
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("curves.parquet of ") and "): damaged (" in line
    assert reader.test_errors_of(reader.find_sweep(NASTY, tracking_uri))["configuration"].nunique() == 2
    line = caplog.records[1].getMessage()
    assert line.startswith("test_error.parquet of ") and "): damaged (" in line
    assert "; its test errors are left out; python -m orchestrator.sweep --resume " in line


def runs_of(sweep):
    ids = [each.run_id for each in sweep.configurations]
    return {run_id: sweep.client.get_run(run_id).to_dictionary() for run_id in ids}


@pytest.mark.parametrize("name", ["curves.parquet", "test_error.parquet"])
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_table_is_written_again_when_the_sweep_is_resumed(sweep, tracking_uri, tmp_path, caplog, name, damage):
    """It is made from the chunk files, and nothing else that is complete changes."""
    parent = synthetic.write_all(sweep, tracking_uri)
    before_damage = reader.find_sweep(NASTY, tracking_uri)
    before = as_points(load_curves(NASTY, tracking_uri)), reader.test_errors_of(before_damage)
    spoilt = sorted((tmp_path / "store").rglob(name))[0]
    damage(spoilt)
    assert (reader.test_errors_of(before_damage)["configuration"].nunique() == 2) == (name == "test_error.parquet")
    caplog.clear()
    runs = {
        configuration.run_id: before_damage.client.get_run(configuration.run_id).to_dictionary()
        for configuration in before_damage.configurations
    }
    writer = Writer(
        tracking_uri, "experiment", sweep.plan, sweep.root, {"foml.git_commit": "later"}, synthetic.START_MS
    )
    writer.start()
    for trial in sweep.plan.trials:
        writer.finished(trial.key)
    assert writer.drain() == []
    assert writer.close("FINISHED") == parent
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"{name} of ") and line.endswith("; written again from the chunk files")
    assert f"(run {spoilt.parent.parent.name}): " in line
    caplog.clear()
    again = reader.find_sweep(NASTY, tracking_uri)
    assert as_points(load_curves(NASTY, tracking_uri)) == before[0]
    assert reader.test_errors_of(again).equals(before[1])
    assert {
        configuration.run_id: before_damage.client.get_run(configuration.run_id).to_dictionary()
        for configuration in again.configurations
    } == runs
    assert not caplog.records


@pytest.mark.parametrize("damage", [halve, garble, spoil_a_value])
def test_a_damaged_database_is_one_line(sweep, tracking_uri, damage):
    synthetic.write_all(sweep, tracking_uri)
    damage(Path(tracking_uri.removeprefix("sqlite:///")))
    for ask in (prepare, lambda uri: load_curves(NASTY, uri)):
        with pytest.raises(
            TrackingError, match=r"the file is damaged, or not a database: .*; move mlflow.db away"
        ) as caught:
            ask(tracking_uri)
        assert len(caught.value.faults) == 1 and "\n" not in str(caught.value)


def test_a_running_sweep(sweep, tracking_uri):
    first, second, _ = sweep.plan.trials
    writer = Writer(tracking_uri, "experiment", sweep.plan, sweep.root, {}, synthetic.START_MS)
    writer.start()
    assert writer.drain() == []
    assert load_curves(NASTY, tracking_uri).empty
    writer.results(first.key, sweep.part(first, 0, 20))
    writer.results(second.key, sweep.part(second, 0, 40))
    assert writer.drain() == []
    expected = {
        key: value
        for key, value in in_histories(expected_points(sweep)).items()
        for learned in [{first.configuration.hash: 20, second.configuration.hash: 40}.get(key[0], 0)]
        if key[2] not in ("adaptation", "seconds", "gradient_evaluations_per_datapoint")  # at the end only
        and key[3] < (learned // 10 if key[2] in ("validation_error", "cumulative_error") else learned)
    }
    assert as_points(load_curves(NASTY, tracking_uri)) == expected
    # Once a trial has ended, whatever the end, its configuration has a table of every value.
    first_trial, other = sweep.plan.trials[:2]
    sweep.write_chunk(first_trial, 20)
    writer.interrupted(first_trial.key)
    assert writer.drain() == []
    points = as_points(load_curves(NASTY, tracking_uri))
    assert (
        sum(key[0] == first_trial.configuration.hash and key[2] == "diagnostics/distance" for key in points) == 3 * 19
    )
    assert points.items() >= {k: v for k, v in expected.items() if k[0] == other.configuration.hash}.items()
    # It runs again: until its next end, MLflow's points are the newest.
    writer.results(first_trial.key, sweep.part(first_trial, 20, 40))
    assert writer.drain() == []
    points = as_points(load_curves(NASTY, tracking_uri))
    assert sum(key[0] == first_trial.configuration.hash and key[2] == "diagnostics/distance" for key in points) == 3 * 5
    writer.close("KILLED")


def removed(uri):
    return {
        configuration.label: configuration.removed for configuration in reader.find_sweep("sweep", uri).configurations
    }


def test_a_configuration_is_marked_as_removed_until_the_sweep_contains_it_again(tmp_path, tracking_uri):
    online, tfs = Trial(synthetic.configuration("online"), (0, 1)), Trial(synthetic.configuration("tfs"), (0, 1))
    synthetic.write_all(synthetic.make_sweep(tmp_path / "results", "sweep", online, tfs), tracking_uri)
    assert removed(tracking_uri) == {"online": False, "tfs": False}
    toe = Trial(synthetic.configuration("toe"), (0, 1))
    synthetic.write_all(synthetic.make_sweep(tmp_path / "results", "sweep", tfs, toe), tracking_uri)
    assert removed(tracking_uri) == {"online": True, "tfs": False, "toe": False}
    assert set(load_curves("sweep", tracking_uri).label) == {"online", "tfs", "toe"}
    back = synthetic.make_sweep(tmp_path / "results", "sweep", online)
    writer = Writer(tracking_uri, "experiment", back.plan, back.root, {}, synthetic.START_MS)
    writer.start()
    writer.drain()
    assert removed(tracking_uri) == {"online": False, "tfs": True, "toe": True}
    back.plan.add(toe)  # a search draws it again, and its chunk files are complete
    writer.finished(toe.key)
    writer.drain()
    assert removed(tracking_uri) == {"online": False, "tfs": True, "toe": False}
    more = Trial(tfs.configuration, (2,))  # and this one with a new seed
    back.whole[more.key] = synthetic.curves_of(more)
    back.plan.add(tfs)
    back.plan.add(more)
    writer.finished(tfs.key)
    writer.results(more.key, back.part(more, 0, 20))
    assert writer.drain() == []
    assert removed(tracking_uri) == {"online": False, "tfs": False, "toe": False}
    writer.close("FINISHED")


def rename_as_before(tracking_uri: str) -> None:
    """Give every run of a database the names that earlier versions wrote."""
    path = tracking_uri.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as database, database:
        for table in ("tags", "metrics", "latest_metrics"):
            for folder, name in (("foml_internal.", "foml."), ("diagnostics/", ""), ("interval/", "")):
                change = f"UPDATE {table} SET key = replace(key, '{folder}', '{name}')"
                database.execute(f"{change} WHERE key LIKE '{folder.replace('_', '!_')}%' ESCAPE '!'")
        for file in Path(path).parent.rglob("curves.parquet"):
            frame = pd.read_parquet(file)
            frame["metric"] = frame.metric.str.removeprefix("diagnostics/")
            frame.to_parquet(file, index=False)
            digest, run_id = hashlib.sha256(file.read_bytes()).hexdigest(), file.parent.parent.name
            change = "UPDATE tags SET value = ? WHERE key = 'foml.sha256.curves.parquet' AND run_uuid = ?"
            assert database.execute(change, (digest, run_id)).rowcount == 1


def test_runs_of_an_earlier_version_are_read_and_resumed(sweep, tracking_uri):
    *complete, started = sweep.plan.trials
    writer = Writer(tracking_uri, "experiment", sweep.plan, sweep.root, {}, synthetic.START_MS)
    writer.start()
    for trial in complete:
        sweep.write_chunk(trial)
        writer.finished(trial.key)
    writer.results(started.key, sweep.part(started, 0, 20))
    sweep.write_chunk(started, 20)
    writer.interrupted(started.key)
    parent = writer.close("KILLED")
    before, table = reader.find_sweep(NASTY, tracking_uri), as_points(load_curves(NASTY, tracking_uri))
    rename_as_before(tracking_uri)
    runs = reader.find_sweep(NASTY, tracking_uri)
    assert [(each.hash, each.complete, each.digests.keys()) for each in runs.configurations] == [
        (each.hash, each.complete, each.digests.keys()) for each in before.configurations
    ]
    assert as_points(load_curves(NASTY, tracking_uri)) == table
    assert {
        runs.client.get_run(each.run_id).data.tags.get("foml_internal.run_key") for each in runs.configurations
    } == {None}
    kept = {each.run_id: runs.client.get_run(each.run_id).data.metrics for each in runs.configurations if each.complete}
    writer = Writer(tracking_uri, "experiment", sweep.plan, sweep.root, {}, synthetic.START_MS)
    writer.start()
    for trial in sweep.plan.trials:
        sweep.write_chunk(trial)
        writer.finished(trial.key)
    assert writer.drain() == []
    assert writer.close("FINISHED") == parent
    resumed = reader.find_sweep(NASTY, tracking_uri)
    assert [(each.run_id, each.complete) for each in resumed.configurations] == [
        (each.run_id, True) for each in before.configurations
    ]
    assert {run_id: runs.client.get_run(run_id).data.metrics for run_id in kept} == kept  # written once
    assert as_points(load_curves(NASTY, tracking_uri)) == expected_points(sweep)
    # MLflow's points of the run that an earlier version began have the diagnostic under both names.
    seed = resumed.configurations[-1].seeds[0]
    assert {"distance", "diagnostics/distance"} <= set(seed.metrics)
    curves = reader.curves_of_run(resumed.client, seed.run_id, seed.metrics)
    assert "distance" not in curves and len(curves["diagnostics/distance"]) == -(-synthetic.BATCHES // 7)


def test_a_grown_sweep_has_the_labels_and_the_order_of_its_plan(tmp_path, tracking_uri):
    single = Trial(synthetic.configuration("foml", K=1), (0, 1))
    single = replace(single, configuration=replace(single.configuration, label="foml"))
    first = synthetic.make_sweep(tmp_path / "results", "sweep", Trial(synthetic.configuration("tfs"), (0, 1)), single)
    synthetic.write_all(first, tracking_uri)
    assert [runs.label for runs in reader.find_sweep("sweep", tracking_uri).configurations] == ["tfs", "foml"]
    foml = [Trial(synthetic.configuration("foml", K=K), (0, 1)) for K in (5, 1)]
    assert foml[1].key == single.key
    online = Trial(synthetic.configuration("online"), (0, 1))
    grown = synthetic.make_sweep(tmp_path / "results", "sweep", online, *foml)
    writer = Writer(tracking_uri, "experiment", grown.plan, grown.root, {}, synthetic.START_MS)
    writer.start()
    for trial in (foml[0], online):  # in another order than the plan's
        grown.write_chunk(trial)
        writer.finished(trial.key)
    writer.finished(single.key)
    assert writer.drain() == []
    writer.close("FINISHED")
    runs = reader.find_sweep("sweep", tracking_uri)
    assert [each.label for each in runs.configurations] == ["online", "foml K=5", "foml K=1", "tfs"]
    kept = runs.configurations[2]
    assert runs.client.get_run(kept.run_id).info.run_name == "foml K=1"
    assert {runs.client.get_run(seed.run_id).data.tags["foml.label"] for seed in kept.seeds} == {"foml K=1"}
    names = [runs.client.get_run(seed.run_id).info.run_name for seed in kept.seeds]
    assert names == ["foml K=1 · seed 0", "foml K=1 · seed 1"]
    assert set(load_curves("sweep", tracking_uri).label) == {"online", "foml K=5", "foml K=1", "tfs"}


def test_the_newest_of_two_experiments_or_the_named_one(sweep, tmp_path, tracking_uri):
    synthetic.write_all(sweep, tracking_uri, "old")
    newer = synthetic.make_sweep(tmp_path / "newer", NASTY, Trial(synthetic.configuration("tfs"), (0,)))
    writer = Writer(tracking_uri, "new", newer.plan, newer.root, {}, synthetic.START_MS + 1)
    writer.start()
    writer.close("FINISHED")
    assert load_curves(NASTY, tracking_uri).empty
    assert as_points(load_curves(NASTY, tracking_uri, "old")) == expected_points(sweep)
    assert reader.find_sweep(None, tracking_uri).run_id != reader.find_sweep(None, tracking_uri, "old").run_id


def test_an_option_named_like_a_column(tmp_path, tracking_uri):
    trials = [Trial(synthetic.configuration("foml", step=step), (0,)) for step in (1, 2)]
    synthetic.write_all(synthetic.make_sweep(tmp_path / "results", "sweep", *trials), tracking_uri)
    frame = load_curves("sweep", tracking_uri)
    assert list(frame.columns)[-1] == "step (option)" and set(frame["step (option)"]) == {1, 2}
    assert set(frame.step[frame.metric == "online_error"]) == set(range(60))


def test_an_unknown_name_lists_the_existing_ones(sweep, tracking_uri):
    with pytest.raises(SweepNotFound) as caught:
        load_curves("mine", tracking_uri)
    assert str(caught.value) == f"sweep: there is none in {tracking_uri}; run one: python -m orchestrator.sweep"
    synthetic.write_all(sweep, tracking_uri)
    with pytest.raises(SweepNotFound) as caught:
        load_curves("mine", tracking_uri)
    assert str(caught.value) == f"sweep: {tracking_uri} has none of this name (got mine); there are: {NASTY}"
    with pytest.raises(SweepNotFound):
        load_curves(NASTY, tracking_uri, "no such experiment")
    assert caught.value.exit_code == 2


def test_reading_creates_no_database(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(TrackingError) as caught:
        load_curves("sweep", uri)
    assert str(caught.value) == (
        f"tracking.uri: there is no database {tmp_path}/mlflow.db (got {uri}); "
        "give the URI that the sweep was run with (--tracking-uri)"
    )
    assert list(tmp_path.iterdir()) == []


def test_other_runs_in_the_experiment_are_ignored(sweep, tracking_uri):
    synthetic.write_all(sweep, tracking_uri)
    client = MlflowClient(tracking_uri)
    client.create_run(client.get_experiment_by_name("experiment").experiment_id, run_name=NASTY)
    assert as_points(load_curves(NASTY, tracking_uri)) == expected_points(sweep)


def test_runs_created_while_runs_are_listed(sweep, tracking_uri, monkeypatch):
    """The newest come first: each new one moves the last run of a page to the next page."""
    synthetic.write_all(sweep, tracking_uri)
    monkeypatch.setattr(requests, "RUNS_PER_CALL", 2)
    client = MlflowClient(tracking_uri)
    experiment = client.get_experiment_by_name("experiment").experiment_id
    expected = sorted(run.info.run_id for run in client.search_runs([experiment]))
    listed = []
    for run in requests.search(client, [experiment], ""):
        listed.append(run.info.run_id)
        if len(listed) % 2:
            client.create_run(experiment)
    assert sorted(listed) == expected
