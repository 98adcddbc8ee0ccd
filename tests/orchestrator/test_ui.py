"""Where `foml ui` finds a sweep, and what it refuses; tests/orchestrator/end_to_end/test_browser.py follows its link."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from orchestrator import ui
from orchestrator.errors import OrchestratorError
from orchestrator.plan.plan import Trial
from orchestrator.storage import atomic
from orchestrator.tracking import reader
from orchestrator.tracking.database import server_address
from tests.orchestrator import synthetic_sweep as synthetic
from tests.orchestrator.synthetic_sweep import free_port


def folder_of(storage: Path, name: str, uri: str, experiment: str | None = None, at: int = 0) -> None:
    """The folder of a sweep that was started `at` seconds after others."""
    (storage / name).mkdir(parents=True)
    content = {"given": {}, "sweep": {"name": name, "tracking": {"uri": uri, "experiment": experiment}}, "trials": []}
    (storage / name / "sweep.json").write_text(atomic.with_digest(content))
    os.utime(storage / name / "sweep.json", (1_700_000_000 + at,) * 2)


def test_the_database_is_that_of_the_sweeps_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    asked = []
    monkeypatch.setattr(reader, "find_charts", lambda *words: asked.append(words) or ("name", "#/page"))
    folder_of(tmp_path, "one", "http://one", at=1)
    folder_of(tmp_path, "two", "http://***@two/prefix/", "mine", at=2)
    folder_of(tmp_path, "three", "https://three", "other")
    words = ["--storage", str(tmp_path), "--no-browser"]
    assert ui.main(["one", *words]) == 0
    assert ui.main(["three", *words]) == 0
    assert ui.main(["one", "--experiment", "more", *words]) == 0
    assert ui.main(["two", "--tracking-uri", "http://me:secret@two/prefix/", *words]) == 0
    assert asked == [
        ("one", "http://one", "one"),
        ("three", "https://three", "other"),
        ("one", "http://one", "more"),
        ("two", "http://me:secret@two/prefix/", None),
    ]
    printed = ["http://one/#/page", "https://three/#/page", "http://one/#/page", "http://two/prefix/#/page"]
    assert capsys.readouterr() == ("\n".join([*printed, ""]), "")
    asked.clear()
    folder_of(tmp_path, "resumed", "http://one", "shared", at=3)
    assert ui.main(words) == ui.main(["--experiment", "shared", *words]) == 0
    assert ui.main(["--experiment", "one", *words]) == 0, "of which the sweep started last is no part"
    assert asked == [
        ("resumed", "http://one", "shared"),
        ("resumed", "http://one", "shared"),
        (None, "http://one", "one"),
    ]
    os.utime(tmp_path / "resumed/sweep.json", (0, 0))
    capsys.readouterr()
    assert ui.main(words) == 2, "the newest is two, whose password is not in its folder"
    assert capsys.readouterr().err == (
        "--tracking-uri: *** stands for user, password or key, which the sweep's folder does not hold "
        "(got http://***@two/prefix/); give the whole address\n"
    )


def test_the_link_names_the_experiment_and_the_sweeps_own_run(tmp_path: Path, tracking_uri: str) -> None:
    for name in ("first", "a 'name\""):
        sweep = synthetic.make_sweep(tmp_path / name, name, Trial(synthetic.configuration("online"), (0,)))
        run_id = synthetic.write_all(sweep, tracking_uri)
    name, page = reader.find_charts("a 'name\"", tracking_uri)
    assert (name, page) == ("a 'name\"", reader.find_sweep(name, tracking_uri).charts)
    path, _, query = page.partition("?")
    assert path == "#/experiments/1/runs"
    assert parse_qs(query) == {
        "workflowType": ["machine_learning"],
        "searchFilter": [f"tags.\"mlflow.parentRunId\" = '{run_id}'"],
        "orderByKey": ["metrics.`objective`"],
        "orderByAsc": ["true"],
        "compareRunsMode": ["CHART"],
    }


def test_a_missing_database_and_another_ui_are_one_line(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert ui.main([]) == 2
    assert capsys.readouterr().err.startswith(
        f"tracking.uri: there is no database {tmp_path}/mlflow.db (got sqlite:///mlflow.db)"
    )
    assert ui.main(["--tracking-uri", "databricks://profile"]) == 2
    assert capsys.readouterr().err == (
        "tracking.uri: must be a database, or a server of MLflow (http, https) (got databricks://profile); its runs are "
        "in the UI of the workspace\n"
    )
    assert ui.main(["--port", "70000"]) == 2
    assert capsys.readouterr().err == "--port: must be from 1 to 65535 (got 70000)\n"
    assert not list(tmp_path.iterdir())
    assert server_address("sqlite:///mlflow.db") is None


def test_a_port_in_use_is_refused_and_a_free_one_is_chosen() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with (
            pytest.raises(
                OrchestratorError, match=rf"--port: must be a free port on 127.0.0.1 .*\(got {port}\); leave"
            ),
            ui.served("sqlite:///unused.db", port),
        ):
            pass
    assert 1 <= ui._free_port() <= 65_535


MLFLOW = """
import http.server, json, os, sys
if os.environ["MLFLOW_BACKEND_STORE_URI"].endswith("bad.db"):
    sys.exit("one line\\nthe reason")
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
words = sys.argv[1:]
open("started.json", "w").write(json.dumps([os.getpid(), words, os.environ["MLFLOW_DEFAULT_ARTIFACT_ROOT"]]))
http.server.HTTPServer((words[words.index("--host") + 1], int(words[words.index("--port") + 1])), Health).serve_forever()
"""
SERVE = """
import sys
from orchestrator import ui
ui.reader.find_charts = lambda *words: ("name", "#/page")
sys.exit(ui.main(sys.argv[1:]))
"""


@pytest.fixture
def fake_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of MLflow, whose server imports for many seconds, a module that answers or fails."""
    (tmp_path / "fake/mlflow").mkdir(parents=True)
    (tmp_path / "fake/mlflow/__init__.py").touch()
    (tmp_path / "fake/mlflow/__main__.py").write_text(MLFLOW)
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "fake"), root]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_server_that_does_not_start_is_one_line_with_its_reason(fake_mlflow: Path) -> None:
    line = r"^foml ui: MLflow's server does not start \(got the reason\)$"
    with pytest.raises(OrchestratorError, match=line), ui.served("sqlite:///bad.db", free_port()):
        pass


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_server_is_on_the_loopback_address_and_ends_with_the_command(
    fake_mlflow: Path, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which does not reach this machine
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    port = free_port()
    uri = f"sqlite:///{fake_mlflow}/good.db"
    words = [sys.executable, "-c", SERVE, "--tracking-uri", uri, "--port", str(port), "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == f"http://127.0.0.1:{port}/#/page\n"
    server, arguments, artifacts = json.loads((fake_mlflow / "started.json").read_text())
    assert arguments == ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    assert artifacts == f"file://{fake_mlflow}/mlartifacts"
    process.send_signal(how)
    assert process.wait(60) == (0 if how != signal.SIGKILL else -signal.SIGKILL)
    until = time.monotonic() + 60
    while Path(f"/proc/{server}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{server}").exists()
    assert process.stderr.read() == "name: MLflow starts; Ctrl-C ends it\n"
