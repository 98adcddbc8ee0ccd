"""Population-based training (Jaderberg et al., 2017): which members copy which, and what their values become.

Decisions only, each a function of what it is given: the same numbers give the same decisions, on whatever machine and
after whatever interruption. Rounds and files are in `orchestrator.search.population.rounds`.
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
"""Option → value, of those that change."""


@dataclass(frozen=True)
class Copy:
    """`member` goes on from `donor`'s state, with the values `after`; it had `before`."""

    member: str
    donor: str
    before: Values
    after: Values


def fitness(curves: Curves, metric: str, start: int, stop: int) -> float:
    """How a member did in the batches [start, stop), lower is better: a mean over seeds; NaN if one of them is lost.

    Of a round alone, and not since the beginning: what a member did before it copied another says nothing about the
    state that it has now. For an objective on held-out points it is the mean error of the tasks that ended in the
    round; for `online_error`, and where some seed has ended no task, the mean online error.
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
    """Who copies whom at the end of a round.

    Args:
        by_member: fitness of each member, lower is better. One that is not finite copies, whatever the quantile, and
            is never copied.
        values: what each member has now.
        spaces: of the values that change.
        generator: of the random numbers of one member's copy.
    """
    copying, donors = _ends(by_member, options.quantile)
    copies = []
    for member in copying:
        better = [donor for donor in donors if not by_member[donor] >= by_member[member]]
        if better:
            rng = generator(member)
            donor = better[int(rng.integers(len(better)))]
            copies.append(Copy(member, donor, dict(values[member]), explore(values[donor], spaces, options, rng)))
    return copies


def _ends(by_member: Mapping[str, float], quantile: float) -> tuple[list[str], list[str]]:
    """The worst and the best; equals stand in the order in which they are given."""
    ranked = sorted(by_member, key=lambda key: by_member[key] if math.isfinite(by_member[key]) else math.inf)
    lost = [key for key in ranked if not math.isfinite(by_member[key])]
    whole = ranked[: len(ranked) - len(lost)]
    count = min(max(1, math.floor(quantile * len(ranked))), len(ranked) // 2)
    worst = ranked[len(ranked) - max(count, len(lost)) :]
    return worst, [key for key in whole[:count] if key not in worst]


def explore(values: Values, spaces: Mapping[str, Space], options: PbtOptions, rng: np.random.Generator) -> Values:
    """Values near these: each is drawn anew, or goes a step down or up inside its space."""
    return {key: _near(values[key], space, options, rng) for key, space in sorted(spaces.items())}


def _near(value: Any, space: Space, options: PbtOptions, rng: np.random.Generator) -> Any:
    if rng.random() < options.resample:
        return space.draw(rng)
    up = bool(rng.random() < 0.5)
    if space.kind == "choice":
        return _neighbour(value, space.values, 1 if up else -1)
    low, high = space.values
    return float(min(max(value * (options.larger if up else options.smaller), low), high))


def _neighbour(value: Any, among: Sequence[Any], step: int) -> Any:
    ordered = sorted(set(among))
    return ordered[min(max(ordered.index(value) + step, 0), len(ordered) - 1)]
