"""From `key=value` words to a recipe, with every wrong option told at once."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from types import UnionType
from typing import Any, get_args, get_type_hints

from streams.errors import OptionError, fault
from streams.recipe import Recipe, recipes

_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": ("at least", lambda value, bound: value >= bound),
    "gt": ("above", lambda value, bound: value > bound),
    "le": ("at most", lambda value, bound: value <= bound),
    "lt": ("below", lambda value, bound: value < bound),
}


def recipe_class(name: str) -> type[Recipe]:
    """The recipe of this name.

    Raises:
        OptionError: there is none; the nearest name is given.
    """
    known = recipes()
    if name not in known:
        raise OptionError(fault("stream", f"must be one of {', '.join(sorted(known))}", name, _nearest(name, known)))
    return known[name]


def recipe_from_words(name: str, words: Sequence[str]) -> Recipe:
    """A recipe from its name and words like `tasks=8`.

    Raises:
        OptionError: one line for every unknown key, wrong type or value out of range.
    """
    options: dict[str, str] = {}
    faults = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            faults.append(fault(word, "options are written key=value"))
        options[key] = value
    if faults:
        raise OptionError(*faults)
    return recipe_from_options(name, options)


def recipe_from_options(name: str, options: Mapping[str, Any]) -> Recipe:
    """A recipe from its name and options; text is read as the option's type.

    Raises:
        OptionError: one line for every unknown key, wrong type or value out of range.
    """
    kind = recipe_class(name)
    known = {item.name: item for item in fields(kind)}
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    faults = []
    for key, given in options.items():
        where = f"{name}.{key}"
        if key not in known:
            faults.append(fault(where, "unknown option", given, _nearest(key, known)))
            continue
        try:
            values[key] = _read(given, hints[key])
        except ValueError:
            faults.append(fault(where, f"must be {_describe(hints[key])}", given))
            continue
        faults += bound_faults(where, known[key], values[key])
    faults += [
        fault(f"{name}.{key}", "must be given", remedy=str(item.metadata.get("description", "")))
        for key, item in known.items()
        if key not in options and item.metadata.get("required")
    ]
    if faults:
        raise OptionError(*faults)
    return kind(**values)


def bound_faults(where: str, item: "Field[Any]", value: Any) -> list[str]:
    """One line for every bound in the field's metadata that a number breaks."""
    faults = []
    for key, (words, holds) in _BOUNDS.items():
        if key in item.metadata and isinstance(value, int | float) and not holds(value, item.metadata[key]):
            faults.append(fault(where, f"must be {words} {item.metadata[key]}", value))
    return faults


def _read(given: Any, hint: Any) -> Any:
    kinds = _kinds(hint)
    if not isinstance(given, str):
        if (isinstance(given, bool) and bool not in kinds) or not isinstance(given, kinds):
            raise ValueError(given)
        return given
    if type(None) in kinds and given.lower() in ("", "null", "none"):
        return None
    if bool in kinds:
        if given.lower() not in ("true", "false"):
            raise ValueError(given)
        return given.lower() == "true"
    for number in (int, float):
        if number in kinds:
            return number(given)
    return given


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return " or ".join(words[kind] for kind in _kinds(hint) if kind in words)


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
