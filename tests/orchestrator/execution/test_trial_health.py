"""Trials that hang: named, ended after `trial_timeout`, and given up after `shutdown_grace`."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.execution.trial_health import ENDING_S, FIRST_S, PACE, SILENCE_S, TrialHealth
from orchestrator.system.signals import StopRequest
from tests.orchestrator.sweep_command import (
    LEARNERS,
    LONG,
    PATIENCE_S,
    TINY,
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


class Watched:
    """A `TrialHealth` whose time, lines and killed actors the test sees."""

    def __init__(self, trial_timeout: float | None = None, shutdown_grace: float = 30) -> None:
        self.now, self.lines, self.killed = 0.0, list[str](), list[Any]()
        self.stop_request = StopRequest()
        document = SimpleNamespace(trial_timeout=trial_timeout, shutdown_grace=shutdown_grace)
        named = SimpleNamespace(configuration=SimpleNamespace(label="foml K=1"))
        context: Any = SimpleNamespace(
            sweep=SimpleNamespace(document=document),
            stop_request=self.stop_request,
            outcome=SimpleNamespace(plan=SimpleNamespace(trial=lambda key: named)),
        )
        self.health = TrialHealth(
            context, self.lines.append, lambda: self.now, self.killed.append, lambda process: f"process {process}"
        )

    def trial(self, key: str, pid: int, others: int = 0) -> Any:
        """A trial that takes a slot now, with `others` in its pack."""
        actor = SimpleNamespace(get_current_ip_pid=SimpleNamespace(remote=lambda: pid))
        state, spec = SimpleNamespace(ray_actor=actor), SimpleNamespace(trial=SimpleNamespace(key=key))
        spec.pack = (spec,) * (1 + others)
        trial = SimpleNamespace(config={"trial": spec}, temporary_state=state)
        self.health.started(trial)
        return trial

    def at(self, now: float) -> list[str]:
        """The lines of a look at this time."""
        self.now, before = now, len(self.lines)
        self.health.look()
        return self.lines[before:]


def test_a_trial_is_named_once_its_pace_does_not_explain_its_silence_and_at_twice_that_silence_again() -> None:
    watched = Watched()
    trial = watched.trial("k", 7)
    assert watched.at(FIRST_S - 1) == []  # no result yet: nothing is known of its pace
    rest = "if it hangs, kill this process, and another resumes from its last chunk (trial_timeout does that)"
    assert watched.at(FIRST_S) == [f"foml K=1 (k): no result for 120 s, process 7; {rest}"]
    watched.now = 130
    watched.health.reported(trial)  # 130 s for the first chunk
    assert watched.at(130 + PACE * 130 - 1) == []
    assert len(watched.at(130 + PACE * 130)) == 1
    assert watched.at(130 + 2 * PACE * 130 - 1) == []
    assert len(watched.at(130 + 2 * PACE * 130)) == 1
    assert watched.killed == [] and watched.health.ended(trial) == ""


def test_a_trial_without_a_result_is_measured_by_the_others() -> None:
    watched = Watched()
    quick = watched.trial("quick", 1)
    watched.now = 4
    watched.health.reported(quick)
    watched.health.ended(quick)
    watched.trial("next", 2)
    assert watched.at(4 + SILENCE_S - 1) == []
    assert [line[:35] for line in watched.at(4 + SILENCE_S)] == ["foml K=1 (next): no result for 60 s"]


def test_a_pack_is_named_by_its_first_trial_and_the_number_of_others() -> None:
    watched = Watched()
    watched.trial("k", 7, others=3)
    (line,) = watched.at(FIRST_S)
    assert line.startswith("foml K=1 (k) and 3 others in its pack: no result for 120 s, process 7; ")


def test_trial_timeout_ends_a_trial_that_was_named_at_half_of_it() -> None:
    watched = Watched(trial_timeout=10)
    trial = watched.trial("k", 7)
    assert watched.at(4) == []
    assert watched.at(5) == ["foml K=1 (k): no result for 5 s, process 7; it is ended after 10 s (trial_timeout)"]
    assert watched.at(10) == [] and watched.killed == [trial.temporary_state.ray_actor]
    assert watched.at(11) == [] and len(watched.killed) == 1  # once
    assert watched.health.ended(trial) == "no result for 10 s: trial_timeout is 10 s (process 7)"


@pytest.mark.parametrize(("grace", "limit"), [(30, 30 - ENDING_S), (8, 4)])
def test_shutdown_grace_counts_from_the_stop_request_and_leaves_time_for_the_report(grace: float, limit: float) -> None:
    watched = Watched(shutdown_grace=grace)
    trial = watched.trial("k", 7)
    watched.at(50)
    watched.stop_request.request("interrupted", interrupted=True)
    assert watched.at(51) == [] and watched.at(51 + limit - 0.1) == []
    given_up = f"its chunk in flight is given up: shutdown_grace is {grace} s (process 7)"
    assert watched.at(51 + limit) == [f"foml K=1 (k): {given_up}"]
    assert watched.killed == [trial.temporary_state.ray_actor] and watched.health.ended(trial) == given_up


HANGING = """
import time
from learners.online import Online

