"""Processes really killed: whatever comes between, a sweep goes on and ends as if nothing had been.

All is checked against the bare protocol, bit for bit, and against MLflow's database.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from orchestrator import chunks, config
from orchestrator.plan import make_plan
from orchestrator.sweep import open_store
from tests.orchestrator.real_sweep import (
    LONG,
    TINY,
    assert_long_is_whole,
    command_line,
    family,
    folder_with,
    reached,
    run,
    running,
    statuses,
    trials,
    wait_for,
)


def test_a_killed_learner_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LONG)
    with running(folder, "sweep.yaml") as process:
        killed = []
        for wanted in (6, 24):  # batches of 60: twice, each time in the middle
            attempt = wait_for(lambda wanted=wanted: reached(folder, "long", wanted), process)
            pid = int(attempt.read_text().split()[1])
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert_only_ours(out)
    assert len(set(killed)) == 2
    (trial,) = trials(folder, "long")
    assert len(list(trial.glob("attempt-*"))) == 3
    assert_long_is_whole(folder)


def test_a_killed_stream_actor_is_no_loss(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LONG)
    with running(folder, "sweep.yaml") as process:
        wait_for(lambda: reached(folder, "long", 6), process)
        kill_one(process.pid, "ray::StreamActor")
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert_only_ours(out)
    assert_long_is_whole(folder)


@pytest.mark.parametrize("what", ["/gcs/gcs_server ", pytest.param("/raylet/raylet ", marks=pytest.mark.slow)])
def test_without_ray_the_command_ends_and_resume_goes_on(tmp_path: Path, what: str) -> None:
    """Calls into Ray do not come back then, or wait for ever for a machine to run an actor on."""
    folder = folder_with(tmp_path, LONG)
    with running(folder, "sweep.yaml") as process:
        wait_for(lambda: reached(folder, "long", 6), process)
        ours = family(process.pid)
        kill_one(process.pid, what)
        killed_at = time.monotonic()
        out, errors = process.communicate(timeout=60)
        seconds = time.monotonic() - killed_at
    assert process.returncode == 130, errors
    assert seconds < 45
    assert "Traceback" not in errors
    assert_only_ours(out)
    last = out.splitlines()[-1]
    assert last.endswith(" is gone: go on with: python -m orchestrator.sweep --resume long") or (
        "is gone (" in last and last.endswith("): go on with: python -m orchestrator.sweep --resume long")
    )
    assert set(statuses(folder)) == {"KILLED"}
    assert not [words for pid, words in ours.items() if command_line(pid) == words]
    again = run(folder, "--resume", "long")
    assert again.returncode == 0, again.stderr
    assert_long_is_whole(folder)


def kill_one(pid: int, what: str) -> None:
    (found,) = (member for member, words in family(pid).items() if what in words)
    os.kill(found, signal.SIGKILL)


def assert_only_ours(out: str) -> None:
    """Standard output holds the table and what follows it, and nothing of Ray's."""
    assert out.startswith("learner "), out
    assert not [line for line in out.splitlines() if line.startswith((" ", "\x1b", "(", "["))], out


def test_a_killed_driver_leaves_no_process_and_the_sweep_goes_on(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LONG)
    with running(folder, "sweep.yaml") as process:
        wait_for(lambda: reached(folder, "long", 6), process)
        ours = family(process.pid)
        assert any("ray::" in words for words in ours.values())
        process.kill()
        process.communicate(timeout=30)
        killed_at = time.monotonic()
    assert "RUNNING" in statuses(folder)
    again = run(folder, "--resume", "long")  # at once: what still writes is fenced off
    assert again.returncode == 0, again.stderr
    assert_long_is_whole(folder)
    wait_for(lambda: None if any(command_line(pid) == words for pid, words in ours.items()) else True, None, timeout=60)
    assert time.monotonic() - killed_at < 60


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_one_signal_keeps_the_chunk_and_resume_goes_on(tmp_path: Path, number: int) -> None:
    folder = folder_with(tmp_path, LONG)
    with running(folder, "sweep.yaml") as process:
        wait_for(lambda: reached(folder, "long", 6), process)
        ours = family(process.pid)
        process.send_signal(number)
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "interrupted: go on with: python -m orchestrator.sweep --resume long" in out
    assert set(statuses(folder)) == {"KILLED"}
    assert not [words for pid, words in ours.items() if command_line(pid) == words]
    (trial,) = trials(folder, "long")
    half = chunks.newest(trial)
    assert half is not None
    assert 6 <= half.batches < 60
    again = run(folder, "--resume", "long")
    assert again.returncode == 0, again.stderr
    assert_long_is_whole(folder)


def test_two_signals_stop_at_once_and_resume_goes_on(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LONG)
    with running(folder, "sweep.yaml") as process:
        wait_for(lambda: reached(folder, "long", 6), process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "--resume long" in out
    assert set(statuses(folder)) == {"KILLED"}
    again = run(folder, "--resume", "long")
    assert again.returncode == 0, again.stderr
    assert_long_is_whole(folder)


def test_a_failure_budget_stops_the_sweep_and_it_can_go_on(tmp_path: Path) -> None:
    """Files in the place of two trials' folders: they fail, and the third is not begun."""
    folder = folder_with(tmp_path, TINY)
    sweep = config.load(folder / "sweep.yaml")
    plan = make_plan(sweep, open_store(sweep).hash)
    root = folder / "results" / "tiny"
    root.mkdir(parents=True)
    for trial in plan.trials[:2]:
        trial.folder(root).write_text("in the way")
    words = ("retries=0", "max_failures=0", f"resources.cpus={0.75 * (os.cpu_count() or 1)}")  # one at a time
    done = run(folder, "sweep.yaml", *words)
    assert done.returncode == 3, done.stderr
    assert (
        "1 trials failed, and max_failures is 0: go on with: python -m orchestrator.sweep --resume tiny" in done.stdout
    )
    assert f"problem: {plan.trials[0].configuration.label} ({plan.trials[0].key}): failed: " in done.stdout
    assert "Traceback" not in done.stderr + done.stdout
    assert "RUNNING" not in statuses(folder)
    assert not plan.trials[3].folder(root).exists()
    for trial in plan.trials[:2]:
        trial.folder(root).unlink()
    again = run(folder, "--resume", "tiny")
    assert again.returncode == 0, again.stderr
    assert statuses(folder) == ["FINISHED"] * (1 + 4 + 8)
