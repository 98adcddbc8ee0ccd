"""Pydantic models for frozen dataclasses of options, and pydantic's errors as faults."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from orchestrator.errors import Faults

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
"""No unknown keys, no text in place of a number, no number that is not finite."""
_BRANCHES = ("int", "str", "float", "bool")
_BOUNDS = ("ge", "gt", "le", "lt")


@cache
def model_of(options: type) -> type[BaseModel]:
    """The model that checks the fields of a frozen dataclass.

    A field's metadata may hold the bounds `ge`, `gt`, `le`, `lt`, a `description`, and `required`.
    """
    hints = get_type_hints(options)
    parts: dict[str, Any] = {}
    for item in fields(options):
        default = ... if item.default is MISSING or item.metadata.get("required") else item.default
        bounds = {key: item.metadata[key] for key in _BOUNDS if key in item.metadata}
        parts[item.name] = (hints[item.name], Field(default, **bounds))
    return create_model(options.__qualname__, __config__=STRICT, **parts)


def explain(
    error: ValidationError, faults: Faults, model: type[BaseModel], beside: Sequence[str] = (), skip: int = 0
) -> None:
    """Add one fault for each of pydantic's errors.

    Args:
        beside: keys that the mapping may have beside those of the model.
        skip: steps of pydantic's locations that `faults` has already.
    """
    rules: dict[str, list[str]] = {}  # key → rules: a key of several types has one rule for each type
    values: dict[str, Any] = {}
    for problem in error.errors(include_url=False):
        key = _dotted(problem["loc"][skip:])
        if problem["type"] == "extra_forbidden":
            known = _known(model, problem["loc"][:-1]) or [*model.model_fields, *beside]
            near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
            faults.add(key, "unknown key", _short(problem["input"]), remedy)
        elif problem["type"] == "missing":
            faults.add(key, "must be given")
        else:
            rules.setdefault(key, []).append(_rule(problem["msg"]))
            values[key] = problem["input"]
    for key, broken in rules.items():
        if len(broken) == 1 and any(other.startswith(f"{key}[") for other in rules):
            continue  # the value is a list, as one of the two types allows, and an element of it is wrong
        first, *others = dict.fromkeys(broken)
        rule = ", or ".join([first, *(other.removeprefix("must be ") for other in others)])
        faults.add(key, rule, _short(values[key]))


def _known(model: type[BaseModel], steps: Sequence[int | str]) -> list[str]:
    """The keys of the part of the model that these steps lead to; empty for the model itself."""
    part: Any = model
    for step in steps:
        annotation = part.model_fields[step].annotation
        part = next((one for one in get_args(annotation) if hasattr(one, "model_fields")), annotation)
    return [] if part is model else list(part.model_fields)


def _dotted(steps: Iterable[int | str]) -> str:
    """Pydantic's location as a dotted key, without the branches of a union that pydantic adds."""
    prefixes = ("list[", "function-", "constrained-")
    keys = (s for s in steps if isinstance(s, int) or not (s in _BRANCHES or s.startswith(prefixes)))
    return Faults("").at(*keys).key


def _rule(message: str) -> str:
    words = message.removeprefix("Value error, ")
    if words.startswith(("List should have at least 1 item", "String should have at least 1 character")):
        return "must not be empty"
    for pydantic_words, our_words in (
        ("Input should be a valid integer", "must be a whole number"),
        ("Input should be a valid number", "must be a number"),
        ("Input should be a valid string", "must be text"),
        ("Input should be a valid boolean", "must be true or false"),
        ("Input should be a valid list", "must be a list"),
        ("Input should be a valid dictionary", "must be a mapping"),
        ("Input should be", "must be"),
        ("String should have", "must have"),
    ):
        words = words.replace(pydantic_words, our_words)
    return words[:1].lower() + words[1:] if not words.startswith("must") else words


def _short(value: Any) -> str:
    text = str(dict(value) if isinstance(value, Mapping) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."
