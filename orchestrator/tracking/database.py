"""Where MLflow keeps runs: the URI checked, the schema made once, the client, the experiment.

MLflow is imported inside the functions: it takes seconds, and its settings have to be in the environment before.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.errors import OrchestratorError, disk_full_line, fault, is_disk_full

URI_KEY = "tracking.uri"
DEFAULT_URI = "sqlite:///mlflow.db"
_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")
# Read by MLflow at every call; what the user has set is left alone.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # a sweep sends no usage statistics unless asked to
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # the writer tries again itself; seven would hold it up for minutes
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # a link for every run that ends
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
PATIENCE_S = 120.0
"""How long the end of a sweep waits for a server that is away."""
_LOCKED_S = 60
_SMALL = 50_000_000
"""Bytes of a database that is checked in full (0.6 s for that many); a larger one is looked through (0.1 s)."""
_ANSWER_S = 10


class TrackingError(OrchestratorError):
    """MLflow cannot be used as asked; one line says what, with which value, and what to do."""


def prepare(uri: str, experiment: str | None = None) -> None:
    """See to it that runs can be kept at this URI: make a database's schema if there is none, and check that it can be
    written. Any number of processes may do so at once. With `experiment`, that one is made as well.

    Raises:
        TrackingError: one line: what is wrong, the value, the remedy.
    """
    path = database_path(uri)
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(_lock(path)):
                _check_writable(path, uri)
                _check_whole(path, uri)
                client = connect(uri)
        except OSError as error:
            raise _refused("must be a database that can be written", uri, error) from error
    else:
        client = connect(uri)
    if experiment is not None:
        experiment_id(client, uri, experiment)


def connect(uri: str) -> Any:
    """An `MlflowClient` for this URI that has been seen to answer.

    Raises:
        TrackingError: one line.
    """
    path = database_path(uri)
    check_reachable(uri)
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    from mlflow import MlflowClient

    # It logs a traceback of whatever its database says, before it raises it.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    try:
        with _quiet("mlflow"), _artifacts_of_the_default_experiment(path):
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
    except Exception as error:
        if "out-of-date database schema" in str(error):
            rule = "must be a database of this version of MLflow"
            raise TrackingError(fault(URI_KEY, "", rule, uri, f"back it up, then: mlflow db upgrade {uri}")) from error
        rule = "must be a database that can be written" if path else "must be a server or a database that answers"
        raise _refused(rule, uri, error) from error
    return client


def open_existing(uri: str) -> Any:
    """`connect` for readers: a database that is not there is an error, and is not made.

    Raises:
        TrackingError: one line.
    """
    path = database_path(uri)
    if path is None:
        return connect(uri)
    if not path.is_file():
        remedy = "give the URI that the sweep was run with (--tracking-uri)"
        raise TrackingError(fault(URI_KEY, "", f"there is no database {path}", uri, remedy))
    with _locked_if_it_can_be(path):  # or MLflow would make the tables of one that a sweep has just begun, too
        _check_whole(path, uri)
        return connect(uri)


def database_path(uri: str) -> Path | None:
    """The absolute path of a SQLite URI's file; None for a server or another database.

    Raises:
        TrackingError: for a URI that cannot hold runs: MLflow's file store, a database in memory, a kind of its own.
    """
    scheme, separator, rest = uri.partition("://")
    if uri.startswith("file:") or not separator:
        rule = "must be a database or a server: MLflow keeps no runs in plain folders since 3.13"
        raise TrackingError(fault(URI_KEY, "", rule, uri, f"use {DEFAULT_URI}"))
    kind = scheme.partition("+")[0]
    if kind not in _SCHEMES:
        rule = f"must begin with one of {', '.join(_SCHEMES)}"
        raise TrackingError(fault(URI_KEY, "", rule, uri, f"use {DEFAULT_URI}"))
    if kind != "sqlite":
        return None
    name = rest.removeprefix("/").partition("?")[0]
    if not rest.startswith("/") or name in ("", ":memory:"):
        rule = "must name a file: runs in memory are lost"
        raise TrackingError(fault(URI_KEY, "", rule, uri, f"use {DEFAULT_URI}"))
    return Path(name).absolute()


def experiment_id(client: Any, uri: str, name: str) -> str:
    """The id of the experiment of this name, which is made if there is none. Any name is safe.

    Its artifacts lie beside the SQLite file (MLflow's default would be the working directory of whoever came first); a
    server chooses for itself.

    Raises:
        TrackingError: the experiment is deleted.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=_artifacts(uri, name)))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # made by another sweep in the meantime
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        remedy = f"mlflow experiments restore -x {found.experiment_id}, or choose another name"
        raise TrackingError(fault("tracking.experiment", "", "must not be a deleted one", repr(name), remedy))
    return str(found.experiment_id)


