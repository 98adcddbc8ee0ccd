"""The contract of a recipe, which turns a source into tasks, and the registry of recipes by name.

A recipe is a file in `streams/`: a frozen dataclass whose fields are its options and whose `name` is its name in YAML.
`recipes()` imports the modules of this package and collects their recipes, a user's `streams/mine.py` included.
"""

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import streams
from streams.errors import StreamsError, fault
from streams.views import Views

TRAIN, VALIDATION, TEST = 0, 1, 2
SPLITS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}

WHITE = "white"
"""The colour that transparent images are composited on, if a recipe has no other."""

Progress = Callable[[str, int, int], None]
"""Called as `progress(what, done, total)` during a long operation."""


def silent(what: str, done: int, total: int) -> None:
    """A `Progress` that reports nothing."""


@dataclass(frozen=True)
class Images:
    """The distinct images of a store, without their pixels.

    Attributes:
        classes: int32 [n], the class of each image.
        splits: uint8 [n], the source's own pools: 0 train, 1 validation, 2 test.
        class_names: one name per class.
        tasks: the name of each task that the source gives and its number of images, which are sorted by task; empty if
            it gives none.
    """

    classes: npt.NDArray[np.int32]
    splits: npt.NDArray[np.uint8]
    class_names: tuple[str, ...]
    tasks: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Collected:
    """A source after it was read completely.

    Attributes:
        pixels: uint8 [n, C, H, W].
        images: classes, splits and names of these n images.
        source: the source's entry in the manifest: `name`, `files` {name: sha256}, and notices.
        remarks: lines about the source that a build prints like notices, and that are not part of the manifest.
    """

    pixels: npt.NDArray[np.uint8]
    images: Images
    source: dict[str, Any]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class SeedTable:
    """The datapoints of one stream seed, n rows sorted by (split, task), within a task in the order of the stream.

    Attributes:
        task: int32 [n], 0 for the first task of the stream.
        split: uint8 [n], 0 train, 1 validation, 2 test.
        image_ids: int32 [n, V], `view * count + row`, or `row` if the store has no views.
        label: int32 [n].
        tasks: one description (JSON) per task, for the manifest.
    """

    task: npt.NDArray[np.int32]
    split: npt.NDArray[np.uint8]
    image_ids: npt.NDArray[np.int32]
    label: npt.NDArray[np.int32]
    tasks: list[dict[str, Any]]


def location(description: str, default: Any = None) -> Any:
    """A dataclass field for the place of data or a way to read it, which enters no manifest and no hash."""
    return field(default=default, metadata={"description": description, "location": True})


def number(default: float, description: str, **bounds: float) -> Any:
    """A dataclass field for a number with bounds (`ge`, `gt`, `le`, `lt`)."""
    return field(default=default, metadata={"description": description, **bounds})


def addition(default: Any, description: str, **bounds: float) -> Any:
    """A dataclass field that a later version added: its default enters no manifest, so that older hashes stay."""
    return field(default=default, metadata={"description": description, "addition": True, **bounds})


@dataclass(frozen=True)
class Recipe(ABC):
    """Turns a source into tasks; a subclass is a frozen dataclass whose fields are options.

    The metadata of a field may hold `ge`, `gt`, `le`, `lt` (bounds), `description`, `location` (see `location`), and
    `addition` (see `addition`).

    Attributes:
        name: the recipe's name in YAML and on the command line.
        images_per_datapoint: V.
        classes: the number of labels, if it is known without the source.
    """

    name: ClassVar[str]
    images_per_datapoint: ClassVar[int] = 1
    classes: ClassVar[int | None] = None

    @abstractmethod
    def collect(self, progress: Progress = silent) -> Collected:
        """Read the source completely.

        Raises:
            SourceError: one line for every fault.
        """

    @abstractmethod
    def seed_table(self, images: Images, seed: int) -> SeedTable:
        """The datapoints of one seed: pure in (options, images, seed).

        Raises:
            SourceError: there are too few images for the tasks.
        """

    def labels(self, images: Images) -> int:
        """The number of labels that a datapoint can have, which is that of a network's outputs: the classes."""
        return len(images.class_names)

    def check(self) -> list[str]:
        """One line for every contradiction between options, which the bounds of a field cannot express."""
        return []

    def check_locations(self) -> list[str]:
        """One line for every location without which no store can be built; an existing store needs none."""
        return []

    def remarks(self, images: Images) -> list[str]:
        """One line for every option that these images cannot satisfy, printed whenever the store is used."""
        return []

    def views(self) -> Views | None:
        """The views in which images are drawn; None if images are shown as stored."""
        return None

    def fingerprint(self) -> str:
        """A text that changes with the source, found without reading it, so that no cached store of older data is used.

        Raises:
            SourceError: the source does not exist.
        """
        return ""

    def options(self) -> dict[str, Any]:
        """The options that determine the store's content: no locations, and no additions that have their default."""
        values = {item: getattr(self, item.name) for item in fields(self) if not item.metadata.get("location")}
        return {
            item.name: value
            for item, value in values.items()
            if not item.metadata.get("addition") or value != item.default
        }

    def identity(self) -> dict[str, Any]:
        """The recipe's entry in the manifest: its name and options."""
        return {"name": self.name, **self.options()}


_COMMANDS = frozenset({"build", "inspect", "verify", "__main__"})
"""Modules without recipes that run as commands: importing them here would load them twice under `python -m`."""


def recipes() -> dict[str, type[Recipe]]:
    """Every recipe in the package's modules, by name.

    Raises:
        StreamsError: a module cannot be imported, or two recipes have one name.
    """
    kinds: dict[str, type[Recipe]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(streams.__path__) if not info.ispkg):
        if module in _COMMANDS:
            continue
        try:
            members = vars(importlib.import_module(f"streams.{module}"))
        except Exception as error:  # the file of a user may raise anything
            raise StreamsError(
                fault(f"streams/{module}.py", "cannot be imported", f"{type(error).__name__}: {error}")
            ) from error
        for member in members.values():
            if not (isinstance(member, type) and issubclass(member, Recipe)) or inspect.isabstract(member):
                continue
            if member.__module__ == f"streams.{module}" and kinds.setdefault(member.name, member) is not member:
                other = kinds[member.name].__module__
                raise StreamsError(
                    fault(f"streams/{module}.py", "two recipes have one name", member.name, f"see {other}")
                )
    return kinds
