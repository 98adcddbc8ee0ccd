"""Which trial is next, and which are not worth going on with."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config.schedulers import AshaOptions
from orchestrator.config.schema import Sweep
from orchestrator.plan.plan import Trial
from orchestrator.search.asha import Asha
from orchestrator.search.ledger import Ledger, Rates
from orchestrator.search.population.rounds import Rounds
from orchestrator.search.population.segments import Leg
from orchestrator.storage.journal import Journal

if TYPE_CHECKING:
    from orchestrator.search.optuna_sampler import Studies


class Search:
    """The trials of a sweep that are still to be run, the planned ones first, then those that are drawn.

    Args:
        sweep: what is searched, and how.
        journal: the plan, and what was found before; what is drawn and what is stopped is noted there.
        ended: keys of the trials that are not to be run (again).
        total_batches: of the whole stream.
        ledger: what was spent before, and the budget; nothing, and none, if not given.
    """

    def __init__(
        self, sweep: Sweep, journal: Journal, ended: set[str], total_batches: int, ledger: Ledger | None = None
    ) -> None:
        self.ledger = ledger or Ledger(Rates(1, 0), None, {})
        self._scheduler, self._metric = sweep.scheduler, sweep.document.objective.metric
        self._journal, self._total = journal, total_batches
        members = {member.key: at for at, each in enumerate(journal.plan.populations) for member in each.members}
        self._populations = [
            Rounds(population, total_batches, self._metric, journal, ended) for population in journal.plan.populations
        ]
        self._rounds = {key: self._populations[at] for key, at in members.items()}
        self._waiting = deque(
            trial for trial in journal.plan.trials if trial.key not in ended and trial.key not in members
        )
        self._asha: dict[str, Asha] = {}
        self._studies: Studies | None = None
        if journal.plan.studies:
            from orchestrator.search.optuna_sampler import Studies  # Optuna, only where it is wanted

            self._studies = Studies(journal.plan)
        if self._studies is not None or isinstance(self._scheduler, AshaOptions):
            self._replay(ended)

    @property
    def draws(self) -> bool:
        """Whether the next trial depends on how those before it end."""
        return self.ledger.limited or (self._studies is not None and not self._waiting)

    @property
    def waits(self) -> bool:
        """Whether there is none to start now, but will be once others have come to the end of their round."""
        return not self.ledger.exhausted and any(rounds.waits for rounds in self._populations)

    @property
    def schedules(self) -> list[Path]:
        """The files that say who copied whom, as far as there are any."""
        return [rounds.path for rounds in self._populations if rounds.path.exists()]

    def leg(self, trial: Trial) -> Leg | None:
        """How far a trial goes on, and with which values; None for one that is in no population."""
        rounds = self._rounds.get(trial.key)
        return None if rounds is None else rounds.leg(trial.key)

    def next(self) -> Trial | None:
        """The next trial to start; None if there is none left, or no budget for it."""
        if self.ledger.exhausted:
            return None
        if self._waiting:
            return self._waiting.popleft()
        for rounds in self._populations:
            if (member := rounds.next()) is not None:
                return member
        trial = None if self._studies is None else self._studies.next()
        if trial is not None:
            self._journal.draw(trial)
        return trial

    def again(self, trial: Trial) -> None:
        """A trial that was handed out has not ended, and is to be started again."""
        rounds = self._rounds.get(trial.key)
        if rounds is None:
            self._waiting.appendleft(trial)
        else:
            rounds.again(trial.key)

    def stops(self, trial: Trial, batches: int, value: float) -> bool:
        """Whether a trial whose objective is `value` after so many batches is to stop; it is noted if so."""
        asha = self._asha_of(trial)
        if asha is None or not asha.stops(trial.key, batches, value):
            return False
        self._journal.stop(trial, batches, value)
        self._tell(trial, value, batches)
        return True

    def ended(self, trial: Trial, value: float) -> None:
        """A trial has come to its end with this objective; NaN if it diverged."""
        self._tell(trial, value, None)

    def paused(self, trial: Trial, fitness: float) -> bool:
        """A member of a population is at the end of its round. Returns whether a decision was made."""
        return self._rounds[trial.key].arrived(trial.key, fitness)

    def failed(self, trial: Trial, reason: str) -> bool:
        """A trial has failed for good. Returns whether a decision was made for the others of its population."""
        self._tell(trial, math.nan, None)
        rounds = self._rounds.get(trial.key)
        return rounds is not None and rounds.lost(trial.key, reason)

    def _tell(self, trial: Trial, value: float, stopped_at: int | None) -> None:
        if self._studies is not None:
            self._studies.tell(trial, value, stopped_at)

    def _asha_of(self, trial: Trial) -> Asha | None:
        """Trials are measured against others of their learner: a learner that starts slowly is not cut off for it."""
        options = self._scheduler
        if not isinstance(options, AshaOptions):
            return None
        first = round(options.grace * self._total)
        return self._asha.setdefault(trial.configuration.learner, Asha(first, options.reduction, self._total))

    def _replay(self, ended: set[str]) -> None:
        """Know what the trials of an earlier command had come to."""
        from orchestrator.protocol import metrics  # torch comes with it
        from orchestrator.storage import trial_files

        stopped = self._journal.stopped()
        for trial in self._journal.plan.trials:
            chunk = trial_files.newest(trial.folder(self._journal.root))
            if chunk is None:
                continue
            reports = metrics.objective_by_chunk(chunk.curves, self._metric)
            asha = self._asha_of(trial)
            if asha is not None:
                asha.replay(trial.key, reports, trial.key in ended)
            if trial.key in ended:
                self._tell(trial, reports[-1][1] if reports else math.nan, stopped.get(trial.key))
