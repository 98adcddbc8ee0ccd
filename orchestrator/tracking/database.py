"""The database or server of MLflow: its URI, schema, client and experiments.

MLflow is imported inside the functions: the import takes seconds, and reads settings from the environment.
"""

import base64
import hashlib
import logging
import os
import re
import shlex
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from filelock import FileLock

from orchestrator.errors import OrchestratorError, disk_full_line, fault, is_disk_full
from streams.errors import masked

URI_KEY = "tracking.uri"
DEFAULT_URI = "sqlite:///mlflow.db"
_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")
# MLflow reads these at every call; values that the user has set win.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # no usage statistics by default
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # the writer itself retries; MLflow's seven take minutes
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # one link per run
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
PATIENCE_S = 120.0
"""How long the end of a sweep waits for a server that does not answer."""
_LOCKED_S = 60
_SMALL = 50_000_000
"""Bytes up to which a database is checked in full (0.6 s); a larger one gets SQLite's quick check (0.1 s)."""
_ANSWER_S = 10


class TrackingError(OrchestratorError):
    """MLflow cannot be used: one line with the rule, the value and the remedy."""


def prepare(uri: str, experiment: str | None = None) -> None:
    """Check that runs can be written to this URI, and create a missing database or experiment.

    Any number of processes may call this simultaneously.

    Raises:
        TrackingError: one line with the rule, the value and the remedy.
    """
    path = database_path(uri)
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(path):
                _check_writable(path, uri)
                _check_intact(path, uri)
                client = connect(uri)
        except OSError as error:
            raise _refused("must be a database that can be written", uri, error) from error
    else:
        client = connect(uri)
    if experiment is not None:
        experiment_id(client, uri, experiment)


def connect(uri: str) -> Any:
    """An `MlflowClient` for this URI, once the database or server has answered.

    Raises:
        TrackingError: one line.
    """
    path = database_path(uri)
    check_reachable(uri)
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    from mlflow import MlflowClient

    # Otherwise MLflow logs a traceback of each database error that it raises.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    try:
        with _quiet(), _artifacts_of_the_default_experiment(path):
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
    except Exception as error:
        if "out-of-date database schema" in str(error):
            rule = "must be a database of this version of MLflow"
            raise TrackingError(fault(URI_KEY, "", rule, uri, f"back it up, then: mlflow db upgrade {uri}")) from error
        rule = "must be a database that can be written" if path else "must be a server or a database that answers"
        raise _refused(rule, uri, error) from error
    return client


def server_address(uri: str) -> str | None:
    """The address of the UI of a tracking server, without a password; None for a database.

    Raises:
        TrackingError: the server's UI is not MLflow's own.
    """
    if uri.startswith(("http://", "https://")):
        parts = urlsplit(uri)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/")).geturl()
    if uri.partition(":")[0] == "databricks":
        rule = "must be a database, or a server of MLflow (http, https)"
        raise TrackingError(fault(URI_KEY, "", rule, uri, "its runs are in the UI of the workspace"))
    return None


def charts_link(uri: str, page: str) -> str:
    """The link to a page of the UI of a tracking server; empty for a database, which needs `ui_command`."""
    return f"{server_address(uri)}/{page}" if uri.startswith(("http://", "https://")) else ""


def ui_command(uri: str, sweep: str) -> str:
    """The command that opens MLflow's UI with the curves of a sweep."""
    return _command("ui", uri, sweep)


def report_command(uri: str, sweep: str) -> str:
    """The command that writes the report of a sweep."""
    return _command("report", uri, sweep)


def _command(subcommand: str, uri: str, sweep: str) -> str:
    options = [] if uri == DEFAULT_URI else ["--tracking-uri", shlex.quote(masked(uri))]
    return " ".join(["foml", subcommand, *options, *["--"] * sweep.startswith("-"), shlex.quote(sweep)])


def server_environment(uri: str) -> dict[str, str]:
    """The environment variables of an `mlflow server` for this database; artifacts are beside a SQLite file."""
    path = database_path(uri)
    root = {} if path is None else {"MLFLOW_DEFAULT_ARTIFACT_ROOT": _artifact_root(path)}
    jobs = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # processes for judges of language models
    return {"MLFLOW_BACKEND_STORE_URI": uri, **_ENVIRONMENT, **jobs, **root}


