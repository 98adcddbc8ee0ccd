"""Seconds from the command to the first update, by phase: `python -m benchmarks.sweep_start`.

Each try runs the user's command in an empty folder: it creates a database, starts a Ray instance, and an actor learns
the first batch. The clock starts before the interpreter and ends with the first batch. The task store is in the cache,
as for every sweep except the first. Goal: 15 s on two idle cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.sweep_start_marks import FILE

SWEEP = {
    "name": "start",
    "stream": {"name": "rainbow_digits", "tasks": 2, "train": 20, "validation": 12, "test": 12},
    "learners": [{"name": "foml", "K": 1}],
    "seeds": 3,
    "chunk": 1,
}
GOAL_S = 15.0
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep_start", description=__doc__)
    parser.add_argument("--tries", type=int, default=5)
    tries = [_one() for _ in range(parser.parse_args().tries)]
    names = list(tries[0])
    print("| until | seconds since the command | seconds since the line before |\n|---|---|---|")
    before = 0.0
    for name in names:
        at = statistics.median(one[name] for one in tries)
        print(f"| {name} | {at:.1f} | {at - before:.1f} |")
        before = at
    last = [one[names[-1]] for one in tries]
    print(f"\nfirst update after {statistics.median(last):.1f} s (goal {GOAL_S:g}), {min(last):.1f} to {max(last):.1f}")


def _one() -> dict[str, float]:
    """Seconds from the start of the command to each mark, in order."""
    with tempfile.TemporaryDirectory(prefix="foml-start-") as folder:
        Path(folder, "sweep.yaml").write_text(json.dumps(SWEEP))
        marks = Path(folder, "marks")
        environment = os.environ | {FILE: str(marks), "PYTHONPATH": str(ROOT)}
        began = time.time()
        command = [sys.executable, "-m", "benchmarks.sweep_start_marks", "--local", "sweep.yaml"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise SystemExit(done.stderr)
        seconds = {
            name: float(at) - began for name, at in (line.split("\t") for line in marks.read_text().splitlines())
        }
        (trial,) = Path(folder, "results", "start").glob("*/attempt-0001")
        seconds["the actor sets up its trial"] = trial.stat().st_ctime - began
        seconds["first update"] = _first_update(trial.parent) - began
    return dict(sorted(seconds.items(), key=lambda item: item[1]))


def _first_update(trial: Path) -> float:
    from orchestrator.storage import chunk_files

    newest = chunk_files.newest(trial)
    assert newest is not None
    return float(newest.curves.chunks["time_ms"][0]) / 1_000


if __name__ == "__main__":
    main()
