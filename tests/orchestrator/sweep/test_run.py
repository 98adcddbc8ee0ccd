"""What a sweep takes over from earlier commands."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from learners import checkpoint
from orchestrator.config.load import check_sweep
from orchestrator.config.schema import Sweep
from orchestrator.console.output import Output
from orchestrator.execution.outcome import Outcome
from orchestrator.plan import fate
from orchestrator.plan.expand import make_plan
from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from orchestrator.sweep.run import _earlier_outcome, _until_stopped
from orchestrator.system.signals import StopRequest


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Sweep, Journal]:
    """Two trials at the end of the stream; the objective of the second one raises."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_objective.py").write_text("def of(curves):\n    return curves.by_batch['meta_error'][:, -1]\n")
    monkeypatch.setattr(checkpoint, "is_intact", lambda path: True)
    document = {
        "name": "s",
        "stream": {"name": "rainbow_digits"},
        "seeds": 2,
        "objective": {"function": "own_objective.of"},
    }
    sweep = check_sweep(document | {"learners": [{"name": "foml"}, {"name": "online"}]})
    journal = Journal.look(tmp_path / "s", make_plan(sweep, "store"))
    journal.take()
    for trial, name in zip(journal.plan.trials, ("meta_error", "online_error"), strict=True):
        curves = Curves(list(trial.seeds), 0, {name: np.full((2, 3), 0.5)}, {}, {"batches": np.array([3])})
        folder = trial.folder(journal.root)
        chunk_files.write(folder, chunk_files.claim(folder), {}, curves, finished=True)
        (folder / chunk_files.LEARNER_FILE).touch()
    assert journal.finished() == {trial.key for trial in journal.plan.trials}
    return sweep, journal


def test_a_finished_trial_whose_objective_raises_is_tried_again(ended: tuple[Sweep, Journal]) -> None:
    """It failed for that in the first command, and does so in the next, where it was called finished."""
    sweep, journal = ended
    outcome = _earlier_outcome(sweep, journal, Output(quiet=True))
    assert outcome.finished == {journal.plan.trials[0].key} and outcome.open == 1


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_it_stays_failed_when_the_command_is_stopped(stop: BaseException, ended: tuple[Sweep, Journal]) -> None:
    """The second Ctrl-C and a full disk note which trials have finished, and called it finished."""
    sweep, journal = ended
    finished, failed = journal.plan.trials
    outcome, request = Outcome(journal.plan, {failed.key: fate.failed("'meta_error'")}), StopRequest()
    context: Any = SimpleNamespace(sweep=sweep, journal=journal, outcome=outcome, stop_request=request)
    with _until_stopped(context):
        raise stop
    assert outcome.finished == {finished.key} and outcome.failed == {failed.key: "'meta_error'"}
