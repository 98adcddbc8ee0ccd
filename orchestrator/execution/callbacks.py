"""What Tune calls in the driver: for the next trial, with each result, and to know whether a trial must stop."""

import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import RayError
from ray.tune import Callback
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from orchestrator.console.progress import Progress
from orchestrator.errors import ConfigError, DiskFullError
from orchestrator.execution.context import SweepContext
from orchestrator.execution.messages import Refusal, Result, TrialSpec, from_tune
from orchestrator.execution.nodes import NodeLeavingError
from orchestrator.execution.trial_health import TrialHealth
from orchestrator.plan import fate
from orchestrator.plan.fate import Ending
from orchestrator.plan.plan import Trial
from orchestrator.search.trial_queue import TrialQueue
from orchestrator.storage import atomic, lease, trial_log
from orchestrator.storage.chunk_files import SupersededError
from orchestrator.storage.remote_folder import FAILURES
from orchestrator.storage.trial_log import TrialLog
from orchestrator.system.signals import StopRequest

_KEPT = ("trial_id", "training_iteration", "done")
"""The keys of a trial's last result that Tune still reads once the trial is over."""
_FINISHED: str = Searcher.FINISHED


class _NotPickled:
    """Tune pickles its callbacks into files that are never read: locks and queues stay out of them."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


@contextmanager
def _stopped_unless_written(stop_request: StopRequest) -> Iterator[None]:
    """If this block cannot write a decision of the search, the sweep stops as interrupted; the next command decides.

    Tune would take the error for one of the trial that happened to report.
    """
    try:
        yield
    except (ConfigError, DiskFullError) as error:
        stop_request.request(str(error), interrupted=True)


class ResultCallback(_NotPickled, Callback):  # type: ignore[misc]
    """Hands each result to the writer, the queue and the progress, and removes it from Tune's own state.

    Args:
        context: of the sweep; its outcome is written here.
        queue: decides which trial is next.
        progress: what the user sees.
        health: watches the running trials.
    """

    def __init__(self, context: SweepContext, queue: TrialQueue, progress: Progress, health: TrialHealth) -> None:
        self._writer, self._outcome, self._stop_request = context.writer, context.outcome, context.stop_request
        self._queue, self._progress, self._health = queue, progress, health
        self._mirror = context.journal.mirror
        self._metric, document = context.objective.name, context.sweep.document
        self._max_failures, self._retries = document.max_failures, document.retries
        self.running: set[str] = set()  # Tune's ids
        self._refusals: dict[str, str] = {}  # trial's key → why its learner cannot be built
        self._deaths: Counter[str] = Counter()  # trial's key → attempts that ended early
        self._objective: dict[str, float] = {}
        self._fitness: dict[str, float] = {}

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        if self._stop_request.requested:
            return  # `StoppableScheduler` came too late: `TrialStopper` does not wait for this trial
        self.running.add(trial.trial_id)
        self._health.started(trial)
        for spec in _pack(trial):
            self._progress.started(spec.trial.key)

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        self._health.reported(trial)
        for spec, chunk in zip(_pack(trial), from_tune(result, remove=True), strict=True):
            self._record(spec.trial.key, chunk)

    def _record(self, key: str, chunk: Result) -> None:
        """Hand on the result of one trial."""
        if isinstance(chunk, Refusal):
            self._refusals[key] = chunk.reason
            return
        for line in chunk.remarks:
            self._progress.say(line)
        objective, curves = chunk.objective(self._metric), chunk.curves
        self._objective[key] = math.nan if objective is None else objective
        self._writer.results(key, curves)
        self._queue.note_batches(self._outcome.plan.trial(key), chunk.batches)
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
        self._health.ended(trial)
        # Tune keeps statistics of each number in a result, and the last result, until the sweep ends.
        for numbers in (trial.metric_analysis, trial.metric_n_steps):
            numbers.clear()
        trial.run_metadata.last_result = {key: trial.last_result[key] for key in _KEPT if key in trial.last_result}
        pack = _pack(trial)
        for spec in reversed(pack):  # those that continue are put at the front of the queue
            self._complete(spec, len(pack) > 1)

    def _complete(self, spec: TrialSpec, in_pack: bool) -> None:
        """A trial's actor has given its slot up: it finished, was stopped, was refused, pauses, or changes its pack."""
        key = spec.trial.key
        end = self._outcome.of(key)
        if end.ending is Ending.FINISHED:
            self._writer.finished(key)
            self._queue.finish(self._outcome.plan.trial(key), self._objective[key])
            self._progress.ended(key, end.ending)
        elif end.ending is Ending.STOPPED and end.batch is not None:
            self._say(spec, f"stopped by the scheduler at batch {end.batch}")
            self._writer.stopped(key, end.batch)
            self._progress.ended(key, end.ending)
        elif key in self._refusals:
            self._fail(spec, self._refusals.pop(key))
        elif key in self._fitness:  # a population member at the end of its segment
            self._progress.paused(key)
            fitness = self._fitness.pop(key)
            with _stopped_unless_written(self._stop_request):
                self._keep_population_files(self._queue.pause(self._outcome.plan.trial(key), fitness))
        elif in_pack and not self._stop_request.requested:  # the scheduler stopped others
            self._progress.paused(key)
            self._queue.proceed(self._outcome.plan.trial(key))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.running.discard(trial.trial_id)
        reason = self._health.ended(trial) or _reason(trial)
        if self._must_stop(trial):
            return  # the trial has not failed: it resumes once there is room, or another command runs it
        pack = _pack(trial)
        left = isinstance(_cause(trial), NodeLeavingError)
        for spec in reversed(pack):  # each is put at the front of the queue
            self._retry(spec, reason, len(pack), left)

    def _retry(self, spec: TrialSpec, reason: str, pack: int, left: bool) -> None:
        """Start a trial again whose actor has ended early, or let it fail.

        Tune's own retries are off: Tune does not retry a trial whose actor dies, or raises, while the actor is reused
        for it, and it counts each segment of a population member separately. The death of a pack counts for none of its
        trials, which may be innocent: they continue in smaller packs.

        Args:
            spec: the trial.
            reason: why the actor ended.
            pack: the number of its trials.
            left: whether it left a node that goes away, which is no death.
        """
        key = spec.trial.key
        if key in self._refusals:
            self._fail(spec, self._refusals.pop(key))
            return
        self._deaths[key] += pack == 1 and not left
        if self._stop_request.requested:
            self._say(spec, f"attempt over while the sweep stops: {reason}")
            return  # another command resumes it
        if self._deaths[key] <= self._retries:
            self._say(spec, f"attempt over, another resumes from its last chunk: {reason}")
            self._progress.actor_died(key, reason)
            trial = self._outcome.plan.trial(key)
            if left:
                self._queue.proceed(trial)
            else:
                self._queue.requeue(trial, pack)
            return
        self._fail(spec, reason)

    def _fail(self, spec: TrialSpec, reason: str) -> None:
        """Mark a trial as failed; it is not tried again."""
        key = spec.trial.key
        self._outcome.fates[key] = fate.failed(reason)
        with self._log(spec) as log:
            log.failed_for_good(reason)
        self._progress.ended(key, Ending.FAILED)
        failures = len(self._outcome.failed)
        if self._max_failures is not None and failures > self._max_failures:
            self._stop_request.request(f"{failures} trials failed, and max_failures is {self._max_failures}")
        # A population decides nothing while the sweep stops: the user may repair the cause, and resume.
        if not self._stop_request.requested:
            with _stopped_unless_written(self._stop_request):
                self._keep_population_files(self._queue.fail(self._outcome.plan.trial(key), reason))

    def _say(self, spec: TrialSpec, text: str) -> None:
        with self._log(spec) as log:
            log.say(text)

    @contextmanager
    def _log(self, spec: TrialSpec) -> Iterator[TrialLog]:
        """The log of a trial whose attempt is over, so that no actor writes it."""
        folder, mirror = Path(spec.folder), self._mirror
        with nullcontext() if mirror is None else mirror.appending(folder / trial_log.FILE):
            yield TrialLog(folder, "driver")

    def _keep_population_files(self, changed: bool) -> None:
        if changed:
            for path in self._queue.population_files:
                self._writer.keep(path)

    def _must_stop(self, trial: TuneTrial) -> bool:
        """Whether a full disk, or a command that has taken over the sweep, ended the trial's actor.

        If so, the sweep must stop: no other trial can write, or another attempt would fence off the other command's.
        """
        cause = _cause(trial)
        if isinstance(cause, DiskFullError):
            reason = str(cause)
        elif isinstance(cause, SupersededError):
            reason = self._taken_over()
        else:
            return False
        if reason and not self._stop_request.requested:
            self._progress.say(reason)
            self._stop_request.request(reason, interrupted=True)
        return bool(reason)

    def _taken_over(self) -> str:
        """Why the sweep must stop if another machine has taken it over; else empty."""
        if self._mirror is not None:
            with suppress(*FAILURES):  # unreachable: the actor is tried again
                return lease.taken_over(self._mirror.address, self._mirror.local)
        return ""


