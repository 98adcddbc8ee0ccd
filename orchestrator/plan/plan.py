"""What a sweep runs: configurations, each with a hash that says what it is, trials, and what draws or copies them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from orchestrator.config.schedulers import PbtOptions
from orchestrator.config.schema import LearnerSpec
from orchestrator.config.search_space import Space

RESULTS_VERSION = 3
"""Raised whenever the same configuration gives other numbers than before ("Changes results" in CHANGELOG.md)."""
_FOLDER_LENGTH = 180
"""Characters of a folder's name; file systems allow 255 bytes."""

POPULATION = "population-"
"""What the names of files begin with that say who copied whom in a population."""


def canonical(value: Any) -> str:
    """JSON with one spelling for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def short_hash(value: Any, length: int = 12) -> str:
    """The first hex digits of the SHA-256 of a JSON-able value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def generator(seed: int, purpose: list[Any]) -> np.random.Generator:
    """Random numbers of a search, for one purpose."""
    key = tuple(f"search {canonical(purpose)}".encode())
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))


def labelled(beginning: str, values: Mapping[str, Any]) -> str:
    """A configuration's label: a learner's name, say, and the values that tell it from others."""
    return " ".join([beginning, *(f"{key}={_shown(value)}" for key, value in sorted(values.items()))])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Configuration:
    """A learner with every hyper-parameter, on a stream; everything that decides a curve but the seed.

    ``stream``: name, options, schedule, and the hash of the task store. ``population``: the hash of the `Population`
    that it is a member of, empty if of none; its options ``mutated`` are then what it begins with, and what it goes on
    with depends on the others.
    """

    learner: str
    options: dict[str, Any]
    network: str
    batch_size: int
    stream: dict[str, Any]
    label: str
    population: str = ""
    mutated: tuple[str, ...] = ()

    @cached_property
    def hash(self) -> str:
        """Names this configuration, in every sweep and on every machine."""
        parts = [RESULTS_VERSION, self.learner, self.options, self.network, self.batch_size, self.stream]
        return short_hash([*parts, self.population] if self.population else parts)


@dataclass(frozen=True)
class Trial:
    """One configuration on a stack of seeds: what one learner actor runs."""

    configuration: Configuration
    seeds: tuple[int, ...]
    drawn_by: str = ""
    """The key of the `Study` that its configuration was drawn by; empty if it was planned."""

    @cached_property
    def key(self) -> str:
        return f"{self.configuration.hash}-{short_hash(list(self.seeds), 6)}"

    def folder(self, root: Path) -> Path:
        """Where the trial keeps its chunk files."""
        return root / self.key


@dataclass(frozen=True)
class Study:
    """A learner's spaces that a searcher draws from while the sweep runs, `samples` times; grids are crossed as ever.

    ``chosen``: the values of its grids. ``seed``: of the search. ``template``: a configuration with what is not drawn.
    """

    spec: LearnerSpec
    chosen: dict[str, Any]
    samples: int
    seed: int
    seeds: tuple[int, ...]
    template: Configuration

    @property
    def key(self) -> str:
        """Names the study as long as the spaces are what they were, whether what is `chosen` is of a grid or fixed."""
        spaces = {key: [space.kind, list(space.values)] for key, space in self.spaces.items()}
        return short_hash([self.template.hash, spaces, self.seed])

    @property
    def spaces(self) -> dict[str, Space]:
        """What is drawn."""
        return self.spec.drawn

    @property
    def wanted(self) -> int:
        """How many configurations there will be: `samples`, or all that there are where choices run out before."""
        return int(min(self.samples, math.prod(space.size for space in self.spaces.values())))

    def trial(self, draws: Mapping[str, Any], seeds: tuple[int, ...] | None = None) -> Trial:
        """The trial with these values."""
        options = self.template.options | dict(draws)
        configuration = replace(self.template, options=options, label=labelled(self.template.label, draws))
        return Trial(configuration, seeds or self.seeds, self.key)

    def draws(self, trial: Trial) -> dict[str, Any]:
        """The values that were drawn for a trial of this study."""
        return {key: trial.configuration.options[key] for key in self.spaces}


@dataclass(frozen=True)
class Population:
    """Configurations that are trained together, each beginning with values of its own, and copy one another.

    ``spaces``: of the values that change. ``seed``: of the search. ``members``: at least two, on the same seeds.
    """

    hash: str
    label: str
    options: PbtOptions
    spaces: dict[str, Space]
    seed: int
    members: tuple[Trial, ...]

    def file(self, root: Path) -> Path:
        """Where it is written who copied whom."""
        return root / f"{POPULATION}{self.hash}.json"

    def values(self, trial: Trial) -> dict[str, Any]:
        """What a member begins with."""
        return {key: trial.configuration.options[key] for key in sorted(self.spaces)}


@dataclass
class Plan:
    """All trials of a sweep, in order, the sweep's whole configuration as JSON (`resolved`), and what was written
    down of it (`given`).

    Where a searcher draws, its `studies` are here, and trials are added as they are drawn. Trials that copy one another
    are in `populations`, too.
    """

    name: str
    trials: tuple[Trial, ...]
    resolved: dict[str, Any]
    given: dict[str, Any] = field(default_factory=dict)
    studies: tuple[Study, ...] = ()
    populations: tuple[Population, ...] = ()

    def trial(self, key: str) -> Trial:
        return next(trial for trial in self.trials if trial.key == key)

    def add(self, trial: Trial) -> None:
        """One more; to add it again changes nothing."""
        if all(trial.key != known.key for known in self.trials):
            self.trials = (*self.trials, trial)

    @property
    def size(self) -> int:
        """How many trials there will be."""
        drawn: dict[str, set[str]] = {study.key: set() for study in self.studies}
        for trial in self.trials:
            if trial.drawn_by in drawn:
                drawn[trial.drawn_by].add(trial.configuration.hash)
        return len(self.trials) + sum(max(0, study.wanted - len(drawn[study.key])) for study in self.studies)

    def grown(self, earlier: Mapping[str, Sequence[tuple[int, ...]]]) -> Plan:
        """The same plan, with the stacks of seeds that configurations were run on before (hash → stacks) kept.

        Seeds that are new to a configuration become a stack of their own: nothing that was run is run again.
        """
        trials: list[Trial] = []
        for trial in self.trials:
            rest = list(trial.seeds)
            for stack in earlier.get(trial.configuration.hash, ()):
                if set(stack) <= set(rest):
                    trials.append(replace(trial, seeds=stack))
                    rest = [seed for seed in rest if seed not in stack]
            if rest:
                trials.append(replace(trial, seeds=tuple(rest)))
        return replace(self, trials=tuple(trials))


def sweep_folder(storage: str | Path, name: str) -> Path:
    """The sweep's folder in the storage; any name gives one safe folder of its own."""
    safe = quote(name, safe=" ").replace("~", "%7E")
    if len(safe) > _FOLDER_LENGTH:  # ~ is in no short one
        safe = f"{safe[:_FOLDER_LENGTH]}~{short_hash(name)}"
    return Path(storage) / (safe if safe.strip(". ") else safe.replace(".", "%2E").replace(" ", "%20"))
