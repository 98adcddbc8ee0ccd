"""What is written to MLflow of a sweep, and how it is brought up to date after whatever came between.

A `SweepSync` is used by one thread only, that of `tracking.Writer`; everything in it may raise, and may be asked for
again: it sends what is lacking.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.plan.plan import Configuration, Plan, Trial
from orchestrator.protocol import metrics
from orchestrator.protocol.curves import Curves
from orchestrator.storage import trial_log
from orchestrator.storage.mirror import Mirror
from orchestrator.storage.trial_log import machine_tags
from orchestrator.tracking import points as tracking_points
from orchestrator.tracking.database import connect, experiment_id
from orchestrator.tracking.provenance import Provenance
from orchestrator.tracking.runs import STOPPED_AT, OpenRun, RunTree
from orchestrator.tracking.tables import CURVES_FILE, TEST_FILE

LEARNER_FILE = "learner.pt"
_COLUMNS = ["seed", "metric", "step", "value"]

logger = logging.getLogger(__name__)


@dataclass
class TrackedTrial:
    """A trial as the projection knows it.

    ``seed_runs``: None while its runs are not open. ``curves``: all that is known, of which the first ``sent`` batches
    are in MLflow. ``seen``: the batches that some slice reached. ``status``: how it ended, "" if it has not.
    ``stopped_at``: batches after which the scheduler ended it (KILLED, too).
    ``settled``: whether that is written.
    """

    trial: Trial
    seed_runs: list[OpenRun] | None = None
    curves: Curves | None = None
    sent: int = 0
    seen: int = 0
    status: str = ""
    message: str = ""
    stopped_at: int | None = None
    settled: bool = False


class SweepSync:
    """The runs of one sweep, made to say what its trials have reported and what their chunk files hold."""

    def __init__(
        self,
        uri: str,
        experiment: str,
        plan: Plan,
        root: Path,
        provenance: Provenance,
        started_ms: int,
        mirror: Mirror | None = None,
    ) -> None:
        self._mirror = mirror
        self._uri, self._experiment, self._plan, self._root = uri, experiment, plan, root
        self._provenance, self._started_ms = provenance, started_ms
        self._every: int = plan.resolved.get("tracking", {}).get("diagnostics_every", 1)
        self._tree: RunTree | None = None
        self._complete: set[str] = set()
        self._stacks: dict[str, TrackedTrial] = {}

    def state(self, key: str) -> TrackedTrial:
        """A trial of the plan, which may have been drawn since."""
        if key not in self._stacks:
            self._stacks[key] = TrackedTrial(self._plan.trial(key))
        return self._stacks[key]

    def states(self) -> list[TrackedTrial]:
        """All trials of the plan."""
        return [self.state(trial.key) for trial in self._plan.trials]

    def open(self) -> RunTree:
        """Reach MLflow, and find or make the sweep's run."""
        if self._tree is None:
            client = connect(self._uri)
            experiment = experiment_id(client, self._uri, self._experiment)
            tree = RunTree(client, experiment, self._plan, self._provenance.tags, self._started_ms)
            tree.texts(tree.parent_id, self._provenance.files)
            self._tree = tree
        return self._tree

    def keep(self, path: Path) -> None:
        """Send a file of the sweep's folder."""
        tree = self.open()
        tree.artifact(tree.parent_id, path)

    def note_results(self, key: str, batches: int) -> None:
        """A trial has reported up to this batch; if it had been given up, it has been taken up again."""
        state = self.state(key)
        state.seen = max(state.seen, batches)
        if state.status in ("FAILED", "KILLED"):
            state.status, state.message, state.settled, state.seed_runs = "", "", False, None

    def note_end(self, key: str, status: str, message: str, stopped_at: int | None = None) -> None:
        """A trial has ended; FINISHED is for good."""
        state = self.state(key)
        if state.status != "FINISHED":
            state.status, state.message, state.stopped_at, state.settled = status, message, stopped_at, False

    def forget(self, key: str) -> None:
        """Something went wrong in the middle: what MLflow has of this trial is to be asked for again."""
        self.state(key).seed_runs = self.state(key).curves = None
        if self._tree is not None:
            self._tree.discard()

    def write_results(self, key: str, slices: Sequence[Curves]) -> None:
        """Send what is new in these slices. What overlaps is dropped, and a gap is filled from the chunk file."""
        state = self.state(key)
        if state.status == "FINISHED":
            return
        self._open_runs(state, slices[0])
        for slice_ in slices:
            if slice_.first_batch > self._curves(state).batches:
                self._fill(state)
            curves = self._curves(state)
            if slice_.first_batch <= curves.batches < slice_.batches:
                curves.extend(slice_.since(curves.batches))
        self._send(state)
        self.open().flush()
        self._check(state)

    def bring_up_to_date(self, key: str) -> None:
        """Send all that MLflow lacks of a trial, and how it ended if it has."""
        state = self.state(key)
        if state.status:
            self._settle(state)
            self.open().flush()
        else:
            self._open_runs(state)
            self._fill(state)
            self._send(state)
            self.open().flush()
            self._check(state)

    def close(self, status: str) -> str:
        """End every run of the sweep that still runs. Returns the run id of the sweep."""
        tree = self.open()
        for population in self._plan.populations:
            if (path := population.file(self._root)).exists():
                self.keep(path)
        ended: dict[str, str] = {}
        for state in self.states():
            before = ended.get(state.trial.configuration.hash, "FINISHED")
            now = state.status or "KILLED"
            ended[state.trial.configuration.hash] = max(before, now, key=("FINISHED", "KILLED", "FAILED").index)
        tree.end(status, ended)
        return tree.parent_id

    def _folder(self, state: TrackedTrial) -> Path:
        if self._mirror is not None:
            self._mirror.pull_trial(state.trial.key)
        return state.trial.folder(self._root)

    def _open_runs(self, state: TrackedTrial, first: Curves | None = None) -> list[OpenRun]:
        """Open the trial's runs. If something is in them already, the chunk file tells what they should have."""
        if state.seed_runs is None:
            state.curves, state.sent = Curves(list(state.trial.seeds)), 0
            if first is None:
                self._fill(state)
            chunks, started = (state.curves if first is None else first).chunks, self._started_ms
            if chunks and len(chunks["batches"]):
                started = int(chunks["time_ms"][0] - 1_000 * chunks["seconds"][0])
            state.seed_runs = self.open().seeds(state.trial, started)
            if any(run.has for run in state.seed_runs):
                self._fill(state)
        return state.seed_runs

    def _curves(self, state: TrackedTrial) -> Curves:
        return Curves(list(state.trial.seeds)) if state.curves is None else state.curves

    def _fill(self, state: TrackedTrial) -> None:
        """Know all that the chunk file has."""
        from orchestrator.storage import trial_files  # torch comes with it

        chunk = trial_files.newest(self._folder(state))
        if chunk is not None and chunk.batches > self._curves(state).batches:
            state.curves = chunk.curves

    def _check(self, state: TrackedTrial) -> None:
        """A trial writes its chunk file before it reports: what was reported and is not there, was lost."""
        if self._curves(state).batches < state.seen:
            raise ValueError(f"{state.seen} batches were reported, but no chunk file in {self._folder(state)} has them")

    def _send(self, state: TrackedTrial) -> None:
        tree, curves = self.open(), self._curves(state)
        for row, run in enumerate(self._open_runs(state)):
            tree.send(run.run_id, tracking_points.seed_points(curves, row, state.sent, self._every), run.has)
            diverged = metrics.diverged_at(curves, row)
            if diverged >= state.sent:
                tree.tag(run.run_id, {"foml.diverged_at": str(diverged)})
        state.sent = curves.batches

    def _settle(self, state: TrackedTrial) -> None:
        """Write all that is known of a trial that has ended, and how it ended."""
        if not state.settled:
            tree, configuration = self.open(), state.trial.configuration
            run = tree.complete_run(configuration) if state.status == "FINISHED" and state.seed_runs is None else None
            if run is not None:  # an earlier driver has seen to it
                self._mend(configuration, run)
                self._complete.add(configuration.hash)
            elif state.status != "KILLED" or self._started(state):
                self._end_seeds(state, tree)
            state.settled = True
            state.seed_runs = state.curves = None
        self._settle_configuration(state.trial.configuration)

    def _mend(self, configuration: Configuration, run: Any) -> None:
        """Write again, from the chunk files, what is damaged or gone of a complete configuration's tables."""
        if configuration.hash in self._complete or not (damaged := self.open().damaged_tables(run)):
            return
        states = [state for state in self.states() if state.trial.configuration.hash == configuration.hash]
        curves, finals = zip(*(self._measured(state) for state in states), strict=True)
        tables = _tables(curves, finals)
        self.open().keep_tables(run.info.run_id, {name: tables[name] for name in damaged})
        for name, what in damaged.items():
            of = f"{name} of {configuration.label} (run {run.info.run_id})"
            logger.warning("%s: %s; written again from the chunk files", of, what)

    def _end_seeds(self, state: TrackedTrial, tree: RunTree) -> None:
        runs = self._open_runs(state)
        self._fill(state)
        self._send(state)
        curves = self._curves(state)
        if state.status == "FINISHED":
            for run, points in zip(runs, self._measured(state)[1], strict=True):
                tree.send(run.run_id, points, run.has)
        tags = machine_tags(self._folder(state))
        tags |= {f"foml.{name}_mb": f"{value:.0f}" for name, value in tracking_points.peaks(curves).items()}
        tags |= {"foml.error": state.message} if state.message else {}
        tags |= {STOPPED_AT: str(state.stopped_at)} if state.stopped_at is not None else {}
        for run in runs:
            tree.tag(run.run_id, tags)
            tree.set_status(run.run_id, state.status, int(curves.chunks["time_ms"].max()) if curves.chunks else None)

    def _started(self, state: TrackedTrial) -> bool:
        return state.seed_runs is not None or any(self._folder(state).glob("chunk-*"))

    def _measured(self, state: TrackedTrial) -> tuple[Curves, list[list[tracking_points.Point]]]:
        """A finished trial's curves, and what each of its seeds is given at the end, from its chunk file."""
        from orchestrator.storage import trial_files

        chunk = trial_files.newest(self._folder(state))
        if chunk is None or not chunk.finished:
            raise ValueError(f"there is no chunk file of a finished trial in {self._folder(state)}")
        curves, size = chunk.curves, state.trial.configuration.batch_size
        costs = tracking_points.final_points(curves, int(chunk.state["position"]))
        seeds = range(len(curves.seeds))
        return curves, [[*tracking_points.adaptation_points(curves, row, size), *costs] for row in seeds]

    def _settle_configuration(self, configuration: Configuration) -> None:
        """Once all states of a configuration have ended: its mean curves, its checkpoint, and how it ended."""
        states = [state for state in self.states() if state.trial.configuration.hash == configuration.hash]
        if configuration.hash in self._complete or not all(state.settled for state in states):
            return
        statuses = {state.status for state in states}
        if "FAILED" in statuses or any(self._started(state) for state in states):
            self._keep_logs(configuration, states)
        if statuses == {"FINISHED"}:
            self._summarise(configuration, states)
        elif "FAILED" in statuses or any(self._started(state) for state in states):
            tree = self.open()
            tree.set_status(tree.configuration(configuration), "FAILED" if "FAILED" in statuses else "KILLED")

    def _keep_logs(self, configuration: Configuration, states: Sequence[TrackedTrial]) -> None:
        """With a configuration's run: the log of each of its trials, and the machines that they ran on."""
        tree = self.open()
        run_id = tree.configuration(configuration)
        machines: dict[str, dict[str, None]] = {}
        for index, state in enumerate(states):
            for key, value in machine_tags(self._folder(state)).items():
                machines.setdefault(key, {})[value] = None
            log = self._folder(state) / trial_log.FILE
            if log.is_file():
                tree.artifact(run_id, log, "log" if index == 0 else f"log/{state.trial.key}")
        tree.tag(run_id, {key: ", ".join(different) for key, different in machines.items()})

    def _summarise(self, configuration: Configuration, states: Sequence[TrackedTrial]) -> None:
        tree = self.open()
        run_id = tree.configuration(configuration)
        curves, finals = zip(*(self._measured(state) for state in states), strict=True)
        objective = self._plan.resolved["objective"]["metric"]
        costs = [of_seeds[0] for of_seeds in finals]
        points = tracking_points.configuration_points(curves, costs, objective, configuration.batch_size)
        tree.send(run_id, points, tree.points_of_configuration(configuration))
        lost = [
            f"{seed} at batch {at}"
            for part in curves
            for row, seed in enumerate(part.seeds)
            if (at := metrics.diverged_at(part, row)) >= 0
        ]
        tags = {"foml.diverged": ", ".join(lost)}
        for index, state in enumerate(states):
            folder = self._folder(state)
            for file in (folder / LEARNER_FILE, *sorted(folder.glob("learner-*.pt"))):
                tree.artifact(run_id, file, "checkpoint" if index == 0 else f"checkpoint/{state.trial.key}")
        tree.keep_tables(run_id, _tables(curves, finals), tags)
        tree.complete(configuration)
        self._complete.add(configuration.hash)


