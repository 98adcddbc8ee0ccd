"""Stores at an address: copied once, checked, extended by seeds."""

import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams.build import build
from streams.errors import StoreError
from streams.rainbow import RainbowDigits
from streams.store.task_store import TaskStore
from streams.store.transport import localise, share


@pytest.fixture
def remote(digits_store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    shutil.copytree(digits_store.path, tmp_path / "remote" / "store")
    return tmp_path / "remote" / "store"


def test_a_local_folder_is_not_copied(digits_store: TaskStore, tmp_path: Path) -> None:
    assert localise(digits_store.path) == digits_store.path
    assert localise(str(tmp_path)) == tmp_path


def test_an_address_is_copied_into_the_cache_by_its_hash(digits_store: TaskStore, remote: Path, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    path = localise(f"file://{remote}", lambda *facts: reports.append(facts))
    assert path == tmp_path / "cache" / "copies" / digits_store.hash
    store = TaskStore.open(path, verify=True)
    assert (store.hash, store.seeds) == (digits_store.hash, [0, 1, 2])
    np.testing.assert_array_equal(store.pixels[99], digits_store.pixels[99])
    size = (remote / "images.arrow").stat().st_size
    assert (f"copying file://{remote}/images.arrow", size, size) in reports


def test_an_existing_copy_is_not_copied_again(remote: Path) -> None:
    path = localise(f"file://{remote}/")
    before = {str(file): file.stat().st_mtime_ns for file in path.rglob("*")}
    reports: list[object] = []
    assert localise(f"file://{remote}", lambda *facts: reports.append(facts)) == path
    assert reports == []
    assert {str(file): file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_seeds_added_at_the_address_are_copied(remote: Path) -> None:
    shutil.rmtree(remote / "seed-1")
    path = localise(f"file://{remote}")
    assert TaskStore.open(path).seeds == [0, 2]
    build(RainbowDigits(), range(4), remote)
    assert localise(f"file://{remote}") == path
    assert TaskStore.open(path, verify=True).seeds == [0, 1, 2, 3]


def test_a_shared_store_can_be_localised_and_extended(digits_store: TaskStore, remote: Path, tmp_path: Path) -> None:
    shutil.rmtree(remote / "seed-1")
    folder = tmp_path / "shared" / digits_store.hash
    share(TaskStore.open(remote), folder)
    assert TaskStore.open(localise(folder.as_uri()), verify=True).seeds == [0, 2]
    before = (folder / "images.arrow").stat().st_mtime_ns
    share(digits_store, folder)
    assert TaskStore.open(localise(folder.as_uri()), verify=True).seeds == [0, 1, 2]
    assert (folder / "images.arrow").stat().st_mtime_ns == before


def test_a_seed_that_is_still_being_uploaded_is_skipped(remote: Path) -> None:
    manifest = (remote / "seed-1" / "manifest.json").read_bytes()
    (remote / "seed-1" / "manifest.json").unlink()  # which is put there last
    path = localise(f"file://{remote}")
    assert TaskStore.open(path, verify=True).seeds == [0, 2]
    (remote / "seed-1" / "manifest.json").write_bytes(manifest)
    assert TaskStore.open(localise(f"file://{remote}"), verify=True).seeds == [0, 1, 2]


def test_a_shared_store_is_complete_as_soon_as_it_is_visible(
    digits_store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each file that is written, the store is not visible or opens; also at an address of a folder."""
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "shared" / digits_store.hash
    copy, seen = shutil.copyfileobj, []

    def look() -> None:
        seen.append(sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.exists() else [])
        if folder.exists():
            TaskStore.open(localise(folder.as_uri()), verify=True)

    def copied(source: Any, target: Any, *length: int) -> None:
        look()
        copy(source, target, *length)
        look()

    monkeypatch.setattr(shutil, "copyfileobj", copied)
    monkeypatch.setattr(shutil, "copyfile", lambda a, b: (look(), Path(b).write_bytes(Path(a).read_bytes()), look()))
    share(digits_store, folder.as_uri())
    look()
    whole = ["images.arrow", "manifest.json", "seed-0", "seed-1", "seed-2"]
    assert seen[0] == [] and seen[-1] == whole
    assert all(each == [] or each[:2] == whole[:2] for each in seen)


def bring(address: str) -> tuple[str, int, int]:
    copied = []
    path = localise(address, lambda *facts: copied.append(facts))
    store = TaskStore.open(path, verify=True)
    return str(path), len(copied), len(store.seeds)


def test_four_simultaneous_processes_copy_once(remote: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        brought = list(pool.map(bring, [f"file://{remote}"] * 4))
    assert len({path for path, _, _ in brought}) == 1
    assert sorted(pieces for _, pieces, _ in brought) == [0, 0, 0, 8]  # one process copied the eight files
    assert [seeds for _, _, seeds in brought] == [3] * 4
    left = [path.name for path in (tmp_path / "cache" / "copies").iterdir()]
    assert sorted(left) == sorted([Path(brought[0][0]).name, f".{Path(brought[0][0]).name}.lock"])


def test_a_seed_under_another_name_is_refused(remote: Path) -> None:
    shutil.copytree(remote / "seed-1", remote / "seed-4")
    with pytest.raises(StoreError) as caught:
        localise(f"file://{remote}")
    (line,) = caught.value.faults
    assert line.startswith(f"file://{remote}/seed-4/manifest.json: seed: must be 4, as the folder's name says (got 1)")


@pytest.mark.parametrize("name", ["images.arrow", "seed-2/datapoints.arrow", "manifest.json", "seed-2/manifest.json"])
def test_a_changed_byte_at_the_address_is_refused(remote: Path, tmp_path: Path, name: str) -> None:
    content = bytearray((remote / name).read_bytes())
    content[len(content) // 2] ^= 1
    (remote / name).write_bytes(content)
    with pytest.raises(StoreError) as caught:
        localise(f"file://{remote}")
    origin = f"file://{remote}/" + ("seed-2" if "seed" in name else "")
    assert all(line.startswith(origin) for line in caught.value.faults)
    assert str(tmp_path / "cache") not in str(caught.value)
    copies = list((tmp_path / "cache" / "copies").glob("[!.]*"))
    assert all("seed-2" not in os.listdir(copy) for copy in copies)
    assert len(copies) == ("seed" in name)


def test_invalid_addresses_are_one_line(tmp_path: Path) -> None:
    for address, said in (
        (f"file://{tmp_path}/no", "manifest.json: cannot be read"),
        ("gopher://host/store", "must be an address that pyarrow.fs can open"),
    ):
        with pytest.raises(StoreError) as caught:
            localise(address)
        assert len(caught.value.faults) == 1
        assert "\n" not in str(caught.value)
        assert said in str(caught.value)


def test_a_manifest_without_a_hash_is_refused(remote: Path) -> None:
    for content, said in (("[]", "cannot be read as JSON"), ('{"hash": "../x"}', r"must be a sha256 \(got \.\./x\)")):
        (remote / "manifest.json").write_text(content)
        with pytest.raises(StoreError, match=said):
            localise(f"file://{remote}")


def test_keys_in_an_address_are_never_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    address = "s3://key:secret@bucket/store?endpoint_override=127.0.0.1%3A9&scheme=http&region=us-east-1"
    with pytest.raises(StoreError) as caught:
        localise(address + "&unknown_option=1")
    assert "secret" not in str(caught.value)
    assert str(caught.value).startswith("s3://bucket/store")
