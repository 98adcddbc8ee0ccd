"""Many trials through Ray and MLflow: MLflow is complete, without duplicates, and the driver's memory stays small."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def many(trials: int, folder: Path, slots: int = 8) -> str:
    """The benchmark's output; it exits with 1 if a run or a step is missing in MLflow, or if memory exceeds its goal."""
    command = [sys.executable, "-m", "benchmarks.many_trials", "--trials", str(trials), "--slots", str(slots)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    print(process.stdout)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.timeout(400)
def test_thirty_trials(tmp_path: Path) -> None:
    """Two slots: each learner actor starts Python and torch."""
    output = many(30, tmp_path, slots=2)
    assert "MLflow: every run and every step, once" in output and "exit code of the sweep: 0" in output


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trials", [300, 2_000])
def test_many_trials(trials: int, tmp_path: Path) -> None:
    output = many(trials, tmp_path)
    assert "MLflow: every run and every step, once" in output
    growth = re.search(r"memory of the driver: (-?\d+) KB a trial", output)
    assert growth is not None and int(growth[1]) <= 50
