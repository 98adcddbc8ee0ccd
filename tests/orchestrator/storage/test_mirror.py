"""Results at an address: synchronized copies, fenced attempts, and a sweep on an S3 server."""

import errno
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from orchestrator.config.load import check_sweep
from orchestrator.errors import ConfigError, DiskFullError
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import Plan
from orchestrator.storage import chunk_files, lease
from orchestrator.storage.chunk_files import SupersededError
from orchestrator.storage.journal import Journal
from orchestrator.storage.mirror import Mirror, TrialCopy, open_folder
from orchestrator.storage.remote_folder import RemoteFolder, has_file
from streams.store.address import join, open_address
from tests.orchestrator.sweep_command import LONG, assert_long_is_whole, folder_with, run, running, uri, wait_for
from tests.rights import denied


def test_files_of_one_machine_are_synchronized_to_another(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, mirror = open_folder(storage, "my sweep/1")
    assert mirror is not None
    (here / "trial").mkdir()
    for name, text in (("sweep.json", "{}"), ("trial/stopped.json", "1"), ("trial/chunk-00000002-0001.pt", "two")):
        (here / name).write_text(text)
        mirror.push(here / name)
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "elsewhere"))
    copy, other = open_folder(storage, "my sweep/1")
    assert other is not None and copy != here
    files = {str(path.relative_to(copy)): path.read_text() for path in copy.rglob("*") if path.is_file()}
    assert files == {"sweep.json": "{}", "trial/stopped.json": "1", "trial/chunk-00000002-0001.pt": "two"}
    mirror.forget("trial")
    other.pull()
    assert [path.name for path in copy.rglob("*") if path.is_file()] == ["sweep.json"]


def test_markers_of_a_killed_command_are_deleted_at_the_address(storage: str) -> None:
    here, mirror = open_folder(storage, "sweep")
    assert mirror is not None
    for name in ("sweep.json", ".seen-1", ".seen-2"):
        (here / name).write_text("{}")
        mirror.push(here / name)
    assert has_file(mirror.address, ".seen-1")
    with Journal(here, Plan("sweep", (), {}), mirror).locked():
        assert [name for name in RemoteFolder(mirror.address).listing() if not name.startswith(lease.PREFIX)] == [
            "sweep.json"
        ]


def test_a_copy_keeps_the_newest_chunks_and_a_new_attempt_fences_off_the_old(storage: str) -> None:
    address = join(storage, "sweep", "trial")
    first = TrialCopy(address)
    attempt = chunk_files.claim(first.folder)
    first.claim(attempt)
    for batches in (2, 4, 6):
        (first.folder / f"chunk-{batches:08d}-0001.pt").write_text(str(batches))
        for old in sorted(first.folder.glob("chunk-*"))[: -chunk_files.KEPT]:
            old.unlink()
        first.push(attempt)
    names = ["attempt-0001", "chunk-00000004-0001.pt", "chunk-00000006-0001.pt"]
    assert sorted(RemoteFolder(address).listing()) == names
    second = TrialCopy(address)  # on another machine, say
    assert sorted(path.name for path in second.folder.iterdir()) == names
    assert chunk_files.claim(second.folder) == 2
    second.claim(2)
    (first.folder / "chunk-00000008-0001.pt").write_text("8")
    with pytest.raises(SupersededError, match="attempt 1 was superseded"):
        first.push(attempt)
    assert sorted(RemoteFolder(address).listing()) == sorted([*names, "attempt-0002"])
    second.close()
    assert not second.folder.exists()


