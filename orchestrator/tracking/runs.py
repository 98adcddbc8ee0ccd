"""The runs of a sweep in MLflow: sweep → configuration → seed.

Every run carries the tag `foml.run_key`, which says what it is and never where it was run: whoever opens a sweep that
was begun before, finds its runs again by it and goes on with them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.plan.plan import RESULTS_VERSION, Configuration, Plan, Trial
from orchestrator.tracking import ownership
from orchestrator.tracking import tables as tracked_tables
from orchestrator.tracking.database import connect, experiment_id
from orchestrator.tracking.names import listed, parameters, sweep_key
from orchestrator.tracking.ownership import check_tags
from orchestrator.tracking.points import Point
from streams.store.canonical_json import digest

if TYPE_CHECKING:
    import pandas as pd

ENTITIES_PER_CALL = 1_000
"""Points, parameters and tags together."""
ENTRIES_PER_CALL = 100
"""Parameters; and tags."""
RUNS_PER_CALL = 1_000
TAG_LENGTH, PARAM_LENGTH = 5_000, 6_000
PARENT = "mlflow.parentRunId"
CONFIGURATION_FILE = "configuration.json"
OF_THE_SWEEP = ("foml.hostname", "foml.platform")
"""Tags of provenance that the runs below the sweep's have from their own machines."""
POPULATION = "foml.population"
"""On a configuration's and a seed's run: the hash of the population that it is a member of; empty if of none."""
STOPPED_AT = "foml.stopped_at"
"""On a seed's run: the batches after which the scheduler ended it; empty if it was taken up again."""

REMOVED = "foml.withdrawn"
"""On a configuration's run: "true" if the sweep, as it was last started, does not hold it any more; else empty."""


@dataclass
class OpenRun:
    """A seed's run. `has`: the (metric, step) that were there before this process came; to be sent no second time."""

    run_id: str
    has: set[tuple[str, int]] = field(default_factory=set)


@dataclass
class _Unsent:
    """What is to be written to one run."""

    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)


