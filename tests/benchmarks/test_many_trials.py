"""Hundreds of trials through Ray and MLflow: all of it is there, once, and the driver's memory stays small."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def many(trials: int, folder: Path) -> str:
    """What the benchmark prints; it ends with 1 if MLflow lacks a run or a step, or if memory grows by more than its
    goal."""
    command = [sys.executable, "-m", "benchmarks.many_trials", "--trials", str(trials)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(850)
def test_three_hundred_trials(tmp_path: Path) -> None:
    told = many(300, tmp_path)
    assert "MLflow: every run and every step, once" in told and "exit code of the sweep: 0" in told
    growth = re.search(r"memory of the driver: (-?\d+) KB a trial", told)
    assert growth is not None and int(growth[1]) <= 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_thousand_trials(tmp_path: Path) -> None:
    assert "MLflow: every run and every step, once" in many(2_000, tmp_path)
