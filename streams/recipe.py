"""The contract of a recipe (from a source to tasks), and the registry that finds recipes by name.

A recipe is a file in `streams/`: a frozen dataclass whose fields are its options and whose `name` is its name in YAML.
`recipes()` imports the modules of this package and collects them, so that a user's `streams/mine.py` is found.
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

Progress = Callable[[str, int, int], None]
"""Called as `progress(what, done, total)` while something long runs."""


def silent(what: str, done: int, total: int) -> None:
    """The progress that tells nobody."""


@dataclass(frozen=True)
class Images:
    """What is known of a store's distinct images besides their pixels.

    Attributes:
        classes: int32 [n], the class of each image.
        splits: uint8 [n], the source's own pools: 0 train, 1 validation, 2 test.
        class_names: one name per class.
    """

    classes: npt.NDArray[np.int32]
    splits: npt.NDArray[np.uint8]
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Collected:
    """A source, read completely.

    Attributes:
        pixels: uint8 [n, C, H, W].
        images: classes, splits and names of these n images.
        source: what the manifest records of the source: `name`, `files` {name: sha256}, and notices.
    """

    pixels: npt.NDArray[np.uint8]
    images: Images
    source: dict[str, Any]


@dataclass(frozen=True)
class SeedTable:
    """The datapoints of one stream seed, n rows sorted by (split, task), within a task in the order of the stream.

    Attributes:
        task: int32 [n], 0 for the first task met.
        split: uint8 [n], 0 train, 1 validation, 2 test.
        image_ids: int32 [n, V], `view * count + row`, or `row` where the store has no views.
        label: int32 [n].
        tasks: one description (JSON) per task, for people to read.
    """

    task: npt.NDArray[np.int32]
    split: npt.NDArray[np.uint8]
    image_ids: npt.NDArray[np.int32]
    label: npt.NDArray[np.int32]
    tasks: list[dict[str, Any]]


def location(description: str, default: Any = None) -> Any:
    """A dataclass field for an option that only says where data lies or how to read it: in no manifest and no hash."""
    return field(default=default, metadata={"description": description, "location": True})


def number(default: float, description: str, **bounds: float) -> Any:
    """A dataclass field for an option that is a number, with its bounds (`ge`, `gt`, `le`, `lt`)."""
    return field(default=default, metadata={"description": description, **bounds})


@dataclass(frozen=True)
class Recipe(ABC):
    """From a source to tasks. Subclasses are frozen dataclasses; the fields are options.

    A field's metadata may hold `ge`, `gt`, `le`, `lt` (bounds), `description`, and `location` (see `location`).
    """

    name: ClassVar[str]
    images_per_datapoint: ClassVar[int] = 1
    classes: ClassVar[int | None] = None
    """What `labels` gives, where that is known without the source."""

    @abstractmethod
    def collect(self, progress: Progress = silent) -> Collected:
        """Read the source completely.

        Raises:
            SourceError: with one line for every fault.
        """

    @abstractmethod
    def seed_table(self, images: Images, seed: int) -> SeedTable:
        """The datapoints of one seed: pure in (options, images, seed).

        Raises:
            SourceError: the images cannot give the tasks asked for.
        """

    @abstractmethod
    def labels(self, images: Images) -> int:
        """How many labels a datapoint can have (the outputs that a network needs)."""

    def check(self) -> list[str]:
        """One line for every fault among the options that the fields' bounds cannot express."""
        return []

    def views(self) -> Views | None:
        """The looks in which images are drawn; None where images are shown as they are stored."""
        return None

    def fingerprint(self) -> str:
        """What tells the source's present state without reading it, so that no cached store of older data is taken.

        Raises:
            SourceError: the source is not there.
        """
        return ""

    def options(self) -> dict[str, Any]:
        """The options that decide what the store holds: every field except locations."""
        return {item.name: getattr(self, item.name) for item in fields(self) if not item.metadata.get("location")}

    def identity(self) -> dict[str, Any]:
        """What the manifest records of the recipe: its name and options."""
        return {"name": self.name, **self.options()}


_COMMANDS = frozenset({"build", "inspect", "verify", "__main__"})
"""Modules that are run, and hold no recipe: importing them here would load them twice under `python -m`."""


def recipes() -> dict[str, type[Recipe]]:
    """Every recipe in the package's modules, by name.

    Raises:
        StreamsError: a module cannot be imported, or two recipes have one name.
    """
    found: dict[str, type[Recipe]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(streams.__path__) if not info.ispkg):
        if module in _COMMANDS:
            continue
        try:
            members = vars(importlib.import_module(f"streams.{module}"))
        except Exception as error:  # a user's file may fail in any way
            raise StreamsError(
                fault(f"streams/{module}.py", "cannot be imported", f"{type(error).__name__}: {error}")
            ) from error
        for member in members.values():
            if not (isinstance(member, type) and issubclass(member, Recipe)) or inspect.isabstract(member):
                continue
            if member.__module__ == f"streams.{module}" and found.setdefault(member.name, member) is not member:
                other = found[member.name].__module__
                raise StreamsError(
                    fault(f"streams/{module}.py", "two recipes have one name", member.name, f"see {other}")
                )
    return found