def open_existing(uri: str) -> Any:
    """`connect` for readers, which never creates a database.

    Raises:
        TrackingError: one line.
    """
    path = database_path(uri)
    if path is None:
        return connect(uri)
    if not _is_file(path, uri):
        remedy = "give the URI that the sweep was run with (--tracking-uri)"
        raise TrackingError(fault(URI_KEY, "", f"there is no database {path}", uri, remedy))
    with ExitStack() as stack:
        with suppress(OSError):  # the folder is read-only: no sweep of this user creates tables in it
            stack.enter_context(_lock(path))
        _check_intact(path, uri)
        return connect(uri)


def database_path(uri: str) -> Path | None:
    """The absolute path of a SQLite URI's file; None for a server or another database.

    Raises:
        TrackingError: runs cannot be kept there: MLflow's file store, a database in memory, an unknown scheme.
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
    """The id of the experiment of this name, which may hold any character; a missing experiment is created.

    Artifacts are stored beside the SQLite file (MLflow's default is the current working directory); a server chooses
    the place.

    Raises:
        TrackingError: the experiment is deleted.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=_artifacts(uri, name)))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another sweep has just created it
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        remedy = f"mlflow experiments restore -x {experiment.experiment_id}, or choose another name"
        raise TrackingError(fault("tracking.experiment", "", "must not be a deleted one", repr(name), remedy))
    return str(experiment.experiment_id)


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


def _check_intact(path: Path, uri: str) -> None:
    """Check a database's pages, and in a small one also that values agree with their indices."""
    check = "integrity_check" if path.stat().st_size <= _SMALL else "quick_check"
    try:
        # Not `mode=ro`: the next process to open the file rolls back what a killed one has half written.
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_LOCKED_S)) as database:
            (result,) = database.execute(f"PRAGMA {check}(1)").fetchone()
    except sqlite3.Error as error:
        if not _is_damage(error):
            raise _refused("must be a database that can be read", uri, error) from error
        result = first_line(error)
    if result != "ok":
        raise _damaged(path, uri, " ".join(result.split()))


def sweep_contents(uri: str, sweep: str) -> tuple[list[Any], list[Path]] | None:
    """What a SQLite database holds of the sweeps of this name, and the folders of their artifacts, read without MLflow.

    None for a server or another database, for artifacts elsewhere, and if the database cannot be read or is damaged.
    """
    path = database_path(uri)
    if path is None or not os.path.isfile(path):
        return None
    of_sweep = "SELECT run_uuid FROM tags WHERE key = 'foml.sweep' AND value = ?"
    queries = (
        f"SELECT run_uuid, status, lifecycle_stage, artifact_uri FROM runs WHERE run_uuid IN ({of_sweep}) ORDER BY 1",
        f"SELECT run_uuid, key, value FROM tags WHERE run_uuid IN ({of_sweep}) ORDER BY 1, 2",
        f"SELECT run_uuid, key, value FROM params WHERE run_uuid IN ({of_sweep}) ORDER BY 1, 2",
        f"SELECT run_uuid, count(*), sum(value), sum(step) FROM metrics WHERE run_uuid IN ({of_sweep}) GROUP BY 1",
    )
    try:
        _check_intact(path, uri)
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_LOCKED_S)) as database:
            rows = [database.execute(query, [sweep]).fetchall() for query in queries]
    except (TrackingError, sqlite3.Error):
        return None
    artifacts = [urlsplit(location) for *_, location in rows[0]]
    if any(location.scheme not in ("", "file") for location in artifacts):
        return None
    return rows, [Path(unquote(location.path)) for location in artifacts]


def _is_file(path: Path, uri: str) -> bool:
    """Whether there is a file.

    Raises:
        TrackingError: a folder above it may not be searched.
    """
    try:
        return path.is_file()
    except OSError as error:
        rule, remedy = "must be a database that can be read", "get access to the folders that it is in"
        raise TrackingError(fault(URI_KEY, "", f"{rule} ({error.strerror})", uri, remedy)) from error


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "") in ("SQLITE_CORRUPT", "SQLITE_NOTADB")


