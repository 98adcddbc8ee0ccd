"""What Tune calls in the driver: for the next trial, with each result, and to know whether a trial must stop."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import RayError
from ray.tune import Callback
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher

from orchestrator.console.progress import Progress
from orchestrator.errors import DiskFullError
from orchestrator.execution.context import SweepContext
from orchestrator.execution.messages import Refusal, TrialSpec, from_tune
from orchestrator.plan import fate
from orchestrator.plan.fate import Ending
from orchestrator.plan.plan import Trial
from orchestrator.search.trial_queue import TrialQueue
from orchestrator.storage import atomic
from orchestrator.storage.trial_log import TrialLog

_KEPT = ("trial_id", "training_iteration", "done")
"""The keys of a trial's last result that Tune still reads once the trial is over."""


class _NotPickled:
    """Tune pickles its callbacks into files that are never read: locks and queues stay out of them."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class ResultCallback(_NotPickled, Callback):  # type: ignore[misc]
    """Hands each result to the writer, the queue and the progress, and removes it from Tune's own state.

    Args:
        context: of the sweep; its outcome is written here.
        queue: decides which trial is next.
        progress: what the user sees.
    """

    def __init__(self, context: SweepContext, queue: TrialQueue, progress: Progress) -> None:
        self._writer, self._outcome, self._stop_request = context.writer, context.outcome, context.stop_request
        self._queue, self._progress = queue, progress
        self._metric, document = context.metric, context.sweep.document
        self._max_failures, self._retries = document.max_failures, document.retries
        self.running: set[str] = set()  # Tune's ids
        self._refusals: dict[str, str] = {}  # trial's key → why its learner cannot be built
        self._deaths: Counter[str] = Counter()  # trial's key → attempts that ended early
        self._objective: dict[str, float] = {}
        self._fitness: dict[str, float] = {}

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.running.add(trial.trial_id)
        self._progress.started(_key(trial))

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        key, chunk = _key(trial), from_tune(result, remove=True)
        if isinstance(chunk, Refusal):
            self._refusals[key] = chunk.reason
            return
        for line in chunk.remarks:
            self._progress.say(line)
        objective, curves = chunk.objective(self._metric), chunk.curves
        self._objective[key] = math.nan if objective is None else objective
        self._writer.results(key, curves)
        learned, seconds = curves.batches - curves.first_batch, float(sum(curves.chunks.get("seconds", ())))
        if self._queue.ledger.record(key, chunk.seconds):
            self._progress.say(f"budget reached: {self._queue.ledger.text()}; no further trial is started")
        by_seed = chunk.objectives.get(self._metric, ())
        self._progress.measured(key, [float(value) for value in by_seed], chunk.memory, chunk.gpu_memory)
        error = chunk.objective("cumulative_error")
        error = chunk.objective("online_error") if error is None else error
        self._progress.advanced(key, chunk.batches, chunk.total_batches, learned, seconds, error)
        if chunk.finished:
            self._outcome.finish([key])
        elif chunk.fitness is not None:
            self._fitness[key] = chunk.fitness

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.running.discard(trial.trial_id)
        # Tune keeps statistics of each number in a result, and the last result, until the sweep ends.
        for numbers in (trial.metric_analysis, trial.metric_n_steps):
            numbers.clear()
        trial.run_metadata.last_result = {key: trial.last_result[key] for key in _KEPT if key in trial.last_result}
        key = _key(trial)
        end = self._outcome.of(key)
        if end.ending is Ending.FINISHED:
            self._writer.finished(key)
            self._queue.finish(self._outcome.plan.trial(key), self._objective[key])
            self._progress.ended(key, end.ending)
        elif end.ending is Ending.STOPPED and end.batch is not None:
            self._log(trial, f"stopped by the scheduler at batch {end.batch}")
            self._writer.stopped(key, end.batch)
            self._progress.ended(key, end.ending)
        elif key in self._refusals:
            self._fail(trial, self._refusals.pop(key))
        elif key in self._fitness:  # a population member at the end of its segment
            self._progress.paused(key)
            self._keep_population_files(self._queue.pause(self._outcome.plan.trial(key), self._fitness.pop(key)))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.running.discard(trial.trial_id)
        if self._disk_is_full(trial):
            return  # the trial has not failed: it resumes once there is room
        # Tune's own retries are off: Tune does not retry a trial whose actor dies, or raises, while the actor is reused
        # for it, and it counts each segment of a population member separately.
        key = _key(trial)
        self._deaths[key] += 1
        if self._deaths[key] <= self._retries:
            self._log(trial, f"attempt over, another resumes from its last chunk: {_reason(trial)}")
            self._progress.actor_died(key, _reason(trial))
            self._queue.requeue(self._outcome.plan.trial(key))
            return
        self._fail(trial, _reason(trial))

    def _fail(self, trial: TuneTrial, reason: str) -> None:
        """Mark a trial as failed; it is not tried again."""
        key = _key(trial)
        self._outcome.fates[key] = fate.failed(reason)
        self._log(trial, f"failed for good: {reason}")
        self._progress.ended(key, Ending.FAILED)
        failures = len(self._outcome.failed)
        if self._max_failures is not None and failures > self._max_failures:
            self._stop_request.request(f"{failures} trials failed, and max_failures is {self._max_failures}")
        # A population decides nothing while the sweep stops: the user may repair the cause, and resume.
        if not self._stop_request.requested.is_set():
            self._keep_population_files(self._queue.fail(self._outcome.plan.trial(key), reason))

    def _keep_population_files(self, changed: bool) -> None:
        if changed:
            for path in self._queue.population_files:
                self._writer.keep(path)

    def _log(self, trial: TuneTrial, line: str) -> None:
        TrialLog(Path(TrialSpec.from_tune(trial.config).folder), "driver").say(line)

    def _disk_is_full(self, trial: TuneTrial) -> bool:
        """Whether a full disk ended the trial's actor; if so, the sweep must stop, as no other trial can write."""
        cause = _cause(trial)
        if not isinstance(cause, DiskFullError):
            return False
        if not self._stop_request.requested.is_set():
            self._progress.say(str(cause))
            self._stop_request.request(str(cause), interrupted=True)
        return True


