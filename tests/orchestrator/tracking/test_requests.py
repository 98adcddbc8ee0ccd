"""Batches that are written to MLflow's tables are what MLflow's own client would have written."""

import math
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.tracking import requests
from orchestrator.tracking.database import connect, experiment_id, prepare
from orchestrator.tracking.points import Point
from orchestrator.tracking.requests import RunBatches

TABLES = {
    "runs": "name, source_type, source_name, entry_point_name, user_id, status, start_time, end_time, deleted_time, "
    "source_version, lifecycle_stage",
    "metrics": "key, value, timestamp, step, is_nan",
    "latest_metrics": "key, value, timestamp, step, is_nan",
    "params": "key, value",
    "tags": "key, value",
}


def batches_of(uri: str, experiment: str, by_client: bool = False) -> tuple[RunBatches, str]:
    """Batches for a new experiment, and its id."""
    client = connect(uri)
    batches = RunBatches(client)
    assert batches._database is not None, "this version of MLflow has other tables"
    if by_client:
        batches._database = None
    return batches, experiment_id(client, uri, experiment)


def rows_of(uri: str, experiment: str) -> dict[str, list[tuple]]:
    """The rows of each table that belong to runs of an experiment, with names of runs instead of ids."""
    runs = "(SELECT r.run_uuid AS id, r.name AS of_run, r.experiment_id AS e FROM runs r)"
    statement = f"SELECT of_run, {{}} FROM {{}} JOIN {runs} AS t ON id = run_uuid WHERE e = :experiment"
    engine = create_engine(uri)
    with engine.connect() as database:
        rows = {
            table: database.execute(text(statement.format(columns, table)), {"experiment": int(experiment)}).all()
            for table, columns in TABLES.items()
        }
    engine.dispose()
    return {table: sorted(map(tuple, of_table), key=repr) for table, of_table in rows.items()}


def write_two_runs(batches: RunBatches, experiment: str) -> None:
    """New runs, more points, older and newer ones, other tags, another name, the end of one, and one that starts again."""
    a = batches.create(experiment, "a", {"kind": "seed", "mlflow.user": "user"}, 1_000)
    b = batches.create(experiment, "b", {"kind": "seed", "long": "x" * 6_000, "mlflow.runName": "b"}, 2_000)
    batches.set_params(a, {"K": "5", "learner": "foml"})
    batches.send(a, [Point("online_error", step, 1 / (step + 1), 10 + step) for step in range(1_500)])
    batches.send(a, [Point("online_error", 3, 0.25, 13), Point("interval/x_low", 0, math.inf, 1)])  # the first: again
    batches.flush()
    batches.set_params(a, {"K": "5", "seed": "0"})
    batches.tag(a, {"kind": "another", "new": "1", "mlflow.runName": "a · seed 0"})
    batches.send(
        a, [Point("online_error", 7, 0.5, 9_999), Point("online_loss", 2, -1.0, 5), Point("y", 0, math.nan, 1)]
    )
    batches.send(a, [Point("z", 1, 0.5, 7), Point("z", 1, 0.75, 7), Point("z", 0, 9.0, 9)])  # a step twice
    batches.send(b, [Point("z", 0, 2, 7)])
    batches.set_status(a, "FINISHED", 5_000)
    batches.set_status(b, "KILLED", 6_000)
    batches.flush()
    batches.set_status(b, "RUNNING")
    batches.send(a, [Point("online_error", 1_500, 0.125, 20), Point("z", 1, 0.625, 8)])
    batches.send(a, [Point("a name: é/b-c.d", 1, -1.2345678901234567e-300, 2**41)])
    batches.flush()
    batches.flush()


@pytest.mark.parametrize("database", ["tracking_uri", "postgresql_uri"], ids=["SQLite", "PostgreSQL"])
def test_the_tables_hold_what_mlflows_client_writes(database: str, request: pytest.FixtureRequest) -> None:
    """Metrics, latest metrics (with infinity, NaN and equal steps), parameters, tags, names and statuses."""
    tracking_uri = request.getfixturevalue(database)
    prepare(tracking_uri)
    for experiment in ("by client", "by transaction"):
        write_two_runs(*batches_of(tracking_uri, experiment, by_client=experiment == "by client"))
    client = MlflowClient(tracking_uri)
    ids = {name: client.get_experiment_by_name(name).experiment_id for name in ("by client", "by transaction")}
    expected, actual = (rows_of(tracking_uri, ids[name]) for name in ("by client", "by transaction"))
    assert actual == expected
    assert len(actual["metrics"]) == 1_507 + 4 and len(actual["latest_metrics"]) == 7
    (a, b) = sorted(client.search_runs([ids["by transaction"]]), key=lambda run: run.info.run_name)
    assert a.info.run_name == "a · seed 0" and a.info.status == "FINISHED" and a.info.end_time == 5_000
    assert a.data.params == {"K": "5", "learner": "foml", "seed": "0"} and a.data.tags["kind"] == "another"
    assert a.data.metrics["online_error"] == 0.125 and a.data.metrics["z"] == 0.625 and math.isnan(a.data.metrics["y"])
    assert b.info.status == "RUNNING" and b.data.metrics == {"z": 2.0}
    location = client.get_experiment(ids["by transaction"]).artifact_location
    assert a.info.artifact_uri == f"{location}/{a.info.run_id}/artifacts"


