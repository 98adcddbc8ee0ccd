"""Learners by name: the file's name is the name in YAML, so that a new file with a `Learner` in it is a new learner.

A name with a dot, such as `my_learners.averaged`, is a module of the user's own, wherever Python finds it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from types import ModuleType
from typing import Any

from learners.base import Learner, Setting


@cache
def names() -> list[str]:
    """The names of all learners, sorted."""
    package = importlib.import_module("learners")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if _learners_of(module.name))


@cache
def learner_class(name: str) -> type[Learner]:
    """The one `Learner` that `learners/<name>.py`, or the module of that name, defines.

    Raises:
        ValueError: one line: there is no such learner, or the module cannot be imported.
    """
    if "." in name:
        return _own_class(name)
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


def _own_class(name: str) -> type[Learner]:
    """The one `Learner` that a module outside this package defines."""
    try:
        found = _defined_in(importlib.import_module(name))
    except Exception as error:  # a user's file may fail in any way
        raise ValueError(f"{name} must be a module that can be imported ({type(error).__name__}: {error})") from error
    if len(found) != 1:
        raise ValueError(f"{name} must define exactly one Learner (found {len(found)})")
    return found[0]


def _learners_of(name: str) -> list[type[Learner]]:
    return _defined_in(importlib.import_module(f"learners.{name}"))


def _defined_in(module: ModuleType) -> list[type[Learner]]:
    """Those that the file itself defines; what all are derived from is not one of them."""
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Learner) and member.__module__ == module.__name__ and not inspect.isabstract(member)
    ]
