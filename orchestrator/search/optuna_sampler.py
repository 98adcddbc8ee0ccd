"""Configurations that are drawn while the sweep runs: Optuna's tree-structured Parzen estimator, asked and told.

What Optuna knows is not kept on disk: it is told anew, whenever a sweep is taken up again, what the journal and the
chunk files say. A trial that was interrupted is drawn already and goes on; it is never told as if it had ended.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from orchestrator.config.search_space import Space
from orchestrator.plan.plan import Plan, Study, Trial, canonical

_OTHER_DRAWS = 10


@dataclass
class _Told:
    """A study, and what became of its draws.

    ``stacks``: configuration → its trials. ``values``: key of a trial that has ended → its objective, NaN if it has
    none. ``stopped``: key → batches, of those that were not worth going on with.
    """

    of: Study
    stacks: dict[str, list[Trial]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    stopped: dict[str, int] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return len(self.stacks) < self.of.wanted


class Studies:
    """The studies of a plan: which trial comes next, and what the trials before it came to.

    Args:
        plan: with the trials that were drawn before, if any.
    """

    def __init__(self, plan: Plan) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._told = {study.key: _Told(study) for study in plan.studies}
        for trial in plan.trials:
            self._note(trial)

    def next(self) -> Trial | None:
        """A newly drawn trial, of the study that is least far on; None if every study has all that it wants."""
        unfinished = [told for told in self._told.values() if told.open]
        if not unfinished:
            return None
        trial = _draw(min(unfinished, key=lambda each: len(each.stacks) / each.of.wanted))
        self._note(trial)
        return trial

    def tell(self, trial: Trial, value: float, stopped_at: int | None = None) -> None:
        """A trial has ended.

        Args:
            value: its objective, the mean over its seeds; NaN if it failed or a seed diverged.
            stopped_at: the batch after which the scheduler stopped it; `value` is the one it had then.
        """
        told = self._told.get(trial.drawn_by)
        if told is not None:
            told.values[trial.key] = value
            if stopped_at is not None:
                told.stopped[trial.key] = stopped_at

    def _note(self, trial: Trial) -> None:
        told = self._told.get(trial.drawn_by)
        if told is not None:
            told.stacks.setdefault(trial.configuration.hash, []).append(trial)


def _draw(told: _Told) -> Trial:
    """A trial that is not there yet, of a study that is open."""
    for attempt in range(_OTHER_DRAWS):
        trial = told.of.trial(_sample(told, attempt))
        if trial.configuration.hash not in told.stacks:
            return trial
    # Few whole numbers or choices are left, and the estimator keeps to those that it likes: any of the others.
    rng = np.random.default_rng(_seed(told, _OTHER_DRAWS))
    while True:
        trial = told.of.trial({key: space.draw(rng) for key, space in told.of.spaces.items()})
        if trial.configuration.hash not in told.stacks:
            return trial


def _seed(told: _Told, attempt: int) -> int:
    return zlib.crc32(canonical([told.of.key, len(told.stacks), attempt]).encode())


def _sample(told: _Told, attempt: int) -> dict[str, Any]:
    """A draw from all that is known; the same knowledge gives the same draw."""
    distributions = {key: _distribution(space) for key, space in told.of.spaces.items()}
    sampler = optuna.samplers.TPESampler(seed=_seed(told, attempt))
    study = optuna.create_study(sampler=sampler, direction="minimize")
    study.add_trials(_known(told, distributions))
    drawn: dict[str, Any] = study.ask(distributions).params
    return drawn


def _known(told: _Told, distributions: dict[str, BaseDistribution]) -> Iterator[FrozenTrial]:
    for stacks in told.stacks.values():
        keys, seeds = [trial.key for trial in stacks], [len(trial.seeds) for trial in stacks]
        frozen = partial(optuna.trial.create_trial, params=told.of.draws(stacks[0]), distributions=distributions)
        if not all(key in told.values for key in keys):
            yield frozen(state=TrialState.RUNNING)
            continue
        # Every seed counts alike, whichever stack it is in; one that is lost spoils the mean.
        mean = sum(told.values[key] * count for key, count in zip(keys, seeds, strict=True)) / sum(seeds)
        stopped = [told.stopped[key] for key in keys if key in told.stopped]
        if not math.isfinite(mean):
            yield frozen(state=TrialState.FAIL)
        elif stopped:
            at = {min(stopped): mean}
            yield frozen(state=TrialState.PRUNED, intermediate_values=at)
        else:
            yield frozen(state=TrialState.COMPLETE, value=mean)


def _distribution(space: Space) -> BaseDistribution:
    if space.kind == "choice":
        return CategoricalDistribution(space.values)
    low, high = space.values
    if space.kind == "randint":
        return IntDistribution(low, high) if isinstance(low, int) else FloatDistribution(low, high, step=1)
    return FloatDistribution(low, high, log=space.kind == "loguniform")
