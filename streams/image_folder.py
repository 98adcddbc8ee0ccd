"""A stream from a folder of images, one folder per class: `images` by its first name."""

from dataclasses import dataclass
from typing import ClassVar

from streams.class_tasks import PairTasks, SingleTasks
from streams.images import ImageSource


@dataclass(frozen=True)
class ImageFolder(ImageSource, SingleTasks):
    """Tasks of single images; the label is the index of the class among all sorted class names."""

    name: ClassVar[str] = "image_folder"


@dataclass(frozen=True)
class ImageFolderPairs(ImageSource, PairTasks):
    """Tasks of pairs of images, of one class or of two."""

    name: ClassVar[str] = "image_folder_pairs"
