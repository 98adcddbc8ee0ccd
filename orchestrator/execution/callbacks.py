"""What Tune calls in the driver: for the next trial, with each result, and to know whether a trial is to stop."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune import Callback
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher

from orchestrator.console.progress import Progress
from orchestrator.errors import DiskFullError
from orchestrator.plan.plan import Trial
from orchestrator.search.trial_queue import TrialQueue
from orchestrator.storage.trial_log import TrialLog
from orchestrator.system.signals import StopRequest

if TYPE_CHECKING:
    from orchestrator.execution.outcome import Outcome
    from orchestrator.tracking.writer import Writer


_KEPT = ("trial_id", "training_iteration", "done")
"""Of a trial's last result, once it is over: Tune never reads more."""


class _StaysHere:
    """Tune pickles what is in here into files that nobody reads: it goes in empty, queues and locks and all."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class TakeResults(_StaysHere, Callback):  # type: ignore[misc]
    """Hands each result's curves to the writer, and keeps them out of Tune's own state."""

    def __init__(
        self,
        writer: Writer,
        progress: Progress,
        outcome: Outcome,
        queue: TrialQueue,
        metric: str,
        stop_request: StopRequest,
        max_failures: int | None,
        retries: int,
    ) -> None:
        self._writer, self._progress, self._outcome, self._queue = writer, progress, outcome, queue
        self._metric, self._stop_request, self._max_failures, self._retries = (
            metric,
            stop_request,
            max_failures,
            retries,
        )
        self.running: set[str] = set()
        self._refused: dict[str, str] = {}  # by trial's key: why its learner cannot be built
        self._deaths: Counter[str] = Counter()  # by trial's key
        self._objective: dict[str, float] = {}
        self._fitness: dict[str, float] = {}

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.running.add(trial.trial_id)
        self._progress.started(_key(trial))

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        if "refused" in result:
            self._refused[_key(trial)] = result["refused"]
            return
        key, curves = _key(trial), result.pop("slice")
        by_seed, usage = result.pop("by_seed"), result.pop("usage")
        for line in result.pop("remarks"):
            self._progress.say(line)
        self._objective[key] = result.get(self._metric, math.nan)
        self._writer.results(key, curves)
        learned, seconds = curves.batches - curves.first_batch, float(sum(curves.chunks.get("seconds", ())))
        if self._queue.ledger.record(key, result["seconds"]):
            self._progress.say(f"budget reached: {self._queue.ledger.text()}; no further trial is started")
        self._progress.measured(key, by_seed.get(self._metric, ()), usage["memory"], usage["gpu_memory"])
        error = result.get("cumulative_error", result.get("online_error"))
        self._progress.advanced(key, result["batches"], result["total_batches"], learned, seconds, error)
        if result["finished"]:
            self._outcome.finished.add(key)
        elif "fitness" in result:
            self._fitness[key] = result["fitness"]

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.running.discard(trial.trial_id)
        # Tune keeps some of every number in a result, and the whole last one, for as long as the sweep lasts.
        for kept in (trial.metric_analysis, trial.metric_n_steps):
            kept.clear()
        trial.run_metadata.last_result = {key: trial.last_result[key] for key in _KEPT if key in trial.last_result}
        key = _key(trial)
        if key in self._outcome.finished:
            self._writer.finished(key)
            self._queue.finish(self._outcome.plan.trial(key), self._objective[key])
            self._progress.ended(key, "done")
        elif key in self._outcome.stopped:
            self._log(trial, f"stopped by the scheduler at batch {self._outcome.stopped[key]}")
            self._writer.stopped(key, self._outcome.stopped[key])
            self._progress.ended(key, "stopped")
        elif key in self._refused:
            self._give_up(trial, self._refused.pop(key))
        elif key in self._fitness:  # a member of a population, at the end of its round
            self._progress.paused(key)
            self._tell_decisions(self._queue.pause(self._outcome.plan.trial(key), self._fitness.pop(key)))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.running.discard(trial.trial_id)
        if self._no_room(trial):
            return  # it has not failed: it goes on when there is room
        key = _key(trial)
        # It is handed out anew. Tune's own recovery has no part in this: it tries no trial again whose actor dies, or
        # raises, while it takes the trial over from another one, and counts each round of a member by itself.
        self._deaths[key] += 1
        if self._deaths[key] <= self._retries:
            self._log(trial, f"attempt over, another goes on from its last chunk: {_reason(trial)}")
            self._progress.again(key, _reason(trial))
            self._progress.paused(key)
            self._queue.requeue(self._outcome.plan.trial(key))
            return
        self._give_up(trial, _reason(trial))

    def _give_up(self, trial: TuneTrial, reason: str) -> None:
        """The trial has failed, and is not tried again."""
        key, failed = _key(trial), self._outcome.failed
        failed[key] = reason
        self._log(trial, f"failed for good: {reason}")
        self._progress.ended(key, "failed")
        if self._max_failures is not None and len(failed) > self._max_failures:
            self._stop_request.request(f"{len(failed)} trials failed, and max_failures is {self._max_failures}")
        if not self._stop_request.requested.is_set():  # what stops the sweep is to be mended, and then tried again
            self._tell_decisions(self._queue.fail(self._outcome.plan.trial(key), reason))

    def _tell_decisions(self, made: bool) -> None:
        if made:
            for path in self._queue.population_files:
                self._writer.keep(path)

    def _log(self, trial: TuneTrial, line: str) -> None:
        TrialLog(Path(trial.config["trial"]["folder"]), "driver").say(line)

    def _no_room(self, trial: TuneTrial) -> bool:
        """Whether a full disk ended the trial's actor; then all is to stop, as every other will meet it."""
        cause = _cause(trial)
        if not isinstance(cause, DiskFullError):
            return False
        if not self._stop_request.requested.is_set():
            self._progress.say(str(cause))
            self._stop_request.request(str(cause), interrupted=True)
        return True


