import copy

import numpy as np

from orchestrator.execution.messages import ChunkResult, TrialSpec, from_tune, to_tune
from orchestrator.plan.plan import Trial
from orchestrator.protocol.curves import Curves
from streams.schedule import Sequential
from tests.orchestrator.synthetic_sweep import configuration


def test_tunes_copies_of_a_trial_are_the_trial_itself() -> None:
    spec = TrialSpec(Trial(configuration("online"), (0, 1)), "trial", "0" * 64, Sequential(), 4, "last", 1, 0)
    assert TrialSpec.from_tune(copy.deepcopy(spec.to_tune())) is spec


def test_a_result_is_formatted_without_its_arrays() -> None:
    """Tune formats each result three times for its debug log."""
    result = ChunkResult(
        5, 20, 1.5, Curves([0, 1]), {"cumulative_error": np.array([0.25, 0.75])}, False, None, (), None, 0
    )
    assert from_tune(to_tune([result])) == (result,) and result.objective("cumulative_error") == 0.5
    assert repr(result) == (
        "ChunkResult(batches=5, total_batches=20, seconds=1.5, curves=Curves(seeds=[0, 1], batches 0 to 0), finished=False, fitness=None, remarks=(), memory=None, "
        "gpu_memory=0)"
    )
