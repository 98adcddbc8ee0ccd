"""A sweep's plan: its configurations, each identified by a hash, its trials, and the studies and populations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from orchestrator.config.schedulers import PbtOptions
from orchestrator.config.schema import LearnerSpec
from orchestrator.config.search_space import Space
from streams.store.canonical_json import canonical, digest

RESULTS_VERSION = 3
"""Raised whenever a configuration gives other numbers than before ("Changes results" in CHANGELOG.md)."""
LEARNER_VERSIONS = {"icarl": 4, "moca": 4}
"""Learner → its version in place of `RESULTS_VERSION`, after a change of its results only."""
SCHEDULE_VERSIONS = {"toe": {"markov": 4}}
"""Learner → schedule → its version there, after a change of the learner's results on that schedule only."""
_FOLDER_LENGTH = 180
"""Characters of a folder's name; file systems allow 255 bytes."""

POPULATION_PREFIX = "population-"
"""The prefix of the files that record which member of a population copied which."""


def generator(seed: int, purpose: list[Any]) -> np.random.Generator:
    """The random numbers of a search for one purpose."""
    key = tuple(f"search {canonical(purpose)}".encode())
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))


def results_version(learner: str, stream: Mapping[str, Any]) -> int:
    """The version of a learner's results on a configuration's stream."""
    of_learner = LEARNER_VERSIONS.get(learner, RESULTS_VERSION)
    return SCHEDULE_VERSIONS.get(learner, {}).get(stream["schedule"]["name"], of_learner)


def label_with(prefix: str, values: Mapping[str, Any]) -> str:
    """The label of a configuration: a prefix, such as the learner's name, and the values that distinguish it."""
    return " ".join([prefix, *(f"{key}={_short(value)}" for key, value in sorted(values.items()))])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Configuration:
    """A learner with a value for each hyper-parameter, and its stream: all that determines a curve but the seed.

    Attributes:
        learner: its name.
        options: a value for each hyper-parameter.
        network: its name.
        batch_size: datapoints of an online update.
        stream: name, options and schedule of the stream, and the hash of the task store.
        label: for people.
        population: the hash of the `Population` that it is a member of; empty if none.
        mutated: the options that change in the population; `options` has their initial values.
        evaluate_past: when past tasks are evaluated again; None for never.
        start: the SHA-256 of the checkpoint that the learner starts from; empty if there is none.
    """

    learner: str
    options: dict[str, Any]
    network: str
    batch_size: int
    stream: dict[str, Any]
    label: str
    population: str = ""
    mutated: tuple[str, ...] = ()
    evaluate_past: int | str | None = None
    start: str = ""

    def start_file(self, root: Path) -> Path | None:
        """The copy of the checkpoint in the sweep's folder `root`."""
        return start_file(root, self.start) if self.start else None

    @cached_property
    def hash(self) -> str:
        """Identifies this configuration in every sweep and on every machine.

        Options that a later version added enter it only where they differ from their default, however that was given.
        """
        from learners import registry  # imports torch

        options = registry.without_additions(self.learner, self.options)
        version = results_version(self.learner, self.stream)
        parts = [version, self.learner, options, self.network, self.batch_size, self.stream]
        if self.evaluate_past is not None:
            parts.append({"evaluate_past": self.evaluate_past})
        if self.start:
            parts.append({"start": self.start})
        return digest([*parts, self.population] if self.population else parts, 12)


def start_file(root: Path, checkpoint: str) -> Path:
    """The copy, in the sweep's folder `root`, of the checkpoint with this SHA-256 that learners start from."""
    return root / f"start-{checkpoint[:12]}.pt"


@dataclass(frozen=True)
class Trial:
    """One configuration on a stack of seeds, which one learner actor trains.

    Attributes:
        configuration: the same for all seeds.
        seeds: one for each replicate.
        drawn_by: the key of the `Study` that drew the configuration; empty if it was planned.
    """

    configuration: Configuration
    seeds: tuple[int, ...]
    drawn_by: str = ""

    @cached_property
    def key(self) -> str:
        return f"{self.configuration.hash}-{digest(list(self.seeds), 6)}"

    def folder(self, root: Path) -> Path:
        """The folder of the trial's files."""
        return root / self.key


@dataclass(frozen=True)
class Study:
    """The spaces of one learner that a sampler draws from while the sweep runs, for one crossing of its grids.

    Attributes:
        spec: the learner.
        samples: configurations to draw.
        seed: of the search.
        seeds: of each trial.
        template: a configuration without the options that are drawn.
    """

    spec: LearnerSpec
    samples: int
    seed: int
    seeds: tuple[int, ...]
    template: Configuration

    @property
    def key(self) -> str:
        """Identifies the study by its spaces and other options, whether these are fixed or values of a grid."""
        spaces = {key: [space.kind, list(space.values)] for key, space in self.spaces.items()}
        return digest([self.template.hash, spaces, self.seed], 12)

    @property
    def spaces(self) -> dict[str, Space]:
        return self.spec.drawn_spaces

    def size(self, others: int = 0) -> int:
        """The number of configurations to draw: `samples`, or all that exist if they are fewer.

        Args:
            others: the number of configurations that the study might draw and that another part of the plan runs.
        """
        return max(0, int(min(self.samples, math.prod(space.size for space in self.spaces.values()) - others)))

    def fits(self, configuration: Configuration) -> bool:
        """Whether the study might draw this configuration."""
        from learners import registry  # imports torch

        if configuration.learner != self.spec.name:
            return False
        # A configuration does not name an option that a later version added and that has its default.
        defaults = {item.name: item.default for item in fields(registry.learner_class(self.spec.name).options_class)}
        values = defaults | configuration.options
        if not all(space.contains(values[key]) for key, space in self.spaces.items()):
            return False
        rest = {key: value for key, value in configuration.options.items() if key not in self.spaces}
        return replace(configuration, options=rest).hash == self.template.hash

    def trial(self, draws: Mapping[str, Any]) -> Trial:
        """The trial with these values."""
        options = self.template.options | dict(draws)
        configuration = replace(self.template, options=options, label=label_with(self.template.label, draws))
        return Trial(configuration, self.seeds, self.key)

    def draws(self, trial: Trial) -> dict[str, Any]:
        """The values that were drawn for a trial of this study."""
        return {key: trial.configuration.options[key] for key in self.spaces}


