"""What the driver and a learner actor send each other through Tune: a `TrialSpec` there, a `ChunkResult` back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestrator.plan.plan import Trial
from orchestrator.protocol.curves import Curves
from orchestrator.protocol.objectives import ObjectiveMetric
from orchestrator.search.population.segments import SegmentPlan
from streams.schedule import Schedule

_TRIAL, _RESULT = "trial", "result"  # the one key of a configuration, and of a result, that Tune is handed


@dataclass(frozen=True)
class TrialSpec:
    """Everything a learner actor must know to run a trial.

    Attributes:
        trial: the configuration and the seeds.
        folder: the trial's folder, absolute.
        store: the hash of the task store.
        schedule: the order of the stream's tasks.
        chunk: batches between two results, or `auto`.
        keep_checkpoints: which checkpoints are kept besides the last one.
        threads: threads of torch.
        gpus: GPUs of the actor; may be a fraction.
        address: where the trial's files are kept instead of `folder`; None if nowhere else.
        segments: what a population member trains next; None outside a population.
        parents: trial's key → address, of the members whose state may be copied; empty where they have folders.
        objective: of the sweep.
        start: the checkpoint whose weights the learner starts from; None if there is none.
        modules: the folder where the module of the user's own learner is searched; None if it needs none.
        rungs: batches after which a chunk of the length `auto` ends, since the scheduler judges the trial there.
        others: the other trials of its pack, which the same actor runs.
    """

    trial: Trial
    folder: str
    store: str
    schedule: Schedule
    chunk: int | str
    keep_checkpoints: str | int
    threads: int
    gpus: float
    address: str | None = None
    segments: SegmentPlan | None = None
    parents: Mapping[str, str] = field(default_factory=dict)
    modules: str | None = None
    objective: ObjectiveMetric = ObjectiveMetric()
    start: str | None = None
    rungs: tuple[int, ...] = ()
    others: tuple[TrialSpec, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> TrialSpec:
        """This object, which nothing changes: Tune copies a trial's configuration four times."""
        return self

    @property
    def pack(self) -> tuple[TrialSpec, ...]:
        """All trials of the actor, this one first."""
        return (self, *self.others)

    def to_tune(self) -> dict[str, Any]:
        """The configuration of the Tune trial, which is the whole pack."""
        return {_TRIAL: self}

    @staticmethod
    def from_tune(config: Mapping[str, Any]) -> TrialSpec:
        """The first trial of a Tune trial's pack."""
        spec: TrialSpec = config[_TRIAL]
        return spec


@dataclass(frozen=True)
class ChunkResult:
    """What a learner actor reports after each chunk.

    Attributes:
        batches: batches learned so far.
        total_batches: batches of the whole stream.
        seconds: time spent learning since the trial started, all attempts together.
        curves: what the chunk measured.
        objectives: metric → value of each seed [R]; a metric is missing as long as it has no value.
        finished: whether the stream is over.
        fitness: of a population member at its pause; else None.
        remarks: lines for the sweep's output.
        memory: bytes that the actor's process holds, in a pack the trial's share; None if not known.
        gpu_memory: bytes that it holds on its GPU, in a pack the trial's share; 0 without a GPU.
    """

    batches: int
    total_batches: int
    seconds: float
    curves: Curves
    # Tune writes every result into messages (as in `Curves.__repr__`).
    objectives: dict[str, np.ndarray] = field(repr=False)
    finished: bool
    fitness: float | None
    remarks: tuple[str, ...]
    memory: int | None
    gpu_memory: int

    @property
    def trial_over(self) -> bool:
        """Whether Tune must end its trial: the stream is over, or the population member pauses."""
        return self.finished or self.fitness is not None

    def objective(self, metric: str) -> float | None:
        """The mean over the seeds, NaN if one diverged; None as long as there is no value."""
        return float(self.objectives[metric].mean()) if metric in self.objectives else None


@dataclass(frozen=True)
class Refusal:
    """A trial whose learner refuses its options or its stream; another attempt would fail, too.

    Attributes:
        reason: in one line.
    """

    reason: str
    trial_over = True


Result = ChunkResult | Refusal


def to_tune(results: Sequence[Result]) -> dict[str, Any]:
    """The result that Tune is handed by an actor's `step`, from those of the pack's trials, in order."""
    return {"done": all(result.trial_over for result in results), _RESULT: tuple(results)}


def from_tune(result: dict[str, Any], remove: bool = False) -> tuple[Result, ...]:
    """The results in Tune's, one for each trial of the pack; with `remove`, Tune does not keep them."""
    results: tuple[Result, ...] = result.pop(_RESULT) if remove else result[_RESULT]
    return results
