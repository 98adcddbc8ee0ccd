"""The replay buffer 𝓑: its contents, its samples, and one generator per seed."""

import numpy as np
import pytest
import torch

from learners import Batch, ImageTable
from learners.seeding import generator
from learners.training.replay_buffer import ReplayBuffer


def table(count: int) -> ImageTable:
    """A table in which image i is one pixel of value i."""
    return ImageTable(np.arange(count, dtype=np.uint8).reshape(count, 1, 1, 1), dtype=torch.float64)


def batch(ids: list[list[int]], y: list[list[int]]) -> Batch:
    image_ids = torch.tensor(ids).unsqueeze(-1)
    return Batch(torch.empty(0), torch.tensor(y), image_ids)


def test_take_returns_ids_labels_and_images() -> None:
    replay = ReplayBuffer(table(20), seeds=[0, 1])
    replay.add(batch([[3, 4], [5, 6]], [[0, 1], [2, 3]]))
    replay.add(batch([[7], [8]], [[4], [5]]))
    assert replay.size == 3
    rows = replay.take(torch.tensor([[2, 0], [1, 1]]))
    assert rows.ids[..., 0].tolist() == [[7, 3], [6, 6]]
    assert rows.y.tolist() == [[4, 0], [3, 3]]
    assert (rows.x.reshape(2, 2) * 255).tolist() == [[7.0, 3.0], [6.0, 6.0]]


def test_labels_are_of_the_datapoints_from_a_position_to_the_newest() -> None:
    replay = ReplayBuffer(table(20), seeds=[0, 1])
    replay.add(batch([[3, 4], [5, 6]], [[0, 1], [2, 3]]))
    replay.add(batch([[7], [8]], [[4], [5]]))
    assert replay.labels(1).tolist() == [[1, 4], [3, 5]]
    assert replay.labels(3).tolist() == [[], []]


def test_take_of_some_replicates() -> None:
    replay = ReplayBuffer(table(20), seeds=[0, 1, 2])
    replay.add(batch([[3, 4], [5, 6], [7, 8]], [[0, 1], [2, 3], [4, 5]]))
    rows = replay.take(torch.tensor([[0, 1], [1, 1]]), slice(1, 3))
    assert rows.ids[..., 0].tolist() == [[5, 6], [8, 8]]
    assert rows.y.tolist() == [[2, 3], [5, 5]]


def test_growth_keeps_the_contents() -> None:
    """More datapoints than the first allocation holds, and one addition beyond twice its size."""
    replay = ReplayBuffer(table(10), seeds=[0])
    for start in range(0, 3000, 7):
        replay.add(batch([[i % 10 for i in range(start, start + 7)]], [[i % 4 for i in range(start, start + 7)]]))
    more = list(range(replay.size, replay.size + 20_000))
    replay.add(batch([[i % 10 for i in more]], [[i % 4 for i in more]]))
    everything = replay.take(torch.arange(replay.size).unsqueeze(0))
    assert replay.size == 3003 + 20_000
    assert everything.ids[0, :, 0].tolist() == [i % 10 for i in range(replay.size)]
    assert everything.y[0].tolist() == [i % 4 for i in range(replay.size)]


def test_sample_uses_the_seeds_generator_and_is_uniform() -> None:
    replay = ReplayBuffer(table(4), seeds=[5, 6])
    replay.add(batch([[0, 1, 2, 3]] * 2, [[0, 1, 2, 3]] * 2))
    sample = replay.sample(4000).y
    for r, seed in enumerate([5, 6]):
        assert sample[r].tolist() == generator(seed, "replay").integers(0, 4, size=4000).tolist()
        # 110 is four standard deviations of a count with p = 1/4 and n = 4000.
        assert np.abs(np.bincount(sample[r].numpy()) - 1000).max() < 110


def test_sample_stays_within_its_range() -> None:
    replay = ReplayBuffer(table(10), seeds=[0])
    replay.add(batch([list(range(10))], [list(range(10))]))
    assert set(replay.sample(500).y[0].tolist()) == set(range(10))
    assert set(replay.sample(500, start=8).y[0].tolist()) == {8, 9}
    for start in (-1, 10):
        with pytest.raises(ValueError, match=rf"start={start}, size=10"):
            replay.sample(1, start=start)


def test_choose_draws_from_separate_positions_per_replicate() -> None:
    replay = ReplayBuffer(table(10), seeds=[0, 1])
    replay.add(batch([list(range(10))] * 2, [list(range(10))] * 2))
    sample = replay.choose([torch.tensor([1, 8]), torch.tensor([3])], 300)
    assert set(sample.y[0].tolist()) == {1, 8}
    assert sample.y[1].tolist() == [3] * 300


def test_restored_generators_continue_as_uninterrupted() -> None:
    original, seen = ReplayBuffer(table(9), seeds=[0, 1]), batch([list(range(9))] * 2, [list(range(9))] * 2)
    original.add(seen)
    original.sample(11)
    state = original.state_dict()
    expected = original.sample(50).ids
    other = ReplayBuffer(table(9), seeds=[0, 1])
    other.load_state_dict(state)
    other.add(seen)
    assert torch.equal(other.sample(50).ids, expected)


def test_sampling_needs_images_and_datapoints() -> None:
    with pytest.raises(ValueError, match="must have images and datapoints"):
        ReplayBuffer(table(3), seeds=[0]).take(torch.zeros(1, 1, dtype=torch.int64))
    without = ReplayBuffer(None, seeds=[0])
    without.add(batch([[1]], [[1]]))
    with pytest.raises(ValueError, match="must have images and datapoints"):
        without.sample(1)
