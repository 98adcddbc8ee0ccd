"""Configurations drawn while the sweep runs, by Optuna's tree-structured Parzen estimator.

Optuna keeps nothing on disk: when a sweep resumes, its study is rebuilt from the journal and the chunk files. A trial
that was interrupted is already drawn and resumes; it counts as running.
"""

import math
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from orchestrator.config.search_space import Space
from orchestrator.plan.plan import Plan, Study, Trial
from streams.store.canonical_json import canonical

_ATTEMPTS = 10


@dataclass
class StudyState:
    """A study and the results of its trials.

    Attributes:
        study: the spaces, and how many configurations are drawn from them.
        stacks: hash of a configuration that the study has drawn → its trials.
        others: hashes of the configurations that it might draw and that another part of the plan runs.
        values: key of an ended trial → its objective, NaN if it has none.
        stopped: key → batches, of trials that the scheduler stopped.
    """

    study: Study
    stacks: dict[str, list[Trial]] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)
    stopped: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of configurations to draw."""
        return self.study.size(len(self.others))

    @property
    def is_open(self) -> bool:
        return len(self.stacks) < self.size

    def is_new(self, trial: Trial) -> bool:
        """Whether no trial of the plan has this configuration."""
        return trial.configuration.hash not in self.stacks and trial.configuration.hash not in self.others

    def add(self, trial: Trial) -> None:
        """Note a trial of the plan."""
        if trial.drawn_by == self.study.key:
            self.stacks.setdefault(trial.configuration.hash, []).append(trial)
        elif self.study.fits(trial.configuration):
            self.others.add(trial.configuration.hash)


class Studies:
    """The studies of a plan, which draw the next trial from the results of the earlier ones.

    Args:
        plan: with the trials that were drawn before.
    """

    def __init__(self, plan: Plan) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = {study.key: StudyState(study) for study in plan.studies}
        for trial in plan.trials:
            self._add(trial)

    @property
    def open_draws(self) -> int:
        """Configurations that are still to be drawn."""
        return sum(max(0, state.size - len(state.stacks)) for state in self._states.values())

    def next(self) -> Trial | None:
        """A new trial of the study with the smallest share of its draws, or None if all studies are complete."""
        states = [state for state in self._states.values() if state.is_open]
        if not states:
            return None
        trial = _draw(min(states, key=lambda state: len(state.stacks) / state.size))
        self._add(trial)
        return trial

    def next_in_pack(self, trial: Trial, changeable: Collection[str]) -> Trial | None:
        """A new trial of the same study that differs from `trial` only in `changeable` options, or None.

        Running trials count as bad ones (the constant liar); otherwise those of a pack would be close to one another.
        """
        state = self._states[trial.drawn_by]
        fixed = {key: value for key, value in state.study.draws(trial).items() if key not in changeable}
        if not state.is_open or len(fixed) == len(state.study.spaces):
            return None
        for attempt in range(_ATTEMPTS):
            other = state.study.trial(_sample(state, attempt, fixed))
            if state.is_new(other):
                self._add(other)
                return other
        return None

    def record(self, trial: Trial, value: float, stopped_at: int | None = None) -> None:
        """Record the result of a trial that has ended.

        Args:
            value: its objective, the mean over its seeds; NaN if it failed or a seed diverged.
            stopped_at: the batch after which the scheduler stopped it; `value` is the objective at that batch.
        """
        state = self._states.get(trial.drawn_by)
        if state is not None:
            state.values[trial.key] = value
            if stopped_at is not None:
                state.stopped[trial.key] = stopped_at

    def _add(self, trial: Trial) -> None:
        for state in self._states.values():
            state.add(trial)


def _draw(state: StudyState) -> Trial:
    """A trial of an open study with a configuration that no trial of the plan has."""
    for attempt in range(_ATTEMPTS):
        trial = state.study.trial(_sample(state, attempt))
        if state.is_new(trial):
            return trial
    # Few whole numbers or choices are left, and the estimator repeats the promising ones: draw uniformly.
    rng = np.random.default_rng(_seed(state, _ATTEMPTS))
    while True:
        trial = state.study.trial({key: space.draw(rng) for key, space in state.study.spaces.items()})
        if state.is_new(trial):
            return trial


def _seed(state: StudyState, attempt: int) -> int:
    return zlib.crc32(canonical([state.study.key, len(state.stacks), attempt]).encode())


def _sample(state: StudyState, attempt: int, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Values drawn from all results so far; equal results give equal values.

    Args:
        state: of the study.
        attempt: another number gives other values.
        fixed: values that are not drawn; None for a trial that is not drawn for a pack.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # A choice may be a list, which Optuna discourages because only a study in memory, as this one is, can hold it.
        warnings.filterwarnings("ignore", "Choices for a categorical distribution", UserWarning)
        distributions = {key: _distribution(space) for key, space in state.study.spaces.items()}
        sampler: BaseSampler = TPESampler(seed=_seed(state, attempt), constant_liar=fixed is not None)
        if fixed:
            sampler = PartialFixedSampler(dict(fixed), sampler)
        study = optuna.create_study(sampler=sampler, direction="minimize")
        study.add_trials(_frozen_trials(state, distributions))
        values: dict[str, Any] = study.ask(distributions).params
    return values


def _frozen_trials(state: StudyState, distributions: dict[str, BaseDistribution]) -> Iterator[FrozenTrial]:
    for stacks in state.stacks.values():
        keys, seeds = [trial.key for trial in stacks], [len(trial.seeds) for trial in stacks]
        frozen = partial(optuna.trial.create_trial, params=state.study.draws(stacks[0]), distributions=distributions)
        if not all(key in state.values for key in keys):
            yield frozen(state=TrialState.RUNNING)
            continue
        # Every seed has the same weight, whichever stack it is in; one that diverged makes the mean NaN.
        mean = sum(state.values[key] * count for key, count in zip(keys, seeds, strict=True)) / sum(seeds)
        stopped = [state.stopped[key] for key in keys if key in state.stopped]
        if not math.isfinite(mean):
            yield frozen(state=TrialState.FAIL)
        elif stopped:
            yield frozen(state=TrialState.PRUNED, intermediate_values={min(stopped): mean})
        else:
            yield frozen(state=TrialState.COMPLETE, value=mean)


def _distribution(space: Space) -> BaseDistribution:
    if space.kind == "choice":
        return CategoricalDistribution(space.values)
    low, high = space.values
    if space.kind == "randint":
        return IntDistribution(low, high) if isinstance(low, int) else FloatDistribution(low, high, step=1)
    return FloatDistribution(low, high, log=space.kind == "loguniform")
