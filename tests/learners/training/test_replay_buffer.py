"""𝓑: what it keeps, what it draws, and that drawing belongs to one seed."""

import numpy as np
import pytest
import torch

from learners import Batch, ImageTable
from learners.seeding import generator
from learners.training.replay_buffer import ReplayBuffer


def table(count: int) -> ImageTable:
    """Picture i is one pixel of value i."""
    return ImageTable(np.arange(count, dtype=np.uint8).reshape(count, 1, 1, 1), dtype=torch.float64)


def batch(ids: list[list[int]], y: list[list[int]]) -> Batch:
    made = torch.tensor(ids).unsqueeze(-1)
    return Batch(torch.empty(0), torch.tensor(y), made)


def test_take_gives_back_ids_labels_and_pictures() -> None:
    replay = ReplayBuffer(table(20), seeds=[0, 1])
    replay.add(batch([[3, 4], [5, 6]], [[0, 1], [2, 3]]))
    replay.add(batch([[7], [8]], [[4], [5]]))
    assert replay.size == 3
    taken = replay.take(torch.tensor([[2, 0], [1, 1]]))
    assert taken.ids[..., 0].tolist() == [[7, 3], [6, 6]]
    assert taken.y.tolist() == [[4, 0], [3, 3]]
    assert (taken.x.reshape(2, 2) * 255).tolist() == [[7.0, 3.0], [6.0, 6.0]]


def test_growth_keeps_what_was_there() -> None:
    """More points than the first allocation holds, and a single addition beyond twice of it."""
    replay = ReplayBuffer(table(10), seeds=[0])
    for start in range(0, 3000, 7):
        replay.add(batch([[i % 10 for i in range(start, start + 7)]], [[i % 4 for i in range(start, start + 7)]]))
    more = list(range(replay.size, replay.size + 20_000))
    replay.add(batch([[i % 10 for i in more]], [[i % 4 for i in more]]))
    everything = replay.take(torch.arange(replay.size).unsqueeze(0))
    assert replay.size == 3003 + 20_000
    assert everything.ids[0, :, 0].tolist() == [i % 10 for i in range(replay.size)]
    assert everything.y[0].tolist() == [i % 4 for i in range(replay.size)]


def test_sample_is_the_seeds_own_generator_and_uniform() -> None:
    replay = ReplayBuffer(table(4), seeds=[5, 6])
    replay.add(batch([[0, 1, 2, 3]] * 2, [[0, 1, 2, 3]] * 2))
    drawn = replay.sample(4000).y
    for r, seed in enumerate([5, 6]):
        assert drawn[r].tolist() == generator(seed, "replay").integers(0, 4, size=4000).tolist()
        # Four standard deviations of a count with p = 1/4 and n = 4000 are 110.
        assert np.abs(np.bincount(drawn[r].numpy()) - 1000).max() < 110


def test_sample_stays_within_its_range() -> None:
    replay = ReplayBuffer(table(10), seeds=[0])
    replay.add(batch([list(range(10))], [list(range(10))]))
    assert set(replay.sample(500, start=4, stop=7).y[0].tolist()) == {4, 5, 6}
    assert set(replay.sample(500, start=8).y[0].tolist()) == {8, 9}
    with pytest.raises(ValueError, match=r"start=3, stop=3, size=10"):
        replay.sample(1, start=3, stop=3)
    with pytest.raises(ValueError, match=r"stop=11"):
        replay.sample(1, stop=11)


def test_choose_draws_from_a_set_of_its_own_for_each_replicate() -> None:
    replay = ReplayBuffer(table(10), seeds=[0, 1])
    replay.add(batch([list(range(10))] * 2, [list(range(10))] * 2))
    drawn = replay.choose([torch.tensor([1, 8]), torch.tensor([3])], 300)
    assert set(drawn.y[0].tolist()) == {1, 8}
    assert drawn.y[1].tolist() == [3] * 300


def test_restored_generators_draw_on_as_if_nothing_had_happened() -> None:
    whole, seen = ReplayBuffer(table(9), seeds=[0, 1]), batch([list(range(9))] * 2, [list(range(9))] * 2)
    whole.add(seen)
    whole.sample(11)
    state = whole.state_dict()
    expected = whole.sample(50).ids
    other = ReplayBuffer(table(9), seeds=[0, 1])
    other.load_state_dict(state)
    other.add(seen)
    assert torch.equal(other.sample(50).ids, expected)


def test_nothing_to_draw_from_is_said() -> None:
    with pytest.raises(ValueError, match="must have images and datapoints"):
        ReplayBuffer(table(3), seeds=[0]).take(torch.zeros(1, 1, dtype=torch.int64))
    without = ReplayBuffer(None, seeds=[0])
    without.add(batch([[1]], [[1]]))
    with pytest.raises(ValueError, match="must have images and datapoints"):
        without.sample(1)
