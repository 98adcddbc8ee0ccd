"""Checkpoint retention."""

import pytest

from orchestrator.config.load import check_sweep
from orchestrator.errors import ConfigError
from orchestrator.storage import retention


def test_the_batches_after_which_a_checkpoint_is_kept() -> None:
    sequential = [[(100 * k, k) for k in range(1, 8)]] * 2
    assert retention.steps("last", sequential, 10) == []
    assert retention.steps("all", sequential, 10) == [10, 20, 30, 40, 50, 60]
    assert retention.steps(3, sequential, 10) == [30, 60]
    assert retention.steps(7, sequential, 10) == []  # the stream's end has learner.pt
    # Seeds whose tasks end at different positions; the second has one task more.
    drifting = [[(14, 0), (30, 1), (61, 0)], [(22, 0), (25, 1), (60, 0), (70, 2)]]
    assert retention.steps("all", drifting, 10) == [3]


@pytest.mark.parametrize("value", [0, -1, "some", True, 1.5])
def test_invalid_values_are_refused(value: object) -> None:
    document = {"name": "p", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 1}
    with pytest.raises(ConfigError) as caught:
        check_sweep({**document, "keep_checkpoints": value})
    assert caught.value.faults and all("keep_checkpoints: " in line for line in caught.value.faults)
