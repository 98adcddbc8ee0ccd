"""Learners by name: the name in YAML is the name of a module in `learners/` that defines one `Learner`.

A name with a dot, such as `my_learners.averaged`, is an importable module outside this package.
"""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import ModuleType
from typing import Any

from learners.base import Learner, Setting


@cache
def names() -> list[str]:
    """The names of all learners of this package, sorted."""
    package = importlib.import_module("learners")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if _learners_of(module.name))


@cache
def learner_class(name: str) -> type[Learner]:
    """The class of the learner called `name`.

    Raises:
        ValueError: one line; there is no such learner, or its module cannot be imported.
    """
    if "." in name:
        return _external_class(name)
    if name not in names():
        raise ValueError(f"learner must be one of {', '.join(names())} (got {name})")
    return _single(_learners_of(name), f"learners/{name}.py")


def without_additions(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the learner called `name` without each `learners.base.addition` that has its default.

    Raises:
        ValueError: as `learner_class` does.
    """
    kind = learner_class(name).options_class
    additions = {item.name: item.default for item in fields(kind) if item.metadata.get("addition")}
    return {key: value for key, value in options.items() if key not in additions or value != additions[key]}


def create(name: str, options: dict[str, Any], setting: Setting) -> Learner:
    """The learner called `name`, with defaults for the options that are not in `options`.

    Raises:
        ValueError: one line; there is no such learner, or it needs features or hidden layers, which the network has
            not.
    """
    kind = learner_class(name)
    if kind.needs_features and not setting.network.features:
        rule = "needs a network with features, a subclass of learners.networks.architectures.EmbeddingNet"
        raise ValueError(f"{name} {rule} (got {type(setting.network.module).__name__})")
    if kind.needs_hidden_layers and not setting.network.hidden_layers:
        rule = (
            "needs a network that names its hidden_layers, which learners.networks.architectures.HiddenLayer describes"
        )
        raise ValueError(f"{name} {rule} (got {type(setting.network.module).__name__})")
    return kind(kind.options_class(**options), setting)


def search_also(folder: str) -> None:
    """Search a folder for modules of learners, after all other places."""
    if folder not in sys.path:
        sys.path.append(folder)


def _external_class(name: str) -> type[Learner]:
    try:
        classes = _defined_in(importlib.import_module(name))
    except Exception as error:  # importing a user's module may raise anything
        raise ValueError(f"{name} must be a module that can be imported ({type(error).__name__}: {error})") from error
    return _single(classes, name)


def _single(classes: list[type[Learner]], module: str) -> type[Learner]:
    if len(classes) != 1:
        raise ValueError(f"{module} must define exactly one Learner (found {len(classes)})")
    return classes[0]


def _learners_of(name: str) -> list[type[Learner]]:
    return _defined_in(importlib.import_module(f"learners.{name}"))


def _defined_in(module: ModuleType) -> list[type[Learner]]:
    """The concrete learner classes that the module defines; imported ones are excluded."""
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Learner) and member.__module__ == module.__name__ and not inspect.isabstract(member)
    ]
