"""Tasks in which the same pools of images have another look each: permuted pixels, another angle, other labels."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault
from streams.randomness import generator
from streams.recipe import SPLITS, TEST, TRAIN, VALIDATION, Images, Recipe, SeedTable, number
from streams.views import View, Views

PERMUTED, ROTATED, LABEL_PERMUTED = LOOKS = ("permuted", "rotated", "label_permuted")
BLACK = (0, 0, 0)


@dataclass(frozen=True)
class LookTasks(Recipe):
    """The base of streams that show the same pools of images in each task, in a look of the task.

    Images are drawn from the pools without replacement within a task. The pools are the same for all seeds; a seed
    gives the order of the looks and the images of each.
    """

    tasks: int = number(20, "tasks in a stream", ge=1, le=10_000)
    train: int = number(200, "training images of a task", ge=1)
    validation: int = number(60, "validation images of a task", ge=1)
    test: int = number(60, "test images of a task", ge=1)

    @property
    @abstractmethod
    def look(self) -> str:
        """One of `LOOKS`."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The side of an image, in pixels."""

    @property
    def degrees(self) -> int:
        """The range in which the angles of rotated tasks are, equally far apart, from 0."""
        return 360

    def check(self) -> list[str]:
        """Each rotated task must have its own angle, a whole number of degrees."""
        if self.look != ROTATED or self.tasks <= self.degrees:
            return super().check()
        return [*super().check(), fault(f"{self.name}.tasks", f"must be at most degrees, {self.degrees}", self.tasks)]

    def views(self) -> Views | None:
        """One permutation, or one angle, for each task; none where labels are permuted."""
        if self.look == LABEL_PERMUTED:
            return None
        if self.look == PERMUTED:
            items = tuple(View(BLACK, permutation=task) for task in range(self.tasks))
        else:
            items = tuple(View(BLACK, rotation=self.degrees * task // self.tasks) for task in range(self.tasks))
        return Views(items, self.size, self.size)

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
        views = self.views()
        ids, labels, tasks, splits, about = [], [], [], [], []
        for split, size in sizes.items():
            for task in range(self.tasks):
                row = rng.permutation(pools[split])[:size]
                image_ids, label, description = self._task(views, task, row, images, seed)
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

    def _task(
        self, views: Views | None, task: int, row: npt.NDArray[np.int64], images: Images, seed: int
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The image ids and labels of a task's rows, and the task's description."""
        if views is None:
            label_of = generator(seed, f"{self.name}/labels {task}").permutation(len(images.class_names))
            return row, label_of[images.classes[row]], {"labels": label_of.tolist()}
        view = int(generator(seed, f"{self.name}/order of views").permutation(len(views))[task])
        place = views.items[view]
        about = {"rotation": place.rotation} if place.permutation is None else {"permutation": place.permutation}
        return view * len(images.classes) + row, images.classes[row], {"view": view, **about}
