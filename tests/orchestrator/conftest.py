"""Fixtures of the orchestrator's tests: a small store, an empty MLflow database, an S3 server."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams import recipes
from streams.build import build
from streams.store.task_store import TaskStore
from tests.orchestrator.synthetic_sweep import new_database

BUCKET = "results"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    """Rainbow-Digits with 3 tasks of 25 + 12 + 12 digits, seeds 0, 1 and 2: batches of 10 straddle the tasks."""
    recipe = recipes()["rainbow_digits"](tasks=3, train=25, validation=12, test=12)  # type: ignore[call-arg]
    return build(recipe, [0, 1, 2], Path(tmp_path_factory.mktemp("store")) / "digits")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real S3 server on this machine."""
    folder = tmp_path_factory.mktemp("s3")
    pytest.importorskip("moto.server", reason="an S3 server for the tests: pip install 'moto[s3]'")
    with (folder / "s3.log").open("w+") as log:
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + 180
            while "Running on http" not in (log_text := (folder / "s3.log").read_text()):
                assert time.monotonic() < until and process.poll() is None, log_text
                time.sleep(0.1)
            yield log_text.partition("Running on ")[2].split()[0]
        finally:
            process.terminate()
            process.wait()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of a real S3 server, emptied; the address of a folder in it."""
    for key, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(key, value)
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/moto-api/reset", method="POST")).close()
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{BUCKET}", method="PUT")).close()
    return f"s3://{BUCKET}/some/where"


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    if request.param == "file":
        return (tmp_path / "storage with space").as_uri()
    address: str = request.getfixturevalue("s3")
    return address


@pytest.fixture
def tracking_uri(tmp_path: Path) -> str:
    """A new, empty MLflow database."""
    uri: str = new_database(tmp_path)
    return uri
