"""What a sweep may say: the keys of its YAML with their rules and defaults, and the sweep once all of it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from orchestrator.config.option_models import STRICT
from orchestrator.config.schedulers import Scheduler
from orchestrator.config.search_space import Space
from streams.recipe import Recipe
from streams.schedule import Schedule


class _Part(BaseModel):
    model_config = STRICT


class Price(BaseModel):
    """What an hour costs. ``cpu_hour``: of each CPU of a trial, beside its GPUs if it has any."""

    model_config = STRICT

    gpu_hour: float = Field(default=0, ge=0)
    cpu_hour: float = Field(default=0, ge=0)
    currency: str = Field(default="USD", min_length=1, max_length=12)


class Budget(BaseModel):
    """Where no further trial is started: `hours` of GPU (of CPU where trials have no GPU), or `money`."""

    model_config = STRICT

    hours: float | None = Field(default=None, gt=0)
    money: float | None = Field(default=None, gt=0)


class Objective(_Part):
    """What a sweep minimises: a mean over seeds."""

    metric: Literal["cumulative_error", "validation_error", "online_error"] = "cumulative_error"
    mode: Literal["min"] = "min"


class Search(_Part):
    """How configurations are found: grids are crossed, and every crossing is drawn `samples` times.

    ``algorithm``: `random` draws all at once; `optuna` draws each with what the trials before it came to (TPE, on the
    mean of the objective over seeds); `grid` draws nothing. ``scheduler``: a name, or a mapping with options; see
    `orchestrator.config.schedulers`.
    """

    samples: int = Field(default=1, ge=1)
    algorithm: Literal["random", "grid", "optuna"] = "random"
    seed: int = Field(default=0, ge=0)
    scheduler: Any = "none"


class Resources(_Part):
    """What one learner actor gets. Torch uses as many threads as it has CPUs, and at least one."""

    cpus: float = Field(default=1, gt=0)
    gpus: float = Field(default=0, ge=0)


class Tracking(_Part):
    """Where MLflow keeps runs; the experiment is the sweep's name if none is given."""

    uri: str = Field(default="sqlite:///mlflow.db", min_length=1)
    experiment: str | None = None
    diagnostics_every: int = Field(default=10, ge=1, description="batches between two points of a learner's diagnostic")


class Document(_Part):
    """The top level of a sweep's YAML. Learners and stream are checked against their own dataclasses afterwards."""

    name: str = Field(min_length=1, max_length=200)
    stream: dict[str, Any]
    learners: list[dict[str, Any]] = Field(min_length=1)
    seeds: int | list[int]
    network: str | None = None
    batch_size: int = Field(default=10, ge=1)
    objective: Objective = Objective()
    search: Search = Search()
    resources: Resources = Resources()
    tracking: Tracking = Tracking()
    chunk: int = Field(default=40, ge=1, description="batches between two checkpoints")
    retries: int = Field(default=3, ge=0, description="times that a trial is started again after it died")
    max_failures: int | None = Field(default=None, ge=0, description="trials that may fail before the sweep stops")
    storage: str = Field(default="results", min_length=1)
    keep_checkpoints: str | int = Field(default="last", description="last, all (one a task), or one every n tasks")
    price: Price | None = None
    budget: Budget | None = None

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: int | list[int]) -> int | list[int]:
        if isinstance(seeds, int):
            if seeds < 1:
                raise ValueError("must be at least 1, or a list of seeds")
            return seeds
        if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise ValueError("must be a list of different numbers of at least 0, and not empty")
        return seeds

    @field_validator("keep_checkpoints")
    @classmethod
    def _keep_checkpoints(cls, keep: str | int) -> str | int:
        if keep not in ("last", "all") and (isinstance(keep, str) or keep < 1):
            raise ValueError("must be last, all, or every so many tasks: a whole number of at least 1")
        return keep


@dataclass(frozen=True)
class LearnerSpec:
    """A learner with its fixed options and the spaces of the others."""

    name: str
    fixed: dict[str, Any]
    spaces: dict[str, Space]

    @property
    def drawn(self) -> dict[str, Space]:
        """The spaces that values are drawn from; grids are crossed."""
        return {key: space for key, space in self.spaces.items() if not space.is_grid}


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked. `file` is what messages call its source, `given` what was in it."""

    file: str
    given: Mapping[str, Any]
    document: Document
    recipe: Recipe
    store: str | None
    schedule: Schedule
    learners: tuple[LearnerSpec, ...]
    scheduler: Scheduler

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def experiment(self) -> str:
        """MLflow's experiment."""
        return self.document.tracking.experiment or self.name

    @property
    def seeds(self) -> list[int]:
        seeds = self.document.seeds
        return list(range(seeds)) if isinstance(seeds, int) else seeds

    @property
    def threads(self) -> int:
        """What torch uses in one learner actor."""
        return max(1, int(self.document.resources.cpus))

    @property
    def network(self) -> str:
        from learners.networks.build import default_for  # imports torch

        return self.document.network or default_for(self.recipe.images_per_datapoint)
