"""Options of recipes, schedules, learners and schedulers: dataclass fields, which pydantic checks."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import PurePath
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from streams.errors import Faults, OptionError, fault
from streams.recipe import Recipe, recipes
from streams.yaml_values import MAX_DEPTH, parsed

Options = TypeVar("Options")

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
"""How everything that a user writes is read: no unknown keys, no text for a number, no number that is not finite."""
_LIKE_A_NUMBER = re.compile(r"\s*[-+.]*[0-9]")
"""Text that a line shows in quotes, such as `.5e2`, which is no number in YAML."""
_BRANCHES = ("int", "str", "float", "bool")
_BOUNDS = ("ge", "gt", "le", "lt")


def plain_values(value: Any, depth: int = 0) -> Any:
    """What a Python caller gives, as YAML would: numbers and lists for NumPy's and pandas', text for paths.

    What is deeper than `MAX_DEPTH` stays, so that a list inside itself ends.

    >>> import numpy as np
    >>> plain_values({"K": np.int64(2), "hidden": [np.int64(8)], "seeds": np.arange(2)})
    {'K': 2, 'hidden': [8], 'seeds': [0, 1]}
    """
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {plain_values(key, depth + 1): plain_values(part, depth + 1) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain_values(part, depth + 1) for part in value)
    if isinstance(value, np.generic):
        return value.item()
    # Arrays, and series and indices of pandas, which `streams` does not import.
    to_list = None if isinstance(value, type) else getattr(value, "tolist", None)
    return plain_values(to_list(), depth + 1) if callable(to_list) else value


def recipe_from_words(name: str, words: Sequence[str]) -> Recipe:
    """A recipe from its name and words like `tasks=8`, which are read as the options' types; lists are YAML.

    Raises:
        OptionError: one line for every word without `=`, and every key with two values; else for every unknown key,
            wrong type, value out of bounds, and contradiction between options.
    """
    options: dict[str, str] = {}
    faults = Faults(key=name)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            faults.extend([fault(word, "options are written key=value")])
        elif options.setdefault(key, value) != value:
            faults.add(key, "must be given once", f"{options[key]} and {value}")
    faults.check(OptionError)
    kinds = recipes()
    if name not in kinds:
        faults = Faults()
        unknown_name("stream", name, kinds, faults)
        faults.check(OptionError)
    hints = get_type_hints(kinds[name])
    values: dict[str, Any] = {}
    structures: dict[str, Any] = {}
    for key, text in options.items():
        if not _is_structure(hints.get(key)):
            values[key] = _none_or_text(text, hints.get(key))
            continue
        try:
            structures[key] = parsed(text)
        except yaml.YAMLError:
            faults.add(key, "must be YAML, such as [a, b]", _short(text))
    recipe = from_options(kinds[name], {**values, **structures}, faults, strict=False)
    # YAML has types, unlike the text of other options: `no` is false, which is not taken for 0, as in a file.
    _check_types(structures, hints, faults)
    if recipe is not None and (lines := recipe.check()):
        faults.extend([*lines, *recipe.check_locations()])
    faults.check(OptionError)
    assert recipe is not None
    return recipe


def _is_structure(hint: Any) -> bool:
    """Whether a value of the type may be a list or a mapping, so that its text is YAML."""
    return any((get_origin(each) or each) in (list, dict) for each in (hint, *get_args(hint)))


def _check_types(values: Mapping[str, Any], hints: Mapping[str, Any], faults: Faults) -> None:
    model = create_model("Values", __config__=STRICT, **{key: (hints[key], ...) for key in values})  # type: ignore[call-overload]
    try:
        model.model_validate(values)
    except ValidationError as error:
        explain(error, faults, model)


def _none_or_text(value: str, hint: Any) -> str | None:
    return None if type(None) in get_args(hint) and value.lower() in ("", "null", "none") else value


def option_faults(recipe: Recipe) -> list[str]:
    """One line for every option of a recipe that has a wrong type, is out of bounds, or contradicts another."""
    faults = Faults(key=recipe.name)
    from_options(type(recipe), recipe.options(), faults)
    return [*faults] or recipe.check()


def from_options(
    kind: type[Options], options: Mapping[str, Any], faults: Faults, beside: Sequence[str] = (), strict: bool = True
) -> Options | None:
    """An instance of a frozen dataclass of options; None, and faults, if an option is wrong.

    Args:
        kind: the dataclass, see `model_of`.
        options: values of some fields; the others keep their defaults.
        faults: collects the faults.
        beside: see `explain`.
        strict: whether text in place of a number is a fault.
    """
    model = model_of(kind)  # type: ignore[arg-type]  # mypy takes a class of a type variable for unhashable
    try:
        values = model.model_validate(options, strict=strict)
    except ValidationError as error:
        explain(error, faults, model, beside)
        return None
    return kind(**{key: getattr(values, key) for key in model.model_fields})


def unknown_name(key: str, name: object, names: Iterable[str], faults: Faults) -> None:
    """Add the fault of a name that is not one of `names`."""
    names = sorted(names)
    near = nearest(str(name), names)
    faults.add(key, f"must be one of {', '.join(names)}", name, f"did you mean {near}?" if near else "")


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that a misspelt one probably means; None if none is similar.

    >>> nearest("fmol", ["foml", "ftml"])
    'foml'
    """
    swapped = {name[:at] + name[at + 1] + name[at] + name[at + 2 :] for at in range(min(len(name), 100) - 1)}
    exchanged = [other for other in names if other in swapped]
    return next(iter(exchanged or difflib.get_close_matches(name[:100], names, n=1)), None)


