"""Expands a checked sweep into its plan: grids are crossed, the rest is drawn, and duplicates are left out."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
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
    stream = _stream(sweep) | {"store": store_hash}
    repeated = len(sweep.learners) > len({spec.name for spec in sweep.learners})
    trials: dict[str, Trial] = {}
    studies: dict[str, Study] = {}
    populations: dict[str, Population] = {}
    crossings = [
        (spec, values, values | _distinct_options(spec, repeated))
        for spec in sweep.learners
        for values in _crossings(spec)
    ]
    # Without their drawn values, two entries of one learner may have one label.
    labels = {
        (label_with(spec.name, distinct), canonical(_described(spec)))
        for spec, _, distinct in crossings
        if spec.drawn_spaces
    }
    entries = Counter(label for label, _ in labels)
    for spec, grid_values, distinct in crossings:
        template = Configuration(
            learner=spec.name,
            options=spec.fixed | grid_values,
            network=sweep.network,
            batch_size=sweep.document.batch_size,
            stream=stream,
            label=label_with(spec.name, distinct),
            evaluate_past=sweep.document.evaluate_past,
            start="" if spec.start is None else spec.start.digest,
        )
        if spec.drawn_spaces and search.algorithm == "optuna":
            study = Study(spec, search.samples, search.seed, seeds, template)
            studies[study.key] = study
        elif spec.drawn_spaces and isinstance(sweep.scheduler, PbtOptions):
            if entries[template.label] > 1:
                template = replace(template, label=label_with(spec.name, distinct | _described(spec)))
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
        masked_values(resolved(sweep) | {"stream": stream}),
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


def _distinct_options(spec: LearnerSpec, repeated: bool) -> dict[str, Any]:
    """The options in the labels of a learner's configurations, besides those that are searched.

    Args:
        repeated: whether a learner stands several times in the sweep.
    """
    from learners import registry

    options: dict[str, Any] = {}
    if repeated:
        defaults = {item.name: item.default for item in fields(registry.learner_class(spec.name).options_class)}
        options = {key: value for key, value in spec.fixed.items() if value != defaults[key]}
    if spec.start is not None:
        assert spec.start.digest, "its file must be read before the plan is made"
        options["start"] = spec.start.label
    return options


def _described(spec: LearnerSpec) -> dict[str, str]:
    """Each space that values are drawn from as text, such as `uniform(0.1, 1)`."""
    spaces = spec.drawn_spaces.items()
    return {key: f"{space.kind}({', '.join(f'{value}' for value in space.values)})" for key, space in spaces}


def _stream(sweep: Sweep) -> dict[str, Any]:
    return {"name": sweep.recipe.name, "options": sweep.recipe.options(), "schedule": _schedule(sweep.schedule)}


def resolved(sweep: Sweep) -> dict[str, Any]:
    """The configuration of a sweep with every default, as nested mappings; the plan's has the store's hash too."""
    document = sweep.document.model_dump(mode="json")
    network = sweep.document.network or sweep.network
    if isinstance(network, dict) and not {"name", "class"} & network.keys():  # the stream's, with options
        from learners.networks import build  # imports torch

        network = build.read(sweep.network) | network
    learners = [
        {
            "name": spec.name,
            **({} if spec.start is None else {"start": spec.start.source}),
            **spec.fixed,
            **{key: {s.kind: list(s.values)} for key, s in spec.spaces.items()},
        }
        for spec in sweep.learners
    ]
    document["objective"] = sweep.document.objective.model_dump(exclude_none=True)
    return document | {"seeds": sweep.seeds, "network": network, "stream": _stream(sweep), "learners": learners}
