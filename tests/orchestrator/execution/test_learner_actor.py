"""A learner actor claims its trial in its first step; the tests of whole sweeps cover the rest."""

from pathlib import Path

import pytest

from orchestrator.execution.learner_actor import LearnerActor
from orchestrator.execution.messages import TrialSpec
from orchestrator.plan.plan import Trial
from orchestrator.storage import chunk_files
from streams.schedule import Sequential
from tests.orchestrator.synthetic_sweep import configuration


@pytest.mark.parametrize("address", [None, "file"])
def test_an_actor_without_a_step_claims_no_trial(tmp_path: Path, address: str | None) -> None:
    """Tune may start an actor for a trial and discard it: the actor that runs the trial must not lose its claim."""
    folder = tmp_path / "trial"
    attempt = chunk_files.claim(folder)
    files = sorted(folder.iterdir())
    trial, where = Trial(configuration("online"), (0, 1)), None if address is None else folder.as_uri()
    config = TrialSpec(trial, str(folder), "0" * 64, Sequential(), 4, "last", 1, 0, where).to_tune()
    actor = LearnerActor(config)
    assert actor.reset_config(config)
    actor.stop()
    assert sorted(folder.iterdir()) == files and len(files) == attempt == 1
