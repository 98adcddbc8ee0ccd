"""Learners by name: the file's name is the name in YAML, so that a new file with a `Learner` in it is a new learner."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

from learners.base import Learner, Setting


@cache
def names() -> list[str]:
    """The names of all learners, sorted."""
    package = importlib.import_module("learners")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if _learners_of(module.name))


@cache
def learner_class(name: str) -> type[Learner]:
    """The one `Learner` that `learners/<name>.py` defines."""
    if name not in names():
        raise ValueError(f"learner must be one of {', '.join(names())} (got {name})")
    found = _learners_of(name)
    if len(found) != 1:
        raise ValueError(f"learners/{name}.py must define exactly one Learner (found {len(found)})")
    return found[0]


def create(name: str, options: dict[str, Any], setting: Setting) -> Learner:
    """The learner called `name`, with its defaults where `options` says nothing."""
    chosen = learner_class(name)
    return chosen(chosen.options_class(**options), setting)


def _learners_of(name: str) -> list[type[Learner]]:
    """Those that the file itself defines; what all are derived from is not one of them."""
    module = importlib.import_module(f"learners.{name}")
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Learner) and member.__module__ == module.__name__ and not inspect.isabstract(member)
    ]
