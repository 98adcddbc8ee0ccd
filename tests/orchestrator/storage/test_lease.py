"""Two machines and one sweep at an address, each with its own copy; a separate process where one is killed."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyarrow import fs

from orchestrator.errors import ConfigError
from orchestrator.storage import lease
from orchestrator.storage.lease import PREFIX, hold_lease
from orchestrator.storage.remote_folder import RemoteFolder

HOLD = """
import sys
from pathlib import Path
from orchestrator.storage.lease import hold_lease
with hold_lease(sys.argv[1], Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The local copies of the sweep's folder on two machines."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    # The clock of an S3 server has a resolution of one second.
    monkeypatch.setattr(lease, "RENEW_S", 1.1)
    monkeypatch.setattr(lease, "POLL_S", 0.1)
    return tmp_path / "one", tmp_path / "two"


def leases(address: str) -> list[str]:
    return [name for name in RemoteFolder(address).listing() if name.startswith(PREFIX)]


def test_a_second_machine_is_refused_in_one_line(storage: str, machines: tuple[Path, Path]) -> None:
    one, two = machines
    address = f"{storage}/sweep"
    lines: list[str] = []
    with hold_lease(address, one):
        (name,) = leases(address)
        with pytest.raises(ConfigError) as caught, hold_lease(address, two, lines.append):
            raise AssertionError("two leases are held")
        assert leases(address) == [name]
    (line,) = caught.value.faults
    who = rf"process {os.getpid()} on \S+"
    assert re.fullmatch(
        rf"(\S*/sweep): one command at a time runs a sweep \(got {who}\); wait for it, or stop it; "
        rf"if it no longer runs, delete \1/{re.escape(name)}",
        line.replace("%20", " ").replace("storage with space", "storage"),
    )
    (line,) = lines
    assert re.search(rf"/sweep: {who} has started this sweep; waiting for a renewal of its lease, 90 s at most$", line)
    assert leases(address) == []
    with hold_lease(address, two, lines.append):
        assert len(leases(address)) == len(lines) == 1


def test_only_other_machines_wait_for_the_lease_of_a_killed_process(
    tmp_path: Path, machines: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machines
    address = (tmp_path / "bucket").as_uri()
    command = [sys.executable, "-c", HOLD, address, str(two)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        process.kill()
    (orphan,) = leases(address)
    lines: list[str] = []
    with hold_lease(address, two, lines.append):
        assert leases(address) == [orphan] and not lines
    (tmp_path / "bucket" / orphan).write_text("{}")  # of a killed process again
    monkeypatch.setattr(lease, "EXPIRY_S", 3.0)
    began = time.monotonic()
    with hold_lease(address, one, lines.append):
        assert time.monotonic() - began > 1.5 and len(leases(address)) == 2
    assert "another machine has started this sweep; waiting for a renewal of its lease, 3 s at most" in lines[0]


def write_lease(folder: Path, name: str, age_s: float) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text('{"process": 7, "host": "other"}')
    at = time.time() - age_s
    os.utime(folder / name, (at, at))


@pytest.mark.parametrize(
    ("own", "other", "lost"),
    [(100, 0, True), (80, 0, False), (200, 150, False), (None, 0, True), (0, None, False), (300, None, False)],
)
def test_a_sweep_is_taken_over_once_its_lease_has_expired_beside_another(
    tmp_path: Path, own: float | None, other: float | None, lost: bool
) -> None:
    """Ages in s, of this machine's lease and of another one; a third machine was killed long ago."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/.machine").write_text(f"{PREFIX}a")
    bucket = tmp_path / "bucket"
    for name, age in ((f"{PREFIX}a", own), (f"{PREFIX}b", other), (f"{PREFIX}c", 10_000)):
        if age is not None:
            write_lease(bucket, name, age)
    line = lease.taken_over(bucket.as_uri(), tmp_path / "copy")
    rule = "process 7 on other has taken over this sweep, as this command was suspended, or did not reach the address, "
    assert line == (f"{bucket.as_uri()}: {rule}for more than 90 s" if lost else "")


def test_a_command_whose_sweep_was_taken_over_stops_and_renews_nothing(
    tmp_path: Path, machines: tuple[Path, Path]
) -> None:
    one, _ = machines
    bucket, lines, reasons = tmp_path / "bucket", list[str](), list[str]()
    with hold_lease(bucket.as_uri(), one, lines.append, reasons.append):
        (name,) = leases(bucket.as_uri())
        write_lease(bucket, f"{PREFIX}other", -100)  # this machine was suspended for 100 s, and woke up
        until = time.monotonic() + 30
        while not reasons and time.monotonic() < until:
            time.sleep(0.1)
        before = (bucket / name).stat().st_mtime_ns
        time.sleep(2.5)  # two renewals
        assert (bucket / name).stat().st_mtime_ns == before
    assert lines == reasons and len(reasons) == 1 and "process 7 on other has taken over this sweep" in reasons[0]
    assert leases(bucket.as_uri()) == [f"{PREFIX}other"]


@pytest.mark.parametrize("looks_that_fail", [0, 1])
def test_a_sweep_that_is_taken_over_during_a_renewal_is_given_up(
    tmp_path: Path, machines: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, looks_that_fail: int
) -> None:
    """The process was suspended between its look at the leases and the renewal, or the upload took that long."""
    bucket, reasons, failing = tmp_path / "bucket", list[str](), [False] * looks_that_fail
    put, listing = RemoteFolder.put, RemoteFolder.listing

    def late_put(remote: RemoteFolder, path: Path) -> None:
        if path.name.startswith(PREFIX) and threading.current_thread().name == "lease":
            write_lease(bucket, f"{PREFIX}other", 0)
            failing[:] = [True] * len(failing)
        put(remote, path)

    def unreachable_after_the_put(remote: RemoteFolder) -> dict[str, fs.FileInfo]:
        if any(failing):
            failing.pop()
            raise OSError("unreachable")
        return listing(remote)

    with hold_lease(bucket.as_uri(), machines[0], reasons.append):
        (name,) = leases(bucket.as_uri())
        write_lease(bucket, name, 100)  # the last renewal
        monkeypatch.setattr(RemoteFolder, "put", late_put)
        monkeypatch.setattr(RemoteFolder, "listing", unreachable_after_the_put)
        until = time.monotonic() + 30
        while not reasons and time.monotonic() < until:
            time.sleep(0.1)
    assert len(reasons) == 1 and "process 7 on other has taken over this sweep" in reasons[0] and not failing
