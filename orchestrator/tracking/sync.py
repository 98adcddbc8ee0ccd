"""The runs of a sweep in MLflow, kept equal to what its trials report and their chunk files hold."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.plan.plan import Configuration, Plan, Trial
from orchestrator.protocol import metrics
from orchestrator.protocol.curves import Curves
from orchestrator.protocol.objectives import ObjectiveError, ObjectiveMetric
from orchestrator.storage import trial_log
from orchestrator.storage.mirror import Mirror
from orchestrator.storage.trial_log import machine_tags
from orchestrator.tracking import points as tracking_points
from orchestrator.tracking import tables
from orchestrator.tracking.database import connect, experiment_id
from orchestrator.tracking.names import fates_as_text
from orchestrator.tracking.points import OBJECTIVE, WHOLE, Bounds
from orchestrator.tracking.provenance import STORE, STORE_PATH, Provenance
from orchestrator.tracking.requests import divided
from orchestrator.tracking.runs import BATCHES, SEED_FATES, STOPPED_AT, OpenRun, RunTree

LEARNER_FILE = "learner.pt"

logger = logging.getLogger(__name__)


@dataclass
class TrackedTrial:
    """A trial, and what MLflow has of it.

    Attributes:
        trial: of the plan.
        open_runs: the runs of its seeds; None until they are opened.
        curves: everything that was reported or read from a chunk file.
        sent: the number of batches of `curves` that MLflow has.
        reported: the number of batches that were reported.
        status: FINISHED, FAILED or KILLED; empty while the trial runs.
        message: the reason, if it failed.
        stopped_at: batches after which the scheduler stopped it, with the status KILLED.
        settled: whether MLflow has the status and everything before it.
    """

    trial: Trial
    open_runs: list[OpenRun] | None = None
    curves: Curves | None = None
    sent: int = 0
    reported: int = 0
    status: str = ""
    message: str = ""
    stopped_at: int | None = None
    settled: bool = False


class SweepSync:
    """Writes the runs of one sweep, from one thread.

    Any method may raise when MLflow fails; called again, it sends what is still missing.
    """

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
        self._bounds = tracking_points.bounds_of(plan.resolved.get("tracking", {}))
        self._tree: RunTree | None = None
        self._complete: set[str] = set()
        self._objectives: dict[str, float] = {}  # of complete configurations, by hash
        self._tracked: dict[str, TrackedTrial] = {}
        self._chunks: dict[str, Any] = {}  # trial → its chunk file, in one call of `bring_up_to_date`

    def trial(self, key: str) -> TrackedTrial:
        """A trial of the plan, to which a search may have added it since."""
        if key not in self._tracked:
            self._tracked[key] = TrackedTrial(self._plan.trial(key))
        return self._tracked[key]

    def _trials(self, configuration: Configuration | None = None) -> list[TrackedTrial]:
        """The trials of the plan, or of one configuration."""
        trials = [self.trial(trial.key) for trial in self._plan.trials]
        hash_ = None if configuration is None else configuration.hash
        return [tracked for tracked in trials if hash_ in (None, tracked.trial.configuration.hash)]

    def open(self) -> RunTree:
        """Connect to MLflow, and find or create the sweep's run."""
        if self._tree is None:
            client = connect(self._uri)
            experiment = experiment_id(client, self._uri, self._experiment)
            tree = RunTree(client, experiment, self._plan, self._provenance.tags, self._started_ms)
            tree.texts(tree.parent_id, self._provenance.files)
            tags = self._provenance.tags
            if STORE in tags:
                tree.dataset(self._plan.resolved["stream"]["name"], tags[STORE], tags[STORE_PATH])
            self._tree = tree
        return self._tree

    def keep(self, path: Path) -> None:
        """Store a file with the sweep's run."""
        tree = self.open()
        tree.artifact(tree.parent_id, path)

    def note_results(self, key: str, batches: int) -> None:
        """Note that a trial has reported this many batches; one that had failed or was killed runs again."""
        tracked = self.trial(key)
        tracked.reported = max(tracked.reported, batches)
        if tracked.status in ("FAILED", "KILLED"):
            tracked.status, tracked.message, tracked.settled, tracked.open_runs = "", "", False, None

    def note_end(self, key: str, status: str, message: str, stopped_at: int | None = None) -> None:
        """Note that a trial has ended; FINISHED is final."""
        tracked = self.trial(key)
        if tracked.status != "FINISHED":
            tracked.status, tracked.message, tracked.stopped_at, tracked.settled = status, message, stopped_at, False

    def forget(self, key: str) -> None:
        """After a failure, drop everything that is assumed about MLflow's content, and this trial's curves."""
        self.trial(key).open_runs = self.trial(key).curves = None
        if self._tree is not None:
            self._tree.discard()

    def write_results(self, key: str, slices: Sequence[Curves]) -> None:
        """Send what is new in these slices; overlaps are dropped, and a gap is filled from the chunk file."""
        tracked = self.trial(key)
        if tracked.status == "FINISHED":
            return
        self._open_runs(tracked, slices[0])
        for slice_ in slices:
            if slice_.first_batch > self._curves(tracked).batches:
                self._fill(tracked)
            curves = self._curves(tracked)
            if slice_.first_batch <= curves.batches < slice_.batches:
                curves.extend(slice_.since(curves.batches))
        self._send(tracked)
        self.open().flush()
        self._check(tracked)

    def bring_up_to_date(self, key: str) -> None:
        """Send everything of a trial that MLflow does not have, and its status if it has ended."""
        tracked = self.trial(key)
        self._chunks.clear()
        if tracked.status:
            self._settle(tracked)
            self.open().flush()
            self._chunks.clear()
        else:
            self._open_runs(tracked)
            self._fill(tracked)
            self._send(tracked)
            self.open().flush()
            self._check(tracked)

    def close(self, status: str) -> str:
        """End every run of the sweep that is still RUNNING. Returns the run id of the sweep."""
        tree = self.open()
        for population in self._plan.populations:
            if (path := population.file(self._root)).exists():
                self.keep(path)
        statuses: dict[str, str] = {}  # of configurations: the worst of their trials
        for tracked in self._trials():
            key = tracked.trial.configuration.hash
            both = (statuses.get(key, "FINISHED"), tracked.status or "KILLED")
            statuses[key] = max(both, key=("FINISHED", "KILLED", "FAILED").index)
        tree.summarise(self._summary())
        tree.end(status, statuses)
        return tree.parent_id

    def _summary(self) -> dict[str, float]:
        """The metrics of the sweep's run: the best objective of complete configurations, and numbers of trials."""
        statuses = [tracked.status for tracked in self._trials()]
        numbers = {"trials": len(statuses), "trials_finished": statuses.count("FINISHED")}
        numbers["trials_failed"] = statuses.count("FAILED")
        objectives = [value for value in self._objectives.values() if math.isfinite(value)]
        best = max if self._plan.resolved["objective"]["mode"] == "max" else min
        return numbers | ({"best_objective": best(objectives)} if objectives else {})

    def _folder(self, tracked: TrackedTrial) -> Path:
        if self._mirror is not None:
            self._mirror.pull_trial(tracked.trial.key)
        return tracked.trial.folder(self._root)

    def _open_runs(self, tracked: TrackedTrial, first: Curves | None = None) -> list[OpenRun]:
        """The trial's runs, opened; if they have points, the chunk file says which ones they should have."""
        if tracked.open_runs is None:
            tracked.curves, tracked.sent = Curves(list(tracked.trial.seeds)), 0
            if first is None:
                self._fill(tracked)
            chunks, started = (tracked.curves if first is None else first).chunks, self._started_ms
            if chunks and len(chunks["batches"]):
                started = int(chunks["time_ms"][0] - 1_000 * chunks["seconds"][0])
            tracked.open_runs = self.open().seeds(tracked.trial, started)
            if any(run.has for run in tracked.open_runs):
                self._fill(tracked)
        return tracked.open_runs

    def _curves(self, tracked: TrackedTrial) -> Curves:
        return Curves(list(tracked.trial.seeds)) if tracked.curves is None else tracked.curves

    def _newest(self, tracked: TrackedTrial) -> Any:
        """The newest chunk file, or None; that of a trial that has ended is read once while it is settled."""
        from orchestrator.storage import chunk_files  # imports torch

        key = tracked.trial.key
        if not tracked.status:
            return chunk_files.newest(self._folder(tracked))
        if key not in self._chunks:
            self._chunks[key] = chunk_files.newest(self._folder(tracked))
        return self._chunks[key]

    def _stored(self, tracked: TrackedTrial) -> Curves | None:
        """The curves of the newest chunk file, if there is one."""
        chunk = self._newest(tracked)
        return None if chunk is None else chunk.curves

    def _fill(self, tracked: TrackedTrial) -> None:
        """Take the curves of the newest chunk file, if it is longer."""
        curves = self._stored(tracked)
        if curves is not None and curves.batches > self._curves(tracked).batches:
            tracked.curves = curves

    def _check(self, tracked: TrackedTrial) -> None:
        """Raise if batches were reported that no chunk file holds: a trial writes the file before it reports."""
        if self._curves(tracked).batches < tracked.reported:
            folder = self._folder(tracked)
            raise ValueError(f"{tracked.reported} batches were reported, but no chunk file in {folder} has them")

    def _send(self, tracked: TrackedTrial) -> None:
        tree, curves = self.open(), self._curves(tracked)
        runs = self._open_runs(tracked)
        points = tracking_points.seed_points(curves, tracked.sent, self._bounds) if runs else []
        for row, (run, of_seed) in enumerate(zip(runs, points, strict=True)):
            tree.send(run.run_id, of_seed, run.has)
            diverged = metrics.diverged_at(curves, row)
            if diverged >= tracked.sent:
                tree.tag(run.run_id, {"foml.diverged_at": str(diverged)})
        tracked.sent = curves.batches

    def _settle(self, tracked: TrackedTrial) -> None:
        """Write everything about a trial that has ended, and its status."""
        if not tracked.settled:
            tree, configuration = self.open(), tracked.trial.configuration
            unopened = tracked.status == "FINISHED" and tracked.open_runs is None
            run = tree.complete_run(configuration) if unopened else None
            if run is not None:  # an earlier command has written everything
                self._mend(configuration, run)
                self._complete.add(configuration.hash)
                self._objectives[configuration.hash] = run.data.metrics.get(OBJECTIVE, math.nan)
            elif tracked.status != "KILLED" or self._started(tracked):
                self._end_seeds(tracked, tree)
            tree.flush()
            tracked.settled = True
            tracked.open_runs = tracked.curves = None
        self._settle_configuration(tracked.trial.configuration)

    def _mend(self, configuration: Configuration, run: Any) -> None:
        """Write damaged or missing tables of a complete configuration again, from the chunk files."""
        if configuration.hash in self._complete or not (damaged := self.open().damaged_tables(run)):
            return
        trials = self._trials(configuration)
        curves, finals = zip(*(self._measured(tracked) for tracked in trials), strict=True)
        frames = tables.of_configuration(curves, finals)
        self.open().keep_tables(run.info.run_id, {name: frames[name] for name in damaged})
        for name, reason in damaged.items():
            table = f"{name} of {configuration.label} (run {run.info.run_id})"
            logger.warning("%s: %s; written again from the chunk files", table, reason)

    def _end_seeds(self, tracked: TrackedTrial, tree: RunTree) -> None:
        runs = self._open_runs(tracked)
        self._fill(tracked)
        self._send(tracked)
        curves = self._curves(tracked)
        if tracked.status == "FINISHED" and runs:
            for run, points in zip(runs, self._measured(tracked, self._bounds)[1], strict=True):
                tree.send(run.run_id, points, run.has)
        tags = machine_tags(self._folder(tracked))
        tags |= {f"foml.{name}_mb": f"{value:.0f}" for name, value in tracking_points.peaks(curves).items()}
        tags |= {"foml.error": tracked.message} if tracked.message else {}
        tags |= {STOPPED_AT: str(tracked.stopped_at)} if tracked.stopped_at is not None else {}
        for run in runs:
            tree.tag(run.run_id, tags)
            tree.set_status(run.run_id, tracked.status, int(curves.chunks["time_ms"].max()) if curves.chunks else None)

    def _started(self, tracked: TrackedTrial) -> bool:
        return tracked.open_runs is not None or any(self._folder(tracked).glob("chunk-*"))

    def _measured(
        self, tracked: TrackedTrial, bounds: Bounds = WHOLE
    ) -> tuple[Curves, list[list[tracking_points.Point]]]:
        """A finished trial's curves, and for each of its seeds the points that exist only at the end."""
        chunk = self._newest(tracked)
        if chunk is None or not chunk.finished:
            raise ValueError(f"no chunk file in {self._folder(tracked)} is of a finished trial")
        return chunk.curves, self._end_points(tracked, chunk, bounds)

    def _so_far(self, tracked: TrackedTrial) -> tuple[Curves, list[list[tracking_points.Point]]] | None:
        """As `_measured`, of a trial that may have ended early, with its objective so far; None without a chunk file.

        The objective so far is in no run of a seed, whose points cannot be changed when the trial is resumed.
        """
        chunk = self._newest(tracked)
        if chunk is None:
            return None
        if chunk.finished and tracked.status == "FINISHED":
            return chunk.curves, self._end_points(tracked, chunk, WHOLE)
        objective = self._objective(tracked.trial.configuration.batch_size)
        try:
            return chunk.curves, tracking_points.objective_points(chunk.curves, objective)
        except ObjectiveError:  # the trial has failed for it
            return chunk.curves, [[] for _ in chunk.curves.seeds]

    def _end_points(self, tracked: TrackedTrial, chunk: Any, bounds: Bounds) -> list[list[tracking_points.Point]]:
        size, datapoints = tracked.trial.configuration.batch_size, int(chunk.state["position"])
        return tracking_points.end_points(chunk.curves, datapoints, self._objective(size), size, bounds)

    def _objective(self, batch_size: int) -> ObjectiveMetric:
        return ObjectiveMetric.of(self._plan.resolved["objective"], batch_size)

    def _settle_configuration(self, configuration: Configuration) -> None:
        """Once all trials of a configuration have ended, write its mean curves, checkpoint and status."""
        trials = self._trials(configuration)
        if configuration.hash in self._complete or not all(tracked.settled for tracked in trials):
            return
        statuses = {tracked.status for tracked in trials}
        started = "FAILED" in statuses or any(self._started(tracked) for tracked in trials)
        if started:
            self._keep_logs(configuration, trials)
        if statuses == {"FINISHED"}:
            self._summarise(configuration, trials)
        elif started:
            tree = self.open()
            run_id = tree.configuration(configuration)
            stored = [(tracked, self._so_far(tracked)) for tracked in trials]
            parts = [part for _, part in stored if part is not None]
            curves, lasts = [part[0] for part in parts], [part[1] for part in parts]
            self._keep_seeds(run_id, trials, curves)
            # Without its chunk files, MLflow's points are all that is left of a failed trial.
            if all(part is not None for tracked, part in stored if tracked.status != "KILLED"):
                frames = tables.of_configuration(curves, lasts)
                tree.keep_tables(run_id, {tables.CURVES_FILE: frames[tables.CURVES_FILE]})
            tree.set_status(run_id, "FAILED" if "FAILED" in statuses else "KILLED")

    def _keep_seeds(self, run_id: str, trials: Sequence[TrackedTrial], curves: Sequence[Curves]) -> None:
        """Where seeds have no runs, store their final values with the configuration's, and how each ended."""
        tree = self.open()
        if tree.seed_runs:
            return
        diverged = {
            seed: at
            for part in curves
            for row, seed in enumerate(part.seeds)
            if (at := metrics.diverged_at(part, row)) >= 0
        }
        fates = [
            (seed, tracked.status, diverged.get(seed), tracked.stopped_at)
            for tracked in trials
            for seed in tracked.trial.seeds
        ]
        messages = dict.fromkeys(tracked.message for tracked in trials if tracked.message)
        tree.tag(run_id, {**divided(SEED_FATES, fates_as_text(fates)), "foml.error": "; ".join(messages)})
        tree.texts(run_id, {tables.SEEDS_FILE: tables.final_values(curves).to_csv(index=False)})

    def _keep_logs(self, configuration: Configuration, trials: Sequence[TrackedTrial]) -> None:
        """Store the logs of a configuration's trials, and tag its run with the machines that they ran on."""
        tree = self.open()
        run_id = tree.configuration(configuration)
        machines: dict[str, dict[str, None]] = {}
        for index, tracked in enumerate(trials):
            for key, value in machine_tags(self._folder(tracked)).items():
                machines.setdefault(key, {})[value] = None
            log = self._folder(tracked) / trial_log.FILE
            if log.is_file():
                tree.artifact(run_id, log, "log" if index == 0 else f"log/{tracked.trial.key}")
        tree.tag(run_id, {key: ", ".join(different) for key, different in machines.items()})

    def _summarise(self, configuration: Configuration, trials: Sequence[TrackedTrial]) -> None:
        tree = self.open()
        run_id, size = tree.configuration(configuration), configuration.batch_size
        curves, finals = zip(*(self._measured(tracked) for tracked in trials), strict=True)
        costs = [of_seeds[0] for of_seeds in finals]
        points = tracking_points.configuration_points(curves, costs, self._objective(size), size, self._bounds)
        tree.send(run_id, points, tree.points_of_configuration(configuration))
        values = [point.value for point in points if point.metric == OBJECTIVE]
        self._objectives[configuration.hash] = values[0] if values else math.nan
        self._keep_seeds(run_id, trials, curves)
        diverged = [
            f"{seed} at batch {at}"
            for part in curves
            for row, seed in enumerate(part.seeds)
            if (at := metrics.diverged_at(part, row)) >= 0
        ]
        for index, tracked in enumerate(trials):
            folder = self._folder(tracked)
            for file in (folder / LEARNER_FILE, *sorted(folder.glob("learner-*.pt"))):
                tree.artifact(run_id, file, "checkpoint" if index == 0 else f"checkpoint/{tracked.trial.key}")
        tags = {"foml.diverged": ", ".join(diverged), BATCHES: str(max(part.batches for part in curves))}
        tree.keep_tables(run_id, tables.of_configuration(curves, finals), tags)
        tree.complete(configuration)
        self._complete.add(configuration.hash)
