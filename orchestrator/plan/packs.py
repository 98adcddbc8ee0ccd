"""Which trials of a plan share a learner actor as a pack."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace

from orchestrator.config.schema import AUTO_PACK, Sweep
from orchestrator.plan.plan import Trial
from streams.store.canonical_json import canonical

AUTO_REPLICATES = 32
"""Replicates of a pack of the size `auto` on a whole GPU; on a part of one, the same part of them."""


def kind(trial: Trial) -> str | None:
    """What the trials of a pack have in common: all but the `changeable` options of their learner; None if none can.

    Learners outside this package have no pack.
    """
    from learners import registry  # imports torch

    configuration = trial.configuration
    if configuration.learner not in registry.names():
        return None
    may_differ = changeable(trial)
    options = {key: value for key, value in configuration.options.items() if key not in may_differ}
    return canonical([asdict(replace(configuration, options=options, label="")), list(trial.seeds)])


def changeable(trial: Trial) -> tuple[str, ...]:
    """The options in which the trials of a pack may differ."""
    from learners import registry

    return registry.learner_class(trial.configuration.learner).changeable


def window_length(trial: Trial) -> int:
    """The newest batches that a member of a population loses when it copies another (`Learner.window_length`)."""
    from learners import registry

    kind = registry.learner_class(trial.configuration.learner)
    return kind.window_length(kind.options_class(**trial.configuration.options))


def limit(sweep: Sweep, trial: Trial, trials: int, slots: int) -> int:
    """The most trials in the pack of this one: those that have `resources.pack` replicates, and at least one.

    `auto` is one trial on a CPU; on a GPU it leaves no slot without a trial.

    Args:
        sweep: the checked configuration.
        trial: of the pack.
        trials: of all kinds that are to be run.
        slots: actors that run simultaneously.
    """
    resources, seeds = sweep.document.resources, len(trial.seeds)
    if resources.pack != AUTO_PACK:
        return max(1, int(resources.pack) // seeds)
    if not resources.gpus:
        return 1
    return max(1, min(int(AUTO_REPLICATES * min(1, resources.gpus)) // seeds, -(-trials // slots)))


def count(sweep: Sweep, trials: Sequence[tuple[Trial, int]], slots: int) -> int:
    """The number of actors in which these trials are run, each with the batches that it has learned before."""
    kinds: dict[tuple[str, int], list[Trial]] = defaultdict(list)
    alone = 0
    for trial, batches in trials:
        if (of := kind(trial)) is None:
            alone += 1
        else:
            kinds[of, batches].append(trial)
    return alone + sum(-(-len(kin) // limit(sweep, kin[0], len(trials), slots)) for kin in kinds.values())
