"""`.ci/run` succeeds only if each of its steps does, and leaves no files.

Stubs replace the steps: they do nothing, or fail where a test wants a failure. The script that calls them is tested.
"""

import os
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci/run"
STEP = """#!/bin/sh
step="$(basename "$0") $*"
echo "$step" >>"$STEPS"
case "$step" in *"-m venv "*) mkdir -p "$3/bin" && : >"$3/bin/activate" ;; esac
[ -z "$FAILING" ] || case "$step" in $FAILING) exit 7 ;; esac
"""
STEPS = ["python3", "python", "pip", "ruff", "mypy", "lint-imports", "pytest", "apt-get"]


def run(folder: Path, failing: str = "") -> tuple[int, list[str]]:
    """The exit status of `.ci/run` when commands that match `failing` fail, and the commands that it called."""
    commands = folder / "bin"
    commands.mkdir()
    for name in STEPS:
        (commands / name).write_text(STEP)
        (commands / name).chmod(0o755)
    scratch = folder / "tmp"
    scratch.mkdir()
    environment = os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "TMPDIR": str(scratch),
        "STEPS": str(folder / "steps"),
        "FAILING": failing,
    }
    ended = subprocess.run(["bash", RUN], env=environment, capture_output=True, text=True, timeout=60)
    assert list(scratch.iterdir()) == [], ended.stderr
    return ended.returncode, (folder / "steps").read_text().splitlines()


def test_the_run_succeeds_if_each_step_does(tmp_path: Path) -> None:
    status, steps = run(tmp_path)
    assert status == 0
    expected = ["-m venv", "pip install", "ruff check", "ruff format", "mypy", "lint-imports"]
    expected += ["python -m orchestrator.sweep", "python -m orchestrator.sweep --plan", "check_quickstart.py"]
    expected += ["pytest -q -n 3"]
    called = iter(step for step in steps if "cluster" not in step)  # the cluster runs in parallel to the checks
    assert all(any(want in step for step in called) for want in expected), steps
    assert sum("tests/cluster" in step for step in steps) == 1


@pytest.mark.parametrize(
    "step",
    [
        "python3 -m venv *",
        "pip install *",
        "ruff check *",
        "ruff format *",
        "mypy *",
        "lint-imports *",
        "pytest -q -n 3 *",
        "pytest *tests/cluster",
        "python -m orchestrator.sweep",
        "python -m orchestrator.sweep --plan",
        "python .ci/check_quickstart.py *",
    ],
)
def test_a_failed_step_fails_the_run(tmp_path: Path, step: str) -> None:
    status, steps = run(tmp_path, step)
    assert status != 0
    assert any("pip install" in called for called in steps) == (not step.startswith("python3"))


def test_findings_of_the_doctor_are_no_failure(tmp_path: Path) -> None:
    status, steps = run(tmp_path, "*orchestrator.doctor*")
    assert (status, "python -m orchestrator.sweep --plan" in steps) == (0, True)
