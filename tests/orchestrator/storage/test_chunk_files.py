"""Chunk files: atomic, the newest is read, damage falls back to an older one, superseded attempts are fenced off."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from learners import checkpoint
from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files
from tests.orchestrator.protocol_sweep import empty, flip, garble, halve


def curves(batches: int) -> Curves:
    return Curves(
        [3, 4],
        0,
        {"online_error": np.arange(2.0 * batches).reshape(2, batches)},
        {
            "seed": np.array([0]),
            "task": np.array([0]),
            "batch": np.array([1]),
            "error": np.array([0.5]),
            "loss": np.array([1.0]),
        },
        {"batches": np.array([batches])},
        [-1, 2],
    )


def test_a_written_chunk_is_read_back(tmp_path: Path) -> None:
    attempt = chunk_files.claim(tmp_path)
    state = {"phi": torch.arange(3.0), "steps": 7, "generator": {"state": 2**127 + 1}, "moments": (None, None, 3)}
    chunk_files.write(tmp_path, attempt, state, curves(4), finished=False)
    read = chunk_files.newest(tmp_path)
    assert read is not None
    assert read.batches == 4
    assert not read.finished
    assert torch.equal(read.state["phi"], state["phi"])
    assert read.state["generator"]["state"] == 2**127 + 1
    assert read.state["moments"] == (None, None, 3)
    assert np.array_equal(read.curves.by_batch["online_error"], curves(4).by_batch["online_error"])
    assert read.curves.evaluations["task"].dtype == np.int64
    assert read.curves.diverged == [-1, 2]


def test_the_two_newest_are_kept(tmp_path: Path) -> None:
    attempt = chunk_files.claim(tmp_path)
    for batches in (2, 4, 6):
        chunk_files.write(tmp_path, attempt, {}, curves(batches), finished=batches == 6)
    assert sorted(p.name for p in tmp_path.glob("chunk-*")) == ["chunk-00000004-0001.pt", "chunk-00000006-0001.pt"]
    newest = chunk_files.newest(tmp_path)
    assert newest is not None
    assert newest.finished
    assert (chunk_files.newest_step(tmp_path), chunk_files.newest_step(tmp_path / "none")) == (6, 0)


@pytest.mark.parametrize("damage", [halve, empty, garble, flip])
def test_a_damaged_chunk_falls_back_to_an_older_one(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """One flipped bit in the weights is damage too, although `torch.load` does not detect it."""
    attempt = chunk_files.claim(tmp_path)
    state = {"phi": torch.arange(10_000.0)}
    first = chunk_files.write(tmp_path, attempt, state, curves(2), finished=False)
    last = chunk_files.write(tmp_path, attempt, state, curves(4), finished=False)
    damage(last)
    with caplog.at_level(logging.WARNING):
        read = chunk_files.newest(tmp_path)
    assert read is not None and read.path == first and read.batches == 2
    assert [record.getMessage().split(": damaged")[0] for record in caplog.records] == [str(last)]
    assert last.exists()

    lines: list[str] = []
    again = chunk_files.newest(tmp_path, quarantined=lines)
    assert again is not None and again.path == first
    (line,) = lines
    assert "the trial resumes at batch 2, from an older chunk; quarantined as damaged-chunk-" in line
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [first.name, f"damaged-{last.name}"]
    assert chunk_files.newest(tmp_path, quarantined=lines) is not None and len(lines) == 1
    damage(first)
    assert chunk_files.newest(tmp_path, quarantined=lines) is None
    assert "the trial has no older intact chunk; quarantined as damaged-chunk-" in lines[1]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: device busy"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
@pytest.mark.parametrize("at", ["cuda", "meta"])
def test_a_chunk_for_which_there_is_no_memory_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, at: str
) -> None:
    """Other processes may fill the GPU: the trial would begin again at the first batch."""
    attempt = chunk_files.claim(tmp_path)
    for batches in (1, 2):
        chunk_files.write(tmp_path, attempt, {}, curves(batches), finished=False)
    files, lines, load = sorted(tmp_path.iterdir()), list[str](), torch.load

    def full(path: Path, map_location: str, **others: bool) -> object:
        if map_location == at:
            raise error
        return load(path, map_location="cpu", **others)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", full)
        with pytest.raises(chunk_files.NotLoadedError, match=r"chunk-00000002-0001\.pt: cannot be loaded \("):
            chunk_files.newest(tmp_path, "cuda", lines)
    assert (sorted(tmp_path.iterdir()), lines) == (files, [])
    chunk = chunk_files.newest(tmp_path, quarantined=lines)
    assert chunk is not None and (chunk.batches, lines) == (2, [])


def test_no_chunk(tmp_path: Path) -> None:
    assert chunk_files.newest(tmp_path / "none") is None


def test_a_newer_attempt_fences_off_the_older(tmp_path: Path) -> None:
    first = chunk_files.claim(tmp_path)
    second = chunk_files.claim(tmp_path)
    assert (first, second) == (1, 2)
    chunk_files.write(tmp_path, second, {"n": 2}, curves(2), finished=False)
    with pytest.raises(chunk_files.SupersededError, match="attempt 1 was superseded by attempt 2"):
        chunk_files.write(tmp_path, first, {"n": 4}, curves(4), finished=False)
    read = chunk_files.newest(tmp_path)
    assert read is not None
    assert read.state == {"n": 2}
    assert not list(tmp_path.glob(".chunk*"))


def test_a_rerun_fences_off_an_attempt_of_the_same_number(tmp_path: Path) -> None:
    """`--rerun` deletes the folder, claims included; the superseded attempt has the names of the new one's files."""
    folder = tmp_path / "trial"
    superseded = chunk_files.ChunkWriter(folder, chunk_files.claim(folder))
    superseded.write({"code": "old"}, curves(2), finished=False)
    shutil.rmtree(folder)
    rule = "attempt 1 was superseded by a rerun; it writes nothing more"
    with pytest.raises(chunk_files.SupersededError, match=rule):
        superseded.write({"code": "old"}, curves(4), finished=False)
    assert not folder.exists()
    new = chunk_files.ChunkWriter(folder, chunk_files.claim(folder))
    new.write({"code": "new"}, curves(2), finished=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(chunk_files.SupersededError, match=rule):
        superseded.write({"code": "old"}, curves(6), finished=False)
    with pytest.raises(chunk_files.SupersededError, match=rule):
        superseded.check_newest()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    new.write({"code": "new"}, curves(4), finished=True)
    read = chunk_files.newest(folder)
    assert read is not None and (read.state, read.batches) == ({"code": "new"}, 4)


def test_files_deleted_during_the_read_are_replaced_by_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both listed files are deleted before the first is opened: the newer ones are read."""
    attempt = chunk_files.claim(tmp_path)
    for batches in (2, 4):
        chunk_files.write(tmp_path, attempt, {}, curves(batches), finished=False)
    check, waiting = checkpoint.check_intact, [8, 6]

    def write_two_more_first(path: Path) -> None:
        while waiting:
            chunk_files.write(tmp_path, attempt, {}, curves(waiting.pop()), finished=False)
        check(path)

    monkeypatch.setattr(checkpoint, "check_intact", write_two_more_first)
    read = chunk_files.newest(tmp_path)
    assert read is not None and read.batches == 8


def test_a_broken_link_is_not_a_chunk(tmp_path: Path) -> None:
    (tmp_path / "chunk-00000002-0001.pt").symlink_to(tmp_path / "nowhere")
    assert chunk_files.newest(tmp_path) is None


def test_an_attempt_superseded_while_it_writes_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer attempt is claimed after the check of the older one and before its rename."""
    first = chunk_files.claim(tmp_path)
    look, looked = chunk_files._attempt, []

    def then_another_claims(folder: Path) -> int:
        newest = look(folder)
        if not looked:
            looked.append(newest)
            assert chunk_files.claim(folder) == 2
        return newest

    monkeypatch.setattr(chunk_files, "_attempt", then_another_claims)
    with pytest.raises(chunk_files.SupersededError, match="attempt 1 was superseded by attempt 2"):
        chunk_files.write(tmp_path, first, {}, curves(2), finished=False)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "attempt-0001",
        "attempt-0002",
        "curves-0001-0000.log",  # of the attempt that is over: no chunk file refers to it
    ]


def test_a_file_of_an_earlier_version_is_read_and_continued(tmp_path: Path) -> None:
    """Format 1 has the curves in the chunk file itself."""
    attempt = chunk_files.claim(tmp_path)
    tensors = {name: torch.from_numpy(array) for name, array in curves(4).by_batch.items()}
    described = {"seeds": [3, 4], "first_batch": 0, "by_batch": tensors, "evaluations": {}, "chunks": {}}
    content = {"format": 1, "state": {"n": 1}, "curves": {**described, "diverged": [-1, 2]}, "finished": False}
    torch.save(content, tmp_path / "chunk-00000004-0001.pt")
    old = chunk_files.newest(tmp_path)
    assert old is not None and old.batches == 4 and old.extents == () and old.curves.diverged == [-1, 2]
    writer = chunk_files.ChunkWriter(tmp_path, attempt)
    writer.continue_from(old)
    writer.write({"n": 2}, curves(6), finished=False)
    read = chunk_files.newest(tmp_path)
    assert read is not None and read.state == {"n": 2}
    assert np.array_equal(read.curves.by_batch["online_error"], curves(6).by_batch["online_error"])
