"""From a checked sweep to its trials: one per configuration, each with a hash that says what it is."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from orchestrator.config import LearnerSpec, Sweep
from streams.schedule import HeldBack, Schedule

RESULTS_VERSION = 3
"""Raised whenever the same configuration gives other numbers than before ("Changes results" in CHANGELOG.md)."""


def canonical(value: Any) -> str:
    """JSON with one spelling for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def short_hash(value: Any, length: int = 12) -> str:
    """The first hex digits of the SHA-256 of a JSON-able value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


@dataclass(frozen=True)
class Configuration:
    """A learner with every hyper-parameter, on a stream; everything that decides a curve but the seed.

    ``stream``: name, options, schedule, and the hash of the task store.
    """

    learner: str
    options: dict[str, Any]
    network: str
    batch_size: int
    stream: dict[str, Any]
    label: str

    @property
    def hash(self) -> str:
        """Names this configuration, in every sweep and on every machine."""
        return short_hash([RESULTS_VERSION, self.learner, self.options, self.network, self.batch_size, self.stream])


@dataclass(frozen=True)
class Trial:
    """One configuration on a stack of seeds: what one learner actor runs."""

    configuration: Configuration
    seeds: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{self.configuration.hash}-{short_hash(list(self.seeds), 6)}"

    def folder(self, root: Path) -> Path:
        """Where the trial keeps its chunk files."""
        return root / self.key


@dataclass(frozen=True)
class Plan:
    """All trials of a sweep, in order, the sweep's whole configuration as JSON (`resolved`), and what was written
    down of it (`given`)."""

    name: str
    trials: tuple[Trial, ...]
    resolved: dict[str, Any]
    given: dict[str, Any] = field(default_factory=dict)

    def trial(self, key: str) -> Trial:
        return next(trial for trial in self.trials if trial.key == key)

    def grown(self, earlier: Mapping[str, Sequence[tuple[int, ...]]]) -> Plan:
        """The same plan, with the stacks of seeds that configurations were run on before (hash → stacks) kept.

        Seeds that are new to a configuration become a stack of their own: nothing that was run is run again.
        """
        trials: list[Trial] = []
        for trial in self.trials:
            rest = list(trial.seeds)
            for stack in earlier.get(trial.configuration.hash, ()):
                if set(stack) <= set(rest):
                    trials.append(Trial(trial.configuration, stack))
                    rest = [seed for seed in rest if seed not in stack]
            if rest:
                trials.append(Trial(trial.configuration, tuple(rest)))
        return replace(self, trials=tuple(trials))


def sweep_folder(storage: str | Path, name: str) -> Path:
    """The sweep's folder in the storage; any name gives one safe folder of its own."""
    safe = quote(name, safe=" ").replace("~", "%7E")
    return Path(storage) / (safe if safe.strip(". ") else safe.replace(".", "%2E").replace(" ", "%20"))


def make_plan(sweep: Sweep, store_hash: str) -> Plan:
    """Cross the grids, draw the rest, and leave out what comes twice."""
    stream = {
        "name": sweep.recipe.name,
        "options": sweep.recipe.options(),
        "schedule": _described(sweep.schedule),
        "store": store_hash,
    }
    several = len(sweep.learners) > len({spec.name for spec in sweep.learners})
    trials: dict[str, Trial] = {}
    for index, spec in enumerate(sweep.learners):
        for options, varying in _expand(spec, index, sweep):
            shown = varying | (_unlike_defaults(spec) if several else {})
            configuration = Configuration(
                learner=spec.name,
                options=options,
                network=sweep.network,
                batch_size=sweep.document.batch_size,
                stream=stream,
                label=" ".join([spec.name, *(f"{key}={_shown(value)}" for key, value in sorted(shown.items()))]),
            )
            trial = Trial(configuration, tuple(sweep.seeds))
            trials.setdefault(trial.key, trial)
    return Plan(sweep.name, tuple(trials.values()), _resolved(sweep, stream), dict(sweep.given))


def _described(schedule: Schedule) -> dict[str, Any]:
    if isinstance(schedule, HeldBack):
        return _described(schedule.schedule) | {"held_back": schedule.tasks}
    return {"name": schedule.name, **asdict(schedule)}


def _expand(spec: LearnerSpec, index: int, sweep: Sweep) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every (all options, those that vary) of one learner."""
    grids = {key: space for key, space in spec.spaces.items() if space.is_grid}
    drawn = {key: space for key, space in spec.spaces.items() if not space.is_grid}
    samples = sweep.document.search.samples if drawn else 1
    for crossing in itertools.product(*(space.values for space in grids.values())):
        chosen = dict(zip(grids, crossing, strict=True))
        for sample in range(samples):
            # A generator per draw: more samples, or another grid value, leave the earlier draws as they were.
            draws = {
                key: space.draw(_generator(sweep.document.search.seed, [index, spec.name, chosen, sample, key]))
                for key, space in drawn.items()
            }
            yield spec.fixed | chosen | draws, chosen | draws


def _generator(seed: int, purpose: list[Any]) -> np.random.Generator:
    key = tuple(f"search {canonical(purpose)}".encode())
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))


def _unlike_defaults(spec: LearnerSpec) -> dict[str, Any]:
    from learners import registry

    defaults = asdict(registry.learner_class(spec.name).options_class())
    return {key: value for key, value in spec.fixed.items() if value != defaults[key]}


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _resolved(sweep: Sweep, stream: dict[str, Any]) -> dict[str, Any]:
    document = sweep.document.model_dump(mode="json")
    learners = [
        {"name": spec.name, **spec.fixed, **{key: {s.kind: list(s.values)} for key, s in spec.spaces.items()}}
        for spec in sweep.learners
    ]
    return document | {"seeds": sweep.seeds, "network": sweep.network, "stream": stream, "learners": learners}
