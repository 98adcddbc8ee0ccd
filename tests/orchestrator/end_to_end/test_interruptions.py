"""Processes really killed: after any interruption, a sweep resumes and ends like an uninterrupted one.

Everything is compared with the bare protocol, bit for bit, and with MLflow's database.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from orchestrator.config.load import load_sweep
from orchestrator.plan.expand import make_plan
from orchestrator.plan.task_store import open_store
from orchestrator.protocol import metrics
from orchestrator.storage import chunk_files
from tests.orchestrator.protocol_sweep import compute
from tests.orchestrator.sweep_command import (
    LEARNERS,
    LONG,
    PATIENCE_S,
    TINY,
    assert_long_is_whole,
    assert_same,
    command_line,
    curves_of,
    family,
    folder_with,
    reached,
    run,
    running,
    statuses,
    trials,
    wait_for,
)


@pytest.mark.slow
def test_killed_learners_and_a_killed_stream_actor_are_no_loss(tmp_path: Path) -> None:
    """Two learners; with one, in a sweep that was resumed, it is the last part of the next test."""
    folder = folder_with(tmp_path, LONG)
    with running(folder, "sweep.yaml") as process:
        killed = []
        for batches in (6, 24):  # batches of 60: twice, each time in the middle
            attempt = wait_for(lambda batches=batches: reached(folder, "long", batches), process)
            pid = int(attempt.read_text().split()[1])
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            if batches == 6:
                wait_for(lambda: reached(folder, "long", 12), process)
                kill_one(process.pid, "ray::StreamActor")
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert_only_ours(out)
    assert len(set(killed)) == 2
    (trial,) = trials(folder, "long")
    assert len(list(trial.glob("attempt-*"))) == 3  # a learner outlives its stream actor
    assert_long_is_whole(folder)


def kill_one(pid: int, what: str) -> None:
    (member,) = (member for member, words in family(pid).items() if what in words)
    os.kill(member, signal.SIGKILL)


def assert_only_ours(out: str) -> None:
    """Standard output holds the table and the lines after it, and nothing of Ray's."""
    assert out.startswith("learner "), out
    assert not [line for line in out.splitlines() if line.startswith((" ", "\x1b", "(", "["))], out


def survivors(ours: dict[int, str]) -> list[str]:
    """The command lines of the processes that still run."""
    return [words for pid, words in ours.items() if command_line(pid) == words]


def lose(what: str, folder: Path, process: subprocess.Popen[str]) -> None:
    """Kill a part of Ray: then calls into Ray do not return, or wait forever for a machine for an actor."""
    ours = family(process.pid)
    kill_one(process.pid, what)
    rays = {pid: words for pid, words in ours.items() if pid != process.pid and "watcher.py" not in words}
    # The command notices it and ends the rest, before Ray would give up after a minute.
    wait_for(lambda: None if survivors(rays) else True, None, timeout=45)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert_only_ours(out)
    last = out.splitlines()[-1]
    assert last.endswith(" is gone: resume with: python -m orchestrator.sweep --resume long") or (
        "is gone (" in last and last.endswith("): resume with: python -m orchestrator.sweep --resume long")
    )
    assert set(statuses(folder)) == {"KILLED"}
    assert not survivors(ours)


def signal_once(number: int, folder: Path, process: subprocess.Popen[str]) -> None:
    """Send one signal: the chunk in flight is kept."""
    ours = family(process.pid)
    process.send_signal(number)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "interrupted: resume with: python -m orchestrator.sweep --resume long" in out
    assert set(statuses(folder)) == {"KILLED"}
    assert not survivors(ours)


def signal_twice(folder: Path, process: subprocess.Popen[str]) -> None:
    """Send two signals: everything stops immediately."""
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "--resume long" in out
    assert set(statuses(folder)) == {"KILLED"}


