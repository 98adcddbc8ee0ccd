"""A server that is away: waited for at the end of a sweep, and not for ever."""

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import config
from orchestrator.ending import SOME_FAILED, report_on
from orchestrator.halt import Halt
from orchestrator.journal import Journal
from orchestrator.launch import Outcome
from orchestrator.plan import Plan
from orchestrator.tracking_database import await_server


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_server_that_comes_back_is_waited_for(port: int) -> None:
    servers: list[HTTPServer] = []

    def serve() -> None:
        time.sleep(1)
        servers.append(HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler))
        servers[0].serve_forever()

    threading.Thread(target=serve, daemon=True).start()
    told: list[str] = []
    began = time.monotonic()
    await_server(f"http://127.0.0.1:{port}", told.append, patience_s=60)
    assert 0.9 < time.monotonic() - began < 30
    assert told == [f"MLflow does not answer at http://127.0.0.1:{port}; waiting up to 60 s for it"]
    servers[0].shutdown()


def test_one_that_does_not_is_given_up_and_the_sweep_says_what_to_do(port: int, tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    await_server(uri, lambda line: None, patience_s=1)
    assert 1 <= time.monotonic() - began < 10
    await_server("sqlite:///nowhere.db", lambda line: pytest.fail(line), patience_s=60)
    stream = {"name": "rainbow_digits"}
    document = {"name": "x y", "stream": stream, "learners": [{"name": "online"}], "seeds": 1, "tracking": {"uri": uri}}
    plan = Plan("x y", (), {})
    journal = Journal(tmp_path, plan)
    result = report_on(config.check(document), journal, Outcome(plan, set()), ["behind"], [], Halt())
    assert (result.exit_code, result.best) == (SOME_FAILED, None)
    assert isinstance(result.summary, pd.DataFrame)
    assert result.problems[0] == "behind"
    assert "no server answers" in result.problems[1]
    assert result.text.endswith("and writes the report: python -m orchestrator.sweep --resume 'x y'")
