"""The queue of trials: which one starts next, and which ones stop early."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config.schedulers import AshaOptions
from orchestrator.config.schema import Sweep
from orchestrator.plan import packs
from orchestrator.plan.plan import Trial
from orchestrator.plan.task_store import objective_of
from orchestrator.protocol.objectives import ObjectiveError
from orchestrator.search.asha import Asha
from orchestrator.search.ledger import Ledger, Rates
from orchestrator.search.population.generations import Generations
from orchestrator.search.population.segments import SegmentPlan
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from orchestrator.storage.remote_folder import FAILURES

if TYPE_CHECKING:
    from orchestrator.search.optuna_sampler import Studies


def stopped_before(sweep: Sweep, journal: Journal) -> dict[str, int]:
    """Key → batches, of the trials that successive halving has stopped; without it, they continue."""
    return journal.stopped() if isinstance(sweep.scheduler, AshaOptions) else {}


def finished_trials(sweep: Sweep, journal: Journal, quarantined: list[str] | None = None) -> set[str]:
    """The keys of the finished trials, without those whose objective, the user's own function, raises at their end.

    These have failed, and the next command tries them again: their actors learn nothing, and report the error, unless
    the function has been repaired.

    Args:
        sweep: the objective.
        journal: of the sweep.
        quarantined: as for `Journal.finished`.
    """
    finished, raising = journal.finished(quarantined), set[str]()
    objective = objective_of(sweep)
    for key in finished if objective.function is not None else ():
        chunk = chunk_files.newest(journal.plan.trial(key).folder(journal.root))
        try:
            if chunk is not None:
                objective(chunk.curves)
        except ObjectiveError:
            raising.add(key)
    return finished - raising


class TrialQueue:
    """The trials of a sweep that are still to be run: the planned ones first, then those that are drawn.

    Args:
        sweep: the search, its scheduler and the objective.
        journal: of the sweep; trials that are drawn or stopped are recorded there.
        ended: keys of the trials that are not to be run again.
        total_batches: of the whole stream.
        ledger: what was spent before, and the budget; without one, there is no budget.
    """

    def __init__(
        self, sweep: Sweep, journal: Journal, ended: set[str], total_batches: int, ledger: Ledger | None = None
    ) -> None:
        self.ledger = ledger or Ledger(Rates(1, 0), None, {})
        self._scheduler, self._objective = sweep.scheduler, objective_of(sweep)
        self._journal, self._total = journal, total_batches
        self._populations = [
            Generations(population, total_batches, self._objective.name, journal, ended)
            for population in journal.plan.populations
        ]
        self._population_of = {member.key: each for each in self._populations for member in each.population.members}
        self._sweep, self._most_after_death = sweep, dict[str, int]()
        self._batches = dict[str, int]()  # key → batches learned, of trials that ran in this command
        self._waiting = deque(
            trial for trial in journal.plan.trials if trial.key not in ended and trial.key not in self._population_of
        )
        self._asha: dict[str, Asha] = {}
        self._studies: Studies | None = None
        if journal.plan.studies:
            from orchestrator.search.optuna_sampler import Studies  # Optuna takes a second to import

            self._studies = Studies(journal.plan)
        members = len(self._population_of.keys() - ended)
        self._to_run = len(self._waiting) + members + (0 if self._studies is None else self._studies.open_draws)
        if self._studies is not None or isinstance(self._scheduler, AshaOptions):
            self._replay(ended)

    @property
    def draws(self) -> bool:
        """Whether the next trial depends on the results of the running ones."""
        return self.ledger.has_budget or (self._studies is not None and not self._waiting)

    @property
    def waits(self) -> bool:
        """Whether trials will be ready once running members of a population have paused."""
        return not self.ledger.exhausted and any(population.waits for population in self._populations)

    @property
    def population_files(self) -> list[Path]:
        """The existing files that record who copied whom."""
        return [population.path for population in self._populations if population.path.exists()]

    def segment_plan(self, trial: Trial) -> SegmentPlan | None:
        """The segments of a member of a population, or None for any other trial."""
        population = self._population_of.get(trial.key)
        return None if population is None else population.segment_plan(trial.key)

    def next(self) -> Trial | None:
        """The next trial to start, or None if none is ready or the budget is reached."""
        if self.ledger.exhausted:
            return None
        for waiting in (self._waiting, *(population.waiting for population in self._populations)):
            if waiting:
                return waiting.popleft()
        trial = None if self._studies is None else self._studies.next()
        if trial is not None:
            self._journal.draw(trial)
        return trial

    def next_pack(self, slots: int) -> tuple[Trial, ...]:
        """The next trials that start together in one actor; empty if none is ready.

        They are at the same batch, and members of a population that may share a pack have copied others equally long
        ago. Trials of an actor that died are half as many.

        Args:
            slots: actors that run simultaneously.
        """
        first = self.next()
        if first is None:
            return ()
        most = packs.limit(self._sweep, first, self._to_run, slots)
        most = min(most, self._most_after_death.get(first.key, most))
        if most == 1 or (kind := self._kind(first)) is None:
            return (first,)
        waiting = self._waiting_with(first)
        kin = [*itertools.islice((trial for trial in waiting if self._kind(trial) == kind), most - 1)]
        for trial in kin:
            waiting.remove(trial)
        pack = (first, *kin)
        batches = kind[1]
        return (*pack, *(self._drawn_with(first, most - len(pack)) if batches == 0 else ()))

    def _drawn_with(self, first: Trial, most: int) -> Iterator[Trial]:
        """At most this number of new trials of the pack of a trial that was drawn."""
        if self._studies is None or not first.drawn_by:
            return
        changeable = packs.changeable(first)
        for _ in range(most):
            trial = self._studies.next_in_pack(first, changeable)
            if trial is None:
                return
            self._journal.draw(trial)
            yield trial

    def proceed(self, trial: Trial) -> None:
        """Continue a trial that gave its actor up: the scheduler stopped others of its pack, or its node goes away."""
        self._waiting_with(trial).appendleft(trial)

    def _waiting_with(self, trial: Trial) -> deque[Trial]:
        """The trials that wait, of its population if the trial has one."""
        population = self._population_of.get(trial.key)
        return self._waiting if population is None else population.waiting

    def _kind(self, trial: Trial) -> tuple[str, int, int, int | None] | None:
        """What trials of a pack have in common; None for a trial that starts alone.

        These are the kind, the batches learned, how many of them are in the window of a member that may have copied
        another, and the limit on the size of their pack if an actor of theirs has died.
        """
        kind = packs.kind(trial)
        if kind is None:
            return None
        batches, plan = self._batches_of(trial), self.segment_plan(trial)
        in_window = 0 if plan is None else min(plan.since_copy(batches), packs.window_length(trial))
        return kind, batches, in_window, self._most_after_death.get(trial.key)

    def _batches_of(self, trial: Trial) -> int:
        """The batches that a trial has learned: at an address, the local copy of its folder is not synchronized."""
        if self._journal.mirror is not None and trial.key in self._batches:
            return self._batches[trial.key]
        return chunk_files.newest_step(trial.folder(self._journal.root))

    def note_batches(self, trial: Trial, batches: int) -> None:
        """Note that a trial has learned this number of batches, and that its chunk file exists."""
        self._batches[trial.key] = batches

    def requeue(self, trial: Trial, pack: int) -> None:
        """Start a trial again whose actor has died with a pack of this size, in a pack of half of it, rounded up.

        Halves may fit into memory where the whole did not, and separate a trial that ends its process from the others.
        """
        self._most_after_death[trial.key] = -(-pack // 2)
        if (mirror := self._journal.mirror) is not None:
            with suppress(*FAILURES):  # it may have written a chunk file that it did not report
                self.note_batches(trial, mirror.newest_step(trial.key))
        self.proceed(trial)

    def stopped(self, batches: int, reports: Sequence[tuple[Trial, float]]) -> list[Trial]:
        """The trials that the scheduler stops, of a pack that has learned `batches` batches; they are recorded.

        Args:
            batches: learned so far.
            reports: trials of one learner, each with its objective.
        """
        asha = self._asha_of(reports[0][0]) if reports else None
        if asha is None:
            return []
        keys = asha.stopped(batches, {trial.key: self._objective.sign * value for trial, value in reports})
        stopped = [(trial, value) for trial, value in reports if trial.key in keys]
        for trial, value in stopped:
            self._journal.stop(trial, batches, value)
            self._record(trial, value, batches)
        return [trial for trial, _ in stopped]

    def rungs(self, trial: Trial) -> tuple[int, ...]:
        """The batches at which the scheduler judges a trial."""
        asha = self._asha_of(trial)
        return () if asha is None else asha.rungs

    def finish(self, trial: Trial, value: float) -> None:
        """Record the objective of a trial at the end of the stream; NaN if a seed diverged."""
        self._record(trial, value, None)

    def pause(self, trial: Trial, fitness: float) -> bool:
        """Record that a member has reached the end of its generation; true if an exploit step followed."""
        return self._population_of[trial.key].pause(trial.key, fitness)

    def fail(self, trial: Trial, reason: str) -> bool:
        """Record that a trial has failed permanently; true if an exploit step of its population followed."""
        self._record(trial, math.nan, None)
        population = self._population_of.get(trial.key)
        return population is not None and population.fail(trial.key, reason)

    def _record(self, trial: Trial, value: float, stopped_at: int | None) -> None:
        if self._studies is not None:
            self._studies.record(trial, self._objective.sign * value, stopped_at)

    def _asha_of(self, trial: Trial) -> Asha | None:
        """The rungs of a trial's learner: a learner that starts slowly is not compared with others."""
        options = self._scheduler
        if not isinstance(options, AshaOptions):
            return None
        first = round(options.grace * self._total)
        return self._asha.setdefault(trial.configuration.learner, Asha(first, options.reduction, self._total))

    def _replay(self, ended: set[str]) -> None:
        """Restore the results of earlier commands."""
        stopped = self._journal.stopped()
        for trial in self._journal.plan.trials:
            chunk = chunk_files.newest(trial.folder(self._journal.root))
            if chunk is None:
                continue
            try:
                reports = self._objective.by_chunk(chunk.curves)
            except ObjectiveError:  # the trial has failed for it; if it is tried again, its actor says so
                reports = []
            asha = self._asha_of(trial)
            if asha is not None:
                signed = [(batches, self._objective.sign * value) for batches, value in reports]
                asha.replay(trial.key, signed, trial.key in ended)
            if trial.key in ended:
                self._record(trial, reports[-1][1] if reports else math.nan, stopped.get(trial.key))
