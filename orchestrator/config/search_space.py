"""What a hyper-parameter may vary over: `{grid: [...]}`, `{choice: [...]}`, `{uniform: [low, high]}`, …"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from orchestrator.config.option_models import rules
from orchestrator.errors import fault

KINDS = ("grid", "choice", "uniform", "loguniform", "randint")


@dataclass(frozen=True)
class Space:
    """`grid`: every value, crossed with the other grids. `choice`: one of the values. `uniform`, `loguniform`: a number
    in [low, high); `randint`: a whole number from low to high, both included, of the type that low and high have."""

    kind: str
    values: tuple[Any, ...]

    @property
    def is_grid(self) -> bool:
        return self.kind == "grid"

    @property
    def size(self) -> float:
        """How many different values there are; infinite for real numbers."""
        if self.kind in ("grid", "choice"):
            return len({json.dumps(value) for value in self.values})
        low, high = self.values
        return high - low + 1 if self.kind == "randint" else math.inf

    def draw(self, rng: np.random.Generator) -> Any:
        """One value."""
        if self.kind in ("grid", "choice"):
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        if self.kind == "randint":
            return type(low)(rng.integers(int(low), int(high) + 1))
        if self.kind == "uniform":
            return float(low + (high - low) * rng.random())
        return float(math.exp(math.log(low) + (math.log(high) - math.log(low)) * rng.random()))


def is_space(value: Any) -> bool:
    """Whether a value in the YAML stands for a space: no option is itself a mapping."""
    return isinstance(value, Mapping)


def read_space(
    entry: Mapping[str, Any], model: type[BaseModel], key: str, where: str, file: str, faults: list[str]
) -> Space | None:
    """The space that `entry` describes for the option `key` of `model`; None, and lines in `faults`, if it is none.

    Its values are what the model makes of those that are written, as of a fixed one: of a real number, 1 is 1.0.
    """
    if len(entry) != 1 or next(iter(entry)) not in KINDS:
        faults.append(fault(file, where, f"must be a value or one of {', '.join(KINDS)}", dict(entry)))
        return None
    kind, values = next(iter(entry.items()))
    where = f"{where}.{kind}"
    if not isinstance(values, list) or not values:
        faults.append(fault(file, where, "must be a list, and not empty", values))
        return None
    checked = [_checked(model, key, value, f"{where}[{at}]", file) for at, value in enumerate(values)]
    wrong = [line for _, lines in checked for line in lines]
    faults += wrong
    made = tuple(value for value, _ in checked)
    if kind in ("grid", "choice"):
        return None if wrong else Space(kind, made)
    if len(values) != 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        faults.append(fault(file, where, "must be two numbers [low, high]", values))
        return None
    low, high = values
    if not low < high:
        faults.append(fault(file, where, "low < high must hold", values))
        return None
    if kind == "loguniform" and low <= 0:
        faults.append(fault(file, where, "low > 0 must hold", values))
        return None
    if kind == "randint" and not (isinstance(low, int) and isinstance(high, int)):
        faults.append(fault(file, where, "must be two whole numbers", values))
        return None
    if kind != "randint" and not wrong and _checked(model, key, low + (high - low) / math.pi, where, file)[1]:
        faults.append(fault(file, where, f"{key} takes whole numbers", values, "use randint or grid"))
        return None
    return None if wrong else Space(kind, made)


def _checked(model: type[BaseModel], key: str, value: Any, where: str, file: str) -> tuple[Any, list[str]]:
    """What the option `key` of `model` is when it is given `value`, or why it cannot be, under the name `where`."""
    made = model.model_construct()
    try:
        model.__pydantic_validator__.validate_assignment(made, key, value)
    except ValidationError as error:
        return None, [line.replace(f" {where}.{key}:", f" {where}:", 1) for line in rules(error, file, where, model)]
    return getattr(made, key), []
