"""Streams from images in any form, as single images or as pairs: a folder, an archive, Parquet, WebDataset."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from streams.class_tasks import PairTasks, SingleTasks
from streams.errors import fault
from streams.options import nearest
from streams.randomness import generator
from streams.recipe import (
    TEST,
    TRAIN,
    VALIDATION,
    WHITE,
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
from streams.sources.decode import ImageFormat, is_colour
from streams.sources.image_files import READER_VERSION, Listing, Pools, collect_files
from streams.sources.labels import Columns
from streams.sources.published.data_sets import NAMES, list_published, published_fingerprint
from streams.sources.reader import list_source, source_fingerprint


@dataclass(frozen=True)
class ImageSource(Recipe):
    """The base of streams from images in any form: a recipe reads them, and another base class defines tasks.

    In a folder, a class is a folder of the first level, with the images at any depth in it; classes are sorted as text
    (1, 10, 2). If the first level is `train` with `val` or `test`, it gives the split, and classes are folders below.
    Other forms name classes and splits in columns or files (`sources.reader`). The middle square of an image is resized
    to `size`. In each class, shares of the images validate and test.
    """

    least_images: ClassVar[int]

    data: str | None = location("folder of images per class, or a source in another form; must be given")
    skip_bad: bool = location("leave images out that cannot be read, and record which", default=False)
    size: int = number(32, "side of the stored images, in pixels", ge=4, le=1_024)
    channels: int = number(3, "1 for grey, 3 for colour", ge=1, le=3)
    validation_share: float = number(0.15, "share of each class's images that only validate", gt=0, lt=1)
    test_share: float = number(0.15, "share of each class's images that only test", gt=0, lt=1)
    background: str = addition(WHITE, "colour that transparent pixels are composited on, such as black or #ff8800")
    given_split: bool = addition(True, "whether a first level of train, val and test folders is the split")
    nested_classes: bool = addition(False, "whether each folder with images is a class, at any depth")
    least_per_class: int = addition(1, "images that a class needs; others are left out", ge=1)
    dataset: str | None = addition(None, "published data set by name, in `data` or downloaded; see docs/data.md")
    image_column: str | None = addition(None, "column of images in a table; by type or usual name if not given")
    label_column: str | None = addition(None, "column of classes in a table; by metadata or usual name if not given")
    split_column: str | None = addition(None, "column of splits in a table; `split` if not given")

    def check(self) -> list[str]:
        """The channels must be 1 or 3, and the shares must leave training images."""
        faults = super().check()
        if self.dataset is not None and self.dataset not in NAMES:
            near = nearest(self.dataset, NAMES)
            remedy = f"did you mean {near}?" if near else ""
            faults.append(fault(f"{self.name}.dataset", f"must be one of {', '.join(NAMES)}", self.dataset, remedy))
        if self.channels == 2:
            faults.append(fault(f"{self.name}.channels", "must be 1 or 3", self.channels))
        if not is_colour(self.background):
            rule, remedy = "must be an opaque colour", "write a name or a code, such as white or #ff8800"
            faults.append(fault(f"{self.name}.background", rule, self.background, remedy))
        if self.validation_share + self.test_share >= 1:
            shares = self.validation_share + self.test_share
            faults.append(fault(f"{self.name}.test_share", "validation_share + test_share must be below 1", shares))
        return faults

    def check_locations(self) -> list[str]:
        remedy = "name a folder that holds a folder per class, or a published data set by dataset"
        missing = self.data is None and self.dataset is None
        return [fault(f"{self.name}.data", "must be given", remedy=remedy)] if missing else []

    def collect(self, progress: Progress = silent) -> Collected:
        """List the source, and decode its images (see `image_files.collect_files`)."""
        listing = self.listing()
        pools = Pools(self.validation_share, self.test_share, self.least_images, self.least_per_class)
        form = ImageFormat(self.size, self.channels, background=self.background)
        return collect_files(listing, form, pools, self.skip_bad, "image_folder/pools", progress, self._stretches())

    def listing(self) -> Listing:
        """The images of the source."""
        if self.dataset is not None:
            listing = list_published(self.dataset, self.data)
            return listing if self.given_split else replace(listing, splits=None)
        return list_source(self.data, self.columns(), self.given_split, self.nested_classes)

    def fingerprint(self) -> str:
        """A digest of the names, sizes and times of the source's files; none for a download, which never changes."""
        if self.dataset is not None:
            files = "" if self.data is None else published_fingerprint(self.dataset, self.data)
            return f"{READER_VERSION} {files}"
        files = source_fingerprint(self.data, self.columns(), self.given_split, self.nested_classes)
        return f"{READER_VERSION} {self.skip_bad} {files}"

    def columns(self) -> Columns:
        """The columns that the options name."""
        return Columns(self.image_column, self.label_column, self.split_column)

    def _stretches(self) -> int:
        """The number of tasks that ordered images are cut into, for streams whose tasks the source gives."""
        return 1


