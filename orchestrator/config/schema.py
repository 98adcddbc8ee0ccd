"""The schema of a sweep's YAML: its keys with their rules and defaults, and the sweep after all checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from orchestrator.config.schedulers import Scheduler
from orchestrator.config.search_space import Space
from streams.options import STRICT
from streams.recipe import Recipe
from streams.schedule import Schedule

MAX_SEEDS = 1_000
"""Seeds of a configuration, all of which one learner actor trains."""


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


class Objective(_Section):
    """The metric that a sweep minimises: its mean over seeds."""

    metric: Literal["cumulative_error", "validation_error", "online_error"] = "cumulative_error"
    mode: Literal["min"] = "min"


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
    """

    cpus: float = Field(default=1, gt=0, le=1_024)
    gpus: float = Field(default=0, ge=0, le=1_024)


class Tracking(_Section):
    """Where MLflow keeps runs.

    Attributes:
        uri: MLflow's tracking URI.
        experiment: the sweep's name if None.
        diagnostics_every: batches between two points of a learner's diagnostics.
    """

    uri: str = Field(default="sqlite:///mlflow.db", min_length=1)
    experiment: str | None = None
    diagnostics_every: int = Field(default=10, ge=1, le=1_000_000_000)


class Document(_Section):
    """The top level of a sweep's YAML; `stream` and `learners` are checked against their own dataclasses afterwards.

    Attributes:
        chunk: batches between two chunk files.
        retries: times that a trial is started again after its actor died.
        max_failures: trials that may fail before the sweep stops.
        keep_checkpoints: `last`, `all` (one a task), or one every n tasks.
    """

    name: str = Field(min_length=1, max_length=200)
    stream: dict[str, Any]
    learners: list[dict[str, Any]] = Field(min_length=1, max_length=1_000)
    seeds: int | list[int]
    network: str | None = None
    batch_size: int = Field(default=10, ge=1, le=100_000)
    objective: Objective = Objective()
    search: Search = Search()
    resources: Resources = Resources()
    tracking: Tracking = Tracking()
    chunk: int = Field(default=40, ge=1, le=1_000_000)
    retries: int = Field(default=3, ge=0, le=1_000)
    max_failures: int | None = Field(default=None, ge=0)
    storage: str = Field(default="results", min_length=1)
    keep_checkpoints: str | int = "last"
    price: Price | None = None
    budget: Budget | None = None

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

    @field_validator("keep_checkpoints")
    @classmethod
    def _keep_checkpoints(cls, keep: str | int) -> str | int:
        if keep not in ("last", "all") and (isinstance(keep, str) or keep < 1):
            raise ValueError("must be last, all, or one every n tasks: a whole number of at least 1")
        return keep


@dataclass(frozen=True)
class LearnerSpec:
    """A learner of a sweep.

    Attributes:
        name: as in YAML.
        fixed: the options that have one value.
        spaces: the search spaces of the other options.
    """

    name: str
    fixed: dict[str, Any]
    spaces: dict[str, Space]

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
        folder: where modules of the user's own learners are searched, besides Python's path; None if there are none.
    """

    file: str
    source: Mapping[str, Any]
    document: Document
    recipe: Recipe
    store: str | None
    schedule: Schedule
    learners: tuple[LearnerSpec, ...]
    scheduler: Scheduler
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
    def threads(self) -> int:
        """Torch's threads in one learner actor."""
        return max(1, int(self.document.resources.cpus))

    @property
    def network(self) -> str:
        from learners.networks.build import default_for  # imports torch

        return self.document.network or default_for(self.recipe.images_per_datapoint)
