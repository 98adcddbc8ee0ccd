"""What may end or change a trial before its stream is over: the options of each scheduler, by the name in YAML."""

from __future__ import annotations

from dataclasses import dataclass, field


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


Scheduler = RunAll | AshaOptions
SCHEDULERS: dict[str, type[Scheduler]] = {"none": RunAll, "asha": AshaOptions}
