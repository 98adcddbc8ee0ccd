"""Writes to runs of MLflow in batches, and searches in pages: the limits and the cost of MLflow's calls."""

from __future__ import annotations

import io
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from orchestrator.tracking.names import earlier_tags
from orchestrator.tracking.points import Point

ENTITIES_PER_CALL = 1_000
"""MLflow's limit for points, parameters and tags together."""
ENTRIES_PER_CALL = 100
"""MLflow's limit for parameters, and for tags."""
RUNS_PER_CALL = 1_000
RUNS_PER_TRANSACTION = 100
TAG_LENGTH, PARAM_LENGTH = 5_000, 6_000
CUT = "…"
"""The end of a tag's value that is cut off."""
_RUN_NAME, _USER = "mlflow.runName", "mlflow.user"
_POINT_COLUMNS = ("run_uuid", "key", "step", "timestamp", "value", "is_nan")
_QUOTE = '"'
_PointRow = tuple[str, str, int, int, float, bool]
"""A row with `_POINT_COLUMNS`."""
_COLUMNS = {
    "SqlRun": {
        *("run_uuid", "name", "source_type", "source_name", "entry_point_name", "user_id", "status", "start_time"),
        *("end_time", "deleted_time", "source_version", "lifecycle_stage", "artifact_uri", "experiment_id"),
    },
    "SqlMetric": {*_POINT_COLUMNS},
    "SqlLatestMetric": {*_POINT_COLUMNS},
    "SqlParam": {"run_uuid", "key", "value"},
    "SqlTag": {"run_uuid", "key", "value"},
}
"""MLflow's class of a table → the columns that `_Database` writes."""
_STORE = ("ManagedSessionMaker", "ARTIFACTS_FOLDER_NAME", "sanitize_metric_value", "_check_run_is_active", "_get_run")
_CHECKS = ("_validate_metric", "_validate_param", "_validate_tag")
"""What `_Database` needs of MLflow's store, and of `mlflow.utils.validation`; not all of it is public."""


@dataclass(frozen=True)
class _NewRun:
    """A run that is still to be created."""

    experiment: str
    name: str
    start_ms: int


@dataclass
class _Unsent:
    """What is still to be written to one run."""

    created: _NewRun | None = None
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    status: str = ""
    end_ms: int | None = None


class RunBatches:
    """Collects new runs and points, parameters, tags and statuses of runs, and writes them together.

    They are written by `flush`: to a server in a few calls for each run, since a call costs as much as eighty points;
    to a database in one transaction for all runs. Not thread-safe.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._database = _Database.of(client)
        self._unsent: defaultdict[str, _Unsent] = defaultdict(_Unsent)
        self._untouched: set[str] = set()  # runs that this process created and that have no point yet
        self._running: set[str] = set()

    def create(self, experiment: str, name: str, tags: Mapping[str, str], start_ms: int | None = None) -> str:
        """Create a run with the status RUNNING, in a database with the next `flush`. Returns its id."""
        tags, start_ms = cut(tags), start_ms or time.time_ns() // 1_000_000
        if self._database is None:
            run = self._client.create_run(experiment, start_time=start_ms, run_name=name, tags=tags)
            run_id = str(run.info.run_id)
        else:
            run_id = uuid.uuid4().hex
            self._unsent[run_id] = _Unsent(_NewRun(experiment, name, start_ms), tags=tags)
        self._untouched.add(run_id)
        self._running.add(run_id)
        return run_id

    def send(self, run_id: str, points: Iterable[Point], has: Collection[tuple[str, int]] = ()) -> None:
        """Add points to a run, without those that it `has`."""
        self._unsent[run_id].points += [p for p in points if not has or (p.metric, p.step) not in has]

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        self._unsent[run_id].tags |= cut(tags)

    def set_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Set parameters of a run; MLflow refuses another value of an existing one."""
        self._unsent[run_id].params |= {key: value[:PARAM_LENGTH] for key, value in params.items()}

    def set_status(self, run_id: str, status: str, end_ms: int | None = None) -> None:
        """Set the status of a run, after everything else of it: RUNNING, FINISHED, FAILED or KILLED."""
        unsent = self._unsent[run_id]
        unsent.status = status
        if status == "RUNNING":
            self._running.add(run_id)
        else:
            self._running.discard(run_id)
            unsent.end_ms = end_ms or time.time_ns() // 1_000_000

    def flush(self) -> None:
        """Write everything that was collected."""
        self._flush(list(self._unsent))

    def _write_new(self, run_id: str) -> None:
        """Write a run that does not exist in the database yet."""
        if run_id in self._unsent and self._unsent[run_id].created is not None:
            self._flush([run_id])

    def discard(self) -> None:
        """After a failure, drop what was collected and everything that is assumed about MLflow's content."""
        for cache in (self._unsent, self._untouched, self._running):
            cache.clear()

    def _flush(self, run_ids: Sequence[str]) -> None:
        """Write what was collected for these runs."""
        for first in range(0, len(run_ids), RUNS_PER_TRANSACTION):
            chosen = run_ids[first : first + RUNS_PER_TRANSACTION]
            batch = {run_id: self._unsent.pop(run_id) for run_id in chosen if run_id in self._unsent}
            self._untouched -= {run_id for run_id, unsent in batch.items() if unsent.points}
            if self._database is not None:
                self._database.write(batch)
                continue
            for run_id, unsent in batch.items():
                write(self._client, run_id, unsent.points, unsent.params, unsent.tags)
                if unsent.status == "RUNNING":
                    self._client.update_run(run_id, status="RUNNING")
                elif unsent.status:
                    self._client.set_terminated(run_id, unsent.status, unsent.end_ms)


