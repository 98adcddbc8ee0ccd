"""The task store that a sweep learns from: found or built, whole, and of the stream that the sweep names."""

from __future__ import annotations

import json
from itertools import pairwise

from orchestrator.config.constraints import check_interval, check_with_store
from orchestrator.config.schema import Sweep
from orchestrator.errors import ConfigError, fault
from orchestrator.protocol.source import Shape, StoreSource
from streams.build import cached
from streams.progress import ProgressLine
from streams.recipe import Progress
from streams.store.task_store import TaskStore
from streams.store.transport import localise


def open_store(sweep: Sweep, progress: Progress | None = None) -> TaskStore:
    """The sweep's task store, whole: the one at the folder or address that it names, or the recipe's in the cache.

    `progress` is called while a store is built or copied; a line on standard error if it is None.

    Raises:
        StreamsError: the store is damaged or lacks a seed, or the source is not what it must be.
        ConfigError: the store is of another stream.
    """
    building = progress or ProgressLine()
    if sweep.store is None:
        path = cached(sweep.recipe, sweep.seeds, building).path
        store = TaskStore.open(path, verify=True)
    else:
        store = _named_store(sweep, building)
    shape = StoreSource(store, sweep.seeds, sweep.schedule).shape()  # told here: a schedule that does not fit the tasks
    faults = check_interval(sweep.scheduler, shape.length, sweep.file) + check_with_store(sweep, store.classes)
    faults += _check_batches(sweep.document.batch_size, shape, sweep.file)
    if faults:
        raise ConfigError(*faults)
    return store


def _check_batches(size: int, shape: Shape, file: str) -> list[str]:
    """Where tasks have sharp ends, no batch may hold two: a task in its midst would have no batch of its own."""
    if not shape.has_boundaries:
        return []
    shortest = min(stop - start for ends in shape.ends for start, stop in pairwise([0, *(at for at, _ in ends)]))
    if size <= shortest:
        return []
    rule = f"must be at most the {shortest} datapoints of the shortest task"
    return [fault(file, "batch_size", rule, size, f"set batch_size={shortest}, or use longer tasks")]


def _named_store(sweep: Sweep, building: Progress) -> TaskStore:
    assert sweep.store is not None
    store = TaskStore.open(localise(sweep.store, building), verify=True)
    faults = []
    if store.manifest["recipe"] != sweep.recipe.identity():
        rule = f"must be a store of {json.dumps(sweep.recipe.identity())}"
        faults.append(fault(sweep.file, "stream.store", rule, json.dumps(store.manifest["recipe"])))
    missing = sorted(set(sweep.seeds) - set(store.seeds))
    if missing:
        remedy = (
            f"add them: python -m streams.build {sweep.recipe.name} --out {sweep.store} --seeds {max(sweep.seeds) + 1}"
        )
        faults.append(fault(sweep.file, "seeds", f"must be among the store's seeds {store.seeds}", missing, remedy))
    if faults:
        raise ConfigError(*faults)
    return store
