"""Networks by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learners.networks import tangent as tangent_passes
from learners.networks.architectures import NETWORKS
from learners.networks.network import Network


def default_for(images_per_datapoint: int) -> str:
    """The name of the paper's network for datapoints of 1 image ("rainbow") or of a pair ("siamese")."""
    return next(name for name, kind in NETWORKS.items() if kind.images_per_datapoint == images_per_datapoint)


def build(name: str, image_shape: Sequence[int], classes: int, *, tangent: bool = True, **where: Any) -> Network:
    """The network called `name`.

    Args:
        name: "rainbow" or "siamese".
        image_shape: (C, H, W) of an image.
        classes: number of classes.
        tangent: use the hand-written training passes of `learners.networks.tangent`; False: autograd, equal values.
        where: `device` and `dtype`.

    Raises:
        ValueError: there is no network of this name.
    """
    if name not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(sorted(NETWORKS))} (got {name})")
    kind = tangent_passes.KINDS.get(name, Network) if tangent else Network
    return kind(lambda: NETWORKS[name](image_shape, classes), **where)
