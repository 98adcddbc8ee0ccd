"""How the trials of a plan ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.plan.plan import Plan


@dataclass
class Outcome:
    """How the trials of a plan ended: keys of the finished ones, key → reason of the failed ones, and key → batches of
    those that the scheduler stopped.

    ``spent``: in words, where there is a price or a budget. ``over_budget``: the words that raise the budget, if trials
    were left for want of it.
    """

    plan: Plan
    finished: set[str]
    failed: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, int] = field(default_factory=dict)
    spent: str = ""
    over_budget: str = ""

    @property
    def ended(self) -> set[str]:
        """Keys of the trials that are not to be run again."""
        return self.finished | set(self.stopped)