class Learner(Online):
    updates = 0
    def update(self, batch):
        self.updates += 1
        if self.updates == 6:
            time.sleep(1e9)
        return super().update(batch)
"""
OWN = "[{name: of.own, alpha1: 0.01}]"


PICKY = """
from learners.online import Online

class Picky(Online):
    def __init__(self, options, setting):
        super().__init__(options, setting)
        if options.alpha1 > 0.1:
            raise ValueError(f"alpha1 must be at most 0.1 (got {options.alpha1})")
"""


def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """A folder with a sweep of a learner that hangs in its sixth update."""
    folder = folder_with(tmp_path, text)
    (folder / "of").mkdir()
    (folder / "of" / "own.py").write_text(HANGING)
    (folder / "of" / "picky.py").write_text(PICKY)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep))
    return folder


def test_a_learner_that_hangs_fails_as_often_as_retries_allow_and_one_that_refuses_its_options_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner that hangs is named, and ended after `trial_timeout`; another refuses an option while it is built."""
    learners = f"{OWN[:-1]}, {{name: of.picky, alpha1: {{grid: [0.01, 0.5]}}}}]"
    text = TINY.replace(LEARNERS, learners)
    folder = hanging(tmp_path, monkeypatch, text)
    done = run(folder, "sweep.yaml", "trial_timeout=20s", "retries=1", slots=2)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    attempts = [sorted(trial.glob("attempt-*")) for trial in trials(folder, "tiny")]
    hung, usual = sorted(attempts, key=len, reverse=True)
    pids, key = [attempt.read_text().split()[1] for attempt in hung], hung[0].parent.name
    assert len(set(pids)) == 2
    for pid in pids:
        assert f"of.own ({key}): no result for 10 s, process {pid} on " in done.stderr
    died = f"of.own ({key}): its actor died, another resumes from its last chunk: no result for 20 s: "
    assert done.stderr.count(died) == 1
    assert f"problem: of.own ({key}): failed: no result for 20 s: trial_timeout is 20 s (process {pids[1]} on " in (
        done.stdout
    )
    # The others: one is refused at its only attempt, and one finishes.
    (line,) = [line for line in done.stdout.splitlines() if "alpha1 must be at most" in line]
    assert line.startswith("problem: of.picky alpha1=0.5 (")
    assert line.endswith("): failed: alpha1 must be at most 0.1 (got 0.5)")
    assert not [line for line in done.stderr.splitlines() if "of.picky" in line and "actor died" in line]
    assert [path.name.removesuffix(".json") for path in usual] == ["attempt-0001"]
    assert "best: of.picky alpha1=0.01" in done.stdout
    assert sorted(statuses(folder)) == ["FAILED"] * (1 + 2 * (1 + 2)) + ["FINISHED"] * (1 + 2)


def test_one_sigterm_ends_a_sweep_whose_learner_hangs_and_keeps_the_chunks_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hanging(tmp_path, monkeypatch, LONG.replace("[{name: foml, K: 3}]", OWN))
    with running(folder, "sweep.yaml", "shutdown_grace=12s") as process:
        wait_for(lambda: reached(folder, "long", 4), process)
        time.sleep(2)  # it hangs in its sixth update
        ours = family(process.pid)
        process.send_signal(signal.SIGTERM)
        at = time.monotonic()
        out, errors = process.communicate(timeout=PATIENCE_S)
        seconds = time.monotonic() - at
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert errors.count("its chunk in flight is given up: shutdown_grace is 12 s (process ") == 1
    assert "its actor died" not in errors and "problem: " not in out
    assert "interrupted: resume with: python -m orchestrator.sweep --resume long" in out
    assert set(statuses(folder)) == {"KILLED"}
    assert not [words for pid, words in ours.items() if command_line(pid) == words]
    assert 6 <= seconds < 60  # alone on a machine 12; here others may run
