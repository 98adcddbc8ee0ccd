"""Random numbers: one generator per (seed, purpose), none global."""

import numpy as np


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The generator that belongs to `purpose` in the stream of `seed`.

    Generators of two purposes are independent, so that drawing more numbers for one does not change another.

    >>> int(generator(0, "example").integers(1000)) == int(generator(0, "example").integers(1000))
    True
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple(purpose.encode()))))
