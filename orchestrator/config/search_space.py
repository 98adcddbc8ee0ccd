"""Search spaces of hyper-parameters, such as `{grid: [...]}` or `{uniform: [low, high]}`."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from streams.errors import Faults
from streams.options import explain

KINDS = ("grid", "choice", "uniform", "loguniform", "randint")


@dataclass(frozen=True)
class Space:
    """The search space of one hyper-parameter.

    Attributes:
        kind: `grid` for every value, crossed with the other grids; `choice` for one of the values; `uniform` or
            `loguniform` for a number in [low, high); `randint` for a whole number from low to high, both included, of
            the type of low and high.
        values: the values, or low and high.
    """

    kind: str
    values: tuple[Any, ...]

    @property
    def is_grid(self) -> bool:
        return self.kind == "grid"

    @property
    def size(self) -> float:
        """The number of different values; infinite for real numbers."""
        if self.kind in ("grid", "choice"):
            return len({json.dumps(value) for value in self.values})
        low, high = self.values
        return high - low + 1 if self.kind == "randint" else math.inf

    def contains(self, value: Any) -> bool:
        """Whether a value of the option is in the space; the upper end of a range of real numbers is, too."""
        if self.kind in ("grid", "choice"):
            return json.dumps(value) in {json.dumps(each) for each in self.values}
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        low, high = self.values
        return low <= value <= high and (self.kind != "randint" or value == int(value))

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw one value."""
        if self.kind in ("grid", "choice"):
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        if self.kind == "randint":
            return type(low)(rng.integers(int(low), int(high) + 1))
        if self.kind == "uniform":
            return float(low + (high - low) * rng.random())
        return float(math.exp(math.log(low) + (math.log(high) - math.log(low)) * rng.random()))


def is_space(value: Any) -> bool:
    """Whether a value in the YAML is a search space: no option is itself a mapping."""
    return isinstance(value, Mapping)


def read_space(entry: Mapping[str, Any], model: type[BaseModel], key: str, faults: Faults) -> Space | None:
    """The space that `entry` describes for the option `key` of `model`; None, and a fault, if it is not valid.

    The model converts the values as it converts a fixed one: 1 is 1.0 for an option that is a real number.
    """
    if len(entry) != 1 or next(iter(entry)) not in KINDS:
        faults.add(key, f"must be a value or one of {', '.join(KINDS)}", dict(entry))
        return None
    kind, values = next(iter(entry.items()))
    faults = faults.at(key, kind)
    if not isinstance(values, list) or not values:
        faults.add("", "must be a list, and not empty", values)
        return None
    before = len(faults)
    converted = tuple(_convert(model, key, value, faults.at(index)) for index, value in enumerate(values))
    valid = len(faults) == before
    if kind in ("grid", "choice"):
        return Space(kind, converted) if valid else None
    if len(values) != 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        faults.add("", "must be two numbers [low, high]", values)
        return None
    low, high = values
    if not low < high:
        faults.add("", "low < high must hold", values)
        return None
    if kind == "loguniform" and low <= 0:
        faults.add("", "low > 0 must hold", values)
        return None
    if kind == "randint" and not (isinstance(low, int) and isinstance(high, int)):
        faults.add("", "must be two whole numbers", values)
        return None
    if kind != "randint" and valid:
        within = Faults("")
        _convert(model, key, low + (high - low) / math.pi, within)
        if within:
            faults.add("", f"{key} takes whole numbers", values, "use randint or grid")
            return None
    return Space(kind, converted) if valid else None


def _convert(model: type[BaseModel], key: str, value: Any, faults: Faults) -> Any:
    """The value of the option `key` of `model` that is given `value`; None, and a fault, if it is not valid."""
    options = model.model_construct()
    try:
        model.__pydantic_validator__.validate_assignment(options, key, value)
    except ValidationError as error:
        explain(error, faults, model, skip=1)
        return None
    return getattr(options, key)
