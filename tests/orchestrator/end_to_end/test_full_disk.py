"""Disks that really fill up (small ones in memory): one line, nothing lost, and everything resumes with free space."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.config.load import check_sweep
from orchestrator.errors import DiskFullError
from orchestrator.plan.expand import make_plan
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal, given_before
from orchestrator.sweep.api import run_sweep
from streams import build
from tests.orchestrator.protocol_sweep import compute
from tests.orchestrator.sweep_command import (
    LONG,
    REPORTED,
    assert_long_is_whole,
    folder_with,
    reached,
    run,
    running,
    statuses,
    trials,
    uri,
    wait_for,
)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A separate disk at this folder."""
    if os.geteuid() != 0:
        pytest.skip("mounts a small disk, which needs root")
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounts a small disk, which is not allowed here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, free: int = 0) -> Path:
    """Write a file that leaves `free` bytes on the disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while (more := shutil.disk_usage(disk).free - free) > 0:
            file.write(bytes(min(more, 1 << 20)))
    return ballast


@pytest.mark.slow
def test_no_space_for_chunks(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "work", LONG)
    with small_disk(folder / "results", 48) as disk:
        with running(folder, "sweep.yaml") as process:
            wait_for(lambda: reached(folder, "long", 6), process)
            ballast = fill(disk, free=100_000)
            out, errors = process.communicate(timeout=120)
        assert process.returncode == 130, errors
        (trial,) = trials(folder, "long")
        assert "Traceback" not in out + errors
        lines = [line for line in errors.splitlines() if "the disk is full" in line]
        assert len(lines) == 1, errors
        assert lines[0].startswith(f"{trial}: the disk is full (") and lines[0].endswith(
            " bytes free); make room there"
        )
        assert f"{lines[0]}: resume with: python -m orchestrator.sweep --resume long" in out.splitlines()
        assert "failed" not in out
        assert set(statuses(folder)) == {"KILLED"}
        newest = chunk_files.newest(trial)
        assert newest is not None and 6 <= newest.batches < 60
        assert not list(trial.glob(".*"))
        full = run(folder, "--resume", "long")  # the disk is still full
        assert full.returncode == 130, full.stderr
        assert "the disk is full (" in full.stderr and "Traceback" not in full.stderr + full.stdout
        ballast.unlink()
        again = run(folder, "--resume", "long")
        assert again.returncode == 0, again.stderr
        assert_long_is_whole(folder)


@pytest.mark.slow
def test_no_space_for_mlflow(tmp_path: Path) -> None:
    """Trials continue: their results are on another disk."""
    (tmp_path / "big").mkdir()
    with small_disk(tmp_path / "work", 24) as disk:
        folder = folder_with(disk, LONG)
        (folder / "results").symlink_to(tmp_path / "big")
        with running(folder, "sweep.yaml") as process:
            wait_for(lambda: reached(folder, "long", 6), process)
            ballast = fill(disk)
            out, errors = process.communicate(timeout=240)
        assert process.returncode == 1, errors
        assert "Traceback" not in out + errors
        lines = [line for line in out.splitlines() if "the disk is full" in line]
        assert lines and lines[0].startswith(
            f"problem: tracking: {folder}: the disk is full (0 bytes free); make room"
        ), out
        assert "--resume long" in out
        (trial,) = trials(folder, "long")
        newest = chunk_files.newest(trial)
        assert newest is not None and newest.finished
        ballast.unlink()
        again = run(folder, "--resume", "long")
        assert again.returncode == 0, again.stderr
        assert_long_is_whole(folder)


def test_no_space_for_the_report(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "work", REPORTED)
    with small_disk(folder / "results", 60) as disk:
        compute(folder)
        ballast = fill(disk, free=200_000)
        overrides = [f"storage={disk}", f"tracking.uri={uri(folder)}"]
        done = run_sweep(overrides=overrides, resume="tiny")
        assert done.exit_code == 1
        report = disk / "tiny" / "report"
        assert done.text.startswith(f"problem: {report}: the disk is full (")
        assert f"writes the report: python -m orchestrator.sweep --resume tiny storage={disk}" in done.text
        assert list(report.iterdir()) == []
        assert statuses(folder) == ["FINISHED"] * (1 + 4 + 8)
        ballast.unlink()
        done = run_sweep(overrides=overrides, resume="tiny")
        assert done.exit_code == 0, done.text
        assert (report / "report.html").stat().st_size > 100_000


def test_no_space_for_the_journal(tmp_path: Path) -> None:
    sweep = check_sweep(
        {
            "name": "j",
            "stream": {"name": "rainbow_digits"},
            "learners": [{"name": "foml", "K": {"grid": [1, 5]}}],
            "seeds": 2,
        }
    )
    wider = check_sweep(
        {
            "name": "j",
            "stream": {"name": "rainbow_digits"},
            "learners": [{"name": "foml", "K": {"grid": list(range(1, 40))}}],
            "seeds": 2,
        }
    )
    with small_disk(tmp_path / "disk", 1) as disk:
        root = disk / "j"
        Journal.look(root, make_plan(sweep, "store")).take()
        before = (root / "sweep.json").read_bytes()
        ballast = fill(disk)
        for each in (sweep, wider):
            with pytest.raises(
                DiskFullError, match=rf"^{root}: the disk is full \(\d+ bytes free\); make room there$"
            ) as caught:
                Journal.look(root, make_plan(each, "store")).take()
            assert caught.value.exit_code == 130
            assert (root / "sweep.json").read_bytes() == before
            assert (root / "sweep-copy.json").read_bytes() == before
        assert sorted(path.name for path in root.iterdir()) == ["sweep-copy.json", "sweep.json"]
        ballast.unlink()
        Journal.look(root, make_plan(wider, "store")).take()
        assert given_before(root, "j")[0]["learners"] == [{"name": "foml", "K": {"grid": list(range(1, 40))}}]


def test_no_space_for_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["rainbow_digits", "tasks=3", "train=50", "validation=12", "test=12", "--seeds", "1", "--out"]
    with small_disk(tmp_path / "disk", 8) as disk:
        ballast = fill(disk, free=1_000_000)
        capsys.readouterr()
        assert build.main([*arguments, str(disk / "store")]) == 2
        captured = capsys.readouterr()
        lines = [line for line in captured.err.split("\r")[-1].splitlines() if "device" in line]
        assert len(lines) == 1 and "Traceback" not in captured.err
        assert "(got No space left on device); make room: " in lines[0] and lines[0].endswith(" bytes are free")
        assert not (disk / "store").exists()
        assert [path.name for path in disk.iterdir() if path.is_dir()] == []
        ballast.unlink()
        assert build.main([*arguments, str(disk / "store")]) == 0
