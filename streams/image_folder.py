"""A stream from a folder of images, one folder per class, as single images or as pairs."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from streams.class_tasks import PairTasks, SingleTasks
from streams.errors import SourceError, fault
from streams.recipe import Collected, Progress, Recipe, location, number, silent
from streams.sources.decode import SUFFIXES
from streams.sources.downloads import fingerprint
from streams.sources.image_files import FileSource, ImageFormat, Pools, collect_files


@dataclass(frozen=True)
class _Folder(Recipe):
    """The options of both streams.

    A class is a folder with images, at any depth; its name is the path. The middle square of an image is resized to
    `size`. In each class, shares of the images validate and test.
    """

    least_images: ClassVar[int]

    data: str | None = location("folder that holds a folder of images per class; must be given")
    skip_bad: bool = location("leave images out that cannot be read, and record which", default=False)
    size: int = number(32, "side of the stored images, in pixels", ge=4, le=1_024)
    channels: int = number(3, "1 for grey, 3 for colour", ge=1, le=3)
    validation_share: float = number(0.15, "share of each class's images that only validate", gt=0, lt=1)
    test_share: float = number(0.15, "share of each class's images that only test", gt=0, lt=1)

    def check(self) -> list[str]:
        """A folder must be given, the channels must be 1 or 3, and the shares must leave training images."""
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

    def collect(self, progress: Progress = silent) -> Collected:
        """Decode the folder (see `image_files.collect_files`)."""
        listing = _list(self.data)
        labels = [file.rpartition("/")[0] for file in listing.files]
        source = FileSource("image folder", listing.root, listing.files, labels, listing.notices)
        pools = Pools(self.validation_share, self.test_share, self.least_images)
        form = ImageFormat(self.size, self.channels)
        return collect_files(source, form, pools, self.skip_bad, "image_folder/pools", progress)

    def fingerprint(self) -> str:
        """A digest of the names, sizes and times of the images."""
        listing = _list(self.data)
        return f"{self.skip_bad} {fingerprint(listing.root / file for file in listing.files)}"


@dataclass(frozen=True)
class ImageFolder(_Folder, SingleTasks):
    """Tasks of single images; the label is the index of the class among all sorted class names."""

    name: ClassVar[str] = "image_folder"


@dataclass(frozen=True)
class ImageFolderPairs(_Folder, PairTasks):
    """Tasks of pairs of images, of one class or of two."""

    name: ClassVar[str] = "image_folder_pairs"


@dataclass(frozen=True)
class _Listing:
    """The content of a folder of images.

    Attributes:
        root: the folder.
        files: the images in class folders, as sorted paths relative to the root.
        loose: the number of images outside class folders.
        others: the number of files that are not images.
    """

    root: Path
    files: list[str]
    loose: int
    others: int

    @property
    def notices(self) -> list[str]:
        """One line for each kind of files that is left out."""
        counts = {
            "images outside any class folder are left out": self.loose,
            "files that are not images are left out": self.others,
        }
        return [f"{count} {words}" for words, count in counts.items() if count]


def _list(data: str | None) -> _Listing:
    root = Path(data or "").expanduser()
    if data is None or not root.is_dir():
        remedy = "name a folder that holds a folder of images per class"
        raise SourceError(fault(data, "data: must be a folder that exists", remedy=remedy))
    files, loose, others = [], 0, 0
    unreadable: list[OSError] = []
    visited: dict[str, str] = {}
    faults: list[str] = []
    for folder, below, names in os.walk(root, onerror=unreadable.append, followlinks=True):
        below[:] = _new_folders(folder, sorted(below), visited, faults)
        for name in names:
            path = (Path(folder) / name).relative_to(root).as_posix()
            if Path(name).suffix.lower() not in SUFFIXES or name.startswith("."):
                others += 1
            elif "/" in path:
                files.append(path)
            else:
                loose += 1
    faults += [fault(error.filename, "cannot be read", error.strerror) for error in unreadable]
    if faults:
        raise SourceError(*faults)
    if not files:
        rule = f"data: must hold folders with images ({' '.join(sorted(SUFFIXES))})"
        raise SourceError(fault(data, rule, remedy="a folder per class, images in it"))
    return _Listing(root, sorted(files), loose, others)


def _new_folders(folder: str, below: list[str], visited: dict[str, str], faults: list[str]) -> list[str]:
    """The names of the subfolders that were not visited before, since links would make images occur several times.

    Args:
        folder: the folder that is walked.
        below: the names of its subfolders.
        visited: real path → path of each folder visited so far; the new ones are added.
        faults: one line is added for every subfolder that was visited before.
    """
    here = os.path.realpath(folder)
    visited.setdefault(here, folder)
    new = []
    for name in below:
        path = os.path.join(folder, name)
        real = os.path.realpath(path)
        if real in visited or Path(here).is_relative_to(real):
            rule = "a folder must be visited once, or its images would occur several times"
            faults.append(fault(path, rule, f"it is {visited.get(real, real)} again", "remove the link"))
        else:
            visited[real] = path
            new.append(name)
    return new