def _artifacts(uri: str, name: str) -> str | None:
    if uri.startswith(("http://", "https://")):
        return None
    path = database_path(uri)
    folder = Path.cwd() if path is None else path.parent
    readable = re.sub(r"[^A-Za-z0-9-]+", "_", name)[:40]
    return (folder / "mlartifacts" / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}").as_uri()


def _check_writable(path: Path, uri: str) -> None:
    try:
        with closing(sqlite3.connect(path, timeout=_LOCKED_S)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.rollback()
    except sqlite3.Error as error:
        if _is_damage(error):
            raise _damaged(path, uri, first_line(error)) from error
        raise _refused("must be a database that can be written", uri, error) from error


def _check_whole(path: Path, uri: str) -> None:
    """See that a database's pages hang together; a value that differs from its index is seen in a small one only."""
    how = "integrity_check" if path.stat().st_size <= _SMALL else "quick_check"
    try:
        # Only to be read, but not `mode=ro`: what a killed process left half written is rolled back by the next one.
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_LOCKED_S)) as database:
            (told,) = database.execute(f"PRAGMA {how}(1)").fetchone()
    except sqlite3.Error as error:
        if not _is_damage(error):
            raise _refused("must be a database that can be read", uri, error) from error
        told = first_line(error)
    if told != "ok":
        raise _damaged(path, uri, " ".join(told.split()))


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "") in ("SQLITE_CORRUPT", "SQLITE_NOTADB")


def _damaged(path: Path, uri: str, reason: str) -> TrackingError:
    remedy = (
        f"move {path.name} away (and what begins with its name): a new one is made, and a sweep that is resumed sends "
        "it everything again from its own folder"
    )
    return TrackingError(fault(URI_KEY, "", f"the database is damaged, or is none: {reason}", uri, remedy))


@contextmanager
def in_one_line(uri: str) -> Iterator[None]:
    """Whatever MLflow's client and its database raise in this block becomes a `TrackingError` of one line."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        if (path := database_path(uri)) is not None and path.is_file():
            _check_whole(path, uri)
        raise _refused("cannot be read", uri, error) from error


def check_reachable(uri: str) -> None:
    """See whether a server answers; a database counts as reached.

    Any answer will do: what it says is for MLflow's client to find out, which would wait long if there were none.

    Raises:
        TrackingError: it does not.
    """
    if not uri.startswith(("http://", "https://")):
        return
    try:
        urllib.request.urlopen(uri, timeout=_ANSWER_S).close()
    except urllib.error.HTTPError as error:
        if error.code == 403:
            remedy = "start the server with --allowed-hosts that name this host, or log in"
            raise TrackingError(fault(URI_KEY, "", "the server refuses this client (403)", uri, remedy)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        remedy = f"start the server, or use {DEFAULT_URI}"
        raise TrackingError(fault(URI_KEY, "", f"no server answers ({reason})", uri, remedy)) from error


def await_server(uri: str, tell: Callable[[str], None], patience_s: float = PATIENCE_S) -> None:
    """Wait for a server that is away to come back, at most `patience_s` seconds; a database is never waited for."""
    until, told = time.monotonic() + patience_s, False
    while True:
        try:
            return check_reachable(uri)
        except TrackingError:
            if time.monotonic() > until:
                return
        if not told:
            tell(f"MLflow does not answer at {uri}; waiting up to {patience_s:g} s for it")
            told = True
        time.sleep(min(2.0, patience_s))


def _refused(rule: str, uri: str, error: BaseException) -> TrackingError:
    if is_disk_full(error) and (path := database_path(uri)) is not None:
        return TrackingError(fault(URI_KEY, "", disk_full_line(path), uri))
    return TrackingError(fault(URI_KEY, "", rule, uri, first_line(error)))


def first_line(error: BaseException) -> str:
    """What an exception says, in one line: MLflow's and SQLAlchemy's go on for pages."""
    lines = [line for line in str(error).strip().splitlines() if not line.startswith("(raised as a result of")]
    return lines[0][:200] if lines else type(error).__name__


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


@contextmanager
def _locked_if_it_can_be(path: Path) -> Iterator[None]:
    """`_locked`, unless the database lies where this process may not write; then no sweep of its user's makes it."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(_locked(_lock(path)))
        yield


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time. The lock file stays: to delete it would let two in."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _artifacts_of_the_default_experiment(path: Path | None) -> Iterator[None]:
    """Where artifacts of the experiment `Default` lie, which MLflow makes in a new database: beside it.

    Left to itself it takes the working directory, and puts that into its SQL as it is: quotes are a syntax error.
    """
    if path is None or _ARTIFACT_ROOT in os.environ:
        yield
        return
    os.environ[_ARTIFACT_ROOT] = f"file://{quote(str(path.parent / 'mlartifacts'))}"
    try:
        yield
    finally:
        os.environ.pop(_ARTIFACT_ROOT, None)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without the news that tables are being created."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