def _damaged(path: Path, uri: str, reason: str) -> TrackingError:
    remedy = (
        f"move {path.name} away (and files whose names start with it): the next command creates a new one, and "
        "a resumed sweep sends everything again from its own folder"
    )
    return TrackingError(fault(URI_KEY, "", f"the file is damaged, or not a database: {reason}", uri, remedy))


@contextmanager
def in_one_line(uri: str) -> Iterator[None]:
    """Turn errors of MLflow's client and database in this block into a `TrackingError` of one line."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        if (path := database_path(uri)) is not None and os.path.isfile(path):
            _check_intact(path, uri)
        raise _refused("cannot be read", uri, error) from error


def check_reachable(uri: str) -> None:
    """Check that a server sends any answer; a database counts as reachable.

    MLflow's client would wait much longer for a server that is down.

    Raises:
        TrackingError: no server answers, or it refuses this client.
    """
    if not uri.startswith(("http://", "https://")):
        return
    try:
        urllib.request.urlopen(_request(uri), timeout=_ANSWER_S).close()
    except urllib.error.HTTPError as error:
        if error.code == 403:
            remedy = "start the server with --allowed-hosts that name this host, or log in"
            raise TrackingError(fault(URI_KEY, "", "the server refuses this client (403)", uri, remedy)) from error
    except (OSError, HTTPException, ValueError) as error:
        reason = masked(str(getattr(error, "reason", error)), uri)
        remedy = f"start the server, or use {DEFAULT_URI}"
        raise TrackingError(fault(URI_KEY, "", f"no server answers ({reason})", uri, remedy)) from error


def _request(uri: str) -> urllib.request.Request:
    """A request whose user and password, if the URI has them, are in a header, as MLflow's client sends them.

    `urllib` takes `user:password@host` for the name of a host.

    Raises:
        ValueError: the URI cannot be parsed.
    """
    parts = urlsplit(uri)
    user, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl())
    if at:
        request.add_header("Authorization", f"Basic {base64.b64encode(unquote(user).encode()).decode()}")
    return request


def await_server(uri: str, report: Callable[[str], None], patience_s: float = PATIENCE_S) -> None:
    """Wait until the server answers, at most `patience_s` seconds; a database is never waited for."""
    until, reported = time.monotonic() + patience_s, False
    while True:
        try:
            return check_reachable(uri)
        except TrackingError:
            if time.monotonic() > until:
                return
        if not reported:
            report(f"MLflow does not answer at {masked(uri)}; waiting up to {patience_s:g} s for it")
            reported = True
        time.sleep(min(2.0, patience_s))


def _refused(rule: str, uri: str, error: BaseException) -> TrackingError:
    if is_disk_full(error) and (path := database_path(uri)) is not None:
        return TrackingError(fault(URI_KEY, "", disk_full_line(path), uri))
    return TrackingError(fault(URI_KEY, "", rule, uri, masked(first_line(error), uri)))


def first_line(error: BaseException) -> str:
    """The first line of an exception's message: those of MLflow and SQLAlchemy fill pages."""
    lines = [line for line in str(error).strip().splitlines() if not line.startswith("(raised as a result of")]
    return lines[0][:200] if lines else type(error).__name__


def _lock(path: Path) -> FileLock:
    """The lock of a database: two processes that create its tables simultaneously would both fail."""
    return FileLock(path.with_name(f".{path.name}.lock"))


def _artifact_root(path: Path) -> str:
    return f"file://{quote(str(path.parent / 'mlartifacts'))}"


@contextmanager
def _artifacts_of_the_default_experiment(path: Path | None) -> Iterator[None]:
    """Store artifacts of the experiment `Default`, which MLflow creates in a new database, beside that database.

    MLflow's own choice is the working directory, which it puts unquoted into SQL: a quote is a syntax error there.
    """
    if path is None or _ARTIFACT_ROOT in os.environ:
        yield
        return
    os.environ[_ARTIFACT_ROOT] = _artifact_root(path)
    try:
        yield
    finally:
        os.environ.pop(_ARTIFACT_ROOT, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress MLflow's messages about tables being created."""
    logger = logging.getLogger("mlflow")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
