"""How often a trial is tried again: with a learner that kills its own process, on a real Ray, and on a lost node."""

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from orchestrator.execution.callbacks import ResultCallback
from orchestrator.execution.messages import TrialSpec
from orchestrator.execution.nodes import NodeLeavingError
from orchestrator.plan.plan import Trial
from streams.schedule import Sequential
from tests.orchestrator.sweep_command import TINY, folder_with, run, statuses
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
    text = TINY.replace("[{name: foml, K: {grid: [1, 2]}}, {name: online}, {name: tfs}]", learner)
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


def test_an_attempt_that_leaves_its_node_uses_no_retry(tmp_path: Path) -> None:
    context, queue, progress, health = MagicMock(), MagicMock(), MagicMock(), MagicMock()
    context.sweep.document.retries, context.sweep.document.max_failures = 1, None
    context.stop_request.requested = False
    context.outcome.fates, health.ended.return_value = {}, ""
    callback = ResultCallback(context, queue, progress, health)
    spec = TrialSpec(Trial(configuration("online"), (0, 1)), str(tmp_path), "0" * 64, Sequential(), 4, "last", 1, 0)

    def end(error: Exception) -> None:
        (tmp_path / "error.pkl").write_bytes(pickle.dumps(error))
        trial = SimpleNamespace(trial_id="x", config=spec.to_tune(), pickled_error_file=str(tmp_path / "error.pkl"))
        callback.on_trial_error(1, [], trial)

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
