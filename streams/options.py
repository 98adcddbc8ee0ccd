"""From names and `key=value` words to recipes and schedules, with every wrong option told at once."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from itertools import chain
from numbers import Integral, Real
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from streams.errors import OptionError, fault
from streams.recipe import Recipe, recipes
from streams.schedule import Schedule, schedules

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")

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
        OptionError: one line for every word that is none, or whose key was given before with another value; or for
            every unknown key, wrong type or value out of range.
    """
    options: dict[str, str] = {}
    faults = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            faults.append(fault(word, "options are written key=value"))
        elif options.setdefault(key, value) != value:
            faults.append(fault(f"{name}.{key}", "must be given once", f"{options[key]} and {value}"))
    if faults:
        raise OptionError(*faults)
    return recipe_from_options(name, options)


def recipe_from_options(name: str, options: Mapping[str, Any]) -> Recipe:
    """A recipe from its name and options; text is read as the option's type.

    Raises:
        OptionError: one line for every unknown key, wrong type or value out of range.
    """
    recipe = from_options(recipe_class(name), name, options)
    faults = recipe.check()
    if faults:
        raise OptionError(*faults)
    return recipe


def schedule_from_options(name: str, options: Mapping[str, Any]) -> Schedule:
    """A schedule from its name and options; text is read as the option's type.

    Raises:
        OptionError: there is none of this name, or one line for every unknown key, wrong type or value out of range.
    """
    known = schedules()
    if name not in known:
        raise OptionError(fault("schedule", f"must be one of {', '.join(sorted(known))}", name, _nearest(name, known)))
    return from_options(known[name], name, options)


def from_options(kind: type[Options], where: str, options: Mapping[str, Any]) -> Options:
    """An instance of a dataclass whose fields are options, with the bounds in the fields' metadata checked.

    Raises:
        OptionError: one line for every unknown key, wrong type or value out of range; lines begin with `where`.
    """
    known = {item.name: item for item in fields(kind)}
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    faults = []
    for key, given in options.items():
        if key not in known:
            faults.append(fault(f"{where}.{key}", "unknown option", given, _nearest(key, known)))
            continue
        try:
            values[key] = _read(given, hints[key])
        except ValueError:
            faults.append(fault(f"{where}.{key}", f"must be {_describe(hints[key])}", given))
            continue
        faults += bound_faults(f"{where}.{key}", known[key], values[key])
    if faults:
        raise OptionError(*faults)
    return kind(**values)


def option_faults(recipe: Recipe) -> list[str]:
    """One line for every option of a recipe that is out of its bounds, or does not go with the others."""
    items = fields(recipe)
    bounds = [bound_faults(f"{recipe.name}.{item.name}", item, getattr(recipe, item.name)) for item in items]
    return [*chain.from_iterable(bounds), *recipe.check()]


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
        return _of_kind(given, kinds)
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


def _of_kind(given: Any, kinds: tuple[Any, ...]) -> Any:
    """The value as one of these types. 1 will do for 1.0, and NumPy's numbers for Python's; a truth is no number."""
    if not isinstance(given, bool):
        if int in kinds and isinstance(given, Integral):
            return int(given)
        if float in kinds and isinstance(given, Real):
            try:
                return float(given)
            except OverflowError:
                raise ValueError(given) from None
    if isinstance(given, kinds) and (bool in kinds or not isinstance(given, bool)):
        return given
    raise ValueError(given)


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return " or ".join(words[kind] for kind in _kinds(hint) if kind in words)


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(sorted(known))}" if known else "there are no options"
