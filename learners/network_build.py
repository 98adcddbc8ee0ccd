"""Networks by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learners import tangent as tangent_passes
from learners.architectures import NETWORKS
from learners.networks import Network


def build(name: str, image_shape: Sequence[int], classes: int, *, tangent: bool = True, **where: Any) -> Network:
    """The network called `name` for images of (C, H, W); `where` is `device` and `dtype`.

    With `tangent` its training passes are the hand-written ones of `learners.tangent`, else autograd's: equal values.
    """
    if name not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(sorted(NETWORKS))} (got {name})")
    kind = tangent_passes.KINDS.get(name, Network) if tangent else Network
    return kind(lambda: NETWORKS[name](image_shape, classes), **where)