@dataclass(frozen=True)
class Population:
    """Trials that start with different values, run together, and copy one another.

    Attributes:
        hash: identifies the population by all that determines its curves.
        label: that of its members, without their number.
        options: of population-based training.
        spaces: of the values that change.
        seed: of the search.
        members: at least two, on the same seeds.
    """

    hash: str
    label: str
    options: PbtOptions
    spaces: dict[str, Space]
    seed: int
    members: tuple[Trial, ...]

    def file(self, root: Path) -> Path:
        """The file that records which member copied which."""
        return root / f"{POPULATION_PREFIX}{self.hash}.json"

    def values(self, trial: Trial) -> dict[str, Any]:
        """The initial values of a member."""
        return {key: trial.configuration.options[key] for key in sorted(self.spaces)}


@dataclass
class Plan:
    """The trials of a sweep, in order.

    Attributes:
        name: of the sweep.
        trials: those of studies are added as they are drawn; those of populations are here, too.
        resolved: the whole configuration of the sweep, as JSON, without the secrets of addresses (`masked`).
        source: the configuration as the user gave it, as JSON, without the secrets of addresses.
        studies: where a sampler draws while the sweep runs.
        populations: of trials that copy one another.
        folder: where modules of the user's own learners are searched, besides Python's path; None if there are none.
    """

    name: str
    trials: tuple[Trial, ...]
    resolved: dict[str, Any]
    source: dict[str, Any] = field(default_factory=dict)
    studies: tuple[Study, ...] = ()
    populations: tuple[Population, ...] = ()
    folder: str | None = None

    def __post_init__(self) -> None:
        self._trials = {trial.key: trial for trial in self.trials}
        self._drawn: dict[str, set[str]] = {study.key: set() for study in self.studies}
        self._others: dict[str, set[str]] = {study.key: set() for study in self.studies}
        for trial in self.trials:
            self._assign(trial)

    def trial(self, key: str) -> Trial:
        return self._trials[key]

    def add(self, trial: Trial) -> None:
        """Add a trial, unless the plan has it; a planned trial that a study had drawn becomes one of the study."""
        planned = self._trials.get(trial.key)
        if planned is None:
            self.trials = (*self.trials, trial)
        elif trial.drawn_by and not planned.drawn_by:
            # With the drawn options: the planned configuration does not name each of them, see `Study.fits`.
            trial = replace(trial, configuration=replace(trial.configuration, label=planned.configuration.label))
            self.trials = tuple(trial if each is planned else each for each in self.trials)
        else:
            return
        self._trials[trial.key] = trial
        self._assign(trial)

    def _assign(self, trial: Trial) -> None:
        """Note which studies have drawn the trial's configuration, or might draw it."""
        for study in self.studies:
            configuration = trial.configuration
            if trial.drawn_by == study.key:
                self._drawn[study.key].add(configuration.hash)
                self._others[study.key].discard(configuration.hash)
            elif study.fits(configuration):
                self._others[study.key].add(configuration.hash)

    def open_draws(self, study: Study) -> int:
        """The number of configurations that a study of the plan is still to draw."""
        return max(0, study.size(len(self._others[study.key])) - len(self._drawn[study.key]))

    @property
    def size(self) -> int:
        """The number of trials, with those that are still to be drawn."""
        return len(self.trials) + sum(map(self.open_draws, self.studies))

    def with_earlier(self, stacks: Mapping[str, Sequence[tuple[int, ...]]]) -> Plan:
        """The same plan with the stacks of seeds that configurations were run on before (hash → stacks).

        Of two stacks that share a seed, the first one is used. Seeds that are new to a configuration become a stack of
        their own, so that nothing is run twice.
        """
        trials: list[Trial] = []
        for trial in self.trials:
            rest = list(trial.seeds)
            for stack in stacks.get(trial.configuration.hash, ()):
                if set(stack) <= set(rest):
                    trials.append(replace(trial, seeds=stack))
                    rest = [seed for seed in rest if seed not in stack]
            if rest:
                trials.append(replace(trial, seeds=tuple(rest)))
        return replace(self, trials=tuple(trials))


def sweep_folder(storage: str | Path, name: str) -> Path:
    """The folder of a sweep in the storage: a different one for each name, and safe for any name."""
    safe = quote(name, safe=" ").replace("~", "%7E")
    if len(safe) > _FOLDER_LENGTH:  # no short name contains ~
        safe = f"{safe[:_FOLDER_LENGTH]}~{digest(name, 12)}"
    return Path(storage) / (safe if safe.strip(". ") else safe.replace(".", "%2E").replace(" ", "%20"))
