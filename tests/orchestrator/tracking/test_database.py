"""A database that another process creates or leaves half written; a server that does not answer."""

import fcntl
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow import MlflowClient

from orchestrator.config.load import check_sweep
from orchestrator.errors import ExitCode
from orchestrator.execution.outcome import Outcome
from orchestrator.plan.plan import Plan
from orchestrator.storage.journal import Journal
from orchestrator.sweep.result import report_on
from orchestrator.system.signals import StopRequest
from orchestrator.tracking import database as tracking_database
from orchestrator.tracking.database import (
    DEFAULT_URI,
    TrackingError,
    await_server,
    check_reachable,
    open_existing,
    prepare,
    report_command,
    ui_command,
)
from orchestrator.tracking.writer import TrackingProblem
from tests.orchestrator.synthetic_sweep import free_port, new_database
from tests.rights import denied

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("ask", [prepare, open_existing])
def test_one_process_at_a_time_opens_a_database(
    ask: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A report that starts while a sweep creates the tables would create them too, and one of the two would fail."""
    uri = new_database(tmp_path)
    connect, calls = tracking_database.connect, []

    def connect_while_locked(uri: str) -> Any:
        with (tmp_path / "store" / ".mlflow.db.lock").open("a") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        calls.append(uri)
        return connect(uri)

    monkeypatch.setattr(tracking_database, "connect", connect_while_locked)
    ask(uri)
    assert calls == [uri]


def test_a_database_in_a_folder_that_may_not_be_searched_is_one_line(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'closed' / 'mlflow.db'}"
    (tmp_path / "closed").mkdir()
    rule = f"tracking.uri: must be a database that can be read (Permission denied) (got {uri})"
    with denied(tmp_path / "closed"), pytest.raises(TrackingError) as caught:
        open_existing(uri)
    assert caught.value.faults == (f"{rule}; get access to the folders that it is in",)


def test_commands_for_a_sweep_can_be_pasted() -> None:
    assert report_command(DEFAULT_URI, "tiny") == "foml report tiny"
    assert ui_command("sqlite:///a b.db", "my 'sweep'") == (
        """foml ui --tracking-uri 'sqlite:///a b.db' 'my '"'"'sweep'"'"''"""
    )
    assert report_command("postgresql://me:key@host/db", "-x") == (
        "foml report --tracking-uri 'postgresql://***@host/db' -- -x"
    )


def test_a_reader_rolls_back_the_transaction_of_a_killed_process(tmp_path: Path) -> None:
    """The files as they are in the middle of a transaction: a database with new pages, and a journal of the old ones."""
    uri = new_database(tmp_path)
    database = tmp_path / "store" / "mlflow.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE other (value TEXT)")
        writer.executemany("INSERT INTO other VALUES (?)", [("before" * 100,)] * 500)
        writer.execute("PRAGMA cache_size = 5")  # pages go to the disk before the end
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE other SET value = 'after'")
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("mlflow.db", "mlflow.db-journal"):
            shutil.copyfile(database.with_name(name), copy / name)
    uri = f"sqlite:///{copy / 'mlflow.db'}"
    assert open_existing(uri).search_experiments()[0].name == "Default"
    with closing(sqlite3.connect(copy / "mlflow.db")) as reader:
        assert reader.execute("SELECT count(*) FROM other WHERE value = 'after'").fetchone() == (0,)


@pytest.fixture
def port() -> int:
    return free_port()


def test_a_server_that_starts_again_is_waited_for(port: int) -> None:
    lines: list[str] = []
    servers: list[HTTPServer] = []

    def start_server(line: str) -> None:
        lines.append(line)
        servers.append(HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler))
        threading.Thread(target=servers[0].serve_forever, daemon=True).start()

    start = time.monotonic()
    await_server(f"http://127.0.0.1:{port}", start_server, patience_s=180)
    assert 0.9 < time.monotonic() - start < 150
    assert lines == [f"MLflow does not answer at http://127.0.0.1:{port}; waiting up to 180 s for it"]
    servers[0].shutdown()


def test_waiting_ends_and_the_sweep_says_what_to_do(port: int, tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{port}"
    start = time.monotonic()
    await_server(uri, lambda line: None, patience_s=1)
    assert 1 <= time.monotonic() - start < 60
    await_server("sqlite:///nowhere.db", lambda line: pytest.fail(line), patience_s=60)
    stream = {"name": "rainbow_digits"}
    document = {"name": "x y", "stream": stream, "learners": [{"name": "online"}], "seeds": 1, "tracking": {"uri": uri}}
    plan = Plan("x y", (), {})
    journal = Journal(tmp_path, plan)
    result = report_on(check_sweep(document), journal, Outcome(plan), [TrackingProblem("behind")], StopRequest())
    assert (result.exit_code, result.best) == (ExitCode.SOME_FAILED, None)
    assert isinstance(result.summary, pd.DataFrame)
    assert result.problems[0] == "behind"
    assert "no server answers" in result.problems[1]
    assert result.text.endswith("and writes the report: python -m orchestrator.sweep --resume 'x y'")


def test_three_processes_prepare_a_new_database_simultaneously(tmp_path):
    uri = f"sqlite:///{tmp_path}/new folder/mlflow.db"
    code = "import sys; from orchestrator.tracking.database import prepare; prepare(sys.argv[1], 'one experiment')"
    command = [sys.executable, "-c", code, uri]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(3)
    ]
    assert [(process.communicate()[0], process.returncode) for process in processes] == [(b"", 0)] * 3
    names = [experiment.name for experiment in MlflowClient(uri).search_experiments()]
    assert sorted(names) == ["Default", "one experiment"]


@pytest.mark.parametrize(
    ("uri", "message"),
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
            "the file is damaged, or not a database: file is not a database (got sqlite:///{tmp}/text); move text away",
        ),
        ("sqlite:///{tmp}/text/x.db", "must be a database that can be written"),
        ("http://127.0.0.1:9/", "no server answers ([Errno 111] Connection refused) (got http://127.0.0.1:9/); start "),
        (
            "gopher://there",
            "must begin with one of sqlite, postgresql, mysql, mssql, http, https, databricks (got gopher:",
        ),
    ],
)
def test_a_uri_that_cannot_hold_runs(uri, message, tmp_path):
    (tmp_path / "text").write_text("this is not a database, it is a text of more than sixteen bytes" * 100)
    with pytest.raises(TrackingError) as caught:
        prepare(uri.format(tmp=tmp_path))
    line = str(caught.value)
    assert line.startswith("tracking.uri: ") and message.format(tmp=tmp_path) in line and "\n" not in line
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


def test_user_and_password_of_an_address_are_sent_and_never_shown(port: int) -> None:
    received: list[str | None] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            self.send_response(403 if len(received) > 1 else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", port), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    uri = f"http://u:p%40w@127.0.0.1:{port}"
    check_reachable(uri)
    assert received == ["Basic dTpwQHc="]  # u:p@w
    with pytest.raises(TrackingError, match=rf"403\) \(got http://\*\*\*@127.0.0.1:{port}\)"):
        check_reachable(uri)
    server.shutdown()
    with pytest.raises(TrackingError, match=r"no server answers \(nonnumeric port: '\*\*\*'\) \(got http://\*\*\*@h\)"):
        check_reachable("http://u:p/w@h")
