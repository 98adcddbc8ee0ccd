"""A folder at an address: atomic uploads, and concurrent access by two processes."""

from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.storage.remote_folder import RemoteFolder, has_file, marker_file
from streams.store.address import join


def test_put_has_and_read(storage: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    RemoteFolder(storage).put(tmp_path / "sweep.json")
    assert has_file(storage, "sweep.json")
    assert not has_file(storage, "nothing")
    assert not has_file(join(storage, "nowhere"), "sweep.json")
    assert RemoteFolder(storage).read("sweep.json") == b"{}"


def test_a_marker_exists_during_its_block(storage: str) -> None:
    with marker_file(storage) as (address, name):
        assert has_file(address, name)
    assert not has_file(address, name)


def test_a_storage_that_cannot_be_written_is_reported_in_one_line(s3: str) -> None:
    with pytest.raises(ConfigError) as caught, marker_file("s3://absent/results"):
        raise AssertionError("the marker was written")
    (line,) = caught.value.faults
    assert line.startswith("storage: must be a folder, or an address that can be read and written (")


def test_a_file_that_two_processes_remove_is_removed(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, other = RemoteFolder(storage), RemoteFolder(storage)
    (tmp_path / "old").write_text("old")
    remote.put(tmp_path / "old")
    has = RemoteFolder.has

    def then_another_removes_it(folder: RemoteFolder, name: str) -> bool:
        exists = has(folder, name)
        if folder is remote:
            other.remove(name)
        return exists

    monkeypatch.setattr(RemoteFolder, "has", then_another_removes_it)
    remote.remove("old")
    assert remote.listing() == {}


def test_temporary_files_are_neither_downloaded_nor_deleted(storage: str, tmp_path: Path) -> None:
    address = join(storage, "sweep", "trial")
    (tmp_path / ".chunk.7").write_text("half")
    RemoteFolder(address).put(tmp_path / ".chunk.7")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / ".chunk.8").write_text("half")
    RemoteFolder(address).pull(tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [".chunk.8"]
