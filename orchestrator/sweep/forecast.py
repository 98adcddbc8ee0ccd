"""What `--plan` prints: a plan's trials, what is done of each, and what the rest costs.

docs/sweeps.md describes the keys of the JSON document.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestrator.config.schedulers import RunAll
from orchestrator.config.schema import Sweep
from orchestrator.errors import ConfigError, ExitCode
from orchestrator.execution.ray_session import Cluster, check_resources, local_gpus
from orchestrator.plan import packs
from orchestrator.plan.plan import Plan, Study, Trial
from orchestrator.plan.task_store import objective_of
from orchestrator.protocol.source import StoreSource, StreamShape
from orchestrator.report.json_document import FORMAT
from orchestrator.search.ledger import Ledger, open_ledger
from orchestrator.search.population.generations import failed_members
from orchestrator.search.trial_queue import finished_trials, stopped_before
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from orchestrator.sweep.cost import Cost
from orchestrator.sweep.cost_process import Contention, estimate
from orchestrator.system.hardware import machine_bytes, peak_memory, size
from streams.store.task_store import TaskStore

OVERHEAD_S = 20.0
"""Seconds that a sweep takes besides learning, on two cores: Ray and the first actors start; the report is written."""

LARGE = 2_000_000_000
"""Bytes of a learner actor above which the plan names it: several times those of the paper's learners and networks."""

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
        shape: of the streams.
        contention: how much simultaneous trials slow each other down.
    """

    sweep: Sweep
    plan: Plan
    root: Path
    rows: tuple[ForecastRow, ...]
    slots: int
    memory: int
    ledger: Ledger
    shape: StreamShape
    contention: Contention

    @property
    def to_run(self) -> int:
        """The number of trials that have not ended."""
        return sum(row.count for row in self.rows if row.to_run)

    @cached_property
    def seconds(self) -> float:
        """Seconds of learning that are left, of all trials together, as many of them side by side as run here."""
        return sum(row.seconds_left for row in self.rows)

    @cached_property
    def seconds_at_once(self) -> float:
        """Seconds from the start of the sweep to its end, with `slots` trials at a time."""
        trials = [row.seconds_left / row.count for row in self.rows if row.to_run for _ in range(row.count)]
        return OVERHEAD_S + wall_seconds(trials, self.slots, self.contention) if trials else 0.0

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

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """A line for each property of the plan that one should know."""
        batch_size, lines = self.sweep.document.batch_size, []
        if self.shape.has_boundaries and any(end % batch_size for ends in self.shape.ends for end, _ in ends[:-1]):
            lines.append(
                f"tasks are not multiples of batch_size={batch_size} long: a batch may hold datapoints of two tasks; a "
                "learner that needs boundaries learns these separately"
            )
        if (pack := self.sweep.document.resources.pack) != 1:
            rows = [(row.trial, row.batches_done) for row in self.rows if row.to_run for _ in range(row.count)]
            actors = packs.count(self.sweep, rows, self.slots)
            # A drawn value may separate trials, and a scheduler ends packs early.
            depends = any(row.study for row in self.rows) or not isinstance(self.sweep.scheduler, RunAll)
            lines.append(
                f"resources.pack is {pack}: {len(rows)} trials in {'at least ' * depends}{actors} learner actors; "
                "the figures are those of trials alone"
            )
        large = {row.label: row.cost.memory for row in self.rows if row.to_run and row.cost.memory > LARGE}
        lines += [f"{label}: a learner actor holds about {size(memory)}" for label, memory in large.items()]
        available = machine_bytes()
        if self.memory * self.slots > available:
            lines.append(
                f"{self.slots} learner actors of about {size(self.memory)} need more memory than the {size(available)} "
                "of this machine: a larger resources.cpus runs fewer simultaneously"
            )
        return tuple(lines)

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
                "they are in the figure above, and a second time in MLflow"
            )
        if self.ledger.has_budget:
            lines.append(f"budget: {self.ledger.text()}")
        lines += [f"note: {line}" for line in self.notes]
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
            "objective": objective_of(self.sweep).name,
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
            "notes": list(self.notes),
            "not_on_this_machine": list(self.beyond),
            "problems": list(self.problems),
        }
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)

    def _totals(self) -> str:
        without = f" without {len(self.problems)} that cannot be measured" if self.problems else ""
        return (
            f"{self.plan.size} trials, {self.to_run} to run: {self.seconds:.0f} s of learning, "
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


def forecast(sweep: Sweep, journal: Journal, store: TaskStore) -> Forecast:
    """Read the sweep's folder, and measure a few batches of each kind of configuration.

    Args:
        sweep: the checked configuration.
        journal: the plan, and the sweep's folder; trials that it discards are run again.
        store: the task store.
    """
    plan, root, discarded = journal.plan, journal.root, journal.discarded
    cpus, gpus = _here(sweep)
    slots = Cluster(cpus, gpus, cpus, gpus, local=True).slots(sweep)
    states: dict[str, State] = dict.fromkeys(stopped_before(sweep, journal), "stopped")
    for population in plan.populations:
        states |= dict.fromkeys(failed_members(root, population), "failed")
    states |= dict.fromkeys(finished_trials(sweep, journal), "finished")
    states = {key: state for key, state in states.items() if key not in discarded}
    to_draw = {study.key: plan.open_draws(study) for study in plan.studies}
    examples = {study.key: _any_trial(study) for study in plan.studies}
    running = sum(trial.key not in states for trial in plan.trials) + sum(to_draw.values())
    costs, contention = estimate(sweep, [*plan.trials, *examples.values()], store, min(slots, running))
    rows = [_row(trial, states, costs, None if trial.key in discarded else root) for trial in plan.trials]
    for study in plan.studies:
        if count := to_draw[study.key]:
            trial = examples[study.key]
            rows.append(ForecastRow(trial, "to be drawn", 0, costs[trial.key], count, study))
    # A learner actor holds what this process held.
    memory = max((row.cost.memory for row in rows if row.to_run), default=0) or peak_memory()
    ledger = open_ledger(sweep, root, discarded)
    shape = StoreSource(store, sweep.seeds, sweep.schedule).shape()
    return Forecast(sweep, plan, root, tuple(rows), slots, memory, ledger, shape, contention)


def wall_seconds(trials: Sequence[float], slots: int, contention: Contention) -> float:
    """Seconds until the last of some trials ends.

    Args:
        trials: the seconds that each takes beside as many others as the slots hold, in the order in which they start.
        slots: trials that run simultaneously.
        contention: the pace of those that run beside fewer.

    >>> wall_seconds([10, 10, 10], 2, Contention(2, 2.0))  # the third one runs alone, twice as fast
    15.0
    """
    waiting, running, seconds = list(reversed(trials)), list[float](), 0.0
    full = contention.factor(max(1, min(slots, len(trials))))
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop())
        least = min(running)
        seconds += least * contention.factor(len(running)) / full
        running = [left - least for left in running if left > least]
    return seconds


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
        "memory_bytes": row.cost.memory if measured else None,
    }
