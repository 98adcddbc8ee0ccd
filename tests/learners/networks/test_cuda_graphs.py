"""Recorded functions; the fixture `traces` takes the place of a CUDA graph on a machine without a GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from learners.networks import cuda_graphs
from learners.networks.cuda_graphs import RECORD_FROM, SHAPES, RecordedFunction


def test_a_shape_is_recorded_once_at_its_third_use(traces: Any) -> None:
    computed = []

    def work(x: Tensor, y: Tensor) -> Tensor:
        computed.append(x.shape)
        return x.sum() * y

    recorded = RecordedFunction(work)
    for call in range(6):
        x, y = torch.full((3,), float(call)), torch.tensor(2.0)
        assert float(recorded(x, y)) == 3 * call * 2
        assert traces.made == (call + 1 >= RECORD_FROM)
        assert float(recorded(torch.ones(call + 10), y)) == (call + 10) * 2  # a new shape each time
    assert computed.count(torch.Size([3])) == RECORD_FROM


def test_the_latest_shapes_are_kept(traces: Any) -> None:
    recorded = RecordedFunction(lambda x: x + 1)
    for size in range(1, SHAPES + 2):
        for _ in range(RECORD_FROM):
            assert torch.equal(recorded(torch.zeros(size)), torch.ones(size))
    assert len(recorded._recordings) == SHAPES
    assert traces.made == SHAPES + 1


def test_what_cannot_be_recorded_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def refuse(work: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        attempts.append(inputs)
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(cuda_graphs, "Recording", refuse)
    recorded = RecordedFunction(lambda x: x * 3)
    for _ in range(RECORD_FROM - 1):
        recorded(torch.ones(2))
    with pytest.warns(UserWarning, match="not recorded as a CUDA graph, hence slower: CUDA out of memory"):
        assert recorded(torch.ones(2)).tolist() == [3, 3]
    assert recorded(torch.ones(2)).tolist() == [3, 3]
    assert len(attempts) == 1
