"""Anybody's folder of images, a folder per class, as single images or as pairs."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from streams.decode import SUFFIXES
from streams.errors import SourceError, fault
from streams.folder_images import FileSource, ImageFormat, Pools, collect_files
from streams.listing import fingerprint
from streams.pairs import PairTasks
from streams.recipe import Collected, Progress, Recipe, location, number, silent
from streams.singles import SingleTasks


@dataclass(frozen=True)
class _Folder(Recipe):
    """The options of a folder of images. A class is a folder that holds images, at any depth, named by its path.

    The middle square of an image is resized to `size`. Of each class, shares of the images validate and test.
    """

    data: str | None = location("folder that holds a folder of images per class; must be given")
    skip_bad: bool = location("leave images out that cannot be read, and record which", default=False)
    size: int = number(32, "side of the stored images, in pixels", ge=4)
    channels: int = number(3, "1 for grey, 3 for colour", ge=1, le=3)
    validation_share: float = number(0.15, "share of each class's images that only validate", gt=0, lt=1)
    test_share: float = number(0.15, "share of each class's images that only test", gt=0, lt=1)

    def check(self) -> list[str]:
        """A folder must be named, the channels be 1 or 3, and training images be left."""
        faults = super().check()
        if self.data is None:
            faults.append(
                fault(f"{self.name}.data", "must be given", remedy="name a folder that holds a folder per class")
            )
        if self.channels == 2:
            faults.append(fault(f"{self.name}.channels", "must be 1 or 3", self.channels))
        if self.validation_share + self.test_share >= 1:
            shares = self.validation_share + self.test_share
            faults.append(fault(f"{self.name}.test_share", "validation_share + test_share must be below 1", shares))
        return faults

    def _collect(self, least: int, progress: Progress) -> Collected:
        root, files, ignored = _list(self.data)
        labels = [file.rpartition("/")[0] for file in files]
        notices = [f"{ignored} files that are not images are left out"] if ignored else []
        source = FileSource("image folder", root, files, labels, notices)
        pools = Pools(self.validation_share, self.test_share, least)
        form = ImageFormat(self.size, self.channels)
        return collect_files(source, form, pools, self.skip_bad, "image_folder/pools", progress)

    def fingerprint(self) -> str:
        """The names, sizes and times of the images."""
        root, files, _ = _list(self.data)
        return f"{self.skip_bad} {fingerprint(root / file for file in files)}"


@dataclass(frozen=True)
class ImageFolder(_Folder, SingleTasks):
    """Tasks of single images; the label is the class, numbered over all classes in the order of their names."""

    name: ClassVar[str] = "image_folder"

    def collect(self, progress: Progress = silent) -> Collected:
        """Decode the folder (see `folder_images.collect_files`)."""
        return self._collect(self.least_images, progress)


@dataclass(frozen=True)
class ImageFolderPairs(_Folder, PairTasks):
    """Tasks of pairs of images: of one class, or of two."""

    name: ClassVar[str] = "image_folder_pairs"

    def collect(self, progress: Progress = silent) -> Collected:
        """Decode the folder (see `folder_images.collect_files`)."""
        return self._collect(self.least_images, progress)


def _list(data: str | None) -> tuple[Path, list[str], int]:
    """The root, the images below it (sorted, each in some folder), and how many other files were passed over."""
    root = Path(data or "").expanduser()
    if data is None or not root.is_dir():
        remedy = "name a folder that holds a folder of images per class"
        raise SourceError(fault(data, "data: must be a folder that exists", remedy=remedy))
    files, ignored = [], 0
    unreadable: list[OSError] = []
    for folder, _, names in os.walk(root, onerror=unreadable.append, followlinks=True):
        for name in names:
            path = (Path(folder) / name).relative_to(root).as_posix()
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".") and "/" in path:
                files.append(path)
            else:
                ignored += 1
    if unreadable:
        raise SourceError(*(fault(error.filename, "cannot be read", error.strerror) for error in unreadable))
    if not files:
        rule = f"data: must hold folders with images ({' '.join(sorted(SUFFIXES))})"
        raise SourceError(fault(data, rule, remedy="a folder per class, images in it"))
    return root, sorted(files), ignored
