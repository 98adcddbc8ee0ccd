"""The task store: what opening and verifying detect, and pickling."""

import json
import pickle
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.build import build
from streams.errors import StoreError
from streams.images import ImageFolderPairs
from streams.rainbow import RainbowDigits
from streams.store import manifest as manifests
from streams.store.task_store import TaskStore
from streams.stream import Stream


@pytest.fixture(scope="module")
def small(made_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a store of 132 images of 8x8, two seeds."""
    folder = tmp_path_factory.mktemp("stores") / "small"
    build(ImageFolderPairs(data=str(made_folder), size=8, tasks=3, train=20, validation=4, test=4), [0, 5], folder)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


def written(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_verify_detects_any_changed_byte(small: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(small)))
    content = bytearray(small[name])
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        written({**small, name: bytes(content)}, Path(folder))
        with pytest.raises(StoreError) as caught:
            TaskStore.open(folder, verify=True)
    assert all("\n" not in line for line in caught.value.faults)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_opening_detects_any_truncation(small: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(small)))
    whole = small[name]
    least = 2 if name.endswith(".json") else 1  # a manifest without its last line feed reads the same
    length = data.draw(st.integers(0, len(whole) - least))
    with tempfile.TemporaryDirectory() as folder:
        written({**small, name: whole[:length]}, Path(folder))
        with pytest.raises(StoreError):
            TaskStore.open(folder)


def test_the_small_store_is_intact(small: dict[str, bytes], tmp_path: Path) -> None:
    assert sorted(small) == [
        "images.arrow",
        "manifest.json",
        "seed-0/datapoints.arrow",
        "seed-0/manifest.json",
        "seed-5/datapoints.arrow",
        "seed-5/manifest.json",
    ]
    assert TaskStore.open(written(small, tmp_path), verify=True).seeds == [0, 5]


@pytest.fixture
def copy(digits_store: TaskStore, tmp_path: Path) -> Path:
    shutil.copytree(digits_store.path, tmp_path / "copy")
    return tmp_path / "copy"


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


FILES = ["manifest.json", "images.arrow", "seed-1/manifest.json", "seed-1/datapoints.arrow"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_verify_detects_a_flipped_byte(copy: Path, name: str, place: float) -> None:
    size = (copy / name).stat().st_size
    flip(copy / name, min(size - 1, int(place * size)))
    with pytest.raises(StoreError) as caught:
        TaskStore.open(copy, verify=True)
    assert any(str(copy / name) in line or "seed-1" in line for line in caught.value.faults)


def test_verify_detects_changed_white_space_in_a_manifest(copy: Path) -> None:
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace(",\n", ",  \n", 1))
    with pytest.raises(StoreError, match="form in which it was written"):
        TaskStore.open(copy, verify=True)


def test_verify_reports_all_faults(copy: Path) -> None:
    flip(copy / "images.arrow", 4_000)
    flip(copy / "seed-0" / "datapoints.arrow", 4_000)
    with pytest.raises(StoreError) as caught:
        TaskStore.open(copy, verify=True)
    assert sum("sha256 must be" in line for line in caught.value.faults) == 2


@pytest.mark.parametrize("name", ["images.arrow", "manifest.json"])
def test_opening_detects_a_truncated_file(copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:-1])
    if name == "manifest.json":  # only the last line feed is gone
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"bytes|JSON"):
        TaskStore.open(copy)


def test_opening_detects_truncated_seeds(copy: Path) -> None:
    lines = []
    for seed in (0, 2):
        path = copy / f"seed-{seed}" / "datapoints.arrow"
        size = path.stat().st_size
        path.write_bytes(path.read_bytes()[: size // 2])
        remedy = "it was cut or changed: copy or build the store again"
        lines.append(f"{path}: must have {size} bytes (got {size // 2}); {remedy}")
    with pytest.raises(StoreError) as caught:
        TaskStore.open(copy)
    assert caught.value.faults == tuple(lines)


def test_opening_detects_a_changed_manifest(copy: Path) -> None:
    path = copy / "manifest.json"
    content = json.loads(path.read_text())
    content["classes"] = 11
    path.write_text(manifests.text(content))
    with pytest.raises(StoreError, match="hash: must be the hash of the manifest"):
        TaskStore.open(copy)


def test_a_newer_version_is_refused_in_one_line(copy: Path) -> None:
    path = copy / "manifest.json"
    content = json.loads(path.read_text())
    content["format_version"] = 4
    path.write_text(manifests.text(content))
    with pytest.raises(StoreError) as caught:
        TaskStore.open(copy)
    assert str(caught.value) == (
        f"{path}: format_version: this package reads versions up to 3 (got 4); "
        "update foml-orchestrator or build the store again"
    )


def test_a_folder_without_a_store_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        TaskStore.open(tmp_path / "nowhere")
    assert str(caught.value) == f"{tmp_path / 'nowhere'}: does not exist; build it with python -m streams.build"
    with pytest.raises(StoreError, match=r"is not a task store: it holds no manifest\.json"):
        TaskStore.open(tmp_path)


def test_a_missing_file_and_a_foreign_seed_are_refused(copy: Path, mnist_store: TaskStore) -> None:
    shutil.rmtree(copy / "seed-0")
    shutil.copytree(mnist_store.path / "seed-0", copy / "seed-0")
    with pytest.raises(StoreError, match="store: must be the hash of the store it lies in"):
        TaskStore.open(copy)
    (copy / "images.arrow").unlink()
    with pytest.raises(StoreError, match=r"images\.arrow: is missing"):
        TaskStore.open(copy)


def test_a_copied_seed_folder_is_refused(copy: Path) -> None:
    shutil.copytree(copy / "seed-0", copy / "seed-7")
    for verify in (False, True):
        with pytest.raises(StoreError) as caught:
            TaskStore.open(copy, verify=verify)
        assert caught.value.faults == (
            f"{copy / 'seed-7' / 'manifest.json'}: seed: must be 7, as the folder's name says (got 0); "
            "build this seed again",
        )


def test_a_folder_with_another_name_is_not_a_seed(copy: Path) -> None:
    shutil.copytree(copy / "seed-0", copy / "seed-00")
    assert TaskStore.open(copy, verify=True).seeds == [0, 1, 2]


def test_a_missing_seed_is_reported_with_the_existing_ones(digits_store: TaskStore) -> None:
    with pytest.raises(StoreError) as caught:
        Stream(digits_store, 7)
    assert str(caught.value) == (
        f"{digits_store.path}: has the seeds [0, 1, 2] (got 7); add it with python -m streams.build --seeds"
    )


def test_pixels_are_the_mapped_file(digits_store: TaskStore) -> None:
    before = pa.total_allocated_bytes()
    store = TaskStore.open(digits_store.path)
    assert store.pixels.shape == (5_000, 1, 28, 28)
    assert store.table(0).image_ids.shape == (20 * 320, 1)
    assert pa.total_allocated_bytes() - before < 100_000  # 3.9 MB of pixels were not copied
    assert not store.pixels.flags.owndata
    for array in (store.pixels, store.table(0).image_ids, store.table(0).label, store.classes_of):
        assert not array.flags.writeable


def test_a_store_pickles_as_path_and_hash(digits_store: TaskStore) -> None:
    pickled = pickle.dumps(digits_store)
    assert len(pickled) < 500
    loaded = pickle.loads(pickled)
    assert (loaded.hash, loaded.path, loaded.seeds) == (digits_store.hash, digits_store.path, [0, 1, 2])
    np.testing.assert_array_equal(loaded.pixels[17], digits_store.pixels[17])


def test_a_pickled_store_refuses_another_store_at_its_path(copy: Path) -> None:
    pickled = pickle.dumps(TaskStore.open(copy))
    shutil.rmtree(copy)
    build(RainbowDigits(tasks=2), [0], copy)
    with pytest.raises(StoreError, match="the store was replaced"):
        pickle.loads(pickled)


def read_some(stream: Stream, start: int) -> list[int]:
    return stream.read(start, 5).image_ids[:, 0].tolist()


def test_a_stream_can_be_sent_to_another_process(digits_store: TaskStore) -> None:
    stream = Stream(digits_store, 1)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # unlike a Pool, it fails when its child does
        assert pool.submit(read_some, stream, 123).result() == read_some(stream, 123)


def test_a_manifest_without_read_access_is_not_blamed_for_its_content(
    digits_store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything
    with pytest.raises(StoreError) as caught:
        TaskStore.open(digits_store.path)
    assert str(caught.value) == (
        f"{digits_store.path / 'manifest.json'}: cannot be read (got Permission denied); "
        "get read access, or copy the store again"
    )