def test_a_flush_is_one_transaction_for_all_runs(tracking_uri: str) -> None:
    batches, experiment = batches_of(tracking_uri, "experiment")
    engine, commits = batches._database._store.engine, []  # type: ignore[union-attr]
    event.listen(engine, "commit", commits.append)
    for number in range(20):
        run = batches.create(experiment, f"run {number}", {"kind": "seed"})
        batches.set_params(run, {"K": "5"})
        batches.send(run, [Point(f"metric {name}", step, 0.5, 1) for name in range(8) for step in range(200)])
        batches.set_status(run, "FINISHED")
    reads = len(commits)
    batches.flush()
    assert len(commits) - reads == 2, "one to read the experiment's folder, one that writes"
    assert len(rows_of(tracking_uri, experiment)["metrics"]) == 20 * 8 * 200


def test_a_connection_that_breaks_leaves_nothing_and_a_retry_writes_it_once(
    postgresql_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends the connection before a COPY, as it does when it restarts."""
    prepare(postgresql_uri)
    batches, experiment = batches_of(postgresql_uri, "broken")
    run = batches.create(experiment, "run", {})
    batches.flush()
    insert_points, engine = requests._insert_points, create_engine(postgresql_uri)

    def insert_without_connection(*arguments: Any) -> None:
        with engine.connect() as other:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            other.execute(text(f"{others} AND backend_type = 'client backend'"))
        insert_points(*arguments)

    points = [Point("x", step, 0.5, 1) for step in range(100)]
    batches.send(run, points)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "_insert_points", insert_without_connection)
        with pytest.raises((MlflowException, SQLAlchemyError)):
            batches.flush()
    engine.dispose()
    assert rows_of(postgresql_uri, experiment)["metrics"] == []
    batches.discard()
    batches.send(run, points)
    batches.flush()
    rows = rows_of(postgresql_uri, experiment)
    assert rows["metrics"] == sorted([("run", "x", 0.5, 1, step, False) for step in range(100)], key=repr)
    assert rows["latest_metrics"] == [("run", "x", 0.5, 1, 99, False)]


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda batches, run: batches.send(run, [Point("what?", 0, 0.5, 1)]), "for parameter 'name' supplied"),
        (lambda batches, run: batches.set_params(run, {"K": "6"}), "parameter K is '5' and cannot become '6'"),
        (lambda batches, run: batches._client.delete_run(run), "must be in the 'active' state"),
        (lambda batches, run: batches.send("0" * 32, [Point("x", 0, 0.5, 1)]), "not found"),
    ],
)
def test_what_mlflow_refuses_leaves_nothing(tracking_uri: str, spoil, line: str) -> None:
    batches, experiment = batches_of(tracking_uri, "experiment")
    run = batches.create(experiment, "run", {})
    batches.set_params(run, {"K": "5"})
    batches.flush()
    before = rows_of(tracking_uri, experiment)
    other = batches.create(experiment, "other", {})
    batches.send(other, [Point("x", 0, 0.5, 1)])
    batches.send(run, [Point("x", 0, 0.5, 1)])
    spoil(batches, run)
    with pytest.raises(MlflowException, match=line):
        batches.flush()
    after = rows_of(tracking_uri, experiment)
    assert {table: len(rows) for table, rows in after.items()} == {table: len(rows) for table, rows in before.items()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_COLUMNS", requests._COLUMNS | {"SqlMetric": requests._COLUMNS["SqlMetric"] | {"unknown"}}),
        ("_COLUMNS", requests._COLUMNS | {"SqlUnknown": {"key"}}),
        ("_STORE", (*requests._STORE, "_unknown")),
        ("_CHECKS", (*requests._CHECKS, "_validate_unknown")),
    ],
    ids=["columns", "table", "store", "checks"],
)
def test_another_version_of_mlflow_is_written_by_its_client(
    tracking_uri: str, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    assert RunBatches(connect(tracking_uri))._database is not None
    monkeypatch.setattr(requests, name, value)
    batches = RunBatches(connect(tracking_uri))
    assert batches._database is None
    run = batches.create("0", "run", {})
    batches.send(run, [Point("x", 0, 0.5, 1)])
    batches.flush()
    assert MlflowClient(tracking_uri).get_run(run).data.metrics == {"x": 0.5}
