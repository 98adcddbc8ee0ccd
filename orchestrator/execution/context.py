"""The parts of a running sweep that are passed around together."""

from dataclasses import dataclass

from orchestrator.config.schema import Sweep
from orchestrator.console.output import Output
from orchestrator.execution.outcome import Outcome
from orchestrator.plan.task_store import objective_of
from orchestrator.protocol.objectives import ObjectiveMetric
from orchestrator.storage.journal import Journal
from orchestrator.system.signals import StopRequest
from orchestrator.tracking.writer import Writer
from streams.store.task_store import TaskStore


@dataclass(frozen=True)
class SweepContext:
    """The parts of a running sweep.

    Attributes:
        sweep: the checked configuration.
        journal: the plan, and the sweep's folder.
        store: the task store.
        writer: sends results to MLflow.
        outcome: how the trials ended so far.
        stop_request: whether the sweep must stop.
        output: lines on standard error.
    """

    sweep: Sweep
    journal: Journal
    store: TaskStore
    writer: Writer
    outcome: Outcome
    stop_request: StopRequest
    output: Output

    @property
    def objective(self) -> ObjectiveMetric:
        """The objective, to be computed from curves."""
        return objective_of(self.sweep)