class Stop(_StaysHere, tune.Stopper):  # type: ignore[misc]
    """Ends a trial early: where the search sees no point in it, and, with the chunk it is in, where all is to stop."""

    def __init__(
        self, stop_request: StopRequest, callback: TakeResults, queue: TrialQueue, outcome: Outcome, metric: str
    ) -> None:
        self._stop_request, self._callback, self._queue, self._outcome = stop_request, callback, queue, outcome
        self._metric = metric
        self._in_flight: set[str] | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        key = result["config"]["trial"]["key"]
        value = result.get(self._metric)
        # Without a value yet there is nothing to judge; NaN is one: a seed has diverged.
        if not result["finished"] and value is not None:
            trial = self._outcome.plan.trial(key)
            if self._queue.should_stop(trial, result["batches"], value):
                self._outcome.stopped[key] = result["batches"]
                return True
        return self._stop_request.requested.is_set()

    def stop_all(self) -> bool:
        # Not before those trials are through: Tune would end them at once, and their chunks in flight would be lost.
        # Not after others either: Tune starts a waiting trial in every place that becomes free.
        if not self._stop_request.requested.is_set():
            return False
        if self._in_flight is None:
            self._in_flight = set(self._callback.running)
        return not self._in_flight & self._callback.running


class NextTrial(_StaysHere, Searcher):  # type: ignore[misc]
    """The search, as Tune asks for it."""

    def __init__(self, queue: TrialQueue, specification: Callable[[Trial], dict[str, Any]], slots: int) -> None:
        super().__init__()
        self._queue, self._specification, self._slots = queue, specification, slots
        self._given: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._queue.draws and len(self._given) >= self._slots:
            return None  # the next one is drawn when there is a place for it, knowing more
        trial = self._queue.next()
        if trial is not None:
            self._given.add(trial_id)
        elif self._queue.waits or self._given:
            return None  # one of those that run may have to be handed out again
        return Searcher.FINISHED if trial is None else {"trial": self._specification(trial)}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The callback knows how it ended (Tune calls an interrupted trial complete); here it makes place."""
        self._given.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal keeps what was drawn."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, as nothing is saved."""


def _key(trial: TuneTrial) -> str:
    key: str = trial.config["trial"]["key"]
    return key


def _cause(trial: TuneTrial) -> BaseException | None:
    """What ended the trial's actor, read where Tune has put it: its copy in the storage may have found no room."""
    path = trial.pickled_error_file
    if path is None:
        return None
    try:
        error: BaseException = pickle.loads(Path(path).read_bytes())
    except Exception:  # cut, or of a class that is only known there
        return None
    return getattr(error, "cause", None) or error


def _reason(trial: TuneTrial) -> str:
    """The last line of the error that ended the trial's actor; a process that was killed leaves none."""
    cause = _cause(trial)
    if cause is None:
        return "its process was killed, or crashed"
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[-1].strip()
