"""Networks by their description: a name, or the module of a user's own network, with options."""

import importlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

from torch import nn

from learners.networks import tangent as tangent_passes
from learners.networks.architectures import NETWORKS, Initialisation
from learners.networks.network import Network

_DEFAULTS = {1: "rainbow", 2: "siamese"}


@dataclass(frozen=True)
class InitialOptions:
    """The option of every network."""

    init: Initialisation = field(
        default="default", metadata={"description": "initial weights: PyTorch's, He's normal or Glorot's uniform ones"}
    )


@dataclass(frozen=True)
class MLPOptions(InitialOptions):
    """The options of the MLP."""

    hidden: int = field(default=256, metadata={"ge": 1, "le": 65_536, "description": "units of a hidden layer"})
    layers: int = field(default=2, metadata={"ge": 1, "le": 64, "description": "hidden layers"})


@dataclass(frozen=True)
class ResNet18Options(InitialOptions):
    """The options of the ResNet-18."""

    width: int = field(default=64, metadata={"ge": 1, "le": 1_024, "description": "channels of the first stage"})
    norm: Literal["group", "batch"] = field(default="group", metadata={"description": "group norm or batch norm"})


OPTIONS: dict[str, type] = {"mlp": MLPOptions, "resnet18": ResNet18Options}
"""Name of a network → its options, if it has more than `InitialOptions`."""


def default_for(images_per_datapoint: int) -> str:
    """The name of the paper's network for datapoints of 1 image ("rainbow") or of a pair ("siamese")."""
    return _DEFAULTS[images_per_datapoint]


def names_for(images_per_datapoint: int) -> list[str]:
    """The names of the networks for datapoints of 1 image or of a pair; the default is the first."""
    return [name for name in NETWORKS if name not in _DEFAULTS.values() or name == default_for(images_per_datapoint)]


def images_per_datapoint(network: str) -> int | None:
    """1 or 2 if the network is for one kind of datapoint only; else None."""
    name = read(network).get("name")
    return next((count for count, default in _DEFAULTS.items() if default == name), None)


def write(description: Mapping[str, Any]) -> str:
    """A description (`name` or `class`, and options) as text: the name if there are no options, else JSON."""
    if set(description) == {"name"}:
        return str(description["name"])
    return json.dumps(description, sort_keys=True, ensure_ascii=False)


def described(network: str | Mapping[str, Any]) -> str:
    """A network in any notation of a sweep's file as `write` writes it, without options that have their default.

    >>> described({"name": "mlp", "hidden": 256, "layers": 3}), described("rainbow"), described({"name": "rainbow"})
    ('{"layers": 3, "name": "mlp"}', 'rainbow', 'rainbow')
    """
    description = dict(network) if isinstance(network, Mapping) else read(network)
    defaults = {item.name: item.default for item in fields(OPTIONS.get(str(description.get("name")), InitialOptions))}
    return write({key: value for key, value in description.items() if key not in defaults or value != defaults[key]})


def read(network: str) -> dict[str, Any]:
    """The description that `write` wrote."""
    return dict(json.loads(network)) if network.startswith("{") else {"name": network}


def module_class(description: Mapping[str, Any]) -> type[nn.Module]:
    """The class of a network's modules.

    Raises:
        ValueError: one line; there is no such network, or its module cannot be imported.
    """
    if "class" not in description:
        name = description.get("name")
        if name not in NETWORKS:
            raise ValueError(f"network must be one of {', '.join(sorted(NETWORKS))} (got {name})")
        return NETWORKS[name]
    path = str(description["class"])
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing a user's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{path} must be a class that can be imported ({reason})") from error
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        raise ValueError(f"{path} must be a subclass of torch.nn.Module")
    return kind


def build(network: str, image_shape: Sequence[int], classes: int, *, tangent: bool = True, **where: Any) -> Network:
    """The network of this description (see `write`).

    Args:
        network: a name such as "rainbow", or the text of a description.
        image_shape: (C, H, W) of an image.
        classes: number of classes.
        tangent: use the hand-written passes of `learners.networks.tangent` where they exist; False: autograd, equal
            values.
        where: `device` and `dtype`.

    Raises:
        ValueError: one line; there is no such network.
    """
    options = read(network)
    module = module_class(options)
    name, init = options.pop("name", None), options.pop("init", "default")
    options.pop("class", None)
    kind = tangent_passes.KINDS.get(name, Network) if tangent and name else Network
    return kind(partial(module, tuple(image_shape), classes, **options), init=init, **where)
