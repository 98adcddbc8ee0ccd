"""The runs of a sweep in MLflow: sweep → configuration → seed.

The tag `foml.run_key` of a run identifies its content and not its machine: a resumed sweep finds its runs by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.plan.plan import RESULTS_VERSION, Configuration, Plan, Trial
from orchestrator.tracking import ownership, tables
from orchestrator.tracking.names import listed, parameters, sweep_key
from orchestrator.tracking.requests import RunBatches, cut, search
from streams.store.canonical_json import digest

if TYPE_CHECKING:
    import pandas as pd

PARENT = "mlflow.parentRunId"
CONFIGURATION_FILE = "configuration.json"
OF_THE_SWEEP = ("foml.hostname", "foml.platform")
"""Tags of provenance that configurations and seeds take from the machines that they ran on."""
POPULATION = "foml.population"
"""Tag of a configuration or seed: the hash of its population; empty if it has none."""
STOPPED_AT = "foml.stopped_at"
"""Tag of a seed: the batches after which the scheduler stopped it; empty if it was resumed later."""
REMOVED = "foml.withdrawn"
"""Tag of a configuration: "true" if the sweep, as last started, no longer contains it; else empty."""


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
        self.parent_id = self._parent(provenance, started_ms)
        self._provenance = {key: value for key, value in provenance.items() if key not in OF_THE_SWEEP}
        self._mark_removed()

    def flush(self) -> None:
        super().flush()
        self._cached = None

    def discard(self) -> None:
        super().discard()
        self._configurations.clear()
        self._cached = None

    def _mark_removed(self) -> None:
        """Mark the configurations that the plan does not contain.

        `configuration` and `complete_run` remove the mark of one that a search draws again later.
        """
        planned = {trial.configuration.hash for trial in self._plan.trials}
        for run in self._below("tags.`foml.kind` = 'configuration'"):
            tags = run.data.tags
            mark = "" if tags["foml.configuration"] in planned else "true"
            if tags.get(REMOVED, "") != mark:
                self.tag(run.info.run_id, {REMOVED: mark})
        self.flush()

    def _parent(self, provenance: Mapping[str, str], started_ms: int) -> str:
        name, identity = self._plan.name, ownership.tags(self._plan.resolved)
        run = ownership.sweep_run(self._client, self._experiment, name)
        if run is None:
            tags = cut({"foml.kind": "sweep", "foml.sweep": name, "foml.run_key": self._key, **identity})
            run = self._client.create_run(self._experiment, start_time=started_ms, run_name=name, tags=tags)
        ownership.check_tags("tracking", run.data.tags, self._plan.resolved)
        run_id = str(run.info.run_id)
        self.set_status(run_id, "RUNNING")
        objective = self._plan.resolved["objective"]
        tags = {"foml.objective": objective["metric"], "foml.mode": objective["mode"], **identity}
        self.tag(run_id, {**provenance, **tags, "foml.sweep_hash": digest(self._plan.resolved, 12)})
        self.flush()
        self._client.log_dict(run_id, self._plan.resolved, "sweep.json")
        return run_id

    def _below(self, condition: str) -> Iterator[Any]:
        """The runs below the sweep's own for which the condition holds."""
        prefix = f"{self._key}/"
        runs = search(self._client, [self._experiment], condition)
        return (run for run in runs if run.data.tags.get("foml.run_key", "").startswith(prefix))

    def _of_configuration(self, configuration: Configuration) -> dict[str, Any]:
        """Run key → run, of a configuration and its seeds."""
        if self._cached is None or self._cached[0] != configuration.hash:
            runs = self._below(f"tags.`foml.configuration` = '{configuration.hash}'")
            self._cached = configuration.hash, {run.data.tags["foml.run_key"]: run for run in runs}
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
        if run is not None and run.data.metrics and run.data.tags.get("foml.seeds") != seeds:
            self._client.delete_run(run.info.run_id)
            run = None
        if run is None:
            tags = self._tags("configuration", key, configuration) | {PARENT: self.parent_id, "foml.seeds": seeds}
            tags |= cut(self._provenance)
            run_id = str(self._client.create_run(self._experiment, run_name=configuration.label, tags=tags).info.run_id)
            self._untouched.add(run_id)
            self._running.add(run_id)
        else:
            run_id = str(run.info.run_id)
            self.tag(run_id, {PARENT: self.parent_id, "foml.seeds": seeds, REMOVED: "", **self._provenance})
        self.set_params(run_id, parameters(configuration))
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
            "results_version": RESULTS_VERSION,
            "stacks": [list(trial.seeds) for trial in self._trials(configuration)],
            "run": {key: self._plan.resolved[key] for key in sections if key in self._plan.resolved},
            "diagnostics_every": self._plan.resolved.get("tracking", {}).get("diagnostics_every", 1),
            "provenance": self._provenance,
        }

    def seeds(self, trial: Trial, started_ms: int) -> list[OpenRun]:
        """The runs of a trial's seeds, with status RUNNING."""
        parent = self.configuration(trial.configuration)
        runs = self._of_configuration(trial.configuration)
        out = []
        for seed in trial.seeds:
            key = self._seed_key(trial, seed)
            run = runs.get(key)
            if run is None:
                tags = self._tags("seed", key, trial.configuration) | {PARENT: parent, "foml.seed": str(seed)}
                tags |= cut(self._provenance)
                run = self._client.create_run(
                    self._experiment, start_time=started_ms, run_name=f"seed {seed}", tags=tags
                )
            seed_run = OpenRun(str(run.info.run_id), self.points_of(run))
            self.set_params(seed_run.run_id, {**parameters(trial.configuration), "seed": str(seed)})
            if run.info.status != "RUNNING":
                self.set_status(seed_run.run_id, "RUNNING")
            if key in runs:
                self.tag(seed_run.run_id, self._provenance)
            if run.data.tags.get(STOPPED_AT):
                self.tag(seed_run.run_id, {STOPPED_AT: ""})
            out.append(seed_run)
        if parent not in self._running:
            self.set_status(parent, "RUNNING")
        self._cached = None
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
        if run.data.tags.get("foml.complete_for") != self._seeds(configuration):
            return None
        if run.data.tags.get(PARENT) != self.parent_id or run.data.tags.get(REMOVED):
            self.tag(run.info.run_id, {PARENT: self.parent_id, REMOVED: ""})
        return run

    def damaged_tables(self, run: Any) -> dict[str, str]:
        """Name → fault, of the run's damaged and missing tables."""
        digests = tables.digests(run.data.tags)
        return tables.damaged(self._client, run.info.run_id, run.info.artifact_uri, digests)

    def keep_tables(
        self, run_id: str, frames: Mapping[str, pd.DataFrame], tags: Mapping[str, str] | None = None
    ) -> None:
        """Write everything else that was collected for a run, then store tables with it as `tables.keep` does."""
        self._flush(run_id)
        tables.keep(self._client, run_id, frames, cut(tags or {}))

    def complete(self, configuration: Configuration) -> None:
        """Mark a configuration as complete, which must be the last write to its run."""
        run_id = self.configuration(configuration)
        self.tag(run_id, {"foml.complete_for": self._seeds(configuration)})
        self.set_status(run_id, "FINISHED")

    def end(self, status: str, of_configurations: Mapping[str, str]) -> None:
        """End the runs that are still RUNNING: configurations as given by hash, seeds as KILLED, last the sweep."""
        for run in self._below("attributes.status = 'RUNNING'"):
            tags = run.data.tags
            of_configuration = of_configurations.get(tags["foml.configuration"], "KILLED")
            self.set_status(run.info.run_id, of_configuration if tags["foml.kind"] == "configuration" else "KILLED")
        self.set_status(self.parent_id, status)

    def artifact(self, run_id: str, file: Path, folder: str | None = None) -> None:
        """Store a file with a run."""
        self._client.log_artifact(run_id, str(file), folder)

    def texts(self, run_id: str, files: Mapping[str, str]) -> None:
        """Store texts with a run, path → text."""
        for path, text in files.items():
            self._client.log_text(run_id, text, path)

    def _tags(self, kind: str, key: str, configuration: Configuration) -> dict[str, str]:
        from learners import registry  # imports torch

        boundaries = registry.learner_class(configuration.learner).needs_boundaries
        return cut(
            {
                "foml.kind": kind,
                "foml.run_key": key,
                "foml.sweep": self._plan.name,
                "foml.configuration": configuration.hash,
                "foml.label": configuration.label,
                "foml.learner": configuration.learner,
                "foml.needs_boundaries": str(boundaries).lower(),
                POPULATION: configuration.population,
            }
        )