@dataclass(frozen=True)
class SingleImages(ImageSource, SingleTasks):
    """Tasks of single images; the label is the class."""

    name: ClassVar[str] = "images"


@dataclass(frozen=True)
class ImagePairs(ImageSource, PairTasks):
    """Tasks of pairs of images, of one class or of two."""

    name: ClassVar[str] = "image_pairs"


@dataclass(frozen=True)
class ImageFolder(SingleImages):
    """`images` by its first name."""

    name: ClassVar[str] = "image_folder"


@dataclass(frozen=True)
class ImageFolderPairs(ImagePairs):
    """`image_pairs` by its first name."""

    name: ClassVar[str] = "image_folder_pairs"


@dataclass(frozen=True)
class ImageTasks(ImageSource):
    """Tasks as the source gives them, in its order; the label is the class among those of all tasks.

    A task is a folder that holds a folder per class (`task1/cat`), or a value in a column. Tasks are in the order of
    their names (task2 before task10). If `order_column` is given and there is no column of tasks, images are sorted by
    it and cut into `tasks` tasks of equal size; they keep this order in a task. Without it, each seed shuffles the
    images of a task.
    """

    name: ClassVar[str] = "image_tasks"
    least_images: ClassVar[int] = 1

    tasks: int = number(10, "tasks that images ordered by a column are cut into; not used if tasks have names", ge=1)
    train: int = number(400, "training points of a task, at most", ge=1)
    validation: int = number(100, "validation points of a task, at most", ge=1)
    test: int = number(100, "test points of a task, at most", ge=1)
    task_column: str | None = addition(None, "column of tasks in a table; `task` or `domain` if not given")
    order_column: str | None = addition(None, "column of numbers or times in whose order images are shown")

    def check(self) -> list[str]:
        """Published data sets have no tasks."""
        if self.dataset is None:
            return super().check()
        remedy = "use the stream images or image_pairs, or name data that has tasks by data"
        return [
            *super().check(),
            fault(f"{self.name}.dataset", "has no tasks and is not supported", self.dataset, remedy),
        ]

    def check_locations(self) -> list[str]:
        remedy = "name a folder that holds a folder per task, or a table with a column of tasks"
        return [fault(f"{self.name}.data", "must be given", remedy=remedy)] if self.data is None else []

    def seed_table(self, images: Images, seed: int) -> SeedTable:
        """Up to `train`, `validation` and `test` images of each task, drawn by the seed."""
        counts = np.array([count for _, count in images.tasks])
        task_of = np.repeat(np.arange(len(counts)), counts)
        rows = []
        for split, most in ((TRAIN, self.train), (VALIDATION, self.validation), (TEST, self.test)):
            rng = generator(seed, f"{self.name}/points {split}")
            for task in range(len(counts)):
                points = rng.permutation(np.flatnonzero((task_of == task) & (images.splits == split)))[:most]
                rows.append(points if self.order_column is None else np.sort(points))
        row = np.concatenate(rows)
        about = [{"name": name} for name, _ in images.tasks]
        return SeedTable(
            task_of[row].astype(np.int32), images.splits[row], row.astype(np.int32)[:, None], images.classes[row], about
        )

    def columns(self) -> Columns:
        """The columns that the options name."""
        return replace(super().columns(), task=self.task_column, order=self.order_column, tasks=True)

    def _stretches(self) -> int:
        return self.tasks
