"""The runs of a sweep in MLflow: sweep → configuration → seed.

The tag `RUN_KEY` of a run identifies its content and not its machine: a resumed sweep finds its runs by it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.plan.plan import Configuration, Plan, Trial, results_version
from orchestrator.protocol.objectives import ObjectiveMetric
from orchestrator.tracking import ownership, tables
from orchestrator.tracking.names import (
    CONFIGURATION,
    INTERNAL,
    PARENT,
    RUN_KEY,
    earlier_tags,
    listed,
    parameters,
    run_name,
    sweep_key,
    sweep_parameters,
    sweep_tags,
)
from orchestrator.tracking.points import Point, bounds_of
from orchestrator.tracking.requests import CUT, RunBatches, cut, divided, joined, search
from streams.store.canonical_json import digest

if TYPE_CHECKING:
    import pandas as pd

_RUN_NAME = "mlflow.runName"
_LONGEST_DIGEST = 36
"""Characters of a data set's digest in MLflow."""
CONFIGURATION_FILE = "configuration.json"
OF_THE_SWEEP = ("foml.hostname", "foml.platform")
"""Tags of provenance that configurations and seeds take from the machines that they ran on."""
POPULATION = f"{INTERNAL}population"
"""Tag of a configuration or seed: the hash of its population; empty if it has none."""
STOPPED_AT = "foml.stopped_at"
"""Tag of a seed: the batches after which the scheduler stopped it; empty if it was resumed later."""
REMOVED = "foml.withdrawn"
"""Tag of a configuration: "true" if the sweep, as last started, no longer contains it; else empty."""
COMPLETE_FOR = f"{INTERNAL}complete_for"
"""Tag of a configuration: the seeds of which MLflow has everything."""
LABEL, POSITION = "foml.label", f"{INTERNAL}position"
"""Tags of a configuration: its label, and its place in the plan of the sweep as last started."""
BATCHES = f"{INTERNAL}batches"
"""Tag of a complete configuration: the batches of its stream. Its mean curves end where the first seed diverged."""
SEEDS = "foml.seeds"
"""Tag of a configuration: the seeds of the plan."""
SEED_FATES = f"{INTERNAL}seed_fates"
"""Tag of a configuration whose seeds have no runs: how each ended (`names.fates_as_text`); empty if they have runs."""


@dataclass
class OpenRun:
    """A seed's run that is being written.

    Attributes:
        run_id: in MLflow.
        has: the (metric, step) of every point that an earlier process wrote; these are not sent again.
    """

    run_id: str
    has: set[tuple[str, int]] = field(default_factory=set)


