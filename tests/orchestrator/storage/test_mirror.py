"""Results at an address: copies that are made equal, attempts that fence each other off, and a sweep on a real S3."""

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.plan.plan import Plan
from orchestrator.storage import lease, trial_files
from orchestrator.storage.journal import Journal
from orchestrator.storage.mirror import Mirror, TrialCopy, open_folder
from orchestrator.storage.remote_folder import Place, is_there
from orchestrator.storage.trial_files import SupersededError
from streams.store.address import joined, open_address
from tests.orchestrator.sweep_command import LONG, assert_long_is_whole, folder_with, run, running, uri, wait_for


def test_what_one_machine_puts_another_has_whole(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, mirror = open_folder(storage, "my sweep/1")
    assert mirror is not None
    (here / "trial").mkdir()
    for name, text in (("sweep.json", "{}"), ("trial/stopped.json", "1"), ("trial/chunk-00000002-0001.pt", "two")):
        (here / name).write_text(text)
        mirror.push(here / name)
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "elsewhere"))
    there, other = open_folder(storage, "my sweep/1")
    assert other is not None and there != here
    found = {str(path.relative_to(there)): path.read_text() for path in there.rglob("*") if path.is_file()}
    assert found == {"sweep.json": "{}", "trial/stopped.json": "1", "trial/chunk-00000002-0001.pt": "two"}
    mirror.forget("trial")
    other.pull()
    assert [path.name for path in there.rglob("*") if path.is_file()] == ["sweep.json"]


def test_a_copy_keeps_the_newest_chunks_and_a_new_attempt_fences_off_the_old(storage: str) -> None:
    address = joined(storage, "sweep", "trial")
    first = TrialCopy(address)
    attempt = trial_files.claim(first.folder)
    first.claim(attempt)
    for batches in (2, 4, 6):
        (first.folder / f"chunk-{batches:08d}-0001.pt").write_text(str(batches))
        for old in sorted(first.folder.glob("chunk-*"))[: -trial_files.KEPT]:
            old.unlink()
        first.push(attempt)
    kept = ["attempt-0001", "chunk-00000004-0001.pt", "chunk-00000006-0001.pt"]
    assert sorted(Place(address).listing()) == kept
    second = TrialCopy(address)  # on another machine, say
    assert sorted(path.name for path in second.folder.iterdir()) == kept
    assert trial_files.claim(second.folder) == 2
    second.claim(2)
    (first.folder / "chunk-00000008-0001.pt").write_text("8")
    with pytest.raises(SupersededError, match="attempt 1 was superseded"):
        first.push(attempt)
    assert sorted(Place(address).listing()) == sorted([*kept, "attempt-0002"])
    second.close()
    assert not second.folder.exists()


def test_what_the_attempt_before_wrote_until_it_was_fenced_off_is_gone_on_from(storage: str) -> None:
    address = joined(storage, "sweep", "trial")
    first = TrialCopy(address)
    first.claim(trial_files.claim(first.folder))
    (first.folder / "chunk-00000002-0001.pt").write_text("2")
    first.push(1)
    second = TrialCopy(address)
    (first.folder / "chunk-00000002-0001.pt").unlink()
    (first.folder / "chunk-00000004-0001.pt").write_text("4")
    first.push(1)
    second.claim(trial_files.claim(second.folder))
    there = ["attempt-0001", "attempt-0002", "chunk-00000004-0001.pt"]
    assert sorted(path.name for path in second.folder.iterdir()) == there
    (second.folder / "chunk-00000004-0001.pt").unlink()
    second.push(2)
    assert sorted(Place(address).listing()) == there[:2]


def test_of_two_that_claim_the_same_attempt_one_goes_on(storage: str) -> None:
    address = joined(storage, "sweep", "trial")
    one, two = TrialCopy(address), TrialCopy(address)
    for copy, owner in ((one, "one 1\n"), (two, "two 1\n")):
        (copy.folder / "attempt-0001").write_text(owner)
        copy.claim(1)
    with pytest.raises(SupersededError):
        one.push(1)
    two.push(1)


