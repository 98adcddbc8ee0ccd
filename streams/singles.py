"""Datapoints that are single images of a task's few classes; the label is the class, numbered over the whole store."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streams.class_tasks import ClassTasks, Rows
from streams.recipe import Images, number


@dataclass(frozen=True)
class SingleTasks(ClassTasks):
    """What streams of single images share. A task has no image twice.

    Where some classes have so few images that a task of them could not have as many as asked for, no task has more than
    such a one: every task and every seed has the same number of datapoints.
    """

    keep: int = number(0, "classes that the next task keeps of the present one", ge=0)

    def labels(self, images: Images) -> int:
        """As many as there are classes."""
        return len(images.class_names)

    def draw_points(self, pools: Sequence[Rows], count: int, draw: np.random.Generator) -> Rows:
        """`count` images of the task's classes, none twice."""
        return draw.permutation(np.concatenate(pools))[:count, None]

    def points(self, sizes: npt.NDArray[np.int64], count: int) -> int:
        """As many as asked for, or as a task of the smallest classes can have."""
        return min(count, int(np.sort(sizes)[: self.classes_per_task].sum()))

    def point_labels(self, images: Images, rows: Rows) -> npt.NDArray[np.int32]:
        """The images' classes."""
        return images.classes[rows[:, 0]]
