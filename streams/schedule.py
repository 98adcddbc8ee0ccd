"""Schedules: which datapoint stands at which position of a stream; pure functions of (spec, seed, position)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Ends = list[tuple[int, int]]
"""(position, task): once `position` datapoints are consumed, the stream has left `task` and its evaluation is due."""


@dataclass(frozen=True)
class Schedule(ABC):
    """How the training points of a store's tasks follow one another. Subclasses are frozen dataclasses of options."""

    name: ClassVar[str]
    has_boundaries: ClassVar[bool] = False

    @abstractmethod
    def rows(self, sizes: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
        """The training row at each position.

        Args:
            sizes: int64 [tasks], training points of each task; the rows of a task follow one another.
            seed: the stream's seed.

        Returns:
            int64 [length].

        Raises:
            OptionError: the schedule does not fit tasks of these sizes.
        """

    @abstractmethod
    def ends(self, sizes: npt.NDArray[np.int64], seed: int) -> Ends:
        """Where tasks are left, in order of position; the last one is the stream's end."""


@dataclass(frozen=True)
class Sequential(Schedule):
    """One task after the other with sharp changes, as in the paper.

    >>> sizes = np.array([2, 3])
    >>> Sequential().rows(sizes, seed=0).tolist(), Sequential().ends(sizes, seed=0)
    ([0, 1, 2, 3, 4], [(2, 0), (5, 1)])
    """

    name: ClassVar[str] = "sequential"
    has_boundaries: ClassVar[bool] = True

    def rows(self, sizes: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
        """Every row once, in the order of the table."""
        return np.arange(int(sizes.sum()), dtype=np.int64)

    def ends(self, sizes: npt.NDArray[np.int64], seed: int) -> Ends:
        """The cumulative sizes."""
        return [(int(position), task) for task, position in enumerate(np.cumsum(sizes))]
