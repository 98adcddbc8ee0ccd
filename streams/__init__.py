"""What is learned from: task stores on disk, recipes that build them, and streams that are addressed by position.

    >>> from streams.build import cached
    >>> from streams.stream import Stream
    >>> store = cached(recipes()["rainbow_digits"](), seeds=[0])  # doctest: +SKIP
    >>> Stream(store, seed=0).read(0, 10).image_ids.shape          # doctest: +SKIP
    (10, 1)

Shape letters: B datapoints, V images of a datapoint (1, or 2 for a pair), n rows of a table, C H W an image's channels,
height and width.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.recipe import Recipe


def recipes() -> "dict[str, type[Recipe]]":
    """Every recipe in the package's modules, by name (see `streams.recipe`)."""
    from streams.recipe import recipes as find  # here, so that mapping a store imports no source

    return find()