class TrialStopper(_NotPickled, tune.Stopper):  # type: ignore[misc]
    """Ends a trial early: where the scheduler stops it, and after the chunk in flight once a stop is requested."""

    def __init__(self, context: SweepContext, queue: TrialQueue, callback: ResultCallback) -> None:
        self._context, self._queue, self._callback = context, queue, callback
        self._in_flight: set[str] | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        outcome, metric = self._context.outcome, self._context.objective.name
        batches, reports = 0, []
        for spec, chunk in zip(TrialSpec.from_tune(result["config"]).pack, from_tune(result), strict=True):
            if not isinstance(chunk, Refusal) and not chunk.finished:
                batches, value = chunk.batches, chunk.objective(metric)
                if value is not None:  # else there is nothing to judge yet; NaN is a value: a seed has diverged
                    reports.append((outcome.plan.trial(spec.trial.key), value))
        stopped: list[Trial] = []
        with _stopped_unless_written(self._context.stop_request):
            stopped = self._queue.stopped(batches, reports)
        for trial in stopped:
            outcome.fates[trial.key] = fate.stopped(batches)
        # The actor of a pack is given up with the first trial that stops; the others continue in another pack.
        return bool(stopped) or self._context.stop_request.requested

    def stop_all(self) -> bool:
        # Wait for the trials that ran when the stop was requested: Tune would kill them, and lose their chunks in
        # flight. Do not wait for others: Tune starts a waiting trial in each free slot.
        if not self._context.stop_request.requested:
            return False
        if self._in_flight is None:
            self._in_flight = set(self._callback.running)
        return not self._in_flight & self._callback.running


