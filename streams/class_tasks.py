"""Tasks of a few classes each, some of which the next task keeps, as in Online-CIFAR100."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.pools import Rows, rows_by_class
from streams.randomness import generator
from streams.recipe import SPLITS, TEST, TRAIN, VALIDATION, Images, Recipe, SeedTable, addition, number

MOST_DATAPOINTS = 100_000_000
"""Of one seed, whose table takes about 2 GB, and five times as much during the build."""


def class_chain(classes: int, tasks: int, per_task: int, keep: int, rng: np.random.Generator) -> Rows:
    """The classes of each task, which keeps `keep` classes of the previous task and takes its others from the rest.

    Args:
        classes: the number of classes, at least 2 * per_task - keep (one task: per_task).
        tasks: the number of tasks.
        per_task: the number of classes in a task.
        keep: the number of classes that the next task keeps.
        rng: the random numbers.

    Returns:
        int64 [tasks, per_task].
    """
    chain = np.empty((tasks, per_task), dtype=np.int64)
    chain[0] = rng.permutation(classes)[:per_task]
    for task in range(1, tasks):
        previous = chain[task - 1]
        others = np.setdiff1d(np.arange(classes), previous, assume_unique=True)
        chain[task, :keep] = rng.permutation(previous)[:keep]
        chain[task, keep:] = rng.permutation(others)[: per_task - keep]
    return chain


@dataclass(frozen=True)
class ClassTasks(Recipe):
    """The base of streams whose tasks are sets of classes; a subclass defines a datapoint.

    The pools belong to the store and are the same for all seeds, so that no seed trains on a held-out image of another.

    Attributes:
        least_images: the number of images of a class that each pool needs to draw a datapoint.
    """

    least_images: ClassVar[int] = 1

    tasks: int = number(100, "tasks in a stream", ge=1)
    classes_per_task: int = number(5, "classes in a task", ge=2)
    keep: int = number(2, "classes of a task that the next task keeps", ge=0)
    train: int = number(400, "training points of a task", ge=2)
    validation: int = number(100, "validation points of a task", ge=2)
    test: int = number(100, "test points of a task", ge=2)
    partition: bool = addition(False, "whether each class is in one task only, as in Split-CIFAR; keep must be 0")
    task_classes: list[list[str | int]] | None = addition(
        None, "names of the classes of each task, in order; instead of tasks, classes_per_task and keep"
    )

    @abstractmethod
    def draw_points(self, pools: Sequence[Rows], count: int, rng: np.random.Generator) -> Rows:
        """Draw a task's datapoints of one split, in the order of the stream.

        Args:
            pools: the rows of each class of the task in the split.
            count: the number of datapoints.
            rng: the random numbers.

        Returns:
            int64 [count, V] rows.
        """

    def points(self, sizes: npt.NDArray[np.int64], count: int, chain: Sequence[Rows] | None) -> int:
        """The number of datapoints of each task in a split; equal for all tasks and seeds, which are stacked.

        Args:
            sizes: int64 [classes], images of each class in the split.
            count: the number in the options.
            chain: the classes of each task, if the options name them.
        """
        return count

    def named_chain(self, images: Images) -> list[Rows] | None:
        """The numbers of the classes that `task_classes` names for each task; None if it is not given.

        Raises:
            SourceError: one line for every name that is no class.
        """
        if self.task_classes is None:
            return None
        number_of = {name: number for number, name in enumerate(images.class_names)}
        task_names = [[str(name) for name in names] for names in self.task_classes]
        unknown = sorted({name for names in task_names for name in names} - {*number_of})
        if unknown:
            names = ", ".join(images.class_names[:10]) + (", ..." if len(images.class_names) > 10 else "")
            rule = f"must be names of classes, such as {names}"
            raise SourceError(*(fault(f"{self.name}.task_classes", rule, name) for name in unknown))
        return [np.array([number_of[name] for name in names]) for names in task_names]

    def _chain(self, images: Images, seed: int) -> Sequence[Rows]:
        """The classes of each task of a seed."""
        named, order = self.named_chain(images), generator(seed, f"{self.name}/classes")
        if named is not None:
            return named
        if self.partition:
            classes = order.permutation(len(images.class_names))[: self.tasks * self.classes_per_task]
            return [*classes.reshape(self.tasks, self.classes_per_task)]
        return [*class_chain(len(images.class_names), self.tasks, self.classes_per_task, self.keep, order)]

    @abstractmethod
    def point_labels(self, images: Images, rows: Rows) -> npt.NDArray[np.int32]:
        """int32 [n]: the labels of the datapoints with these images (rows: int64 [n, V])."""

    def check(self) -> list[str]:
        """A task must have a class that the previous one does not have, and a stream must fit into memory."""
        faults = []
        if self.partition and self.keep:
            faults.append(fault(f"{self.name}.keep", "must be 0 with partition", self.keep))
        for number_of, names in enumerate([] if self.task_classes is None else self.task_classes):
            where = f"{self.name}.task_classes[{number_of}]"
            if len(names) < self.images_per_datapoint or len({str(name) for name in names}) < len(names):
                rule = f"must name at least {self.images_per_datapoint} classes, each once"
                faults.append(fault(where, rule, ", ".join(map(str, names))))
        if self.task_classes is not None and not self.task_classes:
            faults.append(fault(f"{self.name}.task_classes", "must not be empty"))
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
        chain, named = self._chain(images, seed), self.named_chain(images)
        rows, tasks, splits = [], [], []
        for split, count in ((TRAIN, self.train), (VALIDATION, self.validation), (TEST, self.test)):
            rng = generator(seed, f"{self.name}/points {split}")
            inside = np.flatnonzero(images.splits == split)
            pools = [inside[part] for part in rows_by_class(images.classes[inside], len(names))]
            size = self.points(np.array([len(pool) for pool in pools]), count, named)
            for task, classes in enumerate(chain):
                points = self.draw_points([pools[each] for each in classes], size, rng)
                rows.append(points)
                tasks.append(np.full(len(points), task, dtype=np.int32))
                splits.append(np.full(len(points), split, dtype=np.uint8))
        image_ids = np.concatenate(rows)
        about = [{"classes": [names[each] for each in classes]} for classes in chain]
        labels = self.point_labels(images, image_ids)
        return SeedTable(np.concatenate(tasks), np.concatenate(splits), image_ids.astype(np.int32), labels, about)


def _check_classes(recipe: ClassTasks, images: Images) -> None:
    """Raise `SourceError` if there are too few classes for the tasks, or too few images in a class."""
    count = len(images.class_names)
    needed = recipe.classes_per_task + (recipe.classes_per_task - recipe.keep) * (recipe.tasks > 1)
    faults = []
    named = recipe.named_chain(images)
    if recipe.partition and named is None and count < recipe.tasks * recipe.classes_per_task:
        rule = f"{recipe.tasks} tasks of {recipe.classes_per_task} classes, no class twice, need "
        rule += f"{recipe.tasks * recipe.classes_per_task} classes"
        faults.append(fault(recipe.name, rule, count, "lower tasks or classes_per_task"))
    elif named is None and count < needed:
        rule = f"tasks of {recipe.classes_per_task} classes that keep {recipe.keep} need at least {needed} classes"
        faults.append(fault(recipe.name, rule, count, "add classes, lower classes_per_task, or raise keep"))
    for split, number_of in SPLITS.items():
        sizes = np.bincount(images.classes[images.splits == number_of], minlength=count)
        used = np.arange(count) if named is None else np.unique(np.concatenate(named))
        for each in used[sizes[used] < recipe.least_images]:
            rule = f"must have at least {recipe.least_images} {split} images"
            faults.append(fault(f"class {images.class_names[each]}", rule, sizes[each], "add images or leave it out"))
    if faults:
        raise SourceError(*faults)


@dataclass(frozen=True)
class SingleTasks(ClassTasks):
    """The base of streams of single images, each of which occurs at most once in a task.

    All tasks and seeds have the same number of datapoints: if the smallest classes have too few images for a task of
    them, every task is as large as such a task.
    """

    keep: int = number(0, "classes of a task that the next task keeps", ge=0)

    def draw_points(self, pools: Sequence[Rows], count: int, rng: np.random.Generator) -> Rows:
        """`count` distinct images of the task's classes."""
        return rng.permutation(np.concatenate(pools))[:count, None]

    def points(self, sizes: npt.NDArray[np.int64], count: int, chain: Sequence[Rows] | None) -> int:
        """`count`, or the number of images of the smallest classes, or of the smallest task whose classes are named."""
        if chain is not None:
            return min(count, *(int(sizes[classes].sum()) for classes in chain))
        return min(count, int(np.sort(sizes)[: self.classes_per_task].sum()))

    def remarks(self, images: Images) -> list[str]:
        """One line for each split in which every task has fewer points than requested."""
        lines = []
        named = self.named_chain(images)
        for split, number_of in SPLITS.items():
            sizes = np.bincount(images.classes[images.splits == number_of], minlength=len(images.class_names))
            requested = getattr(self, split)
            if (points := self.points(sizes, requested, named)) < requested:
                smallest = np.argsort(sizes, kind="stable")[: min(self.classes_per_task, 5)].tolist()
                classes = ", ".join(f"{images.class_names[each]} ({sizes[each]})" for each in smallest)
                words = f"every task has {points} {split} points, not {requested}: all that the smallest classes have"
                remedy = f"leave small classes out (least_per_class), raise classes_per_task, or lower {split}"
                lines.append(f"{words}, {classes}; {remedy}")
        return lines

    def point_labels(self, images: Images, rows: Rows) -> npt.NDArray[np.int32]:
        return images.classes[rows[:, 0]]