class _Database:
    """Writes to the tables of MLflow's store with one statement for all rows of a table.

    The store itself creates an object of SQLAlchemy for each point, and needs several transactions for each run. Rows,
    checks and rules (which point is a metric's latest) are those of `SqlAlchemyStore.log_batch`.
    """

    def __init__(self, store: Any, tables: Mapping[str, Any]) -> None:
        self._store = store
        self._runs, self._points, self._latest = tables["SqlRun"], tables["SqlMetric"], tables["SqlLatestMetric"]
        self._params, self._tags = tables["SqlParam"], tables["SqlTag"]
        self._checked: set[str] = set()  # names of metrics
        self._artifacts: dict[str, str] = {}  # experiment → the folder of its artifacts

    @classmethod
    def of(cls, client: Any) -> _Database | None:
        """The database of this client; None for a server, and for a version of MLflow with other internals."""
        from mlflow.store.tracking.dbmodels import models
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
        from mlflow.utils import validation

        store = client._tracking_client.store
        if type(store) is not SqlAlchemyStore or not all(hasattr(validation, name) for name in _CHECKS):
            return None
        tables: dict[str, Any] = {name: getattr(getattr(models, name, None), "__table__", None) for name in _COLUMNS}
        same = all(
            tables[name] is not None and {column.name for column in tables[name].columns} == columns
            for name, columns in _COLUMNS.items()
        )
        return cls(store, tables) if same and all(hasattr(store, name) for name in _STORE) else None

    def write(self, batch: Mapping[str, _Unsent]) -> None:
        """Write what was collected for each of these runs, in one transaction.

        Raises:
            MlflowException: nothing was written: MLflow refuses a name, a run is deleted, or the database fails.
        """
        new = {run_id: unsent.created for run_id, unsent in batch.items() if unsent.created is not None}
        old = [run_id for run_id in batch if run_id not in new]
        runs = [self._row_of_run(run_id, created, batch[run_id].tags) for run_id, created in new.items()]
        points = self._rows_of_points(batch)
        with self._store.ManagedSessionMaker(read_only=False) as session:
            if old:
                self._check_active(session, old)
            _insert(session, self._runs, runs)
            self._write_tags(session, batch, old)
            self._write_params(session, batch, old)
            _insert_points(session, self._points, points)
            self._write_latest(session, points, old)
            named = {run_id: batch[run_id].tags[_RUN_NAME] for run_id in old if _RUN_NAME in batch[run_id].tags}
            _update(session, self._runs, {(run_id,): {"name": name} for run_id, name in named.items()})
            running = {run_id: unsent for run_id, unsent in batch.items() if unsent.status == "RUNNING"}
            ended = {run_id: unsent for run_id, unsent in batch.items() if unsent.status and run_id not in running}
            _update(session, self._runs, {(run_id,): {"status": "RUNNING"} for run_id in running})
            ends = {(run_id,): {"status": each.status, "end_time": each.end_ms} for run_id, each in ended.items()}
            _update(session, self._runs, ends)

    def _row_of_run(self, run_id: str, new: _NewRun, tags: Mapping[str, str]) -> dict[str, Any]:
        from mlflow.utils.uri import append_to_uri_path

        if new.experiment not in self._artifacts:
            self._artifacts[new.experiment] = self._store.get_experiment(new.experiment).artifact_location
        artifacts = append_to_uri_path(self._artifacts[new.experiment], run_id, self._store.ARTIFACTS_FOLDER_NAME)
        return {
            "run_uuid": run_id,
            "name": new.name,
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "user_id": tags.get(_USER, "unknown"),
            "status": "RUNNING",
            "start_time": new.start_ms,
            "end_time": None,
            "deleted_time": None,
            "source_version": "",
            "lifecycle_stage": "active",
            "artifact_uri": artifacts,
            "experiment_id": int(new.experiment),
        }

    def _rows_of_points(self, batch: Mapping[str, _Unsent]) -> list[_PointRow]:
        from mlflow.utils.validation import _validate_metric

        rows = []
        for run_id, unsent in batch.items():
            for name, step, value, time_ms in dict.fromkeys(unsent.points):
                if name not in self._checked:
                    _validate_metric(name, value, time_ms, step)
                    self._checked.add(name)
                is_nan = False
                if not math.isfinite(value):
                    is_nan, value = self._store.sanitize_metric_value(value)
                rows.append((run_id, name, step, time_ms, value, is_nan))
        return rows

    def _check_active(self, session: Any, run_ids: Sequence[str]) -> None:
        runs = self._runs.c
        stages = dict(_rows(session, (runs.run_uuid, runs.lifecycle_stage), runs.run_uuid.in_(run_ids)))
        for run_id in run_ids:
            if stages.get(run_id) != "active":
                self._store._check_run_is_active(self._store._get_run(session, run_id))  # raises MLflow's error

    def _write_params(self, session: Any, batch: Mapping[str, _Unsent], old: Sequence[str]) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.utils.validation import _validate_param

        params, old = self._params.c, [run_id for run_id in old if batch[run_id].params]
        existing = {
            (run_id, key): value
            for run_id, key, value in _rows(
                session, (params.run_uuid, params.key, params.value), params.run_uuid.in_(old), bool(old)
            )
        }
        rows = []
        for run_id, unsent in batch.items():
            for key, text in unsent.params.items():
                value = _validate_param(key, text).value
                if existing.get((run_id, key), value) != value:
                    earlier = existing[run_id, key]
                    raise MlflowException(f"run {run_id}: parameter {key} is {earlier!r} and cannot become {value!r}")
                if (run_id, key) not in existing:
                    rows.append({"run_uuid": run_id, "key": key, "value": value})
        _insert(session, self._params, rows)

    def _write_tags(self, session: Any, batch: Mapping[str, _Unsent], old: Sequence[str]) -> None:
        from mlflow.utils.validation import _validate_tag

        tags, old = self._tags.c, [run_id for run_id in old if batch[run_id].tags]
        existing = set(map(tuple, _rows(session, (tags.run_uuid, tags.key), tags.run_uuid.in_(old), bool(old))))
        rows, changed = [], {}
        for run_id, unsent in batch.items():
            named = {} if unsent.created is None else {_RUN_NAME: unsent.created.name}
            for key, text in {**unsent.tags, **named}.items():
                value = _validate_tag(key, text).value
                if (run_id, key) in existing:
                    changed[run_id, key] = {"value": value}
                else:
                    rows.append({"run_uuid": run_id, "key": key, "value": value})
        _insert(session, self._tags, rows)
        _update(session, self._tags, changed)

    def _write_latest(self, session: Any, points: Sequence[_PointRow], old: Sequence[str]) -> None:
        """Set each metric's latest point, which is the greatest by step, time and value.

        The rows of a run that has some are deleted and inserted again: PostgreSQL would get a message for each update.
        """
        table = self._latest.c
        old = sorted({row[0] for row in points}.intersection(old))
        existing = _rows(session, [table[name] for name in _POINT_COLUMNS], table.run_uuid.in_(old), bool(old))
        latest: dict[tuple[str, str], _PointRow] = {(row[0], row[1]): tuple(row) for row in existing}
        for row in points:
            key = row[0], row[1]
            if key not in latest or latest[key][2:5] < row[2:5]:
                latest[key] = row
        if existing:
            session.execute(self._latest.delete().where(table.run_uuid.in_(old)))
        _insert_points(session, self._latest, latest.values())


