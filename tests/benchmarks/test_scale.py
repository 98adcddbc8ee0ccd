"""The benchmark of a sweep's load on MLflow: it plays a whole trial, and counts processor time."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import scale
from tests.orchestrator.conftest import new_database
from tests.orchestrator.tracked_sweep import TrackedRuns


def test_a_trial_is_played_to_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load = scale.Load(1, 1, new_database(tmp_path), (os.getpid(),), (("points", 10),))
    assert load.seconds == pytest.approx(5_040 / 150)
    used = scale.play(load, pace=100.0)
    assert used["writer"] > used["loop"] > 0 and used["left"] >= 0
    assert used["database"] >= used["writer"]  # this process stands for the database's
    seen = TrackedRuns(load.uri, "scale")
    assert seen.statuses() == Counter(FINISHED=1 + 1 + scale.SEEDS)
    seed = seen.of("seed")[0]
    counts = {name: len(steps) for name, steps in seen.points(seed).items()}
    assert {name: counts[name] for name in ("online_error", "online_loss", "diagnostics/diagnostic_0", "validation_error")} == {
        "online_error": 10, "online_loss": 10, "diagnostics/diagnostic_0": 1, "validation_error": 10,
    }  # fmt: skip
    first, *_, last = scale.table(load, used)
    assert first == "1 trials of 1 GPUs, 34 s there; 10 seeds, sqlite, points: 10"
    assert last.startswith("reference: ")


@pytest.mark.slow
def test_a_sweep_under_tune_is_measured(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.scale", "--gpus", "2", "--trials", "2", "--ray"]
    uri = new_database(tmp_path)
    done = subprocess.run([*words, "--uri", uri], capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 trials of 2 GPUs, 34 s there; 10 seeds, sqlite\n")
    loop = re.search(r"^loop: .* cores, (\d+) ms of CPU a trial$", done.stdout, re.MULTILINE)
    assert loop is not None and int(loop[1]) > 0
    assert TrackedRuns(uri, "scale").statuses() == Counter(FINISHED=1 + 2 * (1 + scale.SEEDS))
