"""The cost of a sweep in hours of its learners and in money, and the budget at which no further trial starts.

An hour is a GPU-hour if trials have GPUs, else a CPU-hour: a trial that runs for h hours on g GPUs (c CPUs) costs h·g
(h·c) of them. The time that learners learn is counted, as recorded in the chunk files; the start of actors, idle nodes,
a lost chunk and the cluster's head are not.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.schema import Budget, Price, Sweep
from orchestrator.storage import chunk_files


@dataclass(frozen=True)
class Rates:
    """The cost of one second of a trial.

    Attributes:
        cpus: of a trial.
        gpus: of a trial.
        price: of their hours.
    """

    cpus: float
    gpus: float
    price: Price | None = None

    @property
    def unit(self) -> str:
        return "GPU-hours" if self.gpus else "CPU-hours"

    def hours(self, seconds: float) -> float:
        """GPU-hours, or CPU-hours if a trial has no GPU."""
        return seconds / 3600 * (self.gpus or self.cpus)

    def money(self, seconds: float) -> float | None:
        """The cost in the currency of the price, or None without a price."""
        if self.price is None:
            return None
        return seconds / 3600 * (self.gpus * self.price.gpu_hour + self.cpus * self.price.cpu_hour)

    def text(self, seconds: float) -> str:
        """Hours, and money if there is a price.

        >>> Rates(1, 2, Price(gpu_hour=1.5)).text(1800)
        '1 GPU-hours, 1.50 USD'
        """
        money = self.money(seconds)
        hours = f"{self.hours(seconds):.3g} {self.unit}"
        return hours if money is None or self.price is None else f"{hours}, {money:.2f} {self.price.currency}"


class Ledger:
    """What a sweep has spent: seconds by trial, of this command and of earlier ones.

    Args:
        rates: the cost of a second.
        budget: the limit at which no further trial starts, or None.
        seconds: trial's key → seconds that were spent before, see `seconds_on_disk`.
    """

    def __init__(self, rates: Rates, budget: Budget | None, seconds: Mapping[str, float]) -> None:
        self.rates, self._budget, self._seconds = rates, budget, dict(seconds)
        self.total = sum(self._seconds.values())

    @property
    def is_reported(self) -> bool:
        """Whether the sweep has a price or a budget."""
        return self.has_budget or self.rates.price is not None

    @property
    def has_budget(self) -> bool:
        return self._budget is not None

    @property
    def exhausted(self) -> bool:
        """Whether the budget is reached."""
        if self._budget is None:
            return False
        hours, money = self.rates.hours(self.total), self.rates.money(self.total)
        return (self._budget.hours is not None and hours >= self._budget.hours) or (
            self._budget.money is not None and money is not None and money >= self._budget.money
        )

    def record(self, key: str, seconds: float) -> bool:
        """Set the seconds of a trial since its first start; true if the budget is reached by this call."""
        before = self.exhausted
        self.total += seconds - self._seconds.get(key, 0.0)
        self._seconds[key] = seconds
        return self.exhausted and not before

    def text(self) -> str:
        """What is spent, and the limits."""
        spent = f"{self.rates.text(self.total)} spent"
        if self._budget is None:
            return spent
        limits = [] if self._budget.hours is None else [f"{self._budget.hours:g} {self.rates.unit}"]
        if self._budget.money is not None and self.rates.price is not None:
            limits.append(f"{self._budget.money:.2f} {self.rates.price.currency}")
        return f"{spent} of {' or '.join(limits)}"

    def overrides(self) -> str:
        """The command-line arguments that raise the budget."""
        limits = {} if self._budget is None else self._budget.model_dump(exclude_none=True)
        return " ".join(f"budget.{key}=…" for key in limits)


def open_ledger(sweep: Sweep, root: Path, deleted: Collection[str] = ()) -> Ledger:
    """The ledger of the sweep in the folder `root`, without the trials whose keys are in `deleted`."""
    document = sweep.document
    rates = Rates(document.resources.cpus, document.resources.gpus, document.price)
    counts = document.budget is not None or document.price is not None
    seconds = seconds_on_disk(root) if counts else {}
    return Ledger(rates, document.budget, {key: each for key, each in seconds.items() if key not in deleted})


def seconds_on_disk(root: Path) -> dict[str, float]:
    """Trial's key → seconds of learning, of every trial in a sweep's folder that has a chunk file."""
    seconds = {}
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        with suppress(FileNotFoundError):  # the folder of Ray Tune, which is deleted when the sweep ends
            if (chunk := chunk_files.newest(folder)) is not None:
                seconds[folder.name] = float(chunk.curves.chunks["seconds"].sum())
    return seconds
