"""The log of curves: a chunk appends its part, a torn tail costs the last chunk, and attempts do not disturb each other."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files, curve_log
from orchestrator.storage.chunk_files import ChunkWriter
from tests.orchestrator import synthetic_sweep as synthetic

TRIAL = synthetic.Trial(synthetic.configuration("online"), (0, 1))
WHOLE = synthetic.curves_of(TRIAL, batches=200)
WHOLE.diverged = [-1, 90]
WHOLE.past = {
    "seed": np.array([0, 1]),
    "after": np.array([2, 2]),
    "task": np.array([0, 1]),
    "error": np.array([0.5, 0.1]),
}
WHOLE.past |= {"batch": np.array([29, 29])}


def until(stop: int) -> Curves:
    sweep = synthetic.SyntheticSweep(Path("unused"), synthetic.Plan("sweep", (TRIAL,), {}), {TRIAL.key: WHOLE})
    part = sweep.part(TRIAL, 0, stop)
    part.past = {name: column[WHOLE.past["batch"] < stop] for name, column in WHOLE.past.items()}
    return part


def assert_equal(one: Curves, other: Curves) -> None:
    for section in ("by_batch", "evaluations", "past", "chunks"):
        mine, others = getattr(one, section), getattr(other, section)
        assert mine.keys() == others.keys()
        for name, array in mine.items():
            np.testing.assert_array_equal(array, others[name])
            assert array.dtype == others[name].dtype
    assert (one.seeds, one.first_batch, one.diverged) == (other.seeds, other.first_batch, other.diverged)
    assert (one.total_batches, one.total_tasks) == (other.total_batches, other.total_tasks) == (200, 20)


def newest(folder: Path) -> chunk_files.Chunk:
    chunk = chunk_files.newest(folder)
    assert chunk is not None
    return chunk


def test_each_chunk_appends_its_own_part(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path, chunk_files.claim(tmp_path))
    sizes, states = [], []
    for stop in range(20, 201, 20):
        path = writer.write({"n": stop}, until(stop), finished=stop == 200)
        sizes.append((tmp_path / "curves-0001-0000.log").stat().st_size)
        states.append(path.stat().st_size)
        read = newest(tmp_path)
        assert read.state == {"n": stop} and read.finished == (stop == 200)
        assert_equal(read.curves, until(stop))
        assert len(read.extents) == 1
    assert max(np.diff(sizes)) <= sizes[0] + 200, "the last chunk writes as much as the first"
    assert max(states) == min(states)


def test_a_log_file_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_log, "ROLL_BYTES", 5_000)
    writer = ChunkWriter(tmp_path, chunk_files.claim(tmp_path))
    for stop in range(20, 201, 20):
        writer.write({}, until(stop), finished=False)
    logs = sorted(tmp_path.glob("curves-*"))
    assert len(logs) > 2 and max(path.stat().st_size for path in logs) < 10_000
    assert_equal(newest(tmp_path).curves, WHOLE)


@pytest.mark.parametrize("lost", [1, 100, "all of the record"])
def test_a_torn_tail_loses_that_chunk(tmp_path: Path, lost: int | str) -> None:
    writer = ChunkWriter(tmp_path, chunk_files.claim(tmp_path))
    writer.write({}, until(20), finished=False)
    log = tmp_path / "curves-0001-0000.log"
    first = log.stat().st_size
    writer.write({}, until(40), finished=False)
    os.truncate(log, first if isinstance(lost, str) else log.stat().st_size - lost)
    quarantined: list[str] = []
    chunk = chunk_files.newest(tmp_path, quarantined=quarantined)
    assert chunk is not None
    assert_equal(chunk.curves, until(20))
    (line,) = quarantined
    assert "damaged (curves-0001-0000.log ends at byte " in line and "resumes at batch 20, from an older chunk" in line
    again = ChunkWriter(tmp_path, chunk_files.claim(tmp_path))
    again.continue_from(chunk)
    again.write({}, until(60), finished=False)
    assert_equal(newest(tmp_path).curves, until(60))
    assert [name for name, *_ in newest(tmp_path).extents] == ["curves-0001-0000.log", "curves-0002-0000.log"]


def test_bytes_that_no_chunk_file_refers_to_are_ignored(tmp_path: Path) -> None:
    """The process was killed between the log and the chunk file, or inside a record."""
    writer = ChunkWriter(tmp_path, chunk_files.claim(tmp_path))
    writer.write({}, until(20), finished=False)
    with (tmp_path / "curves-0001-0000.log").open("ab") as file:
        file.write(b"FOCL torn")
    assert_equal(newest(tmp_path).curves, until(20))
    writer.write({}, until(40), finished=False)  # an attempt that failed to append, on a full disk, say, continues
    assert_equal(newest(tmp_path).curves, until(40))


def test_a_flipped_bit_is_detected(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path, chunk_files.claim(tmp_path))
    for stop in (20, 40):
        writer.write({}, until(stop), finished=False)
    log = tmp_path / "curves-0001-0000.log"
    content = bytearray(log.read_bytes())
    for at in (5, len(content) // 4, len(content) - 1):
        damaged = content.copy()
        damaged[at] ^= 1
        log.write_bytes(damaged)
        chunk = chunk_files.newest(tmp_path)
        if at < len(content) // 2:
            assert chunk is None, "the curves of both chunks begin with the first record: the trial starts again"
        else:
            assert chunk is not None and chunk.batches == 20
    log.write_bytes(content)
    assert_equal(newest(tmp_path).curves, until(40))
    log.unlink()
    assert chunk_files.newest(tmp_path) is None


def test_a_superseded_attempt_does_not_disturb_its_successor(tmp_path: Path) -> None:
    first = ChunkWriter(tmp_path, chunk_files.claim(tmp_path))
    first.write({}, until(20), finished=False)
    second = ChunkWriter(tmp_path, chunk_files.claim(tmp_path))
    second.continue_from(newest(tmp_path))
    with pytest.raises(chunk_files.SupersededError):
        first.write({}, until(40), finished=False)
    second.write({}, until(60), finished=False)
    assert_equal(newest(tmp_path).curves, until(60))


def test_an_attempt_that_falls_back_leaves_kept_chunks_readable(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path, chunk_files.claim(tmp_path))
    kept = (20, 40)
    for stop in (20, 40, 60, 80):
        writer.write({}, until(stop), finished=False, keep=kept)
    older = chunk_files.load_at_most(tmp_path, 40)
    assert older is not None
    writer.continue_from(older)
    writer.write({}, until(100), finished=False, keep=kept)
    for stop in (20, 40, 80, 100):
        chunk = chunk_files.load_at_most(tmp_path, stop)
        assert chunk is not None and chunk.batches == stop
        assert_equal(chunk.curves, until(stop))


def test_a_copy_of_the_folder_is_complete(tmp_path: Path) -> None:
    """As at an address: logs and chunk files are plain files."""
    writer = ChunkWriter(tmp_path / "trial", chunk_files.claim(tmp_path / "trial"))
    for stop in (20, 40):
        writer.write({}, until(stop), finished=False)
    shutil.copytree(tmp_path / "trial", tmp_path / "copy")
    assert_equal(newest(tmp_path / "copy").curves, until(40))
