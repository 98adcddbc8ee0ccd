"""The schema of a sweep's YAML: its keys with their rules and defaults, and the sweep after all checks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_validator, model_validator

from orchestrator.config.schedulers import Scheduler
from orchestrator.config.search_space import Space
from streams.options import STRICT
from streams.recipe import Recipe
from streams.schedule import Schedule

MAX_SEEDS = 1_000
"""Seeds of a configuration, all of which one learner actor trains."""


AUTO_CHUNK = AUTO_PACK = "auto"
MAX_CHUNK = 1_000_000
MAX_PACK = 10_000
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def _seconds(value: Any) -> Any:
    """The seconds of a duration such as 30m; other values as they are.

    >>> _seconds("30m"), _seconds("1.5h"), _seconds(45)
    (1800.0, 5400.0, 45)
    """
    if not isinstance(value, str):
        return value
    parts = _DURATION.fullmatch(value.strip())
    if parts is None:
        raise ValueError("must be a duration such as 90s, 30m or 2h")
    return float(parts[1]) * _UNITS[parts[2]]


Duration = Annotated[float, BeforeValidator(_seconds)]
"""Seconds, written as a number with a unit: s, m, h or d; without a unit, seconds."""


def _number_or(words: tuple[str | None, ...], rule: str, most: float = math.inf) -> AfterValidator:
    """A check that a value is one of the words or a whole number from 1 to `most`; `rule` says so in an error."""

    def check(value: str | int | None) -> str | int | None:
        if value not in words and (not isinstance(value, int) or not 1 <= value <= most):
            raise ValueError(f"must be {rule}")
        return value

    return AfterValidator(check)


class _Section(BaseModel):
    model_config = STRICT


class Price(_Section):
    """The price of an hour.

    Attributes:
        gpu_hour: of each GPU of a trial.
        cpu_hour: of each CPU of a trial, added to that of its GPUs if it has any.
        currency: a name to print.
    """

    gpu_hour: float = Field(default=0, ge=0)
    cpu_hour: float = Field(default=0, ge=0)
    currency: str = Field(default="USD", min_length=1, max_length=12)


class Budget(_Section):
    """The limit at which no further trial is started.

    Attributes:
        hours: hours of GPU; of CPU where trials have no GPU.
        money: in the currency of the price.
    """

    hours: float | None = Field(default=None, gt=0)
    money: float | None = Field(default=None, gt=0)


PAST_METRICS = ("average_accuracy", "backward_transfer", "forgetting")
"""They need `evaluate_past`."""
_MAXIMISED = ("forward_transfer", "average_accuracy", "backward_transfer")


class Objective(_Section):
    """What a sweep minimises or maximises: its mean over seeds.

    Attributes:
        metric: a ready one; `cumulative_error` if there is no function.
        mode: follows from a ready metric; of a function, `min` unless it is given.
        last: average over this many tasks at the end.
        error: the threshold of `points_to`.
        function: the import path of a function of the curves (`orchestrator.protocol.objectives`).
    """

    metric: (
        Literal[
            "cumulative_error",
            "validation_error",
            "online_error",
            "points_to",
            "forward_transfer",
            "gradient_evaluations",
            "seconds",
            "average_accuracy",
            "backward_transfer",
            "forgetting",
        ]
        | None
    ) = None
    mode: Literal["min", "max"] | None = None
    last: int | None = Field(default=None, ge=1)
    error: float | None = Field(default=None, gt=0, lt=1)
    function: str | None = Field(default=None, pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)+$")

    @model_validator(mode="after")
    def _consistent(self) -> Objective:
        if self.function is not None and self.metric is not None:
            raise ValueError("must have metric or function, not both")
        metric, mode = self.metric, self.mode or "min"
        if self.function is None:
            metric = metric or "cumulative_error"
            mode = "max" if metric in _MAXIMISED else "min"
            if self.mode not in (None, mode):
                raise ValueError(f"mode must be {mode} for {metric}")
        self.__dict__.update(metric=metric, mode=mode)  # the model is frozen
        if self.last is not None and self.metric not in ("validation_error", "online_error"):
            raise ValueError("last goes with validation_error and online_error")
        if (self.error is not None) != (self.metric == "points_to"):
            raise ValueError("error goes with points_to, and points_to needs it, such as error: 0.3")
        return self


class Search(_Section):
    """How hyper-parameter values are chosen: grids are crossed, and each crossing is drawn `samples` times.

    Attributes:
        samples: draws for each crossing of the grids.
        algorithm: `random` draws all values before the sweep starts; `optuna` draws each with the results of earlier
            trials (TPE, on the objective's mean over seeds); `grid` draws nothing.
        seed: of the draws.
        scheduler: a name, or a mapping with a name and options (`orchestrator.config.schedulers`).
    """

    samples: int = Field(default=1, ge=1, le=100_000)
    algorithm: Literal["random", "grid", "optuna"] = "random"
    seed: int = Field(default=0, ge=0)
    scheduler: Any = "none"


class Resources(_Section):
    """The resources of one learner actor.

    Attributes:
        cpus: torch uses this many threads, and at least one.
        gpus: fractions share a GPU.
        pack: the most replicates of an actor that trains several trials, or `auto`.
    """

    cpus: float = Field(default=1, gt=0, le=1_024)
    gpus: float = Field(default=0, ge=0, le=1_024)
    pack: Annotated[
        int | str, _number_or((AUTO_PACK,), f"{AUTO_PACK}, or a whole number from 1 to {MAX_PACK}", MAX_PACK)
    ] = 1


class Tracking(_Section):
    """Where MLflow keeps runs.

    Attributes:
        uri: MLflow's tracking URI.
        experiment: the sweep's name if None.
        points: the most points of a curve in MLflow; a longer one has the means of blocks of equal length.
        diagnostics_every: a learner's diagnostics have one point where errors and losses have this many.
        seed_runs: whether each seed has a run of its own, with its curves.
    """

    uri: str = Field(default="sqlite:///mlflow.db", min_length=1)
    experiment: str | None = None
    points: int = Field(default=200, ge=10, le=1_000_000)
    diagnostics_every: int = Field(default=10, ge=1, le=1_000_000_000)
    seed_runs: bool = True


class Document(_Section):
    """The top level of a sweep's YAML; `stream` and `learners` are checked against their own dataclasses afterwards.

    Attributes:
        chunk: batches between two chunk files, or `auto`: about ten seconds.
        retries: times that a trial is started again after its actor died.
        max_failures: trials that may fail before the sweep stops.
        trial_timeout: the longest time between two results of a trial; one that exceeds it is ended, as if its actor
            had died. None: a trial is only reported.
        shutdown_grace: time for a stopped sweep to end; chunks that are in flight near its end are given up.
        keep_checkpoints: `last`, `all` (one a task), or one every n tasks.
        report: whether the end of the sweep writes the files of the report.
        network: a name, or a mapping with `name` or `class` and options.
        evaluate_past: evaluate all past tasks again at the `end`, or every n tasks and at the end; None for never.
    """

    name: str = Field(min_length=1, max_length=200)
    stream: dict[str, Any]
    learners: list[dict[str, Any]] = Field(min_length=1, max_length=1_000)
    seeds: int | list[int]
    network: str | dict[str, Any] | None = None
    batch_size: int = Field(default=10, ge=1, le=100_000)
    objective: Objective = Objective()
    evaluate_past: Annotated[
        str | int | None, _number_or(("end", None), "end, or every n tasks: a whole number of at least 1")
    ] = None
    search: Search = Search()
    resources: Resources = Resources()
    tracking: Tracking = Tracking()
    chunk: Annotated[
        int | str, _number_or((AUTO_CHUNK,), f"{AUTO_CHUNK}, or a whole number from 1 to {MAX_CHUNK}", MAX_CHUNK)
    ] = AUTO_CHUNK
    retries: int = Field(default=3, ge=0, le=1_000)
    max_failures: int | None = Field(default=None, ge=0)
    trial_timeout: Duration | None = Field(default=None, ge=1, le=2_592_000)
    shutdown_grace: Duration = Field(default=30, ge=1, le=86_400)
    storage: str = Field(default="results", min_length=1)
    keep_checkpoints: Annotated[
        str | int, _number_or(("last", "all"), "last, all, or one every n tasks: a whole number of at least 1")
    ] = "last"
    report: bool = True
    price: Price | None = None
    budget: Budget | None = None

    @field_validator("objective", mode="before")
    @classmethod
    def _objective(cls, objective: Any) -> Any:
        return {"metric": objective} if isinstance(objective, str) else objective

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: int | list[int]) -> int | list[int]:
        if isinstance(seeds, int):
            if seeds < 1:
                raise ValueError("must be at least 1, or a list of seeds")
            if seeds > MAX_SEEDS:
                raise ValueError(f"must be at most {MAX_SEEDS:,} seeds; the seed {seeds} alone is written [{seeds}]")
            return seeds
        if len(seeds) > MAX_SEEDS:
            raise ValueError(f"must have at most {MAX_SEEDS:,} seeds")
        if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise ValueError("must be a list of different numbers of at least 0, and not empty")
        return seeds

    @model_validator(mode="after")
    def _past_is_evaluated(self) -> Document:
        if self.objective.metric in PAST_METRICS and self.evaluate_past is None:
            raise ValueError(f"objective {self.objective.metric} needs evaluate_past, such as evaluate_past: end")
        return self


@dataclass(frozen=True)
class Start:
    """The checkpoint that a learner starts from.

    Attributes:
        source: as in YAML: a file, or a run in MLflow.
        path: the file; empty until the source is resolved.
        digest: the SHA-256 of the file; empty until the source is resolved.
    """

    source: str
    path: str = ""
    digest: str = ""

    @property
    def label(self) -> str:
        """For people: the end of the path, or the start of the run's id."""
        return "/".join(self.source.split("/")[-2:]) if self.source.endswith(".pt") else self.source[:8]


@dataclass(frozen=True)
class LearnerSpec:
    """A learner of a sweep.

    Attributes:
        name: as in YAML.
        fixed: the options that have one value.
        spaces: the search spaces of the other options.
        start: the checkpoint that it starts from; None for the initial weights of its seed.
    """

    name: str
    fixed: dict[str, Any]
    spaces: dict[str, Space]
    start: Start | None = None

    @property
    def drawn_spaces(self) -> dict[str, Space]:
        """The spaces that values are drawn from, which are all but grids."""
        return {key: space for key, space in self.spaces.items() if not space.is_grid}


@dataclass(frozen=True)
class Sweep:
    """A sweep that passed all checks.

    Attributes:
        file: what messages call its source.
        source: the content of the file, with overrides.
        document: the top level of the source, with defaults.
        recipe: of the stream.
        store: folder or address of the task store; None for the cache.
        schedule: of the stream.
        learners: with their options and search spaces.
        scheduler: of the search.
        network: its description (`learners.networks.build.write`).
        folder: where the user's own modules are searched, besides Python's path; None if there are none.
    """

    file: str
    source: Mapping[str, Any]
    document: Document
    recipe: Recipe
    store: str | None
    schedule: Schedule
    learners: tuple[LearnerSpec, ...]
    scheduler: Scheduler
    network: str
    folder: str | None = None

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def experiment(self) -> str:
        """The name of MLflow's experiment."""
        return self.document.tracking.experiment or self.name

    @property
    def seeds(self) -> list[int]:
        seeds = self.document.seeds
        return list(range(seeds)) if isinstance(seeds, int) else seeds

    @property
    def has_own_modules(self) -> bool:
        """Whether a learner, the network or the objective is of a module of the user's own."""
        own_network = isinstance(self.document.network, dict) and "class" in self.document.network
        own_learner = any("." in spec.name for spec in self.learners)
        return own_learner or own_network or self.document.objective.function is not None

    @property
    def threads(self) -> int:
        """Torch's threads in one learner actor."""
        return max(1, int(self.document.resources.cpus))
