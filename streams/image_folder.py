"""A stream from a folder of images, one folder per class, as single images or as pairs."""

from dataclasses import dataclass
from typing import ClassVar

from streams.class_tasks import PairTasks, SingleTasks
from streams.errors import fault
from streams.recipe import WHITE, Collected, Progress, Recipe, addition, location, number, silent
from streams.sources.decode import ImageFormat, is_colour
from streams.sources.downloads import fingerprint
from streams.sources.folder import Listing, list_folder
from streams.sources.image_files import READER_VERSION, FileSource, Pools, collect_files


@dataclass(frozen=True)
class _Folder(Recipe):
    """The options of both streams.

    A class is a folder of the first level, with the images at any depth in it; classes are sorted as text (1, 10, 2).
    If the first level is `train` with `val` or `test`, it gives the split, and classes are the folders below. The
    middle square of an image is resized to `size`. In each class, shares of the images validate and test.
    """

    least_images: ClassVar[int]

    data: str | None = location("folder that holds a folder of images per class; must be given")
    skip_bad: bool = location("leave images out that cannot be read, and record which", default=False)
    size: int = number(32, "side of the stored images, in pixels", ge=4, le=1_024)
    channels: int = number(3, "1 for grey, 3 for colour", ge=1, le=3)
    validation_share: float = number(0.15, "share of each class's images that only validate", gt=0, lt=1)
    test_share: float = number(0.15, "share of each class's images that only test", gt=0, lt=1)
    background: str = addition(WHITE, "colour that transparent pixels are composited on, such as black or #ff8800")
    given_split: bool = addition(True, "whether a first level of train, val and test folders is the split")
    nested_classes: bool = addition(False, "whether each folder with images is a class, at any depth")
    least_per_class: int = addition(1, "images that a class needs; others are left out", ge=1)

    def check(self) -> list[str]:
        """`data` must be given, the channels must be 1 or 3, and the shares must leave training images."""
        faults = super().check()
        if self.data is None:
            faults.append(
                fault(f"{self.name}.data", "must be given", remedy="name a folder that holds a folder per class")
            )
        if self.channels == 2:
            faults.append(fault(f"{self.name}.channels", "must be 1 or 3", self.channels))
        if not is_colour(self.background):
            rule, remedy = "must be an opaque colour", "write a name or a code, such as white or #ff8800"
            faults.append(fault(f"{self.name}.background", rule, self.background, remedy))
        if self.validation_share + self.test_share >= 1:
            shares = self.validation_share + self.test_share
            faults.append(fault(f"{self.name}.test_share", "validation_share + test_share must be below 1", shares))
        return faults

    def collect(self, progress: Progress = silent) -> Collected:
        """Decode the folder (see `image_files.collect_files`)."""
        listing = self._list()
        source = FileSource(
            "image folder",
            listing.root,
            listing.files,
            listing.labels,
            listing.notices,
            listing.remarks,
            listing.splits,
        )
        pools = Pools(self.validation_share, self.test_share, self.least_images, self.least_per_class)
        form = ImageFormat(self.size, self.channels, background=self.background)
        return collect_files(source, form, pools, self.skip_bad, "image_folder/pools", progress)

    def fingerprint(self) -> str:
        """A digest of the names, sizes and times of the images."""
        listing = self._list()
        return f"{READER_VERSION} {self.skip_bad} {fingerprint(listing.root / file for file in listing.files)}"

    def _list(self) -> Listing:
        return list_folder(self.data, self.given_split, self.nested_classes)


@dataclass(frozen=True)
class ImageFolder(_Folder, SingleTasks):
    """Tasks of single images; the label is the index of the class among all sorted class names."""

    name: ClassVar[str] = "image_folder"


@dataclass(frozen=True)
class ImageFolderPairs(_Folder, PairTasks):
    """Tasks of pairs of images, of one class or of two."""

    name: ClassVar[str] = "image_folder_pairs"
