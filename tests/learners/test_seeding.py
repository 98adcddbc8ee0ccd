"""One generator per seed and purpose, with fixed and independent numbers."""

import numpy as np
import pytest
import torch

from learners.networks.network import Network
from learners.seeding import Generators, generator, torch_seed


def test_numbers_are_fixed() -> None:
    """A change of these numbers changes the results of all runs."""
    assert generator(0, "replay").integers(0, 1000, size=4).tolist() == [713, 751, 580, 933]
    assert torch_seed(0, "network") == 7_468_362_310_667_590_748


def test_every_seed_and_purpose_has_different_numbers() -> None:
    numbers = {
        (seed, purpose): tuple(generator(seed, purpose).integers(0, 2**60, size=3).tolist())
        for seed in (0, 1, 2**40)
        for purpose in ("replay", "tasks", "network", "network of task 1", "network of task 11")
    }
    assert len({number for three in numbers.values() for number in three}) == 3 * 15


def test_a_stack_draws_the_same_numbers_as_each_seed_alone() -> None:
    stack = Generators([4, 9], "replay").integers(3, 50, 20)
    for row, seed in zip(stack, (4, 9), strict=True):
        assert torch.equal(row, Generators([seed], "replay").integers(3, 50, 20)[0])
        assert row.tolist() == generator(seed, "replay").integers(3, 50, size=20).tolist()


def test_a_loaded_state_continues_and_is_a_copy() -> None:
    rngs = Generators([1, 2], "replay")
    rngs.integers(0, 9, 5)
    state = rngs.state_dict()
    expected = rngs.integers(0, 9, 30)
    other = Generators([7, 8], "replay")
    other.load_state_dict(state)
    assert torch.equal(other.integers(0, 9, 30), expected)
    other.load_state_dict(state)  # drawing did not change the saved state
    assert torch.equal(other.integers(0, 9, 30), expected)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        Generators([1, 2, 3], "replay").load_state_dict(state)


def test_initial_weights_do_not_change_the_global_generators(smooth) -> None:
    torch.manual_seed(5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    network = Network(smooth.make, dtype=torch.float64)
    first, _ = network.initial([0, 1])
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
    torch.manual_seed(6)
    assert torch.equal(network.initial([0, 1])[0], first)
    assert torch.equal(network.initial([1])[0][0], first[1])
    assert not torch.equal(first[0], first[1])
