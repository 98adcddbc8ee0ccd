"""What `--plan` prints: a plan's trials, what is done of each, and what the rest costs.

docs/sweeps.md describes the keys of the JSON document.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestrator.config.schedulers import RunAll
from orchestrator.config.schema import Sweep
from orchestrator.console.progress import ANY, Work, seconds_left
from orchestrator.errors import ConfigError, ExitCode
from orchestrator.execution.ray_session import Cluster, check_resources, local_gpus
from orchestrator.plan.plan import Plan, Study, Trial
from orchestrator.report.json_document import FORMAT
from orchestrator.search.ledger import Ledger, open_ledger
from orchestrator.search.population.generations import failed_members
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from orchestrator.sweep.cost import Cost, estimate
from orchestrator.system.hardware import size
from streams.store.task_store import TaskStore

State = Literal["waiting", "begun", "finished", "stopped", "failed", "to be drawn"]


@dataclass(frozen=True)
class ForecastRow:
    """A trial, or trials that are still to be drawn.

    Attributes:
        trial: the trial, or one that might be drawn.
        state: its state; `begun` if it has a chunk file and has not ended.
        batches_done: the batches in its newest chunk file.
        cost: of one whole trial.
        count: the number of trials.
        study: the study that will draw them; None for a trial that exists.
    """

    trial: Trial
    state: State
    batches_done: int
    cost: Cost
    count: int = 1
    study: Study | None = None

    @property
    def to_run(self) -> bool:
        """Whether a command would run it or continue it."""
        return self.state in ("waiting", "begun", "to be drawn")

    @property
    def seconds_left(self) -> float:
        """The seconds that are left, of all `count` trials together."""
        if not self.to_run:
            return 0.0
        return self.cost.seconds * self.count * (1 - self.batches_done / self.cost.batches)

    @property
    def works(self) -> list[Work]:
        """The work that is left, trial by trial."""
        batches = self.cost.batches - self.batches_done
        return [Work((ANY,), batches, self.cost.seconds / self.cost.batches)] * self.count if self.to_run else []

    @property
    def label(self) -> str:
        if self.study is None:
            return self.trial.configuration.label
        return " ".join([self.study.template.label, *(f"{key}=?" for key in sorted(self.study.spaces))])

    @property
    def note(self) -> str:
        """The last column of the table."""
        if self.cost.problem:
            return "cannot be measured"
        if self.state == "begun":
            return f"at batch {self.batches_done}"
        return "" if self.state in ("waiting", "to be drawn") else self.state


@dataclass(frozen=True)
class Forecast:
    """The trials of a sweep, and the cost of those that are left.

    Attributes:
        sweep: the checked configuration.
        plan: the trials, and what will be drawn.
        root: the sweep's folder.
        rows: one for each trial, and for each study that has trials to draw.
        slots: trials that run simultaneously on this machine.
        memory: bytes of a learner actor, approximately.
        ledger: the price, the budget, and what is spent.
    """

    sweep: Sweep
    plan: Plan
    root: Path
    rows: tuple[ForecastRow, ...]
    slots: int
    memory: int
    ledger: Ledger

    @property
    def to_run(self) -> int:
        """The number of trials that have not ended."""
        return sum(row.count for row in self.rows if row.to_run)

    @cached_property
    def seconds(self) -> float:
        """Seconds that are left, one trial after the other."""
        return sum(row.seconds_left for row in self.rows)

    @cached_property
    def seconds_at_once(self) -> float:
        """Seconds that are left with `slots` trials at a time."""
        return seconds_left([work for row in self.rows for work in row.works], self.slots) or 0.0

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each trial that cannot be measured."""
        return tuple(
            f"{row.label} ({row.trial.key}): cannot be measured: {row.cost.problem}"
            for row in self.rows
            if row.cost.problem
        )

    @property
    def beyond(self) -> tuple[str, ...]:
        """A line for each resource of which this machine has too little; a cluster may have more."""
        try:
            check_resources(self.sweep, *_here(self.sweep), "this machine")
        except ConfigError as error:
            return error.faults
        return ()

    @property
    def exit_code(self) -> int:
        return ExitCode.SOME_FAILED if self.problems else ExitCode.SUCCESS

    @property
    def disk(self) -> int:
        """Bytes on disk of the trials that have not ended, once they have."""
        return sum(row.cost.disk_bytes * row.count for row in self.rows if row.to_run)

    @property
    def checkpoints(self) -> tuple[int, int]:
        """The number of checkpoints besides the last of each trial, and the bytes of the largest."""
        rows = [row for row in self.rows if row.to_run]
        count = sum(row.cost.checkpoints * row.count for row in rows)
        return count, max((row.cost.learner_bytes for row in rows), default=0)

    @property
    def line(self) -> str:
        """The forecast in one line."""
        return f"{self.sweep.name}: {self._totals()}; cost: about {self.ledger.rates.text(self.seconds)}"

    @property
    def text(self) -> str:
        """Each trial, what is done of it, and what the rest costs in time, disk, memory and money."""
        width = max(len(row.label) for row in self.rows)
        lines = [f"{'hash':12}  {'configuration':{width}}  trials  seeds  batches  gradients/datapoint  seconds"]
        unknown = f"{'?':>19}  {'?':>7}"
        for row in self.rows:
            name = "to be drawn" if row.study else row.trial.configuration.hash
            takes = f"{row.cost.gradient_evaluations_per_datapoint:19.1f}  {row.cost.seconds:7.0f}"
            lines.append(
                f"{name:12}  {row.label:{width}}  {row.count:6}  {len(row.trial.seeds):5}  {row.cost.batches:7}  "
                f"{unknown if row.cost.problem else takes}  {row.note}".rstrip()
            )
        gpus = self.ledger.rates.gpus
        as_here = "if a GPU is no faster than this machine's CPU" if gpus else "on this machine's CPU"
        lines += [
            f"{self._totals()} (measured on this machine's CPU)",
            f"disk: about {size(self.disk)} in {self.root}; memory: about {size(self.memory)} for each of {self.slots} "
            "learner actors",
            f"cost: about {self.ledger.rates.text(self.seconds)} ({as_here}; learning alone)",
        ]
        count, each = self.checkpoints
        if count:
            lines.append(
                f"checkpoints: {count} are kept besides the last of each trial, of at most {size(each)}; "
                "they are in the figure above, and once more in MLflow"
            )
        if self.ledger.has_budget:
            lines.append(f"budget: {self.ledger.text()}")
        lines += [f"not on this machine: {line}" for line in self.beyond]
        lines += [f"problem: {line}" for line in self.problems]
        return "\n".join(lines)

    @property
    def json(self) -> str:
        """The document of `--plan --json`."""
        count, each = self.checkpoints
        content = {
            "format": FORMAT,
            "sweep": self.sweep.name,
            "exit_code": self.exit_code,
            "objective": self.sweep.document.objective.metric,
            "seeds": self.sweep.seeds,
            "folder": str(self.root.absolute()),
            "trials": [_document(row) for row in self.rows],
            "size": self.plan.size,
            "to_run": self.to_run,
            "at_once": self.slots,
            "seconds": self.seconds,
            "seconds_at_once": self.seconds_at_once,
            "disk_bytes": self.disk,
            "memory_bytes": self.memory,
            "checkpoints": count,
            "checkpoint_bytes": each if count else 0,
            **self._costs(),
            "not_on_this_machine": list(self.beyond),
            "problems": list(self.problems),
        }
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)

    def _totals(self) -> str:
        without = f" without {len(self.problems)} that cannot be measured" if self.problems else ""
        return (
            f"{self.plan.size} trials, {self.to_run} to run: {self.seconds:.0f} s one after the other, "
            f"about {self.seconds_at_once:.0f} s with {self.slots} at a time{without}"
        )

    def _costs(self) -> dict[str, Any]:
        rates, budget = self.ledger.rates, self.sweep.document.budget
        hours, money = rates.hours(self.seconds), rates.money(self.seconds)
        spent = {"hours": rates.hours(self.ledger.total), "money": rates.money(self.ledger.total)}
        return {
            "gpu_hours": hours if rates.gpus else None,
            "cpu_hours": None if rates.gpus else hours,
            "money": money,
            "currency": None if rates.price is None else rates.price.currency,
            "spent": spent if self.ledger.is_reported else None,
            "budget": None if budget is None else budget.model_dump(),
        }


