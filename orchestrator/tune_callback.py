"""What Tune calls in the driver: the callback that takes results out, and the stopper that obeys Ctrl-C."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune import Callback
from ray.tune.experiment import Trial

from orchestrator.progress import Progress

if TYPE_CHECKING:
    from orchestrator.launch import Outcome
    from orchestrator.tracking import Writer


class _StaysHere:
    """Tune pickles callbacks and stoppers into files that nobody reads: these go in empty, queues and locks and all."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class TakeResults(_StaysHere, Callback):  # type: ignore[misc]
    """Hands each result's curves to the writer, and keeps them out of Tune's own state."""

    def __init__(self, writer: Writer, progress: Progress, outcome: Outcome) -> None:
        self._writer, self._progress, self._outcome = writer, progress, outcome
        self.running: set[str] = set()

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.running.add(trial.trial_id)
        self._progress.started(_key(trial))

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        key, curves = _key(trial), result.pop("slice")
        self._writer.results(key, curves)
        learned, seconds = curves.batches - curves.first_batch, float(sum(curves.chunks.get("seconds", ())))
        error = result.get("cumulative_error", result.get("online_error"))
        self._progress.advanced(key, result["batches"], result["total_batches"], learned, seconds, error)
        if result["finished"]:
            self._outcome.finished.add(key)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.running.discard(trial.trial_id)
        if _key(trial) in self._outcome.finished:
            self._writer.finished(_key(trial))
            self._progress.ended(_key(trial), failed=False)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.running.discard(trial.trial_id)
        self._progress.again(_key(trial), _reason(trial))

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.running.discard(trial.trial_id)
        self._outcome.failed[_key(trial)] = _reason(trial)
        self._progress.ended(_key(trial), failed=True)


class StopOnInterrupt(_StaysHere, tune.Stopper):  # type: ignore[misc]
    """After an interrupt, each trial that was running ends with the chunk it is in, and then all is over."""

    def __init__(self, asked: threading.Event, callback: TakeResults) -> None:
        self._asked, self._callback = asked, callback
        self._in_flight: set[str] | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self._asked.is_set()

    def stop_all(self) -> bool:
        # Not before those trials are through: Tune would end them at once, and their chunks in flight would be lost.
        # Not after others either: Tune starts a waiting trial in every place that becomes free.
        if not self._asked.is_set():
            return False
        if self._in_flight is None:
            self._in_flight = set(self._callback.running)
        return not self._in_flight & self._callback.running


def _key(trial: Trial) -> str:
    key: str = trial.config["trial"]["key"]
    return key


def _reason(trial: Trial) -> str:
    """The last line of the error that ended the trial's actor; a process that was killed leaves none."""
    error = trial.get_pickled_error() or trial.get_error()
    if error is None:
        return "its process was killed, or crashed"
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[-1].strip()