def _rows(session: Any, columns: Sequence[Any], condition: Any, needed: bool = True) -> Sequence[Any]:
    """The rows for which the condition holds; none, without a query, unless they are `needed`."""
    from sqlalchemy import select

    return session.execute(select(*columns).where(condition)).all() if needed else ()


def _insert(session: Any, table: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        session.execute(table.insert(), rows)


def _insert_points(session: Any, table: Any, rows: Collection[_PointRow]) -> None:
    """Insert points; by COPY into PostgreSQL, where a parameter for each value takes five times as long."""
    connection = session.connection()
    dialect = connection.dialect
    if dialect.driver != "psycopg2":
        _insert(session, table, [dict(zip(_POINT_COLUMNS, row, strict=True)) for row in rows])
    elif rows:
        quote = dialect.identifier_preparer.quote
        lines = [  # half of the time of the module csv
            f'{run_id},"{metric.replace(_QUOTE, _QUOTE * 2)}",{step},{time_ms},{value},{is_nan}\n'
            for run_id, metric, step, time_ms, value, is_nan in rows
        ]
        columns = ", ".join(map(quote, _POINT_COLUMNS))
        with connection.connection.cursor() as cursor:
            copy = f"COPY {quote(table.name)} ({columns}) FROM STDIN (FORMAT csv)"
            cursor.copy_expert(copy, io.StringIO("".join(lines)))


def _update(session: Any, table: Any, rows: Mapping[Any, Mapping[str, Any]]) -> None:
    """Set columns of rows: (run, key) or (run,) → column → value, with the same columns for each."""
    from sqlalchemy import bindparam

    if not rows:
        return
    (first, columns), *_ = rows.items()
    keys = ("run_uuid", "key")[: len(first)]
    statement = table.update().where(*(table.c[key] == bindparam(f"of_{key}") for key in keys))
    statement = statement.values({name: bindparam(f"new_{name}") for name in columns})
    bound = [
        {f"of_{key}": part for key, part in zip(keys, row, strict=True)}
        | {f"new_{name}": value for name, value in values.items()}
        for row, values in rows.items()
    ]
    session.connection().execute(statement, bound)


def write(
    client: Any,
    run_id: str,
    points: Iterable[Point] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write to a run in as few calls as MLflow's limits permit."""
    from mlflow.entities import Metric, Param, RunTag

    metrics = (Metric(point.metric, point.value, point.time_ms, point.step) for point in points)
    rest_of_params = iter([Param(key, value) for key, value in (params or {}).items()])
    rest_of_tags = iter([RunTag(key, value) for key, value in (tags or {}).items()])
    while True:
        batch_params, batch_tags = (list(islice(rest, ENTRIES_PER_CALL)) for rest in (rest_of_params, rest_of_tags))
        batch = list(islice(metrics, ENTITIES_PER_CALL - len(batch_params) - len(batch_tags)))
        if not (batch or batch_params or batch_tags):
            return
        client.log_batch(run_id, metrics=batch, params=batch_params, tags=batch_tags)


def search(client: Any, experiments: Sequence[str], condition: str, stored_tags: bool = False) -> Iterator[Any]:
    """Yield the runs of these experiments that meet a condition, which must not hold names: these can have quotes.

    A run of an earlier version has its internal tags under their present names too, unless `stored_tags`.
    """
    token, yielded = None, set()
    while True:
        page = client.search_runs(list(experiments), condition, max_results=RUNS_PER_CALL, page_token=token)
        for run in page:
            if run.info.run_id not in yielded:  # a run created meanwhile moves another one to the next page
                yielded.add(run.info.run_id)
                if not stored_tags:
                    run.data.tags.update(earlier_tags(run.data.tags))
                yield run
        token = page.token
        if not token:
            return


def cut(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags with their values cut off at MLflow's limit."""
    return {key: value if len(value) <= TAG_LENGTH else value[: TAG_LENGTH - 1] + CUT for key, value in tags.items()}


def divided(key: str, text: str) -> dict[str, str]:
    """A text without `CUT` as a tag, or as several, of which each but the last ends with `CUT`, if it is too long.

    A shorter text can replace it later: tags behind the end of a text are not read.

    >>> divided("seeds", "0-3,7"), list(divided("seeds", "1,3," * 3_000))
    ({'seeds': '0-3,7'}, ['seeds', 'seeds.2', 'seeds.3'])
    """
    tags, number = {key: text}, 1
    while len(text) > TAG_LENGTH:
        tags, number, text = tags | cut({_part(key, number): text}), number + 1, text[TAG_LENGTH - 1 :]
        tags[_part(key, number)] = text
    return tags


def joined(tags: Mapping[str, str], key: str) -> str | None:
    """The inverse of `divided`; None without the tag.

    A text that an earlier version cut off ends with `CUT`.

    >>> joined(divided("seeds", "1,3," * 3_000), "seeds") == "1,3," * 3_000
    True
    """
    text, number = tags.get(key), 1
    while text is not None and text.endswith(CUT) and (more := tags.get(_part(key, number := number + 1))):
        text = text.removesuffix(CUT) + more
    return text


def _part(key: str, number: int) -> str:
    return key if number == 1 else f"{key}.{number}"
