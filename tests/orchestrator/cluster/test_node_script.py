"""`deploy/node.sh --spot`: the notice of EC2's metadata service ends work on the node; the service here is a small server."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ACTION = "/latest/meta-data/spot/instance-action"


class Metadata(BaseHTTPRequestHandler):
    """Version 2 of the service: every value needs a token; `instance-action` is missing until the notice."""

    notice = threading.Event()
    asked = 0

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "60"
        self.answer(200, "a-token")

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] != "a-token":
            return self.answer(401, "")
        type(self).asked += 1
        if self.path != ACTION or not self.notice.is_set():
            return self.answer(404, "Not Found")
        return self.answer(200, '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}')

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def wait_until(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.05)


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("setsid") is None, reason="needs curl and setsid")
def test_the_notice_drains_the_node_before_its_actors_stop(tmp_path: Path, metadata: str) -> None:
    ray = tmp_path / "foml-venv/bin/ray"
    ray.parent.mkdir(parents=True)
    leaving = tmp_path / "foml-leaving"
    # The first call fails, as when the head does not answer for a moment.
    ray.write_text(
        f'#!/bin/bash\n[ ! -e {leaving} ] || exit 9\necho "$RAY_AUTH_MODE $*" >>{tmp_path}/calls\n'
        f"[ $(wc -l <{tmp_path}/calls) -gt 1 ]\n"
    )
    ray.chmod(0o755)
    leaving.touch()  # of an earlier start
    settings = {
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata,
        "FOML_SPOT_INTERVAL_S": "0.1",
        "http_proxy": "http://127.0.0.1:9",  # which does not reach the service
        "no_proxy": "",
        "NO_PROXY": "",
    }
    words = ["bash", str(ROOT / "deploy/node.sh"), "--spot"]
    done = subprocess.run(words, env=os.environ | settings, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # the watcher holds no output of ssh's session
    until = time.monotonic() + 60
    while Metadata.asked < 2:
        assert time.monotonic() < until, (tmp_path / "spot.log").read_text()
        time.sleep(0.05)
    assert not leaving.exists() and not (tmp_path / "calls").exists()
    second = subprocess.run(words, env=os.environ | settings, timeout=30)  # one watcher on each node
    assert second.returncode == 0
    Metadata.notice.set()
    wait_until(leaving)
    call = "token drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message spot interruption"
    assert (tmp_path / "calls").read_text().splitlines() == [f"{call} --deadline-remaining-seconds 110"] * 2