class TrialStopper(_NotPickled, tune.Stopper):  # type: ignore[misc]
    """Ends a trial early: where the scheduler stops it, and after the chunk in flight once a stop is requested."""

    def __init__(self, context: SweepContext, queue: TrialQueue, callback: ResultCallback) -> None:
        self._context, self._queue, self._callback = context, queue, callback
        self._in_flight: set[str] | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        chunk, outcome = from_tune(result), self._context.outcome
        if not isinstance(chunk, Refusal) and not chunk.finished:
            value = chunk.objective(self._context.metric)
            trial = TrialSpec.from_tune(result["config"]).trial
            # Without a value there is nothing to judge yet; NaN is one: a seed has diverged.
            if value is not None and self._queue.should_stop(outcome.plan.trial(trial.key), chunk.batches, value):
                outcome.fates[trial.key] = fate.stopped(chunk.batches)
                return True
        return self._context.stop_request.requested.is_set()

    def stop_all(self) -> bool:
        # Wait for the trials that ran when the stop was requested: Tune would kill them, and lose their chunks in
        # flight. Do not wait for others: Tune starts a waiting trial in each free slot.
        if not self._context.stop_request.requested.is_set():
            return False
        if self._in_flight is None:
            self._in_flight = set(self._callback.running)
        return not self._in_flight & self._callback.running


class QueueSearcher(_NotPickled, Searcher):  # type: ignore[misc]
    """The queue of trials as a Tune searcher.

    Args:
        queue: the trials to run.
        spec: what the actor of a trial must know.
        slots: trials that run simultaneously.
    """

    def __init__(self, queue: TrialQueue, spec: Callable[[Trial], TrialSpec], slots: int) -> None:
        super().__init__()
        self._queue, self._spec, self._slots = queue, spec, slots
        self._started: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._queue.draws and len(self._started) >= self._slots:
            return None  # draw once a slot is free: later draws know more results
        trial = self._queue.next()
        if trial is not None:
            self._started.add(trial_id)
            return self._spec(trial).to_tune()
        # A trial that runs may have to be started again.
        return None if self._queue.waits or self._started else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the slot; how the trial ended is for the callback, as Tune calls an interrupted trial complete."""
        self._started.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the journal keeps what was drawn."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, as nothing is saved."""


def _key(trial: TuneTrial) -> str:
    return TrialSpec.from_tune(trial.config).trial.key


def _cause(trial: TuneTrial) -> BaseException | None:
    """The error that ended the trial's actor, from Tune's local file: a full disk may have prevented its upload."""
    path = trial.pickled_error_file
    if path is None:
        return None
    try:
        error: BaseException = pickle.loads(Path(path).read_bytes())
    except Exception:  # truncated, or of a class that only the actor can import
        return None
    return getattr(error, "cause", None) or error


def _reason(trial: TuneTrial) -> str:
    """The error that ended the trial's actor, in one line; a killed process leaves none."""
    cause = _cause(trial)
    if cause is None:
        return "its process was killed, or crashed"
    if isinstance(cause, RayError):  # its last line says what happened, after pages about the actor
        return (str(cause).strip().splitlines() or [type(cause).__name__])[-1].strip()
    return atomic.reason(cause)
