"""The options of each scheduler, which may stop or change a trial before its stream ends, by the name in YAML."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunAll:
    """`none`: every trial runs to the end of its stream."""


@dataclass(frozen=True)
class AshaOptions:
    """`asha`: asynchronous successive halving among the trials of one learner (`orchestrator.search.asha`).

    Attributes:
        grace: share of the stream that every trial learns.
        reduction: at each rung, one trial in this many continues.
    """

    grace: float = field(default=0.1, metadata={"gt": 0, "lt": 1})
    reduction: int = field(default=3, metadata={"ge": 2})


@dataclass(frozen=True)
class PbtOptions:
    """`pbt`: population-based training of the configurations drawn for one learner (`orchestrator.search.population`).

    Attributes:
        interval: datapoints of a generation (rounded up to batches); a tenth of the stream if None.
        quantile: the share of the population that copies, and the share that is copied.
        resample: the probability that a copied value is drawn again; else it is multiplied by `smaller` or `larger`.
        smaller: the factor below 1.
        larger: the factor above 1.
        mutate: the options that change; all that are drawn if None.
    """

    interval: int | None = field(default=None, metadata={"ge": 1})
    quantile: float = field(default=0.25, metadata={"gt": 0, "le": 0.5})
    resample: float = field(default=0.25, metadata={"ge": 0, "le": 1})
    smaller: float = field(default=0.8, metadata={"gt": 0, "lt": 1})
    larger: float = field(default=1.25, metadata={"gt": 1})
    mutate: list[str] | None = None


Scheduler = RunAll | AshaOptions | PbtOptions
SCHEDULERS: dict[str, type[Scheduler]] = {"none": RunAll, "asha": AshaOptions, "pbt": PbtOptions}
