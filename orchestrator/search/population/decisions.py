"""Exploit and explore steps of population-based training (Jaderberg et al., 2017): who copies whom, with which values.

Each decision is a function of its arguments: equal numbers give equal decisions, on any machine and after any
interruption. Generations and their file are in `orchestrator.search.population.generations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.config.schedulers import PbtOptions
from orchestrator.config.search_space import Space
from orchestrator.protocol.curves import Curves

Values = dict[str, Any]
"""Option → value, of the options that change."""


@dataclass(frozen=True)
class Copy:
    """A member that continues with its parent's state.

    Attributes:
        member: its key.
        parent: key of the member that it copies.
        before: its values before the copy.
        after: its values after it.
    """

    member: str
    parent: str
    before: Values
    after: Values

    def to_json(self) -> dict[str, Any]:
        return {"member": self.member, "donor": self.parent, "before": self.before, "after": self.after}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Copy:
        return cls(content["member"], content["donor"], content["before"], content["after"])


def fitness(curves: Curves, metric: str, start: int, stop: int) -> float:
    """The error of a member in the batches [start, stop), a mean over seeds; NaN if a seed diverged in them.

    It is measured in one generation alone, because errors before a copy belong to a state that was given up. For an
    objective on held-out points it is the mean error of the tasks that ended in the generation; for `online_error`,
    and if a seed has ended no task, it is the mean online error.
    """
    online = curves.by_batch["online_error"][:, start:stop]
    if not online.size or not np.isfinite(online).all():
        return math.nan
    if metric != "online_error" and curves.evaluations:
        rows = curves.evaluations
        within = (rows["batch"] >= start) & (rows["batch"] < stop)
        by_seed = [rows["error"][within & (rows["seed"] == seed)] for seed in range(len(curves.seeds))]
        if all(len(errors) for errors in by_seed):
            return float(np.mean([errors.mean() for errors in by_seed]))
    return float(online.mean())


def decide(
    by_member: Mapping[str, float],
    values: Mapping[str, Values],
    spaces: Mapping[str, Space],
    options: PbtOptions,
    generator: Callable[[str], np.random.Generator],
) -> list[Copy]:
    """Who copies whom at the end of a generation.

    Args:
        by_member: fitness of each member, lower is better. A member whose fitness is not finite always copies another,
            whatever the quantile, and is never copied.
        values: the present values of each member.
        spaces: of the values that change.
        generator: member → the random numbers of its copy.
    """
    copying, parents = _worst_and_best(by_member, options.quantile)
    copies = []
    for member in copying:
        better = [parent for parent in parents if not by_member[parent] >= by_member[member]]
        if better:
            rng = generator(member)
            parent = better[int(rng.integers(len(better)))]
            copies.append(Copy(member, parent, dict(values[member]), explore(values[parent], spaces, options, rng)))
    return copies


def _worst_and_best(by_member: Mapping[str, float], quantile: float) -> tuple[list[str], list[str]]:
    """The members that copy and those that are copied; members of equal fitness keep their order."""
    ranked = sorted(by_member, key=lambda key: by_member[key] if math.isfinite(by_member[key]) else math.inf)
    diverged = [key for key in ranked if not math.isfinite(by_member[key])]
    finite = ranked[: len(ranked) - len(diverged)]
    count = min(max(1, math.floor(quantile * len(ranked))), len(ranked) // 2)
    worst = ranked[len(ranked) - max(count, len(diverged)) :]
    return worst, [key for key in finite[:count] if key not in worst]


def explore(values: Values, spaces: Mapping[str, Space], options: PbtOptions, rng: np.random.Generator) -> Values:
    """Values near the given ones: each is drawn again from its space, or moved one step down or up inside it."""
    return {key: _near(values[key], space, options, rng) for key, space in sorted(spaces.items())}


def _near(value: Any, space: Space, options: PbtOptions, rng: np.random.Generator) -> Any:
    if rng.random() < options.resample:
        return space.draw(rng)
    up = bool(rng.random() < 0.5)
    if space.kind == "choice":
        return _neighbour(value, space.values, 1 if up else -1)
    low, high = space.values
    moved = value * (options.larger if up else options.smaller)
    if space.kind == "randint":  # another whole number, of the type of low and high
        moved = max(value + 1, round(moved)) if up else min(value - 1, round(moved))
        return type(low)(min(max(moved, low), high))
    return float(min(max(moved, low), high))


def _neighbour(value: Any, among: Sequence[Any], step: int) -> Any:
    ordered = sorted(set(among))
    return ordered[min(max(ordered.index(value) + step, 0), len(ordered) - 1)]
