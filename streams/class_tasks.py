"""Tasks that are a few classes each, one class set growing out of the one before (METHODS §5, Online-CIFAR100)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.pools import Rows, rows_by_class
from streams.randomness import generator
from streams.recipe import SPLITS, TEST, TRAIN, VALIDATION, Images, Recipe, SeedTable, number

MOST_DATAPOINTS = 100_000_000
"""Of one seed: their table takes some 2 GB, and five times as much while it is made."""


def class_chain(classes: int, tasks: int, per_task: int, keep: int, draw: np.random.Generator) -> Rows:
    """The classes of each task: the next task keeps `keep` of the present ones and brings others, none of them present.

    Args:
        classes: how many there are, at least 2 * per_task - keep (one task: per_task).
        tasks, per_task: how many tasks, and classes in each.
        keep: classes that the next task keeps.
        draw: where chance comes from.

    Returns:
        int64 [tasks, per_task].
    """
    chain = np.empty((tasks, per_task), dtype=np.int64)
    chain[0] = draw.permutation(classes)[:per_task]
    for task in range(1, tasks):
        present = chain[task - 1]
        absent = np.setdiff1d(np.arange(classes), present, assume_unique=True)
        chain[task, :keep] = draw.permutation(present)[:keep]
        chain[task, keep:] = draw.permutation(absent)[: per_task - keep]
    return chain


@dataclass(frozen=True)
class ClassTasks(Recipe):
    """What streams over classes share: the chain of classes and the pools; a subclass says what a datapoint is.

    The pools (which image trains, validates, tests) belong to the store and are the same for every seed, so that no
    seed trains on an image that another is judged by.
    """

    least_images: ClassVar[int] = 1
    """Images of a class that each pool must have for a datapoint to be drawn from it."""

    tasks: int = number(100, "tasks in a stream", ge=1)
    classes_per_task: int = number(5, "classes in a task", ge=2)
    keep: int = number(2, "classes that the next task keeps of the present one", ge=0)
    train: int = number(400, "training points of a task", ge=2)
    validation: int = number(100, "validation points of a task", ge=2)
    test: int = number(100, "test points of a task", ge=2)

    @abstractmethod
    def draw_points(self, pools: Sequence[Rows], count: int, draw: np.random.Generator) -> Rows:
        """Draw a task's datapoints of one split, in the order of the stream.

        Args:
            pools: the rows of each of the task's classes in the split.
            count: how many datapoints.
            draw: where chance comes from.

        Returns:
            int64 [count, V] rows.
        """

    def points(self, sizes: npt.NDArray[np.int64], count: int) -> int:
        """How many datapoints each task has in a split: the same for all tasks and seeds, whose streams are stacked.

        Args:
            sizes: int64 [classes], images of each class in the split.
            count: how many are asked for.
        """
        return count

    @abstractmethod
    def point_labels(self, images: Images, rows: Rows) -> npt.NDArray[np.int32]:
        """int32 [n]: the labels of datapoints of these images (rows: int64 [n, V])."""

    def check(self) -> list[str]:
        """At least one class must be new in the next task, and a stream be of a size that fits into memory."""
        faults = []
        if self.keep >= self.classes_per_task:
            rule = f"must be below classes_per_task, {self.classes_per_task}"
            faults.append(fault(f"{self.name}.keep", rule, self.keep))
        datapoints = self.tasks * (self.train + self.validation + self.test)
        if datapoints > MOST_DATAPOINTS:
            rule = f"tasks * (train + validation + test) must be at most {MOST_DATAPOINTS:,}"
            faults.append(fault(f"{self.name}.tasks", rule, f"{datapoints:,}"))
        return faults

    def seed_table(self, images: Images, seed: int) -> SeedTable:
        """The seed's chain of classes, and the datapoints drawn from each task's classes."""
        _check_classes(self, images)
        names = images.class_names
        order = generator(seed, f"{self.name}/classes")
        chain = class_chain(len(names), self.tasks, self.classes_per_task, self.keep, order)
        rows, tasks, splits = [], [], []
        for split, count in ((TRAIN, self.train), (VALIDATION, self.validation), (TEST, self.test)):
            draw = generator(seed, f"{self.name}/points {split}")
            inside = np.flatnonzero(images.splits == split)
            pools = [inside[part] for part in rows_by_class(images.classes[inside], len(names))]
            size = self.points(np.array([len(pool) for pool in pools]), count)
            for task, present in enumerate(chain):
                drawn = self.draw_points([pools[each] for each in present], size, draw)
                rows.append(drawn)
                tasks.append(np.full(len(drawn), task, dtype=np.int32))
                splits.append(np.full(len(drawn), split, dtype=np.uint8))
        image_ids = np.concatenate(rows)
        about = [{"classes": [names[each] for each in present]} for present in chain]
        labels = self.point_labels(images, image_ids)
        return SeedTable(np.concatenate(tasks), np.concatenate(splits), image_ids.astype(np.int32), labels, about)


def _check_classes(recipe: ClassTasks, images: Images) -> None:
    """Raise SourceError where there are too few classes for the tasks asked for, or too few images in some."""
    count = len(images.class_names)
    needed = recipe.classes_per_task + (recipe.classes_per_task - recipe.keep) * (recipe.tasks > 1)
    faults = []
    if count < needed:
        rule = f"tasks of {recipe.classes_per_task} classes that keep {recipe.keep} need at least {needed} classes"
        faults.append(fault(recipe.name, rule, count, "bring more classes, lower classes_per_task, or raise keep"))
    for split, number_of in SPLITS.items():
        sizes = np.bincount(images.classes[images.splits == number_of], minlength=count)
        for each in np.flatnonzero(sizes < recipe.least_images):
            rule = f"must have at least {recipe.least_images} {split} images"
            faults.append(fault(f"class {images.class_names[each]}", rule, sizes[each], "bring more or leave it out"))
    if faults:
        raise SourceError(*faults)


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
