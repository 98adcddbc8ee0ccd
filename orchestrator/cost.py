"""What a plan costs, from a few measured batches of each kind of configuration."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from learners import checkpoint
from orchestrator import chunks, kept, protocol
from orchestrator.plan import Configuration, Trial, canonical
from orchestrator.source import StoreSource
from orchestrator.specification import Sweep
from streams.store import TaskStore

MEASURED_SECONDS = 1.0
"""How long the measured batches of one kind of configuration may take (at least four are run)."""


@dataclass(frozen=True)
class Cost:
    """Of one trial: its batches, seconds in a learner actor of its own, gradient evaluations per datapoint, and the
    bytes that it leaves on disk. ``kept``: how many checkpoints besides the last are among these, each of
    ``learner_bytes``."""

    batches: int
    seconds: float
    gradient_evaluations_per_datapoint: float
    disk_bytes: int
    kept: int
    learner_bytes: int


def estimate(sweep: Sweep, trials: list[Trial], store: TaskStore) -> dict[str, Cost]:
    """The cost of each trial, by key. Trials that differ in real-valued options alone are measured once."""
    torch.set_num_threads(sweep.threads)
    measured: dict[str, Cost] = {}
    costs = {}
    for trial in trials:
        kind = canonical([trial.configuration.learner, _structure(trial), list(trial.seeds)])
        if kind not in measured:
            measured[kind] = _measure(trial, sweep, store)
        costs[trial.key] = measured[kind]
        if trial.configuration.population:  # it keeps its chunks of two rounds' ends besides, for others to copy
            costs[trial.key] = replace(measured[kind], disk_bytes=2 * measured[kind].disk_bytes)
    return costs


def _structure(trial: Trial) -> dict[str, object]:
    return {key: value for key, value in trial.configuration.options.items() if not isinstance(value, float)}


def _measure(trial: Trial, sweep: Sweep, store: TaskStore) -> Cost:
    configuration = trial.configuration
    run = protocol.assemble(
        store,
        configuration.learner,
        configuration.options,
        list(trial.seeds),
        configuration.batch_size,
        configuration.network,
        sweep.schedule,
    )
    # A window has to fill before a step costs what it will cost from then on.
    warm_up = 2 + int(configuration.options.get("K", 0))
    run.advance(min(warm_up, run.total_batches))
    before, first = run.curves.chunks["gradient_evaluations"].sum(), run.batches
    started = time.perf_counter()
    while not run.finished and (run.batches - first < 4 or time.perf_counter() - started < MEASURED_SECONDS):
        run.advance(2)
    seconds = time.perf_counter() - started
    if run.batches == first:  # the stream is shorter than the warm-up: that was all of it
        seconds, before, first = float(run.curves.chunks["seconds"].sum()), 0, 0
    evaluations = run.curves.chunks["gradient_evaluations"].sum() - before
    batches = run.batches - first
    ends = StoreSource(store, list(trial.seeds), sweep.schedule).shape().ends
    kept_at = kept.steps(sweep.document.keep_checkpoints, ends, configuration.batch_size)
    learner_bytes = _learner_bytes(run, configuration)
    return Cost(
        run.total_batches,
        seconds / batches * run.total_batches,
        float(evaluations) / (batches * configuration.batch_size),
        _disk_bytes(run) + len(kept_at) * learner_bytes,
        len(kept_at),
        learner_bytes,
    )


def _learner_bytes(run: protocol.OnlineProtocol, of: Configuration) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / chunks.LEARNER_FILE
        checkpoint.save(path, of.learner, run.learner, of.network, (1, 1, 1))
        return path.stat().st_size


def _disk_bytes(run: protocol.OnlineProtocol) -> int:
    """Two chunk files at the end of the stream: the state as it is now, and curves that grow with the batches."""
    with tempfile.TemporaryDirectory() as folder:
        whole = chunks.write(Path(folder), 0, run.state_dict(), run.curves, run.finished).stat().st_size
    curves = sum(array.nbytes for array in run.curves.by_batch.values())
    return chunks.KEPT * (whole + round(curves * (run.total_batches / run.batches - 1)))