def interrupted(folder: Path, batches: int, by: Callable[[Path, subprocess.Popen[str]], None]) -> int:
    """Resume the sweep, and interrupt it after n batches; return the number of batches that it then has."""
    arguments = ["--resume", "long"] if (folder / "results").exists() else ["sweep.yaml"]
    with running(folder, *arguments) as process:
        wait_for(lambda: reached(folder, "long", batches), process)
        by(folder, process)
    (trial,) = trials(folder, "long")
    newest = chunk_files.newest(trial)
    assert newest is not None and not newest.finished
    assert newest.batches >= batches
    return newest.batches


def hang_up(folder: Path, process: subprocess.Popen[str]) -> None:
    """Close the terminal: all processes of the command receive SIGHUP, and the chunk in flight is kept."""
    ours = family(process.pid)
    os.killpg(process.pid, signal.SIGHUP)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "stopping: the chunks in flight are finished and kept" in errors
    assert "interrupted: resume with: python -m orchestrator.sweep --resume long" in out
    assert set(statuses(folder)) == {"KILLED"}
    assert not survivors(ours)


GCS, RAYLET = "/gcs/gcs_server ", "/raylet/raylet "


def test_interrupted_in_many_ways_a_sweep_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    """In order, these are killed: Ray's control service, everything by two signals, the driver, a learner, the stream actor.

    A sweep resumed after one signal is compared in `console/test_screen.py`.
    """
    folder = folder_with(tmp_path, LONG.replace("train: 150", "train: 240"))
    batches = interrupted(folder, 6, partial(lose, GCS))
    batches = interrupted(folder, batches + 4, signal_twice)
    with running(folder, "--resume", "long") as process:
        wait_for(lambda: reached(folder, "long", batches + 4), process)
        ours = family(process.pid)
        assert any("ray::" in words for words in ours.values())
        process.kill()
        process.wait()
        killed_at = time.monotonic()
        assert "RUNNING" in statuses(folder)
        with running(folder, "--resume", "long") as again:  # immediately: late writes are fenced off
            wait_for(lambda: None if survivors(ours) else True, None, timeout=60)
            assert time.monotonic() - killed_at < 60
            attempt = wait_for(lambda: reached(folder, "long", batches + 8), again)
            attempts = len(list(attempt.parent.glob("attempt-*")))
            os.kill(int(attempt.read_text().split()[1]), signal.SIGKILL)
            wait_for(lambda: reached(folder, "long", batches + 12), again)
            kill_one(again.pid, "ray::StreamActor")
            out, errors = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, errors
    assert_only_ours(out)
    assert len(list(attempt.parent.glob("attempt-*"))) == attempts + 1  # a learner outlives its stream actor
    assert_long_is_whole(folder, train=240)


@pytest.mark.slow
@pytest.mark.parametrize(
    "by",
    [partial(lose, RAYLET), partial(signal_once, signal.SIGTERM), hang_up],
    ids=["without the raylet", "SIGTERM", "SIGHUP"],
)
def test_interrupted_in_another_way(tmp_path: Path, by: Callable[[Path, subprocess.Popen[str]], None]) -> None:
    folder = folder_with(tmp_path, LONG)
    interrupted(folder, 6, by)
    again = run(folder, "--resume", "long")
    assert again.returncode == 0, again.stderr
    assert_long_is_whole(folder)


@pytest.mark.parametrize(
    "when",
    ["while Ray starts", pytest.param("before the first trial", marks=pytest.mark.slow)],
)
def test_a_sigterm_before_the_first_trial_is_an_interruption_like_any_other(tmp_path: Path, when: str) -> None:
    folder = folder_with(tmp_path, LONG)
    with running(folder, "sweep.yaml", "--json") as process:
        if when == "while Ray starts":
            wait_for(lambda: any(GCS in words for words in family(process.pid).values()) or None, process)
        else:
            assert process.stderr is not None
            for line in process.stderr:
                if " at a time; seeds [0, 1]" in line:
                    break
        ours = family(process.pid)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    document = json.loads(out)
    assert (document["sweep"], document["exit_code"]) == ("long", 130)
    assert document["resume"] == "python -m orchestrator.sweep --resume long"
    assert set(statuses(folder)) == {"KILLED"}
    assert not survivors(ours)


