"""How the trials of a plan ended."""

from collections.abc import Collection
from dataclasses import dataclass, field

from orchestrator.plan import fate
from orchestrator.plan.fate import Ending, Fate
from orchestrator.plan.plan import Plan


@dataclass
class Outcome:
    """How the trials of a plan ended.

    Attributes:
        plan: the trials.
        fates: trial's key → fate, of the trials that finished, failed or were stopped.
        spent: hours and money, in words; empty without a price and a budget.
        budget_arguments: the `key=value` arguments that raise the budget; empty unless it left trials out.
    """

    plan: Plan
    fates: dict[str, Fate] = field(default_factory=dict)
    spent: str = ""
    budget_arguments: str = ""

    def finish(self, keys: Collection[str]) -> None:
        """Note that these trials finished."""
        self.fates |= dict.fromkeys(keys, fate.FINISHED)

    def of(self, key: str) -> Fate:
        """The fate of a trial; interrupted if it has not ended."""
        return self.fates.get(key, fate.INTERRUPTED)

    @property
    def finished(self) -> set[str]:
        """Keys of the trials that finished."""
        return {key for key, end in self.fates.items() if end.ending is Ending.FINISHED}

    @property
    def failed(self) -> dict[str, str]:
        """Trial's key → reason, of the trials that failed."""
        return {key: end.reason for key, end in self.fates.items() if end.ending is Ending.FAILED}

    @property
    def ended(self) -> set[str]:
        """Keys of the trials that are not run again: those that finished or were stopped."""
        return set(self.fates) - set(self.failed)

    @property
    def open(self) -> int:
        """The number of trials of the plan that have not ended, those to be drawn included."""
        return self.plan.size - len(self.fates)
