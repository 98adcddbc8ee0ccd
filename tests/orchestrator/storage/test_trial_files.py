"""Chunk files: whole or not there, the newest wins, damage falls back, a superseded attempt is fenced off."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from orchestrator.protocol.curves import Curves
from orchestrator.storage import trial_files
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


def test_what_is_written_is_read(tmp_path: Path) -> None:
    attempt = trial_files.claim(tmp_path)
    state = {"phi": torch.arange(3.0), "steps": 7, "generator": {"state": 2**127 + 1}, "moments": (None, None, 3)}
    trial_files.write(tmp_path, attempt, state, curves(4), finished=False)
    read = trial_files.newest(tmp_path)
    assert read is not None
    assert read.batches == 4
    assert not read.finished
    assert torch.equal(read.state["phi"], state["phi"])
    assert read.state["generator"]["state"] == 2**127 + 1
    assert read.state["moments"] == (None, None, 3)
    assert np.array_equal(read.curves.by_batch["online_error"], curves(4).by_batch["online_error"])
    assert read.curves.evaluations["task"].dtype == np.int64
    assert read.curves.diverged == [-1, 2]


def test_two_newest_are_kept(tmp_path: Path) -> None:
    attempt = trial_files.claim(tmp_path)
    for batches in (2, 4, 6):
        trial_files.write(tmp_path, attempt, {}, curves(batches), finished=batches == 6)
    assert sorted(p.name for p in tmp_path.glob("chunk-*")) == ["chunk-00000004-0001.pt", "chunk-00000006-0001.pt"]
    newest = trial_files.newest(tmp_path)
    assert newest is not None
    assert newest.finished
    assert (trial_files.reached(tmp_path), trial_files.reached(tmp_path / "none")) == (6, 0)


@pytest.mark.parametrize("damage", [halve, empty, garble, flip])
def test_a_damaged_chunk_falls_back_to_the_one_before(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """One flipped bit among the weights is damage, too, though `torch.load` does not see it."""
    attempt = trial_files.claim(tmp_path)
    state = {"phi": torch.arange(10_000.0)}
    first = trial_files.write(tmp_path, attempt, state, curves(2), finished=False)
    last = trial_files.write(tmp_path, attempt, state, curves(4), finished=False)
    damage(last)
    with caplog.at_level(logging.WARNING):
        read = trial_files.newest(tmp_path)
    assert read is not None and read.path == first and read.batches == 2
    assert [record.getMessage().split(": damaged")[0] for record in caplog.records] == [str(last)]
    assert last.exists()

    aside: list[str] = []
    again = trial_files.newest(tmp_path, aside=aside)
    assert again is not None and again.path == first
    (line,) = aside
    assert "the trial goes on at batch 2, from the chunk before it; the damaged one is kept as damaged-chunk-" in line
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [first.name, f"damaged-{last.name}"]
    assert trial_files.newest(tmp_path, aside=aside) is not None and len(aside) == 1
    damage(first)
    assert trial_files.newest(tmp_path, aside=aside) is None
    assert "the trial goes on at the beginning: no older one is whole" in aside[1]


def test_nothing_there(tmp_path: Path) -> None:
    assert trial_files.newest(tmp_path / "none") is None


def test_a_newer_attempt_fences_off_the_older(tmp_path: Path) -> None:
    first = trial_files.claim(tmp_path)
    second = trial_files.claim(tmp_path)
    assert (first, second) == (1, 2)
    trial_files.write(tmp_path, second, {"n": 2}, curves(2), finished=False)
    with pytest.raises(trial_files.SupersededError, match="attempt 1 was superseded by attempt 2"):
        trial_files.write(tmp_path, first, {"n": 4}, curves(4), finished=False)
    read = trial_files.newest(tmp_path)
    assert read is not None
    assert read.state == {"n": 2}
    assert not list(tmp_path.glob(".chunk*"))


def test_a_writer_that_is_faster_than_a_reader_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files that were listed are gone when the first of them is opened: newer ones have come."""
    attempt = trial_files.claim(tmp_path)
    for batches in (2, 4):
        trial_files.write(tmp_path, attempt, {}, curves(batches), finished=False)
    check, waiting = trial_files.check_whole, [8, 6]

    def while_two_more_are_written(path: Path) -> None:
        while waiting:
            trial_files.write(tmp_path, attempt, {}, curves(waiting.pop()), finished=False)
        check(path)

    monkeypatch.setattr(trial_files, "check_whole", while_two_more_are_written)
    read = trial_files.newest(tmp_path)
    assert read is not None and read.batches == 8


def test_a_link_that_leads_nowhere_is_no_chunk(tmp_path: Path) -> None:
    (tmp_path / "chunk-00000002-0001.pt").symlink_to(tmp_path / "nowhere")
    assert trial_files.newest(tmp_path) is None


def test_one_that_is_superseded_while_it_writes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer attempt begins after the older one has looked, and before it renames its file."""
    first = trial_files.claim(tmp_path)
    look, looked = trial_files._attempt, []

    def then_another_begins(folder: Path) -> int:
        newest = look(folder)
        if not looked:
            looked.append(newest)
            assert trial_files.claim(folder) == 2
        return newest

    monkeypatch.setattr(trial_files, "_attempt", then_another_begins)
    with pytest.raises(trial_files.SupersededError, match="attempt 1 was superseded by attempt 2"):
        trial_files.write(tmp_path, first, {}, curves(2), finished=False)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["attempt-0001", "attempt-0002"]