def test_after_a_stop_request_no_trial_starts_and_the_table_shows_the_errors_so_far(tmp_path: Path) -> None:
    """Of four trials two run at a time, one of them longer: the slot of the other must stay free.

    The shorter one has two thirds of its batches to learn when the longer one has learned the first task.
    """
    text = TINY.replace("train: 50", "train: 900").replace("chunk: 4", "chunk: 10")
    folder = folder_with(tmp_path, text.replace("K: {grid: [1, 2]}", "K: {grid: [5, 8]}"))
    with running(folder, "sweep.yaml", slots=2) as process:
        wait_for(lambda: of_first_task(folder)[1:] or None, process)
        ours = family(process.pid)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "interrupted: resume with: python -m orchestrator.sweep --resume tiny" in out
    assert not survivors(ours)
    claims = sorted((folder / "results" / "tiny").glob("*/attempt-*"))
    assert len(claims) == 2
    newest = {claim.parent.name: chunk_files.newest(claim.parent) for claim in claims}
    so_far = [metrics.objective(chunk.curves, "cumulative_error") for chunk in newest.values() if chunk is not None]
    shown = [f"{metrics.interval(values)} so far" for values in so_far if values is not None]  # they may be equal
    assert len(shown) == 2 and all(line in out for line in shown), out
    assert out.count(" so far") == 2
    assert set(statuses(folder)) == {"KILLED"} and len(statuses(folder)) == 1 + 2 + 4


def of_first_task(folder: Path) -> list[Path]:
    """The folders of the trials that have learned the first task, 90 of 270 batches, and have not ended."""
    chunks = (folder / "results" / "tiny").glob("*/chunk-*.pt")
    return sorted({path.parent for path in chunks if 90 <= int(path.name.split("-")[1]) < 260})


@pytest.mark.slow
def test_a_learner_killed_while_it_takes_over_a_trial_is_no_loss(tmp_path: Path) -> None:
    """Of four trials on two slots the third is given to an actor that has ended its first. Tune would give it up."""
    folder = folder_with(tmp_path, TINY)
    root = folder / "results" / "tiny"

    def taking_over() -> Path | None:
        """The claim of an actor that has claimed another trial before."""
        seen: set[str] = set()
        for path in sorted(root.glob("*/attempt-*"), key=lambda path: path.stat().st_mtime_ns):
            who = " ".join(path.read_text().split()[:2])  # host and process
            if who and who in seen:
                return path
            seen.add(who)
        return None

    with running(folder, "sweep.yaml", slots=2) as process:
        claim = wait_for(taking_over, process)
        os.kill(int(claim.read_text().split()[1]), signal.SIGKILL)
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors + out
    assert errors.count(": its actor died, another resumes from its last chunk: ") == 1
    assert len(list(claim.parent.glob("attempt-*"))) >= 2
    assert statuses(folder) == ["FINISHED"] * (1 + 4 + 8)
    _, _, expected = compute(folder_with(tmp_path / "bare", TINY))
    for key, curves in curves_of(folder, "tiny").items():
        assert_same(curves, expected.pop(key))
    assert not expected


def test_max_failures_stops_the_sweep_which_can_be_resumed(tmp_path: Path) -> None:
    """Files instead of two trials' folders: these trials fail, and the third is not started."""
    learners = "[{name: online, alpha1: {grid: [0.001, 0.002, 0.003, 0.004]}}]"
    text = TINY.replace(LEARNERS, learners)
    folder = folder_with(tmp_path, text)
    sweep = load_sweep(folder / "sweep.yaml")
    plan = make_plan(sweep, open_store(sweep).hash)
    root = folder / "results" / "tiny"
    root.mkdir(parents=True)
    for trial in plan.trials[:2]:
        trial.folder(root).write_text("in the way")
    done = run(folder, "sweep.yaml", "retries=0", "max_failures=0")
    assert done.returncode == 3, done.stderr
    assert (
        "1 trials failed, and max_failures is 0: resume with: python -m orchestrator.sweep --resume tiny" in done.stdout
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
