"""What a sweep takes over from earlier commands."""

from pathlib import Path

import numpy as np
import pytest

from learners import checkpoint
from orchestrator.config.load import check_sweep
from orchestrator.console.output import Output
from orchestrator.plan.expand import make_plan
from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from orchestrator.sweep.run import _earlier_outcome


def test_a_finished_trial_whose_objective_raises_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed for that in the first command, and does so in the next, where it was called finished."""
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
    fair, failed = journal.plan.trials
    for trial, name in ((fair, "meta_error"), (failed, "online_error")):
        curves = Curves(list(trial.seeds), 0, {name: np.full((2, 3), 0.5)}, {}, {"batches": np.array([3])})
        folder = trial.folder(journal.root)
        chunk_files.write(folder, chunk_files.claim(folder), {}, curves, finished=True)
    assert journal.finished([]) == {fair.key, failed.key}
    outcome = _earlier_outcome(sweep, journal, Output(quiet=True))
    assert outcome.finished == {fair.key} and outcome.open == 1