class RunTree:
    """The runs of one sweep in one experiment; everything is found before it is made. Not for several threads.

    Points, parameters and tags are gathered and written together, by `flush` or before the run's status is set: a call
    costs as much as eighty points in it.
    """

    def __init__(
        self, client: Any, experiment: str, plan: Plan, provenance: Mapping[str, str], started_ms: int
    ) -> None:
        self._client, self._experiment, self._plan = client, experiment, plan
        self._unsent: dict[str, _Unsent] = {}
        self._found: tuple[str, dict[str, Any]] | None = None  # runs of a configuration, as they were a moment ago
        self._untouched: set[str] = set()  # runs that were made here and have no point yet
        self._running: set[str] = set()
        self._configurations: dict[str, str] = {}
        self.parent_id = self._parent(provenance, started_ms)
        self._provenance = {key: value for key, value in provenance.items() if key not in OF_THE_SWEEP}
        self._mark_removed()

    def _mark_removed(self) -> None:
        """Mark the configurations that the plan does not hold. One that it draws later is unmarked by whoever asks for
        its run."""
        planned = {trial.configuration.hash for trial in self._plan.trials}
        for run in self.mine("tags.`foml.kind` = 'configuration'"):
            tags = run.data.tags
            mark = "" if tags["foml.configuration"] in planned else "true"
            if tags.get(REMOVED, "") != mark:
                self.tag(run.info.run_id, {REMOVED: mark})
        self.flush()

    def _parent(self, provenance: Mapping[str, str], started_ms: int) -> str:
        run = sweep_run(self._client, self._experiment, self._plan.name)
        if run is None:
            key = sweep_key(self._plan.name)
            tags = {"foml.kind": "sweep", "foml.sweep": self._plan.name, "foml.run_key": key}
            tags |= ownership.tags(self._plan.resolved)
            run = self._client.create_run(
                self._experiment, start_time=started_ms, run_name=self._plan.name, tags=_cut(tags)
            )
        ownership.check_tags("tracking", run.data.tags, self._plan.resolved)
        run_id = str(run.info.run_id)
        self.set_status(run_id, "RUNNING")
        objective = self._plan.resolved["objective"]
        tags = {"foml.objective": objective["metric"], "foml.mode": objective["mode"]}
        tags |= ownership.tags(self._plan.resolved)
        self.tag(run_id, {**provenance, **tags, "foml.sweep_hash": digest(self._plan.resolved, 12)})
        self.flush()
        self._client.log_dict(run_id, self._plan.resolved, "sweep.json")
        return run_id

    def search(self, condition: str) -> Iterator[Any]:
        """All runs of the experiment for which this holds."""
        return search(self._client, [self._experiment], condition)

    def mine(self, condition: str = "") -> Iterator[Any]:
        """The runs of this sweep, the parent left out, for which the condition holds."""
        prefix = sweep_key(self._plan.name) + "/"
        return (run for run in self.search(condition) if run.data.tags.get("foml.run_key", "").startswith(prefix))

    def _of_configuration(self, configuration: Configuration) -> dict[str, Any]:
        """Run key → run, of a configuration and its seeds; asked for once until `flush`."""
        if self._found is None or self._found[0] != configuration.hash:
            runs = self.mine(f"tags.`foml.configuration` = '{configuration.hash}'")
            self._found = configuration.hash, {run.data.tags["foml.run_key"]: run for run in runs}
        return dict(self._found[1])

    def _trials(self, configuration: Configuration) -> list[Trial]:
        return [trial for trial in self._plan.trials if trial.configuration == configuration]

    def _seeds(self, configuration: Configuration) -> str:
        """All seeds that the plan has for a configuration, in all its stacks."""
        return listed(seed for trial in self._trials(configuration) for seed in trial.seeds)

    def _seed_key(self, trial: Trial, seed: int) -> str:
        """Holds the stack, too: the same seed in another stack is another computation."""
        return f"{sweep_key(self._plan.name)}/{trial.key}/{seed}"

    def configuration(self, configuration: Configuration) -> str:
        """The run of a configuration.

        One whose mean curves are over other seeds than today's plan has is deleted and made anew: no point can be taken
        back, and two means at one step are one too many. Its seeds' runs move to the new one, or are deleted if the
        plan has their stack no longer. (What is deleted in MLflow can be restored.)
        """
        if configuration.hash in self._configurations:
            return self._configurations[configuration.hash]
        key = f"{sweep_key(self._plan.name)}/{configuration.hash}"
        seeds = self._seeds(configuration)
        there = self._of_configuration(configuration)
        run = there.pop(key, None)
        if run is not None and run.data.metrics and run.data.tags.get("foml.seeds") != seeds:
            self._client.delete_run(run.info.run_id)
            run = None
        if run is None:
            tags = self._tags("configuration", key, configuration) | {PARENT: self.parent_id, "foml.seeds": seeds}
            tags |= _cut(self._provenance)
            run_id = str(self._client.create_run(self._experiment, run_name=configuration.label, tags=tags).info.run_id)
            self._untouched.add(run_id)
            self._running.add(run_id)
        else:
            run_id = str(run.info.run_id)
            self.tag(run_id, {PARENT: self.parent_id, "foml.seeds": seeds, REMOVED: "", **self._provenance})
        self.set_params(run_id, parameters(configuration))
        self._client.log_dict(run_id, self._described(configuration), CONFIGURATION_FILE)
        planned = {self._seed_key(trial, seed) for trial in self._trials(configuration) for seed in trial.seeds}
        for seed_key, seed_run in there.items():
            if seed_key not in planned:
                self._client.delete_run(seed_run.info.run_id)
            elif seed_run.data.tags.get(PARENT) != run_id:
                self.tag(seed_run.info.run_id, {PARENT: run_id})
        self._configurations[configuration.hash] = run_id
        return run_id

    def _described(self, configuration: Configuration) -> dict[str, Any]:
        """All that a configuration's run came from, but the machine; `rerun` needs nothing else."""
        how = ("objective", "chunk", "resources", "retries")
        return {
            "configuration": asdict(configuration),
            "hash": configuration.hash,
            "results_version": RESULTS_VERSION,
            "stacks": [list(trial.seeds) for trial in self._trials(configuration)],
            "run": {key: self._plan.resolved[key] for key in how if key in self._plan.resolved},
            "diagnostics_every": self._plan.resolved.get("tracking", {}).get("diagnostics_every", 1),
            "provenance": self._provenance,
        }

    def seeds(self, trial: Trial, started_ms: int) -> list[OpenRun]:
        """The runs of a trial's seeds, RUNNING, each with what it has already."""
        parent = self.configuration(trial.configuration)
        there = self._of_configuration(trial.configuration)
        out = []
        for seed in trial.seeds:
            key = self._seed_key(trial, seed)
            run = there.get(key)
            if run is None:
                tags = self._tags("seed", key, trial.configuration) | {PARENT: parent, "foml.seed": str(seed)}
                tags |= _cut(self._provenance)
                run = self._client.create_run(
                    self._experiment, start_time=started_ms, run_name=f"seed {seed}", tags=tags
                )
            seed_run = OpenRun(str(run.info.run_id), self.points_of(run))
            self.set_params(seed_run.run_id, {**parameters(trial.configuration), "seed": str(seed)})
            if run.info.status != "RUNNING":
                self.set_status(seed_run.run_id, "RUNNING")
            if key in there:
                self.tag(seed_run.run_id, self._provenance)
            if run.data.tags.get(STOPPED_AT):
                self.tag(seed_run.run_id, {STOPPED_AT: ""})
            out.append(seed_run)
        if parent not in self._running:
            self.set_status(parent, "RUNNING")
        self._found = None
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
        """The run of a configuration of which everything, and of all its seeds, has been written, by whomever; None if
        that is not so. It hangs below the sweep's run, should that have been deleted and made anew."""
        run = self._of_configuration(configuration).get(f"{sweep_key(self._plan.name)}/{configuration.hash}")
        if run is None or run.info.status != "FINISHED":
            return None
        if run.data.tags.get("foml.complete_for") != self._seeds(configuration):
            return None
        if run.data.tags.get(PARENT) != self.parent_id or run.data.tags.get(REMOVED):
            self.tag(run.info.run_id, {PARENT: self.parent_id, REMOVED: ""})
        return run

    def damaged_tables(self, run: Any) -> dict[str, str]:
        """Which of a run's tables are not as they were written or no longer there, and what is the matter."""
        known = tracked_tables.digests(run.data.tags)
        return tracked_tables.damaged(self._client, run.info.run_id, run.info.artifact_uri, known)

    def keep_tables(
        self, run_id: str, tables: Mapping[str, pd.DataFrame], tags: Mapping[str, str] | None = None
    ) -> None:
        """Keep tables with a run, in the place of those that may be there, and set its tags, as `tracked_tables.keep`
        does; what is to be written to the run comes before."""
        with tracked_tables.written(tables) as (paths, made):
            self.tag(run_id, {**(tags or {}), **made})
            self._flush(run_id)
            for path in paths:
                self.artifact(run_id, path)

    def complete(self, configuration: Configuration) -> None:
        """Mark a configuration as complete: the last thing that is written about it."""
        run_id = self.configuration(configuration)
        self.tag(run_id, {"foml.complete_for": self._seeds(configuration)})
        self.set_status(run_id, "FINISHED")

    def end(self, status: str, of_configurations: Mapping[str, str]) -> None:
        """End what still runs, the sweep last. Configurations end as is said by their hash; seeds were cut off."""
        for run in self.mine("attributes.status = 'RUNNING'"):
            tags = run.data.tags
            known = of_configurations.get(tags["foml.configuration"], "KILLED")
            self.set_status(run.info.run_id, known if tags["foml.kind"] == "configuration" else "KILLED")
        self.set_status(self.parent_id, status)

    def artifact(self, run_id: str, file: Path, folder: str | None = None) -> None:
        """Keep a file with a run."""
        self._client.log_artifact(run_id, str(file), folder)

    def texts(self, run_id: str, files: Mapping[str, str]) -> None:
        """Keep texts with a run, path → text."""
        for path, text in files.items():
            self._client.log_text(run_id, text, path)

    def _tags(self, kind: str, key: str, configuration: Configuration) -> dict[str, str]:
        from learners import registry  # torch comes with it: not before it is needed

        boundaries = registry.learner_class(configuration.learner).needs_boundaries
        return _cut(
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

    def send(self, run_id: str, points: Iterable[Point], has: Collection[tuple[str, int]] = ()) -> None:
        """Points of a run, without those that it `has`."""
        self._to_write(run_id).points += [p for p in points if not has or (p.metric, p.step) not in has]

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Tags of a run; they take the place of older ones."""
        self._to_write(run_id).tags |= _cut(tags)

    def set_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Parameters of a run; the same again is no error, another value is."""
        self._to_write(run_id).params |= {key: value[:PARAM_LENGTH] for key, value in params.items()}

    def set_status(self, run_id: str, status: str, end_ms: int | None = None) -> None:
        """RUNNING, or how a run ended: FINISHED, FAILED or KILLED. What is to be written to it comes before."""
        self._flush(run_id)
        if status == "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
            self._running.add(run_id)
        else:
            self._running.discard(run_id)
            self._client.set_terminated(run_id, status, end_ms or time.time_ns() // 1_000_000)

    def flush(self) -> None:
        """Write all that was gathered."""
        for run_id in list(self._unsent):
            self._flush(run_id)
        self._found = None

    def discard(self) -> None:
        """Forget what was gathered: something went wrong, and what MLflow has is to be asked for again."""
        for known in (self._unsent, self._configurations, self._untouched, self._running):
            known.clear()  # with what was gathered, something of a run may be lost that was made a moment ago
        self._found = None

    def _to_write(self, run_id: str) -> _Unsent:
        return self._unsent.setdefault(run_id, _Unsent())

    def _flush(self, run_id: str) -> None:
        unsent = self._unsent.pop(run_id, _Unsent())
        if unsent.points:
            self._untouched.discard(run_id)
        write(self._client, run_id, unsent.points, unsent.params, unsent.tags)


def write(
    client: Any,
    run_id: str,
    points: Iterable[Point] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write to a run, in as few calls as there can be; what is in the first of them is there before the rest."""
    from mlflow.entities import Metric, Param, RunTag

    left = iter(points)
    left_params = iter([Param(key, value) for key, value in (params or {}).items()])
    left_tags = iter([RunTag(key, value) for key, value in (tags or {}).items()])
    while True:
        few, fewer = list(islice(left_params, ENTRIES_PER_CALL)), list(islice(left_tags, ENTRIES_PER_CALL))
        some = islice(left, ENTITIES_PER_CALL - len(few) - len(fewer))
        metrics = [Metric(point.metric, point.value, point.time_ms, point.step) for point in some]
        if not (metrics or few or fewer):
            return
        client.log_batch(run_id, metrics=metrics, params=few, tags=fewer)


def forget(uri: str, experiment: str, name: str) -> None:
    """Delete all runs of a sweep, so that the next one of this name begins with nothing. MLflow can restore them.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    client = connect(uri)
    key = sweep_key(name)
    for run in search(client, [experiment_id(client, uri, experiment)], ""):
        if f"{run.data.tags.get('foml.run_key', '')}/".startswith(f"{key}/"):
            client.delete_run(run.info.run_id)


def sweep_run(client: Any, experiment: str, name: str) -> Any:
    """The run of the sweep of this name in an experiment; None if there is none."""
    key, sweeps = sweep_key(name), search(client, [experiment], "tags.`foml.kind` = 'sweep'")
    return next((run for run in sweeps if run.data.tags.get("foml.run_key") == key), None)


def search(client: Any, experiments: Sequence[str], condition: str) -> Iterator[Any]:
    """All runs of these experiments for which this holds. Names never stand in a condition: they can hold quotes."""
    token, seen = None, set()
    while True:
        page = client.search_runs(list(experiments), condition, max_results=RUNS_PER_CALL, page_token=token)
        for run in page:
            if run.info.run_id not in seen:  # a run that begins meanwhile moves others to the next page
                seen.add(run.info.run_id)
                yield run
        token = page.token
        if not token:
            return


def _cut(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: value if len(value) <= TAG_LENGTH else value[: TAG_LENGTH - 1] + "…" for key, value in tags.items()}


def check_tracked(uri: str, experiment: str, plan: Plan) -> None:
    """See that what MLflow has under this name, if anything, is of this sweep; nothing is made.

    Raises:
        ConfigError: it is of another sweep; every difference is told.
        TrackingError: MLflow cannot be reached.
    """
    from orchestrator.tracking.database import connect, in_one_line

    client = connect(uri)
    with in_one_line(uri):
        found = client.get_experiment_by_name(experiment)
        run = None if found is None else sweep_run(client, found.experiment_id, plan.name)
    if run is not None:
        check_tags(f"{uri}, experiment {experiment}", run.data.tags, plan.resolved)
