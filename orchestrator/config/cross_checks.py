"""Rules between options, or between options and the stream, that no bound of one option expresses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.config.schedulers import PbtOptions, Scheduler
from orchestrator.config.schema import Document, LearnerSpec, Objective, Search, Sweep
from streams.errors import Faults
from streams.schedule import HeldBack, Schedule

if TYPE_CHECKING:
    from learners.base import StreamFacts

MAX_COMBINATIONS = 10_000
"""Combinations of options that are checked before the sweep; the others are checked when their learner is built."""

MAX_CONFIGURATIONS = 20_000
"""Configurations of a sweep."""


def stream_facts(schedule: Schedule, batch_size: int, classes: int | None) -> StreamFacts:
    """The facts about a stream that a learner may check its options against."""
    from learners.base import StreamFacts  # imports torch

    return StreamFacts(batch_size, schedule.tasks if isinstance(schedule, HeldBack) else 0, classes)


def check_with_store(sweep: Sweep, classes: int, faults: Faults) -> None:
    """Check a sweep's options again with the number of classes, which only the task store has."""
    stream = stream_facts(sweep.schedule, sweep.document.batch_size, classes)
    for index, spec in enumerate(sweep.learners):
        check_options(spec, stream, faults.at("learners", index))


def check_options(spec: LearnerSpec, stream: StreamFacts, faults: Faults) -> None:
    """Add a fault for each value, fixed or searched, that the learner rejects, and for each search without effect.

    Of a range, the ends are checked.
    """
    from learners import registry

    kind = registry.learner_class(spec.name)
    broken = Faults(faults.file, faults.key)
    without_effect: list[dict[str, str]] = []
    try:
        for combination in itertools.islice(_combinations(spec), MAX_COMBINATIONS):
            values = spec.fixed | {key: value for key, (value, _) in combination.items()}
            options = kind.options_class(**values)
            without_effect.append(kind.without_effect(options))
            for key, rule in kind.check(options, stream):
                suffix = combination[key][1] if key in combination else ""
                broken.add(f"{key}{suffix}", rule, values.get(key))
    except Exception as error:  # a learner of the user's own may raise anything
        faults.add("", f"{spec.name} cannot check its options ({type(error).__name__}: {error})")
        return
    for key, space in spec.spaces.items():
        if all(key in reasons for reasons in without_effect):
            rule = f"has no effect with {without_effect[0][key]}, so that all trials would be the same"
            broken.add(key, rule, {space.kind: list(space.values)}, "leave it out")
    faults.extend(broken)


def _combinations(spec: LearnerSpec) -> Iterator[dict[str, tuple[Any, str]]]:
    """For each searched option a value and its place in the space, such as `.grid[0]`."""
    places = [
        [(value, f".{space.kind}[{index}]") for index, value in enumerate(space.values)]
        for space in spec.spaces.values()
    ]
    for combination in itertools.product(*places):
        yield dict(zip(spec.spaces, combination, strict=True))


def check_budget(document: Document, faults: Faults) -> None:
    """Check a budget and a price together."""
    budget, price, gpus = document.budget, document.price, document.resources.gpus
    if budget is not None and budget.hours is None and budget.money is None:
        faults.add("budget", "must have hours, money or both")
    if budget is not None and budget.money is not None and price is None:
        remedy = "give price.gpu_hour" if gpus else "give price.cpu_hour"
        faults.add("budget.money", "needs a price", budget.money, remedy)
    if price is not None:
        unit = "gpu_hour" if gpus else "cpu_hour"
        if not getattr(price, unit) and not (gpus and price.cpu_hour):
            rule = f"must be given where resources.gpus is {gpus:g}"
            remedy = "" if gpus else "or set resources.gpus"
            faults.add(f"price.{unit}", rule, f"{getattr(price, unit):g}", remedy)


def check_interval(scheduler: Scheduler, datapoints: int, faults: Faults) -> None:
    """Check a scheduler against the number of datapoints of the stream."""
    if isinstance(scheduler, PbtOptions) and scheduler.interval is not None and scheduler.interval >= datapoints:
        rule = f"must be below the {datapoints} datapoints of the stream"
        faults.add("search.scheduler.interval", rule, scheduler.interval)


def check_size(document: Document, learners: Sequence[LearnerSpec], faults: Faults) -> None:
    """Check the number of configurations of a sweep, before any of them is made."""
    total = 0
    for spec in learners:
        crossings = math.prod(len(space.values) for space in spec.spaces.values() if space.is_grid)
        total += crossings * (document.search.samples if spec.drawn_spaces else 1)
    if total > MAX_CONFIGURATIONS:
        rule = f"must be at most {MAX_CONFIGURATIONS:,} configurations, grids crossed and times search.samples"
        faults.add("learners", rule, f"{total:,}", "use shorter grids, or draw values with search.samples")


def check_scheduler(
    scheduler: Scheduler, search: Search, objective: Objective, learners: Sequence[LearnerSpec], faults: Faults
) -> None:
    """Check a scheduler against the search, the objective and the learners."""
    if not isinstance(scheduler, PbtOptions):
        return
    from learners import registry

    if objective.last is not None or objective.metric not in ("cumulative_error", "validation_error", "online_error"):
        rule = "must be cumulative_error, validation_error or online_error where the scheduler is pbt"
        faults.add("objective", rule, objective.model_dump(exclude_none=True))
    if search.algorithm == "optuna":
        rule = "must be random where the scheduler is pbt, whose population is drawn before it starts"
        faults.add("search.algorithm", rule, search.algorithm)
    names = {key for spec in learners for key in spec.drawn_spaces}
    if not names:
        remedy = "give a learner a {loguniform: [low, high]}, {uniform: ...} or {choice: ...}"
        faults.add("search.scheduler", "pbt needs an option that is drawn", remedy=remedy)
    elif search.samples < 2:
        faults.add("search.samples", "must be at least 2, the size of a population", search.samples)
    for name in sorted({*scheduler.mutate} - names if scheduler.mutate is not None else ()):
        near = f"drawn are {', '.join(sorted(names)) or 'none'}"
        faults.add("search.scheduler.mutate", "must be options that a learner draws", name, near)
    for index, spec in enumerate(learners):
        changeable = registry.learner_class(spec.name).changeable
        for key in spec.drawn_spaces:
            if key not in changeable:
                rule = f"cannot change in the middle of a run of {spec.name}, as a copy under pbt would make it"
                able = f" (these can: {', '.join(changeable)})" if changeable else ""
                remedy = f"give it a value, or {{grid: [...]}} for a population of each{able}"
                faults.at("learners", index).add(key, rule, spec.drawn_spaces[key].kind, remedy)