def test_chunks_that_are_replaced_while_they_are_brought(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was listed is gone when it is to be read: newer files have come."""
    address = joined(storage, "sweep", "trial")

    def put(*batches: int) -> None:
        for each in batches:
            (tmp_path / f"chunk-{each:08d}-0001.pt").write_text(str(each))
            Place(address).put(tmp_path / f"chunk-{each:08d}-0001.pt")

    put(2, 4)
    read, waiting = Place.read, [6, 8]

    def while_others_come(place: Place, name: str) -> bytes:
        if waiting:
            put(*waiting)
            waiting.clear()
            for old in ("chunk-00000002-0001.pt", "chunk-00000004-0001.pt"):
                place.remove(old)
        return read(place, name)

    monkeypatch.setattr(Place, "read", while_others_come)
    copy = TrialCopy(address)
    found = {path.name: path.read_text() for path in copy.folder.iterdir()}
    assert found == {"chunk-00000006-0001.pt": "6", "chunk-00000008-0001.pt": "8"}
    copy.close()


def test_a_copy_that_is_looked_at_loses_nothing_that_is_being_written(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--plan` beside a sweep on the same machine makes the same copy equal to the address, where a new file is not yet."""
    root, mirror = open_folder(storage, "sweep")
    assert mirror is not None
    (root / "trial").mkdir()
    (root / "trial" / "attempt-0001").write_text("here 1")
    mirror.push(root / "trial" / "attempt-0001")
    journal = Journal(root, Plan("sweep", (), {}), mirror)
    push, looks = Mirror.push, []

    def while_another_looks(own: Mirror, path: Path) -> None:
        looks.append(threading.Thread(target=Mirror(storage, "sweep").pull))
        looks[-1].start()
        looks[-1].join(1)  # it would be through by then; it waits
        push(own, path)

    monkeypatch.setattr(Mirror, "push", while_another_looks)
    for name in ("population-1.json", "trial/stopped.json"):
        journal.keep(root / name, "new")
        looks[-1].join(120)
        assert (root / name).read_text() == "new"
        assert is_there(joined(mirror.address, *Path(name).parts[:-1]), Path(name).name)
    assert len(looks) == 2


def test_an_address_that_cannot_be_reached_is_one_line(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    mirror = Mirror("s3://absent/results", "name")
    mirror.local.mkdir(parents=True)
    (mirror.local / "sweep.json").write_text("{}")
    with pytest.raises(ConfigError) as told:
        mirror.push(mirror.local / "sweep.json")
    (line,) = told.value.faults
    assert line.startswith("storage: must be a folder, or an address that can be read and written (")
    assert "(got s3://absent/results/name)" in line
    with pytest.raises(ConfigError, match="storage: must be a folder, or an address"):
        Mirror("no-such-scheme://x", "name")


def test_a_sweep_killed_and_resumed_from_s3_alone_has_the_same_curves(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path / "work", LONG.replace("chunk: 2", "chunk: 5"))  # which are put one by one
    address = joined(s3, "long")
    files, root = open_address(address)

    def reached(batches: int) -> bool | None:
        there = [key for key in Place(address).folders() if key != "report"]
        names = [name for key in there for name in Place(joined(address, key)).listing()]
        return any(int(name[6:14]) >= batches for name in names if name.startswith("chunk-")) or None

    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    with running(folder, "sweep.yaml", f"storage={s3}") as process:
        wait_for(lambda: reached(10), process)
        os.killpg(process.pid, signal.SIGKILL)
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "another"))  # a new machine: nothing but the address is left
    for name in Place(address).listing():  # or it would be waited for
        if name.startswith(lease.PREFIX):
            Place(address).remove(name)
    shutil.rmtree(folder / "results", ignore_errors=True)
    (folder / "sweep.yaml").unlink()
    resumed = run(folder, "--resume", "long", f"storage={s3}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"checkpoints: {address}/<trial>/learner.pt" in resumed.stdout
    assert (folder / "results/long/report/learning_curves.png").stat().st_size > 10_000
    assert {"learner.pt", "attempt-0001", "attempt-0002"} <= set(Place(joined(address, one_trial(address))).listing())
    assert "report.html" in Place(joined(address, "report")).listing()
    shutil.rmtree(tmp_path / "another" / "sweeps")
    fetched, _ = open_folder(s3, "long")
    shutil.rmtree(folder / "results/long")
    shutil.copytree(fetched, folder / "results/long")
    assert uri(folder)
    assert_long_is_whole(folder)
    assert files.get_file_info(str(root / "sweep.json")).size > 0


def one_trial(address: str) -> str:
    (key,) = [name for name in Place(address).folders() if name != "report"]
    return key
