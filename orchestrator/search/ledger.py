"""What a sweep costs in hours of its learners and in money, and the budget at which it starts no more trials.

An hour is a GPU-hour where trials have GPUs, else a CPU-hour: a trial that runs for h hours on g GPUs (c CPUs) takes
h·g (h·c) of them. What counts is the time that learners learn, as the chunk files have it; how long actors take to
start, nodes that wait, a chunk that was lost and the cluster's head are not in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config.schema import Budget, Price

if TYPE_CHECKING:
    from orchestrator.config.schema import Sweep


@dataclass(frozen=True)
class Rates:
    """What one second of a trial takes, by its `gpus` and `cpus` and the price of their hours."""

    cpus: float
    gpus: float
    price: Price | None = None

    @property
    def unit(self) -> str:
        return "GPU-hours" if self.gpus else "CPU-hours"

    def hours(self, seconds: float) -> float:
        """GPU-hours, or CPU-hours where a trial has no GPU."""
        return seconds / 3600 * (self.gpus or self.cpus)

    def money(self, seconds: float) -> float | None:
        """None without a price."""
        if self.price is None:
            return None
        return seconds / 3600 * (self.gpus * self.price.gpu_hour + self.cpus * self.price.cpu_hour)

    def text(self, seconds: float) -> str:
        """Hours, and money where there is a price.

        >>> Rates(1, 2, Price(gpu_hour=1.5)).text(1800)
        '1 GPU-hours, 1.50 USD'
        """
        money = self.money(seconds)
        hours = f"{self.hours(seconds):.3g} {self.unit}"
        return hours if money is None or self.price is None else f"{hours}, {money:.2f} {self.price.currency}"


class Ledger:
    """What a sweep has spent: seconds by trial, those of earlier commands included.

    Args:
        rates: what a second takes.
        budget: where to stop starting trials; None: nowhere.
        seconds: what was spent before, as `of_disk` finds it.
    """

    def __init__(self, rates: Rates, budget: Budget | None, seconds: Mapping[str, float]) -> None:
        self.rates, self._budget, self._seconds = rates, budget, dict(seconds)
        self.total = sum(self._seconds.values())

    @property
    def matters(self) -> bool:
        """Whether anybody asked: there is a price or a budget."""
        return self.limited or self.rates.price is not None

    @property
    def limited(self) -> bool:
        """Whether there is a budget."""
        return self._budget is not None

    @property
    def exhausted(self) -> bool:
        """Whether the budget is reached; never without one."""
        if self._budget is None:
            return False
        hours, money = self.rates.hours(self.total), self.rates.money(self.total)
        return (self._budget.hours is not None and hours >= self._budget.hours) or (
            self._budget.money is not None and money is not None and money >= self._budget.money
        )

    def note(self, key: str, seconds: float) -> bool:
        """All that a trial has taken since it was first begun. Returns whether this is what reaches the budget."""
        before = self.exhausted
        self.total += seconds - self._seconds.get(key, 0.0)
        self._seconds[key] = seconds
        return self.exhausted and not before

    def text(self) -> str:
        """What is spent, and of how much."""
        spent = f"{self.rates.text(self.total)} spent"
        if self._budget is None:
            return spent
        limits = [] if self._budget.hours is None else [f"{self._budget.hours:g} {self.rates.unit}"]
        if self._budget.money is not None and self.rates.price is not None:
            limits.append(f"{self._budget.money:.2f} {self.rates.price.currency}")
        return f"{spent} of {' or '.join(limits)}"

    def words(self) -> str:
        """What raises the budget on the command line."""
        given = {} if self._budget is None else self._budget.model_dump(exclude_none=True)
        return " ".join(f"budget.{key}=…" for key in given)


def open_ledger(sweep: Sweep, root: Path, forgotten: Collection[str] = ()) -> Ledger:
    """The ledger of the sweep in the folder `root`, as the chunk files there have it, but for those of the trials whose
    keys are `forgotten`."""
    document = sweep.document
    rates = Rates(document.resources.cpus, document.resources.gpus, document.price)
    asked = document.budget is not None or document.price is not None
    seconds = of_disk(root) if asked else {}
    return Ledger(rates, document.budget, {key: each for key, each in seconds.items() if key not in forgotten})


def of_disk(root: Path) -> dict[str, float]:
    """Trial's key → seconds, of every trial that has a chunk file in a sweep's folder."""
    from orchestrator.storage import trial_files  # torch comes with it

    found = {}
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        with suppress(FileNotFoundError):  # no trial's: Tune's own, which goes when the sweep ends
            if (chunk := trial_files.newest(folder)) is not None:
                found[folder.name] = float(chunk.curves.chunks["seconds"].sum())
    return found