@cache
def model_of(options: type) -> type[BaseModel]:
    """The model that checks the fields of a frozen dataclass, whose metadata may hold `ge`, `gt`, `le` and `lt`."""
    hints = get_type_hints(options)
    parts: dict[str, Any] = {}
    for item in fields(options):
        default = ... if item.default is MISSING else item.default
        bounds = {key: item.metadata[key] for key in _BOUNDS if key in item.metadata}
        parts[item.name] = (hints[item.name], Field(default, **bounds))
    return create_model(options.__qualname__, __config__=STRICT, **parts)


def explain(
    error: ValidationError,
    faults: Faults,
    model: type[BaseModel],
    beside: Sequence[str] = (),
    skip: int = 0,
    faulty: Collection[str] = (),
) -> None:
    """Add one fault for each of pydantic's errors.

    Args:
        beside: keys that the mapping may have beside those of the model.
        skip: steps of pydantic's locations that `faults` has already.
        faulty: keys that are not missing: their values, which the mapping does not have, have faults of their own.
    """
    rules: dict[str, list[str]] = {}  # key → rules: a key of several types has one rule for each type
    values: dict[str, Any] = {}
    for problem in error.errors(include_url=False):
        key = _dotted(problem["loc"][skip:])
        if problem["type"] == "extra_forbidden":
            keys = _keys(model, problem["loc"][:-1]) or [*model.model_fields, *beside]
            near = nearest(str(problem["loc"][-1]), keys) or _in_a_section(model, problem["loc"][skip:])
            remedy = f"did you mean {near}?" if near else f"known are {', '.join(sorted(keys)) or 'no keys'}"
            faults.add(key, "unknown key", _short(problem["input"]), remedy)
        elif problem["type"] == "missing":
            if key not in faulty:
                faults.add(key, "must be given")
        else:
            rules.setdefault(key, []).append(_rule(problem["msg"]))
            value = problem["input"]
            quoted = problem["type"].endswith("_type") and isinstance(value, str) and _LIKE_A_NUMBER.match(value)
            values[key] = f"'{value}'" if quoted else value
    lists = {key[:end] for key in rules for end in range(len(key)) if key[end] == "["}
    for key, broken in rules.items():
        if len(broken) == 1 and key in lists:
            continue  # the value is a list, as one of the two types allows, and an element of it is wrong
        first, *others = dict.fromkeys(broken)
        rule = ", or ".join([first, *(other.removeprefix("must be ") for other in others)])
        faults.add(key, rule, _short(values[key]))


def _keys(model: type[BaseModel], steps: Sequence[int | str]) -> list[str]:
    """The keys of the part of the model that these steps lead to; empty for the model itself."""
    part: Any = model
    for step in steps:
        part = _section(part.model_fields[step].annotation)
    return [] if part is model else list(part.model_fields)


def _section(annotation: Any) -> Any:
    """The model among the types of a field; without one, the type."""
    return next((one for one in get_args(annotation) if hasattr(one, "model_fields")), annotation)


def _in_a_section(model: type[BaseModel], steps: Sequence[int | str]) -> str | None:
    """The key that an unknown key of the model itself has in one of its sections, such as search.scheduler."""
    if len(steps) != 1:
        return None
    sections = {name: _section(item.annotation) for name, item in model.model_fields.items()}
    keys = (f"{name}.{steps[0]}" for name, kind in sections.items() if steps[0] in getattr(kind, "model_fields", ()))
    return next(keys, None)


def _dotted(steps: Iterable[int | str]) -> str:
    """Pydantic's location as a dotted key, without the branches of a union that pydantic adds."""
    prefixes = ("list[", "dict[", "function-", "constrained-")
    keys = (s for s in steps if isinstance(s, int) or not (s in _BRANCHES or s.startswith(prefixes)))
    return Faults("").at(*keys).key


def _rule(message: str) -> str:
    words = message.removeprefix("Value error, ").partition(", unable to ")[0]
    if words.startswith(("List should have at least 1 item", "String should have at least 1 character")):
        return "must not be empty"
    for pydantic_words, our_words in (
        ("Input should be a valid integer", "must be a whole number"),
        ("Input should be a valid number", "must be a number"),
        ("Input should be a valid string", "must be text"),
        ("Input should be a valid boolean", "must be true or false"),
        ("Input should be a valid list", "must be a list"),
        (
            "Input should be a valid tuple",
            "must be a tuple, which a value in YAML never is; give the option the type list",
        ),
        ("Input should be a valid dictionary", "must be a mapping"),
        ("Input should be", "must be"),
        ("String should have", "must have"),
    ):
        words = words.replace(pydantic_words, our_words)
    return words[:1].lower() + words[1:] if not words.startswith("must") else words


def _short(value: Any) -> str:
    text = str(dict(value) if isinstance(value, Mapping) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."