def forecast(sweep: Sweep, journal: Journal, store: TaskStore, rerun: bool = False) -> Forecast:
    """Read the sweep's folder, and measure a few batches of each kind of configuration.

    Args:
        sweep: the checked configuration.
        journal: the plan, and the sweep's folder.
        store: the task store.
        rerun: whether all trials will run again.
    """
    plan, root = journal.plan, journal.root
    examples = {study.key: _any_trial(study) for study in plan.studies}
    costs = estimate(sweep, [*plan.trials, *examples.values()], store)
    states: dict[str, State] = {}
    if not rerun and not isinstance(sweep.scheduler, RunAll):  # without a scheduler, stopped trials continue
        states |= dict.fromkeys(journal.stopped(), "stopped")
    for population in () if rerun else plan.populations:
        states |= dict.fromkeys(failed_members(root, population), "failed")
    states |= {} if rerun else dict.fromkeys(journal.finished(), "finished")
    rows = [_row(trial, states, costs, None if rerun else root) for trial in plan.trials]
    for study in plan.studies:
        count = study.size - len({t.configuration.hash for t in plan.trials if t.drawn_by == study.key})
        if count > 0:
            trial = examples[study.key]
            rows.append(ForecastRow(trial, "to be drawn", 0, costs[trial.key], count, study))
    cpus, gpus = _here(sweep)
    slots = Cluster(cpus, gpus, cpus, gpus, local=True).slots(sweep)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # a learner actor holds what this process holds
    ledger = open_ledger(sweep, root, [trial.key for trial in plan.trials] if rerun else ())
    return Forecast(sweep, plan, root, tuple(rows), slots, memory, ledger)