class RunTree(RunBatches):
    """The runs of one sweep in one experiment, which are created unless they exist."""

    def __init__(
        self, client: Any, experiment: str, plan: Plan, provenance: Mapping[str, str], started_ms: int
    ) -> None:
        super().__init__(client)
        self._experiment, self._plan, self._key = experiment, plan, sweep_key(plan.name)
        self._cached: tuple[str, dict[str, Any]] | None = None  # a configuration's hash and its runs, until `flush`
        self._configurations: dict[str, str] = {}
        self._metrics_of_sweep: dict[str, float] = {}  # name → value, as far as known
        self.seed_runs: bool = plan.resolved.get("tracking", {}).get("seed_runs", True)
        self._existing: set[str] | None = None  # hashes of the configurations that have runs; None if unknown
        self.parent_id = self._parent(provenance, started_ms)
        self._provenance = {key: value for key, value in provenance.items() if key not in OF_THE_SWEEP}
        self._mark_removed()

    def flush(self) -> None:
        super().flush()
        self._cached = None

    def discard(self) -> None:
        super().discard()
        self._configurations.clear()
        self._existing = None
        self._cached = None
        self._metrics_of_sweep.clear()

    def _mark_removed(self) -> None:
        """Mark the configurations that the plan does not contain, and label the others as the plan does.

        The label of a configuration has what distinguishes it from the others of the sweep, which may have grown.
        `configuration` and `complete_run` remove the mark of one that a search draws again later.
        """
        planned = {trial.configuration.hash: trial.configuration for trial in self._plan.trials}
        labels: dict[str, str] = {}
        runs = []
        for run in search(self._client, [self._experiment], "tags.`foml.kind` != 'sweep'", stored_tags=True):
            earlier = earlier_tags(run.data.tags)
            run.data.tags.update(earlier)
            if self._is_below(run):
                runs.append(run)
                self.tag(run.info.run_id, earlier)
        seeds = [run for run in runs if run.data.tags["foml.kind"] == "seed"]
        for run in runs:
            tags, hash_ = run.data.tags, run.data.tags[CONFIGURATION]
            if tags["foml.kind"] == "seed":
                continue
            expected = {REMOVED: "true"}
            if hash_ in planned:
                expected = {REMOVED: "", **self._label_and_position(planned[hash_])}
            changed = {key: value for key, value in cut(expected).items() if tags.get(key, "") != value}
            if changed:
                self.tag(run.info.run_id, changed)
            if LABEL in changed:
                labels[hash_] = changed[LABEL]
        for run in seeds:
            if (hash_ := run.data.tags[CONFIGURATION]) in labels:
                name = run_name(labels[hash_], int(run.data.tags["foml.seed"]))
                self.tag(run.info.run_id, {LABEL: labels[hash_], _RUN_NAME: name})
        self.flush()
        self._existing = {run.data.tags[CONFIGURATION] for run in runs}

    def _label_and_position(self, configuration: Configuration) -> dict[str, str]:
        """Tags that depend on the other configurations of the sweep."""
        hashes = [trial.configuration.hash for trial in self._plan.trials]
        label = configuration.label
        return {LABEL: label, _RUN_NAME: run_name(label), POSITION: str(hashes.index(configuration.hash))}

    def _parent(self, provenance: Mapping[str, str], started_ms: int) -> str:
        name, identity = self._plan.name, ownership.tags(self._plan.resolved)
        run = ownership.sweep_run(self._client, self._experiment, name)
        if run is None:
            tags = {"foml.kind": "sweep", "foml.sweep": name, RUN_KEY: self._key, **identity}
            run_id = self.create(self._experiment, run_name(name), tags, started_ms)
        else:
            ownership.check_tags("tracking", run.data.tags, self._plan.resolved)
            run_id = str(run.info.run_id)
            self.set_status(run_id, "RUNNING")
        objective = self._plan.resolved["objective"]
        tags = {"foml.objective": ObjectiveMetric.of(objective, 1).name, "foml.mode": objective["mode"], **identity}
        self.tag(run_id, {**provenance, **tags, f"{INTERNAL}sweep_hash": digest(self._plan.resolved, 12)})
        self.tag(run_id, sweep_tags(self._plan.resolved))
        params, existing = sweep_parameters(self._plan.resolved), {} if run is None else run.data.params
        self.set_params(run_id, {key: value for key, value in params.items() if key not in existing})
        self._metrics_of_sweep = {} if run is None else dict(run.data.metrics)
        self.flush()
        self._client.log_dict(run_id, self._plan.resolved, "sweep.json")
        return run_id

    def _below(self, condition: str) -> Iterator[Any]:
        """The runs below the sweep's own for which the condition holds."""
        return filter(self._is_below, search(self._client, [self._experiment], condition))

    def _is_below(self, run: Any) -> bool:
        return str(run.data.tags.get(RUN_KEY, "")).startswith(f"{self._key}/")

    def _of_configuration(self, configuration: Configuration) -> dict[str, Any]:
        """Run key → run, of a configuration and its seeds.

        A search costs as much as the creation of several runs, and more the more runs there are. No other process
        writes the sweep's runs, so a configuration that had none at the start is searched only once it has some.
        """
        if self._existing is not None and configuration.hash not in self._existing:
            return {}
        if self._cached is None or self._cached[0] != configuration.hash:
            runs = self._below(f"tags.`{CONFIGURATION}` = '{configuration.hash}'")
            self._cached = configuration.hash, {run.data.tags[RUN_KEY]: run for run in runs}
        return dict(self._cached[1])

    def _trials(self, configuration: Configuration) -> list[Trial]:
        return [trial for trial in self._plan.trials if trial.configuration == configuration]

    def _seeds(self, configuration: Configuration) -> str:
        """The seeds that the plan has for a configuration, in all its stacks, as a tag's text."""
        return listed(seed for trial in self._trials(configuration) for seed in trial.seeds)

    def _seed_key(self, trial: Trial, seed: int) -> str:
        """The run key of a seed, which includes its stack: the same seed in another stack is another computation."""
        return f"{self._key}/{trial.key}/{seed}"

    def configuration(self, configuration: Configuration) -> str:
        """The id of a configuration's run.

        A run whose mean curves are over other seeds than the plan's is deleted and created again, since points in
        MLflow cannot be changed. The runs of its seeds become children of the new one, or are deleted if the plan no
        longer has their stack. (MLflow can restore deleted runs.)
        """
        if configuration.hash in self._configurations:
            return self._configurations[configuration.hash]
        key = f"{self._key}/{configuration.hash}"
        seeds = self._seeds(configuration)
        runs = self._of_configuration(configuration)
        run = runs.pop(key, None)
        if run is not None and run.data.metrics and joined(run.data.tags, SEEDS) != seeds:
            self._client.delete_run(run.info.run_id)
            run = None
        if run is None:
            tags = self._tags("configuration", key, configuration) | {PARENT: self.parent_id}
            tags |= divided(SEEDS, seeds) | self._provenance | self._label_and_position(configuration)
            tags |= {} if self.seed_runs else {SEED_FATES: "[]"}
            run_id = self.create(self._experiment, run_name(configuration.label), tags)
        else:
            run_id = str(run.info.run_id)
            self.tag(run_id, {PARENT: self.parent_id, **divided(SEEDS, seeds), REMOVED: "", **self._provenance})
            self.tag(run_id, self._label_and_position(configuration))
            if tables.CURVES_FILE in tables.digests(run.data.tags):  # of its trials when they were interrupted
                self.tag(run_id, tables.without(tables.CURVES_FILE))
            if not self.seed_runs or run.data.tags.get(SEED_FATES):
                self.tag(run_id, {SEED_FATES: "" if self.seed_runs else "[]"})
        self.set_params(run_id, parameters(configuration))
        self._flush([run_id])
        self._client.log_dict(run_id, self._described(configuration), CONFIGURATION_FILE)
        planned = {self._seed_key(trial, seed) for trial in self._trials(configuration) for seed in trial.seeds}
        for seed_key, seed_run in runs.items():
            if seed_key not in planned:
                self._client.delete_run(seed_run.info.run_id)
            elif seed_run.data.tags.get(PARENT) != run_id:
                self.tag(seed_run.info.run_id, {PARENT: run_id})
        self._configurations[configuration.hash] = run_id
        return run_id

    def _described(self, configuration: Configuration) -> dict[str, Any]:
        """Everything that determines a configuration's results except the machine: the input of `rerun`."""
        sections = ("objective", "chunk", "resources", "retries")
        return {
            "configuration": asdict(configuration),
            "hash": configuration.hash,
            "results_version": results_version(configuration.learner, configuration.stream),
            "stacks": [list(trial.seeds) for trial in self._trials(configuration)],
            "run": {key: self._plan.resolved[key] for key in sections if key in self._plan.resolved},
            "bounds": asdict(bounds_of(self._plan.resolved.get("tracking", {}))),
            "provenance": self._provenance,
            **({} if self._plan.folder is None else {"folder": self._plan.folder}),
        }

    def seeds(self, trial: Trial, started_ms: int) -> list[OpenRun]:
        """The runs of a trial's seeds, with status RUNNING; none with `seed_runs: false`."""
        parent = self.configuration(trial.configuration)
        runs = self._of_configuration(trial.configuration)
        out = []
        for seed in trial.seeds if self.seed_runs else ():
            key = self._seed_key(trial, seed)
            run = runs.get(key)
            if run is None:
                tags = self._tags("seed", key, trial.configuration) | {PARENT: parent, "foml.seed": str(seed)}
                name = run_name(trial.configuration.label, seed)
                seed_run = OpenRun(self.create(self._experiment, name, tags | self._provenance, started_ms))
            else:
                seed_run = OpenRun(str(run.info.run_id), self.points_of(run))
                self.tag(seed_run.run_id, self._provenance)
                if run.info.status != "RUNNING":
                    self.set_status(seed_run.run_id, "RUNNING")
                if run.data.tags.get(STOPPED_AT):
                    self.tag(seed_run.run_id, {STOPPED_AT: ""})
            self.set_params(seed_run.run_id, {**parameters(trial.configuration), "seed": str(seed)})
            out.append(seed_run)
        if parent not in self._running:
            self.set_status(parent, "RUNNING")
        self._cached = None
        if self._existing is not None:
            self._existing.add(trial.configuration.hash)
        return out

    def points_of(self, run: Any) -> set[tuple[str, int]]:
        """(metric, step) of every point of a run."""
        run_id = run.info.run_id
        histories = (self._client.get_metric_history(run_id, name) for name in run.data.metrics)
        return {(point.key, point.step) for history in histories for point in history}

    def points_of_configuration(self, configuration: Configuration) -> set[tuple[str, int]]:
        """(metric, step) of every point of a configuration's own run."""
        run_id = self.configuration(configuration)
        return set() if run_id in self._untouched else self.points_of(self._client.get_run(run_id))

    def complete_run(self, configuration: Configuration) -> Any:
        """The run of a configuration that is complete with all its seeds in MLflow, else None.

        It becomes a child of the sweep's run again, which may have been deleted and created since.
        """
        run = self._of_configuration(configuration).get(f"{self._key}/{configuration.hash}")
        if run is None or run.info.status != "FINISHED":
            return None
        if joined(run.data.tags, COMPLETE_FOR) != self._seeds(configuration):
            return None
        if (joined(run.data.tags, SEED_FATES) or "").endswith(CUT):  # by an earlier version
            return None
        if run.data.tags.get(PARENT) != self.parent_id or run.data.tags.get(REMOVED):
            tags = {PARENT: self.parent_id, REMOVED: "", **self._label_and_position(configuration)}
            self.tag(run.info.run_id, tags)
        return run

    def damaged_tables(self, run: Any) -> dict[str, str]:
        """Name → fault, of the run's damaged and missing tables."""
        digests = tables.digests(run.data.tags)
        return tables.damaged(self._client, run.info.run_id, run.info.artifact_uri, digests)

    def keep_tables(
        self, run_id: str, frames: Mapping[str, pd.DataFrame], tags: Mapping[str, str] | None = None
    ) -> None:
        """Write everything else that was collected and `tags`, then store tables with a run as `tables.keep` does."""

        def write_tags(digests: Mapping[str, str]) -> None:
            self.tag(run_id, {**(tags or {}), **digests})
            self.flush()

        tables.keep(self._client, run_id, frames, write_tags)

    def complete(self, configuration: Configuration) -> None:
        """Mark a configuration as complete, which must be the last write to its run and those of its seeds."""
        run_id = self.configuration(configuration)
        self.flush()
        self.tag(run_id, divided(COMPLETE_FOR, self._seeds(configuration)))
        self.set_status(run_id, "FINISHED")
        self.flush()

    def end(self, status: str, of_configurations: Mapping[str, str]) -> None:
        """End the runs that are still RUNNING: configurations as given by hash, seeds as KILLED, last the sweep."""
        self.flush()
        for run in self._below("attributes.status = 'RUNNING'"):
            tags = run.data.tags
            of_configuration = of_configurations.get(tags[CONFIGURATION], "KILLED")
            self.set_status(run.info.run_id, of_configuration if tags["foml.kind"] == "configuration" else "KILLED")
        self.flush()
        self.set_status(self.parent_id, status)
        self.flush()

    def summarise(self, values: Mapping[str, float]) -> None:
        """Set metrics of the sweep's run."""
        now = time.time_ns() // 1_000_000
        changed = {name: value for name, value in values.items() if self._metrics_of_sweep.get(name) != value}
        self.send(self.parent_id, [Point(name, 0, value, now) for name, value in changed.items()])
        self._metrics_of_sweep |= changed

    def dataset(self, name: str, digest: str, path: str) -> None:
        """Set the task store at this path as the data set of the sweep's run."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = json.dumps({"uri": path})
        store = Dataset(name, digest[:_LONGEST_DIGEST], source_type="local", source=source)
        context = [InputTag("mlflow.data.context", "stream")]
        self._client.log_inputs(self.parent_id, datasets=[DatasetInput(store, context)])

    def artifact(self, run_id: str, file: Path, folder: str | None = None) -> None:
        """Store a file with a run."""
        self._write_new(run_id)
        self._client.log_artifact(run_id, str(file), folder)

    def texts(self, run_id: str, files: Mapping[str, str]) -> None:
        """Store texts with a run, path → text."""
        self._write_new(run_id)
        for path, text in files.items():
            self._client.log_text(run_id, text, path)

    def _tags(self, kind: str, key: str, configuration: Configuration) -> dict[str, str]:
        from learners import registry  # imports torch

        boundaries = registry.learner_class(configuration.learner).needs_boundaries
        return cut(
            {
                "foml.kind": kind,
                RUN_KEY: key,
                "foml.sweep": self._plan.name,
                CONFIGURATION: configuration.hash,
                LABEL: configuration.label,
                "foml.learner": configuration.learner,
                "foml.needs_boundaries": str(boundaries).lower(),
                POPULATION: configuration.population,
            }
        )
