"""Expands a checked sweep into its plan: grids are crossed, the rest is drawn, and duplicates are left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from orchestrator.config.schedulers import PbtOptions
from orchestrator.config.schema import LearnerSpec, Search, Sweep
from orchestrator.plan.plan import Configuration, Plan, Population, Study, Trial, generator, label_with
from streams.errors import masked_values
from streams.schedule import HeldBack, Schedule
from streams.store.canonical_json import canonical, digest


def make_plan(sweep: Sweep, store_hash: str) -> Plan:
    """The plan of a sweep on the task store with this hash."""
    search, seeds = sweep.document.search, tuple(sweep.seeds)
    stream = {
        "name": sweep.recipe.name,
        "options": sweep.recipe.options(),
        "schedule": _schedule(sweep.schedule),
        "store": store_hash,
    }
    repeated = len(sweep.learners) > len({spec.name for spec in sweep.learners})
    trials: dict[str, Trial] = {}
    studies: dict[str, Study] = {}
    populations: dict[str, Population] = {}
    crossings = [(spec, values) for spec in sweep.learners for values in _crossings(spec)]
    for spec, grid_values in crossings:
        distinct = grid_values | (_unlike_defaults(spec) if repeated else {})
        template = Configuration(
            learner=spec.name,
            options=spec.fixed | grid_values,
            network=sweep.network,
            batch_size=sweep.document.batch_size,
            stream=stream,
            label=label_with(spec.name, distinct),
        )
        if spec.drawn_spaces and search.algorithm == "optuna":
            study = Study(spec, search.samples, search.seed, seeds, template)
            studies[study.key] = study
        elif spec.drawn_spaces and isinstance(sweep.scheduler, PbtOptions):
            population = _population(spec, template, sweep, sweep.scheduler)
            populations[population.hash] = population
        else:
            for draws in _samples(spec, search):
                label = label_with(spec.name, distinct | draws)
                trial = Trial(replace(template, options=template.options | draws, label=label), seeds)
                trials.setdefault(trial.key, trial)
    trials |= {member.key: member for population in populations.values() for member in population.members}
    return Plan(
        sweep.name,
        tuple(trials.values()),
        masked_values(_resolved(sweep, stream)),
        masked_values(sweep.source),
        tuple(studies.values()),
        tuple(populations.values()),
        sweep.folder,
    )


def _population(spec: LearnerSpec, template: Configuration, sweep: Sweep, options: PbtOptions) -> Population:
    """The population of one crossing of the grids, whose hash is of all that determines its curves."""
    search, seeds = sweep.document.search, tuple(sweep.seeds)
    spaces = {key: [space.kind, list(space.values)] for key, space in spec.drawn_spaces.items()}
    parts = [template.hash, list(seeds), spaces, asdict(options), search.samples, search.seed]
    name = digest([*parts, sweep.document.objective.metric], 12)
    mutable = {k: space for k, space in spec.drawn_spaces.items() if options.mutate is None or k in options.mutate}
    members = tuple(
        Trial(
            replace(
                template,
                options=template.options | draws,
                label=f"{template.label} member {number}",
                population=name,
                mutated=tuple(sorted(mutable)),
            ),
            seeds,
        )
        for number, draws in enumerate({canonical(draws): draws for draws in _samples(spec, search)}.values(), 1)
    )
    return Population(name, template.label, options, mutable, search.seed, members)


def _crossings(spec: LearnerSpec) -> Iterator[dict[str, Any]]:
    grids = {key: space for key, space in spec.spaces.items() if space.is_grid}
    for values in itertools.product(*(space.values for space in grids.values())):
        yield dict(zip(grids, values, strict=True))


def _samples(spec: LearnerSpec, search: Search) -> Iterator[dict[str, Any]]:
    """The drawn values of each sample; one without values where nothing is drawn.

    A sample's values depend on the learner, the option, the number of the sample and the seed alone: a sweep that grows
    keeps its trials, and the points of a grid are compared at the same draws.
    """
    for sample in range(search.samples if spec.drawn_spaces else 1):
        yield {
            key: space.draw(generator(search.seed, ["draw", spec.name, key, sample]))
            for key, space in spec.drawn_spaces.items()
        }


def _schedule(schedule: Schedule) -> dict[str, Any]:
    if isinstance(schedule, HeldBack):
        return _schedule(schedule.schedule) | {"held_back": schedule.tasks}
    return {"name": schedule.name, **asdict(schedule)}


def _unlike_defaults(spec: LearnerSpec) -> dict[str, Any]:
    from learners import registry

    defaults = asdict(registry.learner_class(spec.name).options_class())
    return {key: value for key, value in spec.fixed.items() if value != defaults[key]}


def _resolved(sweep: Sweep, stream: dict[str, Any]) -> dict[str, Any]:
    document = sweep.document.model_dump(mode="json")
    learners = [
        {"name": spec.name, **spec.fixed, **{key: {s.kind: list(s.values)} for key, s in spec.spaces.items()}}
        for spec in sweep.learners
    ]
    return document | {"seeds": sweep.seeds, "network": sweep.network, "stream": stream, "learners": learners}
