"""Random numbers: one generator per (seed, purpose); the global generators are never used."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from learners.state import Stateful, entries_of_replicates


def sequence(seed: int, purpose: str) -> np.random.SeedSequence:
    """The `SeedSequence` of a replicate's seed and a purpose such as ``"replay"``."""
    return np.random.SeedSequence(entropy=seed, spawn_key=tuple(purpose.encode()))


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A new numpy generator for a seed and a purpose.

    >>> int(generator(0, "replay").integers(1000)) == int(generator(0, "replay").integers(1000))
    True
    """
    return np.random.Generator(np.random.PCG64(sequence(seed, purpose)))


def torch_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for a `torch.Generator`, from the same `SeedSequence` as `generator`."""
    return int(sequence(seed, purpose).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Generators(Stateful):
    """One numpy generator per replicate, saved and restored together."""

    def __init__(self, seeds: Sequence[int], purpose: str) -> None:
        self._generators = [generator(seed, purpose) for seed in seeds]

    def integers(self, low: int, high: int, count: int) -> torch.Tensor:
        """Uniform integers in [low, high), with replacement: int64 [R, count]."""
        return torch.from_numpy(np.stack([rng.integers(low, high, size=count) for rng in self._generators]))

    def __iter__(self) -> Iterator[np.random.Generator]:
        return iter(self._generators)

    def state_dict(self) -> list[dict[str, Any]]:
        return [dict(rng.bit_generator.state) for rng in self._generators]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        for rng, rng_state in zip(self._generators, state, strict=True):
            rng.bit_generator.state = rng_state

    def state_of_replicates(self, states: Sequence[Any], rows: slice = slice(None), copies: Any = None) -> Any:
        return entries_of_replicates(states, rows)
