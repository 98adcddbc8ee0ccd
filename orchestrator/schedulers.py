"""What may end or change a trial before its stream is over: the options of each scheduler, by the name in YAML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.errors import fault

if TYPE_CHECKING:
    from orchestrator.specification import LearnerSpec, Search


@dataclass(frozen=True)
class RunAll:
    """`none`: every trial runs to the end of its stream."""


@dataclass(frozen=True)
class AshaOptions:
    """`asha`: asynchronous successive halving among the trials of one learner; see `orchestrator.asha`.

    ``grace``: share of the stream that every trial sees. ``reduction``: from each rung one in so many goes on.
    """

    grace: float = field(default=0.1, metadata={"gt": 0, "lt": 1})
    reduction: int = field(default=3, metadata={"ge": 2})


@dataclass(frozen=True)
class PbtOptions:
    """`pbt`: population-based training of the configurations drawn for one learner; see `orchestrator.pbt`.

    ``interval``: datapoints of a round (rounded up to batches); a tenth of the stream if None. ``quantile``: the share
    of the population that copies, and the share that is copied. ``resample``: the probability that a copied value is
    drawn anew; else it is multiplied by ``smaller`` or ``larger``. ``mutate``: the options that change; all that are
    drawn if None.
    """

    interval: int | None = field(default=None, metadata={"ge": 1})
    quantile: float = field(default=0.25, metadata={"gt": 0, "le": 0.5})
    resample: float = field(default=0.25, metadata={"ge": 0, "le": 1})
    smaller: float = field(default=0.8, metadata={"gt": 0, "lt": 1})
    larger: float = field(default=1.25, metadata={"gt": 1})
    mutate: list[str] | None = None


Scheduler = RunAll | AshaOptions | PbtOptions
SCHEDULERS: dict[str, type[Scheduler]] = {"none": RunAll, "asha": AshaOptions, "pbt": PbtOptions}


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