def test_a_full_disk_at_a_file_address_is_no_failure_of_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ResultCallback` stops the sweep for a `DiskFullError`, and would try the trial again for any other error."""
    copy = TrialCopy((tmp_path / "disk/s/k").as_uri())
    copy.claim(chunk_files.claim(copy.folder))
    (copy.folder / "learner.pt").write_bytes(b"x")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match=rf"^{tmp_path}/disk/s/k: the disk is full "):
        copy.push(1)
    copy.close()


def test_a_new_attempt_resumes_from_what_the_old_one_wrote_before_the_claim(storage: str) -> None:
    address = join(storage, "sweep", "trial")
    first = TrialCopy(address)
    first.claim(chunk_files.claim(first.folder))
    (first.folder / "chunk-00000002-0001.pt").write_text("2")
    first.push(1)
    second = TrialCopy(address)
    (first.folder / "chunk-00000002-0001.pt").unlink()
    (first.folder / "chunk-00000004-0001.pt").write_text("4")
    first.push(1)
    second.claim(chunk_files.claim(second.folder))
    names = ["attempt-0001", "attempt-0002", "chunk-00000004-0001.pt"]
    assert sorted(path.name for path in second.folder.iterdir()) == names
    (second.folder / "chunk-00000004-0001.pt").unlink()
    second.push(2)
    assert sorted(RemoteFolder(address).listing()) == names[:2]


def test_of_two_claims_of_the_same_attempt_one_wins(storage: str) -> None:
    address = join(storage, "sweep", "trial")
    one, two = TrialCopy(address), TrialCopy(address)
    for copy, owner in ((one, "one 1\n"), (two, "two 1\n")):
        (copy.folder / "attempt-0001").write_text(owner)
        copy.claim(1)
    with pytest.raises(SupersededError):
        one.push(1)
    two.push(1)


def test_chunks_replaced_during_the_download(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listed files are deleted before they are read, and newer ones were uploaded."""
    address = join(storage, "sweep", "trial")

    def put(*batches: int) -> None:
        for each in batches:
            (tmp_path / f"chunk-{each:08d}-0001.pt").write_text(str(each))
            RemoteFolder(address).put(tmp_path / f"chunk-{each:08d}-0001.pt")

    put(2, 4)
    read, waiting = RemoteFolder.read, [6, 8]

    def after_newer_ones_were_put(remote: RemoteFolder, name: str) -> bytes:
        if waiting:
            put(*waiting)
            waiting.clear()
            for old in ("chunk-00000002-0001.pt", "chunk-00000004-0001.pt"):
                remote.remove(old)
        return read(remote, name)

    monkeypatch.setattr(RemoteFolder, "read", after_newer_ones_were_put)
    copy = TrialCopy(address)
    files = {path.name: path.read_text() for path in copy.folder.iterdir()}
    assert files == {"chunk-00000006-0001.pt": "6", "chunk-00000008-0001.pt": "8"}
    copy.close()


def test_synchronization_does_not_delete_files_before_their_upload(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--plan` on the machine of a running sweep synchronizes the same copy while a new file is not uploaded yet."""
    root, mirror = open_folder(storage, "sweep")
    assert mirror is not None
    (root / "trial").mkdir()
    (root / "trial" / "attempt-0001").write_text("here 1")
    mirror.push(root / "trial" / "attempt-0001")
    journal = Journal(root, Plan("sweep", (), {}), mirror)
    push, threads = Mirror.push, []

    def while_another_synchronizes(mirror: Mirror, path: Path) -> None:
        threads.append(threading.Thread(target=Mirror(storage, "sweep").pull))
        threads[-1].start()
        threads[-1].join(1)  # long enough without the lock, which makes it wait
        push(mirror, path)

    monkeypatch.setattr(Mirror, "push", while_another_synchronizes)
    for name in ("population-1.json", "trial/stopped.json"):
        journal.keep(root / name, "new")
        threads[-1].join(120)
        assert (root / name).read_text() == "new"
        assert has_file(join(mirror.address, *Path(name).parts[:-1]), Path(name).name)
    assert len(threads) == 2


def test_rerun_deletes_the_files_at_the_address(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of seeds that are not planned now, too."""
    monkeypatch.setenv("FOML_CACHE", str(tmp_path))

    def journal(seeds: int, rerun: bool) -> Journal:
        document = {"name": "j", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": seeds}
        root, mirror = open_folder(storage, "j")
        journal = Journal.look(root, make_plan(check_sweep(document), "store"), mirror, rerun)
        journal.take()
        return journal

    def names() -> list[str]:
        addresses = [join(storage, "j"), join(storage, "j", trial.key)]
        return sorted(name for address in addresses for name in RemoteFolder(address).listing())

    first = journal(5, rerun=False)
    (trial,) = first.plan.trials
    first.stop(trial, 1, 0.5)
    first.keep(first.root / "population-1.json", "{}")
    assert names() == ["population-1.json", "stopped.json", "sweep-copy.json", "sweep.json"]
    assert [each.seeds for each in journal(3, rerun=True).plan.trials] == [(0, 1, 2)]
    assert names() == ["sweep-copy.json", "sweep.json"]
    assert [each.seeds for each in journal(5, rerun=False).plan.trials] == [(0, 1, 2), (3, 4)]


def test_an_unreachable_address_is_reported_in_one_line(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    mirror = Mirror("s3://absent/results", "name")
    mirror.local.mkdir(parents=True)
    (mirror.local / "sweep.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        mirror.push(mirror.local / "sweep.json")
    (line,) = caught.value.faults
    assert line.startswith("storage: must be a folder, or an address that can be read and written (")
    assert "(got s3://absent/results/name)" in line
    with pytest.raises(ConfigError, match="storage: must be a folder, or an address"):
        Mirror("no-such-scheme://x", "name")


def test_a_killed_sweep_resumed_from_s3_alone_has_the_same_curves(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(
        tmp_path / "work", LONG.replace("chunk: 2", "chunk: 5").replace("report: false", "")
    )  # uploaded one by one
    address = join(s3, "long")
    files, root = open_address(address)

    def reached(batches: int) -> bool | None:
        keys = [key for key in RemoteFolder(address).folders() if key != "report"]
        names = [name for key in keys for name in RemoteFolder(join(address, key)).listing()]
        return any(int(name[6:14]) >= batches for name in names if name.startswith("chunk-")) or None

    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    with running(folder, "sweep.yaml", f"storage={s3}") as process:
        wait_for(lambda: reached(10), process)
        os.killpg(process.pid, signal.SIGKILL)
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "another"))  # a new machine, which has the address only
    for name in RemoteFolder(address).listing():  # or the command would wait for its lease
        if name.startswith(lease.PREFIX):
            RemoteFolder(address).remove(name)
    shutil.rmtree(folder / "results", ignore_errors=True)
    (folder / "sweep.yaml").unlink()
    resumed = run(folder, "--resume", "long", f"storage={s3}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"checkpoints: {address}/<trial>/learner.pt" in resumed.stdout
    assert (folder / "results/long/report/learning_curves.png").stat().st_size > 10_000
    assert {"learner.pt", "attempt-0001", "attempt-0002"} <= set(
        RemoteFolder(join(address, one_trial(address))).listing()
    )
    assert "report.html" in RemoteFolder(join(address, "report")).listing()
    shutil.rmtree(tmp_path / "another" / "sweeps")
    fetched, _ = open_folder(s3, "long")
    shutil.rmtree(folder / "results/long")
    shutil.copytree(fetched, folder / "results/long")
    assert uri(folder)
    assert_long_is_whole(folder)
    assert files.get_file_info(str(root / "sweep.json")).size > 0


def one_trial(address: str) -> str:
    (key,) = [name for name in RemoteFolder(address).folders() if name != "report"]
    return key


def test_a_folder_below_one_that_may_not_be_searched(tmp_path: Path) -> None:
    outer, storage = tmp_path / "outer", tmp_path / "outer" / "inner" / "results"
    storage.mkdir(parents=True)
    with denied(outer), pytest.raises(ConfigError) as caught:
        open_folder(str(storage), "sweep")
    rule = "must be a folder that can be written or created"
    assert caught.value.faults == (f"storage: {rule} (got {storage}); check {outer}",)
