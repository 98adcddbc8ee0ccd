"""Two machines and one sweep at an address: two copies of it, and processes of their own where it matters."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.storage import lease
from orchestrator.storage.lease import PREFIX, claimed
from orchestrator.storage.remote_folder import Place

HOLD = """
import sys
from pathlib import Path
from orchestrator.storage.lease import claimed
with claimed(sys.argv[1], Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The copies that two machines have of the sweep's folder."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    # An S3 server's clock counts seconds.
    monkeypatch.setattr(lease, "RENEW_S", 1.1)
    monkeypatch.setattr(lease, "POLL_S", 0.1)
    return tmp_path / "here", tmp_path / "there"


def claims(address: str) -> list[str]:
    return [name for name in Place(address).listing() if name.startswith(PREFIX)]


def test_a_second_machine_is_refused_in_one_line(storage: str, machines: tuple[Path, Path]) -> None:
    here, there = machines
    address = f"{storage}/sweep"
    said: list[str] = []
    with claimed(address, here):
        (name,) = claims(address)
        with pytest.raises(ConfigError) as caught, claimed(address, there, said.append):
            raise AssertionError("two at once")
        assert claims(address) == [name]
    (line,) = caught.value.faults
    who = rf"process {os.getpid()} on \S+"
    assert re.fullmatch(
        rf"(\S*/sweep): one command at a time runs a sweep \(got {who}\); wait for it, or stop it; "
        rf"if it is gone, delete \1/{re.escape(name)}",
        line.replace("%20", " ").replace("storage with space", "storage"),
    )
    (line,) = said
    assert re.search(rf"/sweep: {who} has begun this sweep; a sign of it is waited for, 90 s at most$", line)
    assert claims(address) == []
    with claimed(address, there, said.append):
        assert len(claims(address)) == len(said) == 1


def test_a_machine_that_is_gone_is_waited_for_elsewhere_and_not_by_itself(
    tmp_path: Path, machines: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machines
    address = (tmp_path / "bucket").as_uri()
    words = [sys.executable, "-c", HOLD, address, str(there)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        process.kill()
    (left,) = claims(address)
    said: list[str] = []
    with claimed(address, there, said.append):
        assert claims(address) == [left] and not said
    (tmp_path / "bucket" / left).write_text("{}")  # once more left behind
    monkeypatch.setattr(lease, "STALE_S", 3.0)
    began = time.monotonic()
    with claimed(address, here, said.append):
        assert time.monotonic() - began > 1.5 and len(claims(address)) == 2
    assert "another machine has begun this sweep; a sign of it is waited for, 3 s at most" in said[0]
