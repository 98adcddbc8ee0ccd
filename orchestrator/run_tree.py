"""The runs of a sweep in MLflow: sweep → configuration → seed.

Every run carries the tag `foml.run_key`, which says what it is and never where it was run: whoever opens a sweep that was
begun before, finds its runs again by it and goes on with them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import quote

from orchestrator.plan import Configuration, Plan
from orchestrator.tracking_points import Point

METRICS_PER_CALL = 1_000
ENTRIES_PER_CALL = 100
TAG_LENGTH, PARAM_LENGTH = 5_000, 6_000
PARENT = "mlflow.parentRunId"


@dataclass
class SeedRun:
    """A seed's run. `has`: the (metric, step) that were there before this process came; to be sent no second time."""

    run_id: str
    has: set[tuple[str, int]] = field(default_factory=set)


class RunTree:
    """The runs of one sweep in one experiment; everything is found before it is made. Not for several threads."""

    def __init__(
        self, client: Any, experiment: str, plan: Plan, provenance: Mapping[str, str], started_ms: int
    ) -> None:
        self._client, self._experiment, self._plan = client, experiment, plan
        self.parent_id = self._parent(provenance, started_ms)
        self._configurations: dict[str, str] = {}

    def _parent(self, provenance: Mapping[str, str], started_ms: int) -> str:
        key = sweep_key(self._plan.name)
        mine = (run for run in self.search("tags.`foml.kind` = 'sweep'") if run.data.tags.get("foml.run_key") == key)
        run = next(mine, None)
        if run is None:
            tags = {"foml.kind": "sweep", "foml.sweep": self._plan.name, "foml.run_key": key}
            run = self._client.create_run(
                self._experiment, start_time=started_ms, run_name=self._plan.name, tags=_cut(tags)
            )
        run_id = str(run.info.run_id)
        self.set_status(run_id, "RUNNING")
        self.tag(run_id, {**provenance, **{f"foml.objective_{k}": v for k, v in self._objective().items()}})
        self._client.log_dict(run_id, self._plan.resolved, "sweep.json")
        return run_id

    def _objective(self) -> dict[str, str]:
        objective = self._plan.resolved["objective"]
        return {"metric": objective["metric"], "mode": objective["mode"]}

    def search(self, condition: str) -> Iterator[Any]:
        """All runs of the experiment for which this holds. Names never stand in a condition: they can hold quotes."""
        token = None
        while True:
            page = self._client.search_runs([self._experiment], condition, max_results=1_000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def mine(self, condition: str) -> Iterator[Any]:
        """The runs of this sweep, the parent left out, for which the condition holds."""
        prefix = sweep_key(self._plan.name) + "/"
        return (run for run in self.search(condition) if run.data.tags.get("foml.run_key", "").startswith(prefix))

    def _of_configuration(self, configuration: Configuration) -> dict[str, Any]:
        """Run key → run, of a configuration and its seeds."""
        return {
            run.data.tags["foml.run_key"]: run
            for run in self.mine(f"tags.`foml.configuration` = '{configuration.hash}'")
        }

    def seeds_of(self, configuration: Configuration) -> list[int]:
        """All seeds that the plan has for a configuration, in all its stacks."""
        return sorted({seed for trial in self._plan.trials if trial.configuration == configuration for seed in trial.seeds})

    def configuration(self, configuration: Configuration) -> str:
        """The run of a configuration. One whose mean curves are over other seeds than today's plan has is replaced: no
        point can be taken back, and two means at one step would be one too many. Its seeds' runs move to the new one."""
        if configuration.hash in self._configurations:
            return self._configurations[configuration.hash]
        key = f"{sweep_key(self._plan.name)}/{configuration.hash}"
        seeds = listed(self.seeds_of(configuration))
        there = self._of_configuration(configuration)
        run = there.get(key)
        if run is not None and run.data.metrics and run.data.tags.get("foml.seeds") != seeds:
            self._client.delete_run(run.info.run_id)
            run = None
        if run is None:
            tags = self._tags("configuration", key, configuration) | {PARENT: self.parent_id, "foml.seeds": seeds}
            run = self._client.create_run(self._experiment, run_name=configuration.label, tags=tags)
        run_id = str(run.info.run_id)
        self.tag(run_id, {"foml.seeds": seeds})
        self.set_params(run_id, parameters(configuration))
        for other in there.values():
            if other.data.tags["foml.kind"] == "seed" and other.data.tags.get(PARENT) != run_id:
                self.tag(other.info.run_id, {PARENT: run_id})
        self._configurations[configuration.hash] = run_id
        return run_id

    def seeds(self, configuration: Configuration, seeds: Sequence[int], started_ms: int) -> list[SeedRun]:
        """The runs of these seeds, RUNNING, each with what it has already."""
        parent = self.configuration(configuration)
        there = self._of_configuration(configuration)
        out = []
        for seed in seeds:
            key = f"{sweep_key(self._plan.name)}/{configuration.hash}/{seed}"
            run = there.get(key)
            if run is None:
                tags = self._tags("seed", key, configuration) | {PARENT: parent, "foml.seed": str(seed)}
                run = self._client.create_run(
                    self._experiment, start_time=started_ms, run_name=f"seed {seed}", tags=tags
                )
            seed_run = SeedRun(str(run.info.run_id), self.points_of(run))
            self.set_params(seed_run.run_id, {**parameters(configuration), "seed": str(seed)})
            if run.info.status != "RUNNING":
                self.set_status(seed_run.run_id, "RUNNING")
            out.append(seed_run)
        self.set_status(parent, "RUNNING")
        return out

    def points_of(self, run: Any) -> set[tuple[str, int]]:
        """(metric, step) of every point of a run."""
        run_id = run.info.run_id
        return {(name, point.step) for name in run.data.metrics for point in self._client.get_metric_history(run_id, name)}

    def is_complete(self, configuration: Configuration) -> bool:
        """Whether everything about a configuration and all its seeds has been written, by whomever."""
        there = self._of_configuration(configuration)
        run = there.get(f"{sweep_key(self._plan.name)}/{configuration.hash}")
        return (
            run is not None
            and run.info.status == "FINISHED"
            and run.data.tags.get("foml.complete_for") == listed(self.seeds_of(configuration))
        )

    def complete(self, configuration: Configuration) -> None:
        """Mark a configuration as complete: the last thing that is written about it."""
        run_id = self.configuration(configuration)
        self.tag(run_id, {"foml.complete_for": listed(self.seeds_of(configuration))})
        self.set_status(run_id, "FINISHED")

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
            }
        )

    def send(self, run_id: str, points: Iterable[Point], has: set[tuple[str, int]] | None = None) -> None:
        """Write the points that are not there yet, a thousand a call."""
        from mlflow.entities import Metric

        lacking = (
            Metric(point.metric, point.value, point.time_ms, point.step)
            for point in points
            if not has or (point.metric, point.step) not in has
        )
        while batch := list(islice(lacking, METRICS_PER_CALL)):
            self._client.log_batch(run_id, metrics=batch)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags, or overwrite them."""
        from mlflow.entities import RunTag

        entries = iter([RunTag(key, value) for key, value in _cut(tags).items()])
        while batch := list(islice(entries, ENTRIES_PER_CALL)):
            self._client.log_batch(run_id, tags=batch)

    def set_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Set parameters; the same again is no error, another value is."""
        from mlflow.entities import Param

        entries = iter([Param(key, value[:PARAM_LENGTH]) for key, value in params.items()])
        while batch := list(islice(entries, ENTRIES_PER_CALL)):
            self._client.log_batch(run_id, params=batch)

    def set_status(self, run_id: str, status: str, end_ms: int | None = None) -> None:
        """RUNNING, or how a run ended: FINISHED, FAILED or KILLED."""
        if status == "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        else:
            self._client.set_terminated(run_id, status, end_ms or time.time_ns() // 1_000_000)


def sweep_key(name: str) -> str:
    """The run key of a sweep: its name, with everything quoted that could end it early."""
    return f"sweep:{quote(name, safe=' ')}"


def parameters(configuration: Configuration) -> dict[str, str]:
    """A configuration as MLflow's parameters: every option, and what it was run on. Seeds are a tag: a sweep can be grown
    by some, and a parameter cannot change."""
    stream = {key: value for key, value in configuration.stream.items() if key != "name"}
    values = {
        **configuration.options,
        "learner": configuration.learner,
        "network": configuration.network,
        "batch_size": configuration.batch_size,
        "stream": configuration.stream["name"],
        **_flat(stream, "stream."),
    }
    return {key: to_text(value) for key, value in values.items()}


def to_text(value: Any) -> str:
    """A value as a parameter's text; `from_text` gives it back.

    >>> [to_text(value) for value in (0.01, True, None, "adam", "5")]
    ['0.01', 'true', 'null', 'adam', '"5"']
    """
    if isinstance(value, str) and from_text(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def from_text(text: str) -> Any:
    """The value that a parameter's text stands for.

    >>> [from_text(text) for text in ("0.01", "true", "adam", '"5"')]
    [0.01, True, 'adam', '5']
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def listed(seeds: Iterable[int]) -> str:
    """Seeds as a tag's text, ascending, with runs of them drawn together; `unlisted` gives them back.

    >>> listed([3, 0, 1, 2, 7])
    '0-3,7'
    """
    spans: list[list[int]] = []
    for seed in sorted(seeds):
        if spans and seed == spans[-1][-1] + 1:
            spans[-1][1:] = [seed]
        else:
            spans.append([seed])
    return ",".join("-".join(map(str, span)) for span in spans)


def unlisted(text: str) -> list[int]:
    """The seeds in a text of `listed`.

    >>> unlisted("0-3,7")
    [0, 1, 2, 3, 7]
    """
    spans = [span.split("-") for span in text.split(",") if span]
    return [seed for span in spans for seed in range(int(span[0]), int(span[-1]) + 1)]


def _cut(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: value if len(value) <= TAG_LENGTH else value[: TAG_LENGTH - 1] + "…" for key, value in tags.items()}
