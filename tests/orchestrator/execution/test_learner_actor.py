"""What a learner actor does before it is told to learn: nothing. The rest is in the tests of whole sweeps."""

from pathlib import Path

import pytest

from orchestrator.execution.learner_actor import LearnerActor
from orchestrator.storage import trial_files


@pytest.mark.parametrize("address", [None, "file"])
def test_an_actor_that_is_not_told_to_learn_claims_no_trial(tmp_path: Path, address: str | None) -> None:
    """Tune may start one for a trial that it then gives to another: that other one must not be fenced off by it."""
    folder = tmp_path / "trial"
    attempt = trial_files.claim(folder)
    there = sorted(folder.iterdir())
    config = {"trial": {"folder": str(folder), "address": None if address is None else folder.as_uri()}}
    actor = LearnerActor(config)
    assert actor.reset_config(config)
    actor.stop()
    assert sorted(folder.iterdir()) == there and len(there) == attempt == 1
