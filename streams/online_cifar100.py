"""Online-CIFAR100: 1,200 tasks of pairs, each over five classes of CIFAR-100."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streams.class_tasks import PairTasks
from streams.pools import split_pools
from streams.randomness import generator
from streams.recipe import TRAIN, Collected, Images, Progress, location, number, silent
from streams.sources.published.cifar import CIFAR100, read_cifar

FOLDER = CIFAR100.folder


@dataclass(frozen=True)
class OnlineCifar100(PairTasks):
    """Online-CIFAR100 from the standard `cifar-100-python` pickles.

    Training pairs use 450 images per class of the train split, validation pairs its other 50, and test pairs the test
    split.
    """

    name: ClassVar[str] = "online_cifar100"

    data: str | None = location(f"folder that holds {FOLDER}; downloaded by torchvision if not given")
    tasks: int = number(1_200, "tasks in a stream", ge=1)
    validation_images: int = number(50, "images per class of the train split that only validate", ge=2)

    def collect(self, progress: Progress = silent) -> Collected:
        collected = read_cifar(CIFAR100, self.data, progress)
        classes, splits = collected.images.classes, collected.images.splits.copy()
        train = np.flatnonzero(splits == TRAIN)
        rng = generator(0, f"{self.name}/pools")
        splits[train] = split_pools(classes[train], lambda _: (self.validation_images, 0), rng)
        return Collected(collected.pixels, Images(classes, splits, collected.images.class_names), collected.source)

    def fingerprint(self) -> str:
        """The state of the data folder; empty for the download, which never changes."""
        return CIFAR100.fingerprint(self.data)