def draw_pairs(pools: Sequence[Rows], count: int, rng: np.random.Generator) -> Rows:
    """Draw pairs in random order, exactly half of them of one class.

    A pair of one class is two distinct images of a random class; other pairs are one image each of two distinct
    classes. Pairs are drawn independently, so that an image may occur in several.

    Args:
        pools: the rows of each class, at least two classes with at least two rows each.
        count: the number of pairs, which must be even.
        rng: the random numbers.

    Returns:
        int64 [count, 2].
    """
    sizes = np.array([len(pool) for pool in pools])
    flat, firsts = np.concatenate(pools), np.cumsum(sizes) - sizes
    same = np.arange(count) < count // 2
    left = rng.integers(len(pools), size=count)
    right = np.where(same, left, (left + rng.integers(1, len(pools), size=count)) % len(pools))
    left_image = rng.integers(sizes[left])
    another = (left_image + rng.integers(1, sizes[left])) % sizes[left]
    right_image = np.where(same, another, rng.integers(sizes[right]))
    pairs = np.stack([flat[firsts[left] + left_image], flat[firsts[right] + right_image]], axis=1)
    return rng.permutation(pairs)


@dataclass(frozen=True)
class PairTasks(ClassTasks):
    """The base of streams of pairs, whose numbers must be even, so that exactly half can be of one class."""

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

    def draw_points(self, pools: Sequence[Rows], count: int, rng: np.random.Generator) -> Rows:
        """Pairs of the task's classes (see `draw_pairs`)."""
        return draw_pairs(pools, count, rng)

    def point_labels(self, images: Images, rows: Rows) -> npt.NDArray[np.int32]:
        """1 if both images are of one class, else 0."""
        same: npt.NDArray[np.bool_] = images.classes[rows[:, 0]] == images.classes[rows[:, 1]]
        return same.astype(np.int32)