class StoppableScheduler(_NotPickled, FIFOScheduler):  # type: ignore[misc]
    """Starts trials in order, and none once a stop is requested: Tune would start a waiting one in each free slot."""

    def __init__(self, context: SweepContext) -> None:
        super().__init__()
        self._stop_request = context.stop_request

    def choose_trial_to_run(self, tune_controller: Any) -> TuneTrial | None:
        if not self._stop_request.requested:
            return super().choose_trial_to_run(tune_controller)
        for trial in tune_controller.get_trials():
            if trial.status == TuneTrial.PENDING:
                tune_controller.stop_trial(trial)
        return None


class QueueSearcher(_NotPickled, Searcher):  # type: ignore[misc]
    """The queue of trials as a Tune searcher.

    Args:
        context: of the sweep.
        queue: the trials to run.
        spec: what the actor of trials that start together must know.
        slots: returns the number of actors that run simultaneously, which changes as nodes join and leave.
    """

    def __init__(
        self,
        context: SweepContext,
        queue: TrialQueue,
        spec: Callable[[Sequence[Trial]], TrialSpec],
        slots: Callable[[], int],
    ) -> None:
        super().__init__()
        self._stop_request = context.stop_request
        self._queue, self._spec, self._slots = queue, spec, slots
        self._started: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._stop_request.requested:
            return _FINISHED
        slots = self._slots()
        if self._queue.draws and len(self._started) >= slots:
            return None  # draw once a slot is free: later draws know more results
        with _stopped_unless_written(self._stop_request):
            trials = self._queue.next_pack(slots)
        if self._stop_request.requested:
            return _FINISHED
        if trials:
            self._started.add(trial_id)
            return self._spec(trials).to_tune()
        # A trial that runs may have to be started again.
        return None if self._queue.waits or self._started else _FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the slot; how the trial ended is for the callback, as Tune calls an interrupted trial complete."""
        self._started.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the journal keeps what was drawn."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, as nothing is saved."""


def _pack(trial: TuneTrial) -> tuple[TrialSpec, ...]:
    return TrialSpec.from_tune(trial.config).pack


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
