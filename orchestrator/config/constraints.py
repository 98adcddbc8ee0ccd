"""Rules that a learner's options keep together, or with the stream: those that no bound of one option can express."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.config.schedulers import PbtOptions, Scheduler
from orchestrator.config.schema import Budget, Price
from orchestrator.errors import fault

if TYPE_CHECKING:
    from orchestrator.config.schema import LearnerSpec, Search


import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.config.schema import LearnerSpec, Sweep
from orchestrator.config.search_space import Space
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


def check_budget(budget: Budget | None, price: Price | None, gpus: float, file: str) -> list[str]:
    """What is wrong with a budget and a price together, one line each."""
    found = []
    if budget is not None and budget.hours is None and budget.money is None:
        found.append(fault(file, "budget", "must have hours, money or both"))
    if budget is not None and budget.money is not None and price is None:
        remedy = "give price.gpu_hour" if gpus else "give price.cpu_hour"
        found.append(fault(file, "budget.money", "needs a price", budget.money, remedy))
    if price is not None:
        unit = "gpu_hour" if gpus else "cpu_hour"
        if not getattr(price, unit) and not (gpus and price.cpu_hour):
            rule = f"must be given where resources.gpus is {gpus:g}"
            remedy = "" if gpus else "or set resources.gpus"
            found.append(fault(file, f"price.{unit}", rule, f"{getattr(price, unit):g}", remedy))
    return found


def check_interval(scheduler: Scheduler, datapoints: int, file: str) -> list[str]:
    """What is wrong with a scheduler for a stream of so many datapoints."""
    if isinstance(scheduler, PbtOptions) and scheduler.interval is not None and scheduler.interval >= datapoints:
        rule = f"must be below the {datapoints} datapoints of the stream"
        return [fault(file, "search.scheduler.interval", rule, scheduler.interval)]
    return []


def check_scheduler(scheduler: Scheduler, search: Search, learners: Sequence[LearnerSpec], file: str) -> list[str]:
    """What is wrong with a scheduler for these learners, one line each."""
    if not isinstance(scheduler, PbtOptions):
        return []
    from learners import registry

    found = []
    where = "search.scheduler"
    if search.algorithm == "optuna":
        rule = "must be random where the scheduler is pbt, whose population is drawn at once"
        found.append(fault(file, "search.algorithm", rule, search.algorithm))
    drawn = {key for spec in learners for key in spec.drawn}
    if not drawn:
        remedy = "give a learner a {loguniform: [low, high]}, {uniform: ...} or {choice: ...}"
        found.append(fault(file, where, "pbt needs an option that is drawn", remedy=remedy))
    elif search.samples < 2:
        found.append(fault(file, "search.samples", "must be at least 2, the size of a population", search.samples))
    for name in sorted({*scheduler.mutate} - drawn if scheduler.mutate is not None else ()):
        near = f"drawn are {', '.join(sorted(drawn)) or 'none'}"
        found.append(fault(file, f"{where}.mutate", "must be options that a learner draws", name, near))
    for index, spec in enumerate(learners):
        changeable = registry.learner_class(spec.name).changeable
        for key in spec.drawn:
            if key not in changeable:
                rule = f"cannot change in the middle of a run of {spec.name}, as a copy under pbt would make it"
                able = f" (these can: {', '.join(changeable)})" if changeable else ""
                remedy = f"give it a value, or {{grid: [...]}} for a population of each{able}"
                found.append(fault(file, f"learners[{index}].{key}", rule, spec.drawn[key].kind, remedy))
    return found
