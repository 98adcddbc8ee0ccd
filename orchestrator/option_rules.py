"""Rules that a learner's options keep together, or with the stream: those that no bound of one option can express."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.errors import fault
from orchestrator.spaces import Space
from orchestrator.specification import LearnerSpec, Sweep
from streams.schedule import HeldBack, Schedule

if TYPE_CHECKING:
    from learners.base import StreamFacts

TRIED = 10_000
"""Combinations of options that are looked at; what is wrong with another one is told when its learner is built."""


def facts(schedule: Schedule, batch_size: int, classes: int | None) -> StreamFacts:
    """What a learner may check its options against."""
    from learners.base import StreamFacts  # torch comes with it: not before it is needed

    return StreamFacts(batch_size, schedule.tasks if isinstance(schedule, HeldBack) else 0, classes)


def check_with_store(sweep: Sweep, classes: int) -> list[str]:
    """What is wrong with a checked sweep's options, now that its store is there and says how many classes there are."""
    known = facts(sweep.schedule, sweep.document.batch_size, classes)
    return [
        line
        for index, spec in enumerate(sweep.learners)
        for line in check_options(spec, f"learners[{index}]", sweep.file, known)
    ]


def check_options(spec: LearnerSpec, where: str, file: str, stream: StreamFacts) -> list[str]:
    """One line for each value, fixed or searched, that its learner says cannot be, and for each search without effect.

    Of a range its ends are looked at.
    """
    from learners import registry

    kind = registry.learner_class(spec.name)
    lines: dict[str, None] = {}
    idle: list[dict[str, str]] = []
    try:
        for chosen in itertools.islice(_combinations(spec), TRIED):
            values = spec.fixed | {key: value for key, (value, _) in chosen.items()}
            options = kind.options_class(**values)
            idle.append(kind.without_effect(options))
            for key, rule in kind.check(options, stream):
                suffix = chosen[key][1] if key in chosen else ""
                lines[fault(file, f"{where}.{key}{suffix}", rule, values.get(key))] = None
    except Exception as error:  # a user's file may fail in any way
        return [fault(file, where, f"{spec.name} cannot check its options ({type(error).__name__}: {error})")]
    for key, space in spec.spaces.items():
        if all(key in found for found in idle):
            got = {space.kind: list(space.values)}
            rule = f"has no effect with {idle[0][key]}, so that all trials would be the same"
            lines[fault(file, f"{where}.{key}", rule, got, "leave it out")] = None
    return list(lines)


def _combinations(spec: LearnerSpec) -> Iterator[dict[str, tuple[Any, str]]]:
    """For each searched option a value and its place in the space."""
    places = [_places(space) for space in spec.spaces.values()]
    for chosen in itertools.product(*places):
        yield dict(zip(spec.spaces, chosen, strict=True))


def _places(space: Space) -> list[tuple[Any, str]]:
    return [(value, f".{space.kind}[{at}]") for at, value in enumerate(space.values)]
