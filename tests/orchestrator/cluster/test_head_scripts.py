"""`deploy/mlflow.sh` and `deploy/foml.sh` on a head whose environment names a proxy, which does not reach the head itself."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
PROXY = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": "internal"}


class Health(BaseHTTPRequestHandler):
    """MLflow's answer."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(not Path("/usr/lib/postgresql").is_dir(), reason="needs PostgreSQL")
def test_the_state_of_mlflow_does_not_depend_on_a_proxy(tmp_path: Path) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").symlink_to(sys.executable)
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = {"FOML_VENV": str(tmp_path / "venv"), "FOML_MLFLOW_PORT": str(server.server_port)}
        words = ["bash", str(DEPLOY / "mlflow.sh"), "status"]
        assert subprocess.run(words, env=os.environ | PROXY | settings, timeout=60).returncode == 0
        server.shutdown()


def test_commands_on_the_head_reach_mlflow_without_a_proxy(tmp_path: Path) -> None:
    python = tmp_path / "foml-venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/bash\necho "$no_proxy $NO_PROXY $*"\n')
    python.chmod(0o755)
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow/env").write_text("MLFLOW_TRACKING_URI=http://127.0.0.1:5000\n")
    settings = {"HOME": str(tmp_path), "FOML_SHARED": str(tmp_path)}
    words = ["bash", str(DEPLOY / "foml.sh"), "report", "mine"]
    done = subprocess.run(words, env=os.environ | PROXY | settings, capture_output=True, text=True, timeout=60)
    arguments = "-m orchestrator.report mine --tracking-uri http://127.0.0.1:5000"
    assert (done.stdout, done.stderr) == (f"127.0.0.1,internal 127.0.0.1,internal {arguments}\n", "")
