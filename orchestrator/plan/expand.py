"""From a checked sweep to its plan: grids are crossed, the rest is drawn, and what comes twice is left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from orchestrator.config.schedulers import PbtOptions
from orchestrator.config.schema import LearnerSpec, Sweep
from orchestrator.plan.plan import (
    Configuration,
    Plan,
    Population,
    Study,
    Trial,
    canonical,
    generator,
    labelled,
    short_hash,
)
from streams.schedule import HeldBack, Schedule


def make_plan(sweep: Sweep, store_hash: str) -> Plan:
    """Cross the grids, draw the rest, and leave out what comes twice."""
    stream = {
        "name": sweep.recipe.name,
        "options": sweep.recipe.options(),
        "schedule": _described(sweep.schedule),
        "store": store_hash,
    }
    several = len(sweep.learners) > len({spec.name for spec in sweep.learners})
    searched = sweep.document.search.algorithm == "optuna"
    trials: dict[str, Trial] = {}
    studies: list[Study] = []
    populations: list[Population] = []
    for spec in sweep.learners:
        always_shown = _unlike_defaults(spec) if several else {}
        if searched and spec.drawn:
            studies += _studies(spec, sweep, stream, always_shown)
            continue
        if isinstance(sweep.scheduler, PbtOptions) and spec.drawn:
            populations += _populations(spec, sweep, sweep.scheduler, stream, always_shown)
            continue
        for options, varying in _expand(spec, sweep):
            configuration = _configuration(spec, sweep, stream, options, varying | always_shown)
            trial = Trial(configuration, tuple(sweep.seeds))
            trials.setdefault(trial.key, trial)
    populations = list({population.hash: population for population in populations}.values())
    studies = list({study.key: study for study in studies}.values())
    trials |= {member.key: member for population in populations for member in population.members}
    planned = tuple(trials.values())
    return Plan(sweep.name, planned, _resolved(sweep, stream), dict(sweep.given), tuple(studies), tuple(populations))


def _configuration(
    spec: LearnerSpec, sweep: Sweep, stream: dict[str, Any], options: dict[str, Any], shown: dict[str, Any]
) -> Configuration:
    return Configuration(
        learner=spec.name,
        options=options,
        network=sweep.network,
        batch_size=sweep.document.batch_size,
        stream=stream,
        label=labelled(spec.name, shown),
    )


def _studies(spec: LearnerSpec, sweep: Sweep, stream: dict[str, Any], always_shown: dict[str, Any]) -> Iterator[Study]:
    search = sweep.document.search
    for chosen in _crossings(spec):
        template = _configuration(spec, sweep, stream, spec.fixed | chosen, chosen | always_shown)
        yield Study(spec, chosen, search.samples, search.seed, tuple(sweep.seeds), template)


def _populations(
    spec: LearnerSpec,
    sweep: Sweep,
    options: PbtOptions,
    stream: dict[str, Any],
    always_shown: dict[str, Any],
) -> Iterator[Population]:
    """One for each crossing of the grids. All that decides its curves is in its hash: another is run anew."""
    search = sweep.document.search
    for chosen in _crossings(spec):
        template = _configuration(spec, sweep, stream, spec.fixed | chosen, chosen | always_shown)
        spaces = {key: [space.kind, list(space.values)] for key, space in spec.drawn.items()}
        decided_by = [spaces, asdict(options), search.samples, search.seed, sweep.document.objective.metric]
        name = short_hash([template.hash, list(sweep.seeds), *decided_by])
        changing = {key: space for key, space in spec.drawn.items() if options.mutate is None or key in options.mutate}
        drawn = [_draws(spec, sample, search.seed) for sample in range(search.samples)]
        different = {canonical(draws): draws for draws in drawn}.values()
        members = tuple(
            Trial(
                replace(
                    template,
                    options=template.options | draws,
                    label=f"{template.label} member {number}",
                    population=name,
                    mutated=tuple(sorted(changing)),
                ),
                tuple(sweep.seeds),
            )
            for number, draws in enumerate(different, 1)
        )
        yield Population(name, template.label, options, changing, search.seed, members)


def _crossings(spec: LearnerSpec) -> Iterator[dict[str, Any]]:
    grids = {key: space for key, space in spec.spaces.items() if space.is_grid}
    for values in itertools.product(*(space.values for space in grids.values())):
        yield dict(zip(grids, values, strict=True))


def _described(schedule: Schedule) -> dict[str, Any]:
    if isinstance(schedule, HeldBack):
        return _described(schedule.schedule) | {"held_back": schedule.tasks}
    return {"name": schedule.name, **asdict(schedule)}


def _expand(spec: LearnerSpec, sweep: Sweep) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every (all options, those that vary) of one learner."""
    samples = sweep.document.search.samples if spec.drawn else 1
    for chosen in _crossings(spec):
        for sample in range(samples):
            draws = _draws(spec, sample, sweep.document.search.seed)
            yield spec.fixed | chosen | draws, chosen | draws


def _draws(spec: LearnerSpec, sample: int, seed: int) -> dict[str, Any]:
    """The values of one sample: the same, wherever its learner stands, and whatever else is given, crossed or drawn.

    So a sweep that grows, by whatever it may be, keeps what it has run; and the points of a grid are compared at the
    same draws.
    """
    return {key: space.draw(generator(seed, ["draw", spec.name, key, sample])) for key, space in spec.drawn.items()}


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
