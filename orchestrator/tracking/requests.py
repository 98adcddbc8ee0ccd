"""Writes to runs of MLflow in batches, and searches in pages: the limits and the cost of MLflow's calls."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from orchestrator.tracking.names import earlier_tags
from orchestrator.tracking.points import Point

ENTITIES_PER_CALL = 1_000
"""MLflow's limit for points, parameters and tags together."""
ENTRIES_PER_CALL = 100
"""MLflow's limit for parameters, and for tags."""
RUNS_PER_CALL = 1_000
TAG_LENGTH, PARAM_LENGTH = 5_000, 6_000


@dataclass
class _Unsent:
    """What is still to be written to one run."""

    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)


class RunBatches:
    """Collects points, parameters and tags of runs, and writes them together.

    They are written by `flush`, or before a run's status is set: a call costs as much as eighty points. Not
    thread-safe.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._unsent: defaultdict[str, _Unsent] = defaultdict(_Unsent)
        self._untouched: set[str] = set()  # runs that this process created and that have no point yet
        self._running: set[str] = set()

    def send(self, run_id: str, points: Iterable[Point], has: Collection[tuple[str, int]] = ()) -> None:
        """Add points to a run, without those that it `has`."""
        self._unsent[run_id].points += [p for p in points if not has or (p.metric, p.step) not in has]

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        self._unsent[run_id].tags |= cut(tags)

    def set_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Set parameters of a run; MLflow refuses another value of an existing one."""
        self._unsent[run_id].params |= {key: value[:PARAM_LENGTH] for key, value in params.items()}

    def set_status(self, run_id: str, status: str, end_ms: int | None = None) -> None:
        """Write what was collected for a run, and set its status: RUNNING, FINISHED, FAILED or KILLED."""
        self._flush(run_id)
        if status == "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
            self._running.add(run_id)
        else:
            self._running.discard(run_id)
            self._client.set_terminated(run_id, status, end_ms or time.time_ns() // 1_000_000)

    def flush(self) -> None:
        """Write everything that was collected."""
        for run_id in list(self._unsent):
            self._flush(run_id)

    def discard(self) -> None:
        """After a failure, drop what was collected and everything that is assumed about MLflow's content."""
        for cache in (self._unsent, self._untouched, self._running):
            cache.clear()

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
    """Write to a run in as few calls as MLflow's limits permit."""
    from mlflow.entities import Metric, Param, RunTag

    metrics = (Metric(point.metric, point.value, point.time_ms, point.step) for point in points)
    rest_of_params = iter([Param(key, value) for key, value in (params or {}).items()])
    rest_of_tags = iter([RunTag(key, value) for key, value in (tags or {}).items()])
    while True:
        batch_params, batch_tags = (list(islice(rest, ENTRIES_PER_CALL)) for rest in (rest_of_params, rest_of_tags))
        batch = list(islice(metrics, ENTITIES_PER_CALL - len(batch_params) - len(batch_tags)))
        if not (batch or batch_params or batch_tags):
            return
        client.log_batch(run_id, metrics=batch, params=batch_params, tags=batch_tags)


def search(client: Any, experiments: Sequence[str], condition: str, stored_tags: bool = False) -> Iterator[Any]:
    """Yield the runs of these experiments that meet a condition, which must not hold names: these can have quotes.

    A run of an earlier version has its internal tags under their present names too, unless `stored_tags`.
    """
    token, yielded = None, set()
    while True:
        page = client.search_runs(list(experiments), condition, max_results=RUNS_PER_CALL, page_token=token)
        for run in page:
            if run.info.run_id not in yielded:  # a run created meanwhile moves another one to the next page
                yielded.add(run.info.run_id)
                if not stored_tags:
                    run.data.tags.update(earlier_tags(run.data.tags))
                yield run
        token = page.token
        if not token:
            return


def cut(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags with their values cut off at MLflow's limit."""
    return {key: value if len(value) <= TAG_LENGTH else value[: TAG_LENGTH - 1] + "…" for key, value in tags.items()}
