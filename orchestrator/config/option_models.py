"""A pydantic model for a frozen dataclass of options, and pydantic's complaints as lines that a person can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from orchestrator.errors import fault

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
"""How everything that a person writes is read: no unknown keys, no text for a number, no number that is not finite."""
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


def rules(
    error: ValidationError, file: str, where: str, model: type[BaseModel], beside: Sequence[str] = ()
) -> list[str]:
    """One line for each of pydantic's errors; `where` is the dotted key of the model, which may have more keys
    `beside` its own."""
    found: dict[str, list[str]] = {}  # key → rules: a key of several types has one for each type that it is not
    got: dict[str, Any] = {}
    lines = []
    for problem in error.errors(include_url=False):
        key = dotted(where, problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _known(model, problem["loc"][:-1]) or [*model.model_fields, *beside]
            near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
            lines.append(fault(file, key, "unknown key", _short(problem["input"]), remedy))
        elif problem["type"] == "missing":
            lines.append(fault(file, key, "must be given"))
        else:
            found.setdefault(key, []).append(_rule(problem["msg"]))
            got[key] = problem["input"]
    for key, broken in found.items():
        if len(broken) == 1 and any(other.startswith(f"{key}[") for other in found):
            continue  # of two types it is meant to be the one that has parts, and a part is wrong
        first, *others = dict.fromkeys(broken)
        rule = ", or ".join([first, *(other.removeprefix("must be ") for other in others)])
        lines.append(fault(file, key, rule, _short(got[key])))
    return list(dict.fromkeys(lines))


def _known(model: type[BaseModel], steps: Sequence[int | str]) -> list[str]:
    """The keys of the part of the model to which these steps lead; empty for the model itself."""
    part: Any = model
    for step in steps:
        annotation = part.model_fields[step].annotation
        part = next((one for one in get_args(annotation) if hasattr(one, "model_fields")), annotation)
    return [] if part is model else list(part.model_fields)


def dotted(where: str, steps: Iterable[int | str]) -> str:
    """`where` and pydantic's location as one dotted key; the branches of a union that pydantic adds are left out."""
    out = where
    for step in steps:
        if isinstance(step, int):
            out += f"[{step}]"
        elif step not in _BRANCHES and not step.startswith(("list[", "function-", "constrained-")):
            out += f".{step}" if out else step
    return out


def _rule(message: str) -> str:
    words = message.removeprefix("Value error, ")
    if words.startswith(("List should have at least 1 item", "String should have at least 1 character")):
        return "must not be empty"
    for pydantic_says, we_say in (
        ("Input should be a valid integer", "must be a whole number"),
        ("Input should be a valid number", "must be a number"),
        ("Input should be a valid string", "must be text"),
        ("Input should be a valid boolean", "must be true or false"),
        ("Input should be a valid list", "must be a list"),
        ("Input should be a valid dictionary", "must be a mapping"),
        ("Input should be", "must be"),
        ("String should have", "must have"),
    ):
        words = words.replace(pydantic_says, we_say)
    return words[:1].lower() + words[1:] if not words.startswith("must") else words


def _short(value: Any) -> str:
    text = str(dict(value) if isinstance(value, Mapping) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."
