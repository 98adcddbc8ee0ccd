"""How often a trial is tried again, with a learner that kills its own process, on a real Ray."""

import os
from pathlib import Path

import pytest

from tests.orchestrator.sweep_command import TINY, folder_with, run, statuses

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
