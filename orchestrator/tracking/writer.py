"""The only writer of curves to MLflow, in a thread of the driver.

Trials never open MLflow. After any interruption the thread asks MLflow what it has, and sends the rest from the trial's
newest chunk file.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.errors import disk_full_line, fault, is_disk_full
from orchestrator.plan.plan import Plan
from orchestrator.protocol.curves import Curves
from orchestrator.storage.mirror import Mirror
from orchestrator.tracking.database import TrackingError, check_reachable, database_path, first_line, prepare
from orchestrator.tracking.ownership import forget
from orchestrator.tracking.provenance import Provenance
from orchestrator.tracking.sync import SweepSync
from streams.errors import masked

__all__ = ["TrackingError", "TrackingProblem", "Writer", "forget", "prepare"]

RETRY_S = 10.0
PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""Bounds of the pause between two writes of a trial: a call to a server costs as much as eighty points in it."""
SHARE = 0.2
"""The most of the thread's time for trials that run; with more of them pauses are longer, and calls fewer."""
_SWEEP = ""  # the key of the sweep itself, among those of trials

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackingProblem:
    """A failure to write to MLflow.

    Attributes:
        text: one line.
        resolved: whether a retry has written everything since.
    """

    text: str
    resolved: bool = False


class Writer:
    """Writes one sweep's runs from its own thread; only `drain` and `close` wait for MLflow.

    Args:
        uri: where MLflow keeps runs; see `prepare`.
        experiment: name of the experiment.
        plan: the sweep.
        root: the folder of the trials' folders.
        provenance: where the sweep's results come from, or its tags only.
        started_ms: when the sweep was started, in ms since the epoch.
        mirror: the object storage that `root` is a copy of, if any.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        plan: Plan,
        root: Path,
        provenance: Provenance | Mapping[str, str],
        started_ms: int,
        mirror: Mirror | None = None,
    ) -> None:
        self._uri = uri
        provenance = provenance if isinstance(provenance, Provenance) else Provenance(provenance)
        self._sync = SweepSync(uri, experiment, plan, root, provenance, started_ms, mirror)
        self._arriving: dict[str, list[Curves]] = {}  # trial → slices for which the thread has a message in its queue
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: dict[str, list[Curves]] = {}  # trial → slices that wait for the end of its pause
        self._next_at: dict[str, float] = {}  # key → end of its pause
        self._behind: dict[str, str] = {}  # key → the failure, until a retry succeeds
        self._resolved: list[TrackingProblem] = []
        self._retry_at = 0.0
        self._closed: str | None = None
        self._thread = threading.Thread(target=self._serve, name="mlflow-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._queue.put(partial(self._try, _SWEEP, self._update(_SWEEP)))
        self._thread.start()

    def results(self, trial_key: str, slice_: Curves) -> None:
        """Write a trial's next curves, which may overlap with earlier ones or leave a gap."""
        with self._lock:
            waiting = self._arriving.get(trial_key)
            if waiting is not None:
                waiting.append(slice_)  # sent in one call, which costs more than its points
                return
            self._arriving[trial_key] = waiting = [slice_]
        self._queue.put(partial(self._arrived, trial_key, waiting))

    def finished(self, trial_key: str) -> None:
        """End a trial whose newest chunk file is at the end of its stream; idempotent."""
        self._ended(trial_key, "FINISHED")

    def failed(self, trial_key: str, message: str) -> None:
        """End a trial that failed for good."""
        self._ended(trial_key, "FAILED", message)

    def stopped(self, trial_key: str, batches: int) -> None:
        """End a trial that the scheduler stopped after this many batches."""
        self._ended(trial_key, "KILLED", stopped_at=batches)

    def interrupted(self, trial_key: str) -> None:
        """End a trial that can be resumed; one that never started gets no runs."""
        self._ended(trial_key, "KILLED")

    def keep(self, path: Path) -> None:
        """Store a file of the sweep's folder, as it is when the thread reads it, with the sweep's run."""
        self._queue.put(partial(self._try, _SWEEP, partial(self._sync.keep, path)))

    def drain(self) -> list[TrackingProblem]:
        """Wait until everything passed so far is written.

        Returns:
            What has gone wrong since the last call; empty if nothing has.
        """
        done = threading.Event()

        def settle() -> None:
            self._write_all()
            done.set()

        self._queue.put(settle)
        written = self._wait(done)
        problems = [*self._resolved, *map(TrackingProblem, self._behind.values())]
        self._resolved = []
        if not written:
            problems.append(TrackingProblem(f"tracking: not everything could be written to {masked(self._uri)}"))
        return list(dict.fromkeys(problems))

    def close(self, status: str) -> str:
        """Write everything, and end every run of the sweep that is still RUNNING, its own with `status`.

        Returns:
            The run id of the sweep.

        Raises:
            TrackingError: the runs could not be ended.
        """
        if self._closed is not None:
            return self._closed
        done = threading.Event()
        outcome: list[str | Exception] = []

        def end() -> None:
            self._write_all()
            try:
                outcome.append(self._sync.close(status))
            except Exception as error:
                outcome.append(error)
            done.set()

        self._queue.put(end)
        if not self._wait(done):
            outcome.append(RuntimeError("its thread has ended"))
        self._queue.put(None)
        result = outcome[0]
        if isinstance(result, Exception):
            line = fault(
                "tracking", "", "the sweep's runs could not be ended", self._uri, masked(first_line(result), self._uri)
            )
            raise TrackingError(line) from result
        self._thread.join()
        self._closed = result
        return result

    def _ended(self, trial_key: str, status: str, message: str = "", stopped_at: int | None = None) -> None:
        with self._lock:
            slices = self._arriving.pop(trial_key, [])  # later slices belong to the time after this end
            if status == "FINISHED":
                slices.clear()  # its chunk file has everything

        def note() -> None:
            if trial_key in self._waiting:
                self._take(trial_key)
            self._next_at.pop(trial_key, None)
            self._sync.note_end(trial_key, status, message, stopped_at)
            self._try(trial_key, self._update(trial_key))

        self._queue.put(note)

    def _wait(self, done: threading.Event) -> bool:
        """Wait for the thread, unless it has died. Returns whether `done` is set."""
        while not done.wait(0.2):
            if not self._thread.is_alive():
                return done.is_set()
        return True

    # The methods below run in the thread.

    def _serve(self) -> None:
        while True:
            times = [self._next_at[key] for key in self._waiting] + ([self._retry_at] if self._behind else [])
            try:
                message = self._queue.get(timeout=max(0.0, min(times) - time.monotonic()) if times else None)
            except queue.Empty:
                pass
            else:
                if message is None:
                    return
                message()
            for key in [key for key in self._waiting if time.monotonic() >= self._next_at[key]]:
                self._take(key)
            if self._behind and time.monotonic() >= self._retry_at:
                self._catch_up()

    def _arrived(self, key: str, slices: list[Curves]) -> None:
        """Schedule slices for the end of the trial's pause; later ones are added to the same list."""
        if not slices:
            return  # the trial has ended
        self._waiting[key] = slices
        self._next_at.setdefault(key, time.monotonic())

    def _write_all(self) -> None:
        for key in list(self._waiting):
            self._take(key)
        self._catch_up()

    def _take(self, key: str) -> None:
        slices = self._waiting.pop(key)
        with self._lock:
            if self._arriving.get(key) is slices:
                del self._arriving[key]
        if not slices:
            return
        self._sync.note_results(key, max(slice_.batches for slice_ in slices))
        began = time.monotonic()
        self._try(key, partial(self._sync.write_results, key, slices))
        now, running = time.monotonic(), len(self._next_at)
        self._next_at[key] = now + max(PAUSE_S, min(LONGEST_PAUSE_S, (now - began) * running / SHARE))

    def _update(self, key: str) -> Callable[[], object]:
        return partial(self._sync.bring_up_to_date, key) if key else self._sync.open

    def _try(self, key: str, action: Callable[[], object]) -> None:
        """Call `action`; after a failure `_catch_up` brings the trial up to date from its chunk file."""
        if key in self._behind:
            return
        if self._behind and (line := self._out_of_reach()):
            self._behind[key] = line  # an attempt would wait for the timeout again
            return
        try:
            action()
        except Exception as error:  # the thread must survive every failure
            self._fell_behind(key, error)

    def _out_of_reach(self) -> str:
        """The line about a server that does not answer, or an empty string."""
        try:
            check_reachable(self._uri)
        except TrackingError as error:
            return str(error)
        return ""

    def _fell_behind(self, key: str, error: Exception) -> None:
        line = str(error) if isinstance(error, TrackingError) else self._out_of_reach()
        if not line and is_disk_full(error):
            path = database_path(self._uri)
            where = Path.cwd() if path is None else path.parent
            line = f"tracking: {disk_full_line(where)}: then the rest is sent to MLflow"
        if not line:
            what = self._sync.trial(key).trial.configuration.label if key else "the sweep's run"
            line = f"tracking: {what}: {masked(first_line(error), self._uri)} ({type(error).__name__})"
        if self._behind.get(key) != line:
            logger.debug("%s", line, exc_info=error)
        self._behind[key] = line
        self._retry_at = time.monotonic() + RETRY_S
        if key:
            self._sync.forget(key)

    def _catch_up(self) -> None:
        """Retry everything that failed."""
        if self._behind and self._out_of_reach():
            self._retry_at = time.monotonic() + RETRY_S
            return
        for key in sorted(self._behind):
            try:
                self._update(key)()
            except Exception as error:
                self._fell_behind(key, error)
            else:
                line = f"{self._behind.pop(key)}; everything was written by a retry"
                self._resolved.append(TrackingProblem(line, resolved=True))
