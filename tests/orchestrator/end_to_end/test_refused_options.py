"""A learner that refuses its options during construction: its trial fails immediately, in one line, and the others run."""

from pathlib import Path

from tests.orchestrator.sweep_command import PATIENCE_S, folder_with, run

SWEEP = """
name: refused
stream: {name: rainbow_digits, tasks: 2, train: 20, validation: 12, test: 12}
learners: [{name: mine.picky, alpha1: {grid: [0.01, 0.5]}}]
seeds: 1
resources: {cpus: 0.5}
"""
PICKY = """
from learners.online import Online


class Picky(Online):
    def __init__(self, options, setting):
        super().__init__(options, setting)
        if options.alpha1 > 0.1:
            raise ValueError(f"alpha1 must be at most 0.1 (got {options.alpha1})")
"""


def test_it_is_one_line_and_no_further_attempt(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "refused", SWEEP)
    (folder / "mine").mkdir()
    (folder / "mine" / "picky.py").write_text(PICKY, encoding="utf-8")
    done = run(folder, "sweep.yaml", timeout=PATIENCE_S)
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "alpha1 must be at most" in line]
    assert line.startswith("problem: mine.picky alpha1=0.5 (")
    assert line.endswith("): failed: alpha1 must be at most 0.1 (got 0.5)")
    assert "actor died" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout
    assert "best: mine.picky alpha1=0.01" in done.stdout
    trials = list((folder / "results" / "refused").glob("*/attempt-*"))
    assert {path.name.removesuffix(".json") for path in trials} == {"attempt-0001"}
