"""Datapoints that are pairs of images: label 1 where both are of one class, 0 where not (METHODS §5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from streams.class_tasks import ClassTasks, Rows
from streams.errors import fault
from streams.recipe import Images


def draw_pairs(pools: Sequence[Rows], count: int, draw: np.random.Generator) -> Rows:
    """Draw pairs in random order, exactly half of them of one class.

    A pair of one class is two distinct images of a class chosen evenly; another pair is an image each of two distinct
    classes. Pairs are drawn independently, so an image may be in several.

    Args:
        pools: the rows of each class, at least two classes with at least two rows each.
        count: how many pairs, an even number.
        draw: where chance comes from.

    Returns:
        int64 [count, 2].
    """
    sizes = np.array([len(pool) for pool in pools])
    flat, firsts = np.concatenate(pools), np.cumsum(sizes) - sizes
    same = np.arange(count) < count // 2
    left = draw.integers(len(pools), size=count)
    right = np.where(same, left, (left + draw.integers(1, len(pools), size=count)) % len(pools))
    left_image = draw.integers(sizes[left])
    another = (left_image + draw.integers(1, sizes[left])) % sizes[left]
    right_image = np.where(same, another, draw.integers(sizes[right]))
    pairs = np.stack([flat[firsts[left] + left_image], flat[firsts[right] + right_image]], axis=1)
    return draw.permutation(pairs)


@dataclass(frozen=True)
class PairTasks(ClassTasks):
    """What streams of pairs share. The numbers of pairs must be even, so that exactly half can be of one class."""

    images_per_datapoint: ClassVar[int] = 2
    classes: ClassVar[int | None] = 2
    least_images: ClassVar[int] = 2

    def check(self) -> list[str]:
        """The numbers of pairs must be even."""
        sizes = {"train": self.train, "validation": self.validation, "test": self.test}
        odd = {key: size for key, size in sizes.items() if size % 2}
        rule = "must be even, so that half of the pairs can be of one class"
        return super().check() + [fault(f"{self.name}.{key}", rule, size) for key, size in odd.items()]

    def labels(self, images: Images) -> int:
        """Two: 0 different, 1 same."""
        return 2

    def draw_points(self, pools: Sequence[Rows], count: int, draw: np.random.Generator) -> Rows:
        """Pairs of the task's classes (see `draw_pairs`)."""
        return draw_pairs(pools, count, draw)

    def point_labels(self, images: Images, rows: Rows) -> npt.NDArray[np.int32]:
        """1 where both images are of one class."""
        same: npt.NDArray[np.bool_] = images.classes[rows[:, 0]] == images.classes[rows[:, 1]]
        return same.astype(np.int32)
