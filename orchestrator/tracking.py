"""The one writer: curves that trials report go to MLflow, whose contents are a projection of the chunk files.

Trials never open MLflow. The driver hands slices of curves to a `Writer`, whose thread writes them. Whatever interrupts
it, what was to be written can be had again from a trial's newest chunk file: the thread asks MLflow what it has, and
sends what it lacks.
"""

from __future__ import annotations

import logging
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator import tracking_points
from orchestrator.errors import fault
from orchestrator.metrics import Curves
from orchestrator.plan import Configuration, Plan, Trial
from orchestrator.run_tree import RunTree, SeedRun
from orchestrator.tracking_database import TrackingError, connect, experiment_id, first_line, prepare

__all__ = ["TrackingError", "Writer", "prepare"]

RETRY_S = 10.0
LEARNER_FILE = "learner.pt"

logger = logging.getLogger(__name__)


@dataclass
class _Stack:
    """What the thread knows of a trial. `seed_runs` is None until its runs are open; `curves` are all that was sent."""

    trial: Trial
    seed_runs: list[SeedRun] | None = None
    curves: Curves | None = None
    status: str = ""
    message: str = ""
    settled: bool = False


class Writer:
    """Writes one sweep's runs, from a thread of its own; no method but `drain` and `close` waits for MLflow.

    Args:
        uri: where MLflow keeps runs; see `prepare`.
        experiment: name of the experiment.
        plan: the sweep; what an earlier driver has finished of it is brought up to date, too.
        root: the folder of the trials' folders.
        provenance: tags of the sweep's run.
        started_ms: when the sweep was started, in ms since the epoch.
    """

    def __init__(
        self, uri: str, experiment: str, plan: Plan, root: Path, provenance: dict[str, str], started_ms: int
    ) -> None:
        self._uri, self._experiment, self._plan, self._root = uri, experiment, plan, root
        self._provenance, self._started_ms = provenance, started_ms
        self._stacks = {trial.key: _Stack(trial) for trial in plan.trials}
        self._tree: RunTree | None = None
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._behind: dict[str, str] = {}  # trial key, or "" for the sweep itself → what went wrong
        self._told: list[str] = []
        self._retry_at = 0.0
        self._closed: str | None = None
        self._thread = threading.Thread(target=self._serve, name="mlflow-writer", daemon=True)

    def start(self) -> None:
        """Begin to write; returns at once."""
        self._queue.put(self._open_sweep)
        self._thread.start()

    def results(self, trial_key: str, slice_: Curves) -> None:
        """A trial's next curves. They may overlap with earlier ones, or leave a gap."""
        stack = self._stacks[trial_key]
        self._queue.put(lambda: self._guarded(trial_key, lambda: self._results(stack, slice_)))

    def finished(self, trial_key: str) -> None:
        """The trial is at the end of its stream, and its last chunk file says so."""
        self._ended(trial_key, "FINISHED")

    def failed(self, trial_key: str, message: str) -> None:
        """The trial will not be tried again."""
        self._ended(trial_key, "FAILED", message)

    def interrupted(self, trial_key: str) -> None:
        """The trial was stopped, and can be resumed."""
        self._ended(trial_key, "KILLED")

    def drain(self, timeout: float | None = None) -> list[str]:
        """Wait until everything handed over so far is written.

        Returns:
            One line for everything that has gone wrong since the last call; empty if nothing has.
        """
        done = threading.Event()
        self._queue.put(lambda: (self._catch_up(), done.set()))
        in_time = self._wait(done, timeout)
        lines = [*self._told, *self._behind.values()]
        self._told = []
        if not in_time:
            lines.append(f"tracking: not everything was written to {self._uri} within {timeout:g} s")
        return list(dict.fromkeys(lines))

    def close(self, status: str, timeout: float | None = None) -> str:
        """Write what is left, end every run of the sweep that still runs, and the sweep's with `status`.

        Returns:
            The run id of the sweep.

        Raises:
            TrackingError: the runs could not be ended.
        """
        if self._closed is None:
            done = threading.Event()
            outcome: list[str | BaseException] = []

            def end() -> None:
                try:
                    outcome.append(self._close(status))
                except Exception as error:
                    outcome.append(error)
                done.set()

            self._queue.put(end)
            if not self._wait(done, timeout):
                outcome.append(TimeoutError(f"no answer within {timeout} s"))
            if isinstance(outcome[0], BaseException):
                line = fault("tracking", "", "the sweep's runs could not be ended", self._uri, first_line(outcome[0]))
                raise TrackingError(line) from outcome[0]
            self._closed = outcome[0]
            self._queue.put(_stop)
            self._thread.join(timeout)
        return self._closed

    def _wait(self, done: threading.Event, timeout: float | None) -> bool:
        """Wait for the thread, but not for one that has died."""
        until = None if timeout is None else time.monotonic() + timeout
        while not done.wait(0.2 if until is None else max(0.0, min(0.2, until - time.monotonic()))):
            if (until is not None and time.monotonic() >= until) or not self._thread.is_alive():
                return done.is_set()
        return True

    def _ended(self, trial_key: str, status: str, message: str = "") -> None:
        stack = self._stacks[trial_key]

        def note() -> None:
            if stack.status == "FINISHED":
                return  # for good: its numbers are written
            stack.status, stack.message, stack.settled = status, message, False
            self._guarded(trial_key, lambda: self._settle(stack))

        self._queue.put(note)

    # What follows runs in the thread.

    def _serve(self) -> None:
        while True:
            try:
                wait = max(0.0, self._retry_at - time.monotonic()) if self._behind else None
                self._queue.get(timeout=wait)()
            except queue.Empty:
                self._catch_up()
            except _Stop:
                return

    def _guarded(self, key: str, action: Callable[[], None]) -> None:
        """Do it; if that fails, note why, and let the trial be brought up to date from its chunk file later."""
        if key in self._behind:
            return
        try:
            action()
        except Exception as error:
            self._fell_behind(key, error)

    def _fell_behind(self, key: str, error: Exception) -> None:
        if isinstance(error, TrackingError):
            line = str(error)
        else:
            what = self._stacks[key].trial.configuration.label if key else f"sweep {self._plan.name}"
            line = f"tracking: {what}: {type(error).__name__}: {first_line(error)}"
        if self._behind.get(key) != line:
            logger.warning("%s", line, exc_info=not isinstance(error, TrackingError))
        self._behind[key] = line
        self._retry_at = time.monotonic() + RETRY_S
        if key:
            self._stacks[key].seed_runs = self._stacks[key].curves = None

    def _catch_up(self) -> None:
        """Try again what has failed. The first to fail again ends the attempt: each one may wait long for a server."""
        for key in list(self._behind):
            try:
                if key:
                    self._bring_up_to_date(self._stacks[key])
                else:
                    self._look_at_what_is_finished()
            except Exception as error:
                self._fell_behind(key, error)
                return
            self._told.append(f"{self._behind.pop(key)} (tried again: all is written now)")

    def _open_sweep(self) -> None:
        self._guarded("", self._look_at_what_is_finished)

    def _look_at_what_is_finished(self) -> None:
        """What an earlier driver has finished, and perhaps not written."""
        tree = self._opened()
        over = [stack for stack in self._stacks.values() if (self._folder(stack) / LEARNER_FILE).exists()]
        whole = {c.hash: tree.is_complete(c) for c in {s.trial.configuration.hash: s.trial.configuration for s in over}.values()}
        for stack in over:
            stack.status = "FINISHED"
            if whole[stack.trial.configuration.hash]:
                stack.settled = True
            else:
                self._guarded(stack.trial.key, lambda stack=stack: self._settle(stack))

    def _opened(self) -> RunTree:
        if self._tree is None:
            client = connect(self._uri)
            experiment = experiment_id(client, self._uri, self._experiment)
            self._tree = RunTree(client, experiment, self._plan, self._provenance, self._started_ms)
        return self._tree

    def _folder(self, stack: _Stack) -> Path:
        return stack.trial.folder(self._root)

    def _results(self, stack: _Stack, slice_: Curves) -> None:
        if stack.status == "FINISHED":
            return
        if stack.status:  # it was given up, and has been taken up again
            stack.status, stack.seed_runs = "", None
        self._open_stack(stack, slice_)
        curves = self._curves(stack)
        if slice_.first_batch > curves.batches:
            curves = self._fill(stack)
        if slice_.first_batch > curves.batches:
            raise ValueError(f"batches {curves.batches} to {slice_.first_batch} are in no chunk file yet")
        if slice_.batches > curves.batches:
            before = curves.batches
            curves.extend(slice_.since(before))
            self._send(stack, before)

    def _open_stack(self, stack: _Stack, first: Curves | None = None) -> list[SeedRun]:
        """Open the trial's runs. If there was something in them, they get what they lack from the chunk file."""
        if stack.seed_runs is None:
            started = self._started_ms
            if first is not None and first.chunks:
                started = int(first.chunks["time_ms"][0] - 1_000 * first.chunks["seconds"][0])
            trial = stack.trial
            stack.seed_runs = self._opened().seeds(trial.configuration, trial.seeds, started)
            stack.curves = Curves(list(trial.seeds))
            if any(run.has for run in stack.seed_runs):
                self._fill(stack)
        return stack.seed_runs

    def _curves(self, stack: _Stack) -> Curves:
        assert stack.curves is not None
        return stack.curves

    def _fill(self, stack: _Stack) -> Curves:
        """Write what the chunk file has beyond what was sent."""
        from orchestrator import chunks

        chunk = chunks.newest(self._folder(stack))
        curves = self._curves(stack)
        if chunk is not None and chunk.batches > curves.batches:
            before = curves.batches
            stack.curves = curves = chunk.curves
            self._send(stack, before)
        return curves

    def _send(self, stack: _Stack, since: int) -> None:
        tree, curves = self._opened(), self._curves(stack)
        for row, run in enumerate(self._open_stack(stack)):
            tree.send(run.run_id, tracking_points.seed_points(curves, row, since), run.has)
            diverged = tracking_points.diverged_at(curves, row)
            if diverged >= since:
                tree.tag(run.run_id, {"foml.diverged_at": str(diverged)})

    def _bring_up_to_date(self, stack: _Stack) -> None:
        if stack.status:
            self._settle(stack)
        else:
            self._open_stack(stack)
            self._fill(stack)

    def _settle(self, stack: _Stack) -> None:
        """Write all that is known of a trial that has ended, and how it ended."""
        if stack.settled:
            return
        if stack.status != "KILLED" or self._started(stack):
            tree, runs = self._opened(), self._open_stack(stack)
            curves = self._fill(stack)
            if stack.status == "FINISHED":
                for run in runs:
                    tree.send(run.run_id, tracking_points.final_points(curves, self._datapoints(stack)), run.has)
            end = int(curves.chunks["time_ms"].max()) if curves.chunks else None
            for run in runs:
                if stack.message:
                    tree.tag(run.run_id, {"foml.error": stack.message})
                tree.set_status(run.run_id, stack.status, end)
        stack.settled = True
        stack.seed_runs = stack.curves = None
        self._settle_configuration(stack.trial.configuration)

    def _started(self, stack: _Stack) -> bool:
        return stack.seed_runs is not None or any(self._folder(stack).glob("chunk-*"))

    def _settle_configuration(self, configuration: Configuration) -> None:
        """Once all stacks of a configuration have ended: its mean curves, its checkpoint, and how it ended."""
        stacks = [stack for stack in self._stacks.values() if stack.trial.configuration.hash == configuration.hash]
        if not all(stack.settled for stack in stacks):
            return
        statuses = {stack.status for stack in stacks}
        if statuses == {"FINISHED"}:
            self._summarise(configuration, stacks)
        elif any(self._started(stack) or stack.status == "FAILED" for stack in stacks):
            run_id = self._opened().configuration(configuration)
            self._opened().set_status(run_id, "FAILED" if "FAILED" in statuses else "KILLED")

    def _summarise(self, configuration: Configuration, stacks: list[_Stack]) -> None:
        from orchestrator import chunks

        tree = self._opened()
        run_id = tree.configuration(configuration)
        found = [chunks.newest(self._folder(stack)) for stack in stacks]
        curves = [chunk.curves for chunk in found if chunk is not None]
        if len(curves) < len(stacks):
            raise ValueError("a finished trial has no chunk file: no mean curves can be made")
        objective = self._plan.resolved["objective"]["metric"]
        datapoints = self._datapoints(stacks[0])
        points = tracking_points.configuration_points(curves, objective, datapoints)
        tree.send(run_id, points, tree.points_of(tree.client.get_run(run_id)))
        lost = [
            seed
            for part in curves
            for row, seed in enumerate(part.seeds)
            if tracking_points.diverged_at(part, row) >= 0
        ]
        tree.tag(run_id, {"foml.diverged_seeds": ",".join(map(str, lost))})
        self._artifacts(run_id, stacks, curves, datapoints)
        tree.complete(configuration)
