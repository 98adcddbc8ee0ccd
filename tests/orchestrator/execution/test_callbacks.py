"""How often a trial is tried again: with a learner that kills its own process, on a real Ray, and on a lost node."""

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from ray.tune.search import Searcher

from orchestrator.errors import ConfigError
from orchestrator.execution.callbacks import QueueSearcher, ResultCallback, TrialStopper
from orchestrator.execution.messages import Refusal, TrialSpec, to_tune
from orchestrator.execution.nodes import NodeLeavingError
from orchestrator.plan import fate
from orchestrator.plan.plan import Trial
from orchestrator.storage.chunk_files import SupersededError
from orchestrator.storage.mirror import Mirror
from orchestrator.storage.trial_files import TrialFiles
from orchestrator.storage.trial_log import has_failed
from orchestrator.system.signals import StopRequest
from streams.schedule import Sequential
from tests.orchestrator.sweep_command import LEARNERS, TINY, folder_with, run, statuses
from tests.orchestrator.synthetic_sweep import configuration

DEADLY = """
import os, pathlib, signal, time
from learners.online import Online

class Learner(Online):
    updates = 0

    def update(self, batch):
        self.updates += 1
        died = pathlib.Path(__file__).with_name(f"{self.model.optimizer.rate}-{self.updates}")
        if self.updates in (2, 7) and not died.exists():
            died.touch()
            time.sleep(0.5)  # Tune does not take it for one that never began
            os.kill(os.getpid(), signal.SIGKILL)
        return super().update(batch)

    def state_dict(self):
        return super().state_dict() | {"updates": self.updates}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.updates = state["updates"]
"""


def test_a_trial_is_tried_again_as_often_as_retries_says_however_it_is_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each member of a population dies once in its first round, and once in its second: one retry is too few."""
    learner = "[{name: of.own, alpha1: {loguniform: [1.0e-4, 1.0e-1]}}]"
    text = TINY.replace(LEARNERS, learner)
    folder = folder_with(tmp_path, text)
    (folder / "of").mkdir()
    (folder / "of/own.py").write_text(DEADLY)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep))
    done = run(folder, "sweep.yaml", "retries=1", "search={samples: 2, scheduler: {name: pbt, interval: 50}}")
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.count(": its actor died, another resumes from its last chunk: ") == 2
    assert done.stdout.count("problem: of.own member ") == 2
    members = [path for path in (folder / "results/tiny").glob("*-*") if path.is_dir()]
    assert [len(list(path.glob("attempt-*"))) for path in members] == [3, 3]  # one in round 1, one more in it, one in 2
    assert len(list((folder / "of").glob("0.*-2"))) == len(list((folder / "of").glob("0.*-7"))) == 2
    assert statuses(folder) == ["FAILED"] * (1 + 2 + 4)


class Driver:
    """The callback of a sweep with one trial and one retry, and what it calls."""

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        self.queue, self.progress, self.context, health = MagicMock(), MagicMock(), MagicMock(), MagicMock()
        self.context.sweep.document.retries, self.context.sweep.document.max_failures = 1, None
        self.context.stop_request, self.context.journal.mirror = StopRequest(), mirror
        self.context.outcome.fates, health.ended.return_value = {}, ""
        self.callback = ResultCallback(self.context, self.queue, self.progress, health)
        trial = Trial(configuration("online"), (0, 1))
        address = None if mirror is None else mirror.trial_address(trial.key)
        place = folder if mirror is None else trial.folder(mirror.local)
        self.spec = TrialSpec(trial, str(place), "0" * 64, Sequential(), 4, "last", 1, 0, address=address)
        self._error = folder / "error.pkl"

    def end(self, error: Exception) -> None:
        """The trial's actor ends with this error."""
        self._error.write_bytes(pickle.dumps(error))
        trial = SimpleNamespace(trial_id="x", config=self.spec.to_tune(), pickled_error_file=str(self._error))
        self.callback.on_trial_error(1, [], trial)


def test_a_trial_that_another_command_has_taken_over_stops_the_sweep(tmp_path: Path) -> None:
    """Machine a was suspended until machine b took over. Another attempt of a would fence off the one of b."""
    mirror = Mirror((tmp_path / "bucket").as_uri(), "s")
    mirror.pull()
    mirror.local.joinpath(".machine").write_text(".running-a")
    driver = Driver(tmp_path, mirror)
    driver.end(SupersededError("attempt 1 was superseded"))  # by an actor that a lost node had hidden: none took over
    assert driver.queue.requeue.call_count == 1 and not driver.context.stop_request.requested
    folder = tmp_path / "bucket/s"
    (folder / ".running-b").write_text('{"process": 7, "host": "b"}')
    for _ in range(3):
        driver.end(SupersededError("attempt 2 was superseded"))
    assert driver.queue.requeue.call_count == 1 and driver.context.outcome.fates == {}
    request = driver.context.stop_request
    assert (request.requested, request.interrupted) == (True, True)
    assert "process 7 on b has taken over this sweep" in request.reason
    assert [call.args[0] for call in driver.progress.say.call_args_list] == [request.reason]


