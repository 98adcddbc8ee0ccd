"""A folder at an address: whole files, and nothing lost when two are at it."""

from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.storage.remote_folder import Place, is_there, marked
from streams.store.address import joined


def test_a_file_is_there_or_not(storage: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    Place(storage).put(tmp_path / "sweep.json")
    assert is_there(storage, "sweep.json")
    assert not is_there(storage, "nothing")
    assert not is_there(joined(storage, "nowhere"), "sweep.json")
    assert Place(storage).read("sweep.json") == b"{}"


def test_a_mark_is_there_for_a_block(storage: str) -> None:
    with marked(storage) as (address, name):
        assert is_there(address, name)
    assert not is_there(address, name)


def test_a_storage_that_cannot_be_marked_is_one_line(s3: str) -> None:
    with pytest.raises(ConfigError) as told, marked("s3://absent/results"):
        raise AssertionError("it was marked")
    (line,) = told.value.faults
    assert line.startswith("storage: must be a folder, or an address that can be read and written (")


def test_what_two_remove_at_once_is_removed(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, other = Place(storage), Place(storage)
    (tmp_path / "old").write_text("old")
    place.put(tmp_path / "old")
    has = Place.has

    def and_is_removed_by_another(asked: Place, name: str) -> bool:
        there = has(asked, name)
        if asked is place:
            other.remove(name)
        return there

    monkeypatch.setattr(Place, "has", and_is_removed_by_another)
    place.remove("old")
    assert place.listing() == {}


def test_files_that_are_being_written_are_left_alone(storage: str, tmp_path: Path) -> None:
    address = joined(storage, "sweep", "trial")
    (tmp_path / ".chunk.7").write_text("half")
    Place(address).put(tmp_path / ".chunk.7")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / ".chunk.8").write_text("half")
    Place(address).pull(tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [".chunk.8"]
