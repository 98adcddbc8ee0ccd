"""Data for online learning: recipes that build task stores, the stores on disk, and streams of their datapoints.

    >>> from streams.build import cached
    >>> from streams.stream import Stream
    >>> store = cached(recipes()["rainbow_digits"](), seeds=[0])  # doctest: +SKIP
    >>> Stream(store, seed=0).read(0, 10).image_ids.shape          # doctest: +SKIP
    (10, 1)

Shape letters: B datapoints, V images of a datapoint (1, or 2 for a pair), n rows of a table, M geometries of views,
C H W channels, height and width of an image.
"""

from typing import TYPE_CHECKING, Any

from streams.command_line import set_up_if_command

set_up_if_command("streams")  # before a command imports what takes seconds

if TYPE_CHECKING:
    from pathlib import Path

    from streams.recipe import Recipe


def recipes() -> "dict[str, type[Recipe]]":
    """Every recipe in the package's modules, by name (see `streams.recipe`)."""
    from streams import recipe  # opening a store must not import the recipes

    return recipe.recipes()


def from_dataset(dataset: Any, out: "str | Path", **options: Any) -> Any:
    """The `TaskStore` built from a map-style data set of PyTorch or Hugging Face (see `streams.build.from_dataset`)."""
    from streams import build

    return build.from_dataset(dataset, out, **options)