def test_lines_of_the_driver_are_in_the_log_at_the_address(tmp_path: Path) -> None:
    mirror = Mirror((tmp_path / "bucket").as_uri(), "s")
    mirror.pull()
    driver = Driver(tmp_path, mirror)
    for attempt in (1, 2):
        files = TrialFiles(driver.spec.folder, driver.spec.address)
        files.log.starts_on(f"machine {attempt}")
        files.push()
        files.close()
        driver.end(ValueError("broken"))
    local = Path(driver.spec.folder)
    assert has_failed(local)
    mirror.pull_trial(driver.spec.trial.key)  # as MLflow's writer does before it stores the log
    assert has_failed(local)
    lines = [line.partition(" ")[2] for line in (local / "trial.log").read_text().splitlines()]
    assert lines == [
        "attempt 1: starts on machine 1",
        "driver: attempt over, another resumes from its last chunk: broken",
        "attempt 2: starts on machine 2",
        "driver: failed for good: broken",
    ]


def test_an_attempt_that_leaves_its_node_uses_no_retry(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    queue, progress, context, spec, end = driver.queue, driver.progress, driver.context, driver.spec, driver.end
    for _ in range(3):
        end(NodeLeavingError("the cloud takes this node"))
    assert queue.proceed.call_count == 3 and queue.requeue.call_count == 0
    end(ValueError("broken"))  # the one retry
    assert queue.proceed.call_count == 3 and queue.requeue.call_count == 1 and context.outcome.fates == {}
    assert [call.args[1] for call in progress.actor_died.call_args_list] == ["the cloud takes this node"] * 3 + [
        "broken"
    ]
    end(ValueError("broken"))
    assert queue.requeue.call_count == 1 and list(context.outcome.fates) == [spec.trial.key]


@pytest.mark.parametrize("call", ["pause", "fail", "stopped", "next_pack"])
def test_a_decision_that_cannot_be_written_stops_the_sweep(tmp_path: Path, call: str) -> None:
    """Tune would take the error for one of the trial that reported, and start it again."""
    driver = Driver(tmp_path)
    key, request, queue, end = driver.spec.trial.key, driver.context.stop_request, driver.queue, driver.context.outcome
    getattr(queue, call).side_effect = ConfigError("s3://bucket/s: cannot be reached")
    queue.draws, end.of.return_value = False, fate.INTERRUPTED
    trial = SimpleNamespace(trial_id="x", config=driver.spec.to_tune(), last_result={}, run_metadata=MagicMock())
    trial.metric_analysis, trial.metric_n_steps = {}, {}
    if call == "pause":
        driver.callback._fitness[key] = 0.5
        driver.callback.on_trial_complete(1, [], trial)
    elif call == "fail":
        driver.callback._refusals[key] = "no"
        driver.callback.on_trial_complete(1, [], trial)
    elif call == "stopped":
        stopper = TrialStopper(driver.context, queue, driver.callback)
        assert stopper("x", {"config": driver.spec.to_tune(), **to_tune([Refusal("")])})
        assert end.fates == {}
    else:
        searcher = QueueSearcher(driver.context, queue, MagicMock(), lambda: 1)
        assert searcher.suggest("x") == Searcher.FINISHED
    assert (request.requested, request.interrupted) == (True, True)
    assert request.reason == "s3://bucket/s: cannot be reached"


def test_a_search_draws_for_slots_that_join_later() -> None:
    slots, drawn = [1], iter("abcdef")
    queue = SimpleNamespace(waits=False, draws=True, next_pack=lambda slots: (next(drawn),))
    context = SimpleNamespace(stop_request=StopRequest())
    spec = lambda trials: SimpleNamespace(to_tune=lambda: {"trial": trials[0]})  # noqa: E731
    searcher = QueueSearcher(context, queue, spec, lambda: slots[0])  # type: ignore[arg-type]
    assert [searcher.suggest(name) for name in "12"] == [{"trial": "a"}, None]
    slots[0] = 3
    assert [searcher.suggest(name) for name in "345"] == [{"trial": "b"}, {"trial": "c"}, None]