def _tables(
    curves: Sequence[Curves], finals: Sequence[Sequence[Sequence[tracking_points.Point]]]
) -> dict[str, pd.DataFrame]:
    return {CURVES_FILE: frame(curves, finals), TEST_FILE: test_frame(curves)}


def frame(curves: Sequence[Curves], finals: Sequence[Sequence[Sequence[tracking_points.Point]]]) -> pd.DataFrame:
    """All points of all seeds of these states: the columns seed, metric, step, value. `finals`: by state, by seed."""
    rows = [
        (seed, point.metric, point.step, point.value)
        for part, of_seeds in zip(curves, finals, strict=True)
        for row, (seed, final) in enumerate(zip(part.seeds, of_seeds, strict=True))
        for point in [*tracking_points.seed_points(part, row), *final]
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def test_frame(curves: Sequence[Curves]) -> pd.DataFrame:
    """The test errors of all seeds of these states, in the columns of `frame`; steps are tasks.

    They are in a file of their own and are no metric: nobody is to choose by them.
    """
    rows = [
        (seed, "test_error", task, float(value))
        for part in curves
        if "test_error" in part.evaluations
        for seed, by_task in zip(part.seeds, metrics.held_out(part, "test_error"), strict=True)
        for task, value in enumerate(by_task)
        if math.isfinite(value)
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)
