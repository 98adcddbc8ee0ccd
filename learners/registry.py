"""Learners by name: the file's name is the name in YAML, so that a new file is a new learner."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

from learners.base import Learner, Setting

_NOT_LEARNERS = frozenset(
    {"base", "batch", "budget", "buffer", "checkpoint", "images", "meta_gradient", "model", "networks", "optim"}
    | {"registry", "seeding", "tangent"}
)


def names() -> list[str]:
    """The names of all learners, sorted."""
    package = importlib.import_module("learners")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _NOT_LEARNERS)


@cache
def learner_class(name: str) -> type[Learner]:
    """The one `Learner` that `learners/<name>.py` defines."""
    if name not in names():
        raise ValueError(f"learner must be one of {', '.join(names())} (got {name})")
    module = importlib.import_module(f"learners.{name}")
    found = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Learner) and member.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise ValueError(f"learners/{name}.py must define exactly one Learner (found {len(found)})")
    return found[0]


def create(name: str, options: dict[str, Any], setting: Setting) -> Learner:
    """The learner called `name`, with its defaults where `options` says nothing."""
    chosen = learner_class(name)
    return chosen(chosen.options_class(**options), setting)