def _here(sweep: Sweep) -> tuple[int, int]:
    """CPUs and GPUs of this machine; GPUs are only counted if the sweep needs any."""
    return os.cpu_count() or 1, local_gpus() if sweep.document.resources.gpus else 0


def _row(trial: Trial, states: Mapping[str, State], costs: Mapping[str, Cost], root: Path | None) -> ForecastRow:
    newest = None if root is None else chunk_files.newest(trial.folder(root))
    done = 0 if newest is None else newest.batches
    return ForecastRow(trial, states.get(trial.key, "begun" if done else "waiting"), done, costs[trial.key])


def _any_trial(study: Study) -> Trial:
    rng = np.random.default_rng(0)
    return study.trial({key: space.draw(rng) for key, space in study.spaces.items()})


def _document(row: ForecastRow) -> dict[str, Any]:
    configuration, measured = row.trial.configuration, not row.cost.problem
    spaces = {} if row.study is None else row.study.spaces
    return {
        "trial": None if row.study else row.trial.key,
        "configuration": None if row.study else configuration.hash,
        "label": row.label,
        "learner": configuration.learner,
        "parameters": {key: value for key, value in configuration.options.items() if key not in spaces},
        "drawn": {key: {space.kind: list(space.values)} for key, space in spaces.items()},
        "population": configuration.population or None,
        "seeds": list(row.trial.seeds),
        "count": row.count,
        "state": row.state,
        "batches": row.cost.batches,
        "batches_done": row.batches_done,
        "gradient_evaluations_per_datapoint": row.cost.gradient_evaluations_per_datapoint if measured else None,
        "seconds": row.cost.seconds if measured else None,
        "seconds_left": row.seconds_left if measured else None,
        "disk_bytes": row.cost.disk_bytes if measured else None,
    }
