"""What a plan costs: gradients, which are counted, and seconds, measured on a few batches of each kind of trial."""

from __future__ import annotations

import math
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from learners import checkpoint
from orchestrator.config.schema import Sweep
from orchestrator.errors import is_disk_full
from orchestrator.plan.plan import Configuration, Trial
from orchestrator.protocol import online
from orchestrator.protocol.source import StoreSource, StreamShape
from orchestrator.storage import retention, trial_files
from orchestrator.sweep.gradient_count import Counted, count, one_pass, pretraining_steps, warm_up
from streams.errors import UserError
from streams.store.canonical_json import canonical
from streams.store.task_store import TaskStore

MEASURED_SECONDS = 1.0
"""How long the measured batches of one kind of configuration may take (at least four are run)."""


@dataclass(frozen=True)
class Cost:
    """Of one trial: its batches, seconds in a learner actor of its own, gradient evaluations per datapoint, and the
    bytes that it leaves on disk. ``kept``: how many checkpoints besides the last are among these, each of
    ``learner_bytes``. ``problem``: why it cannot be measured, empty if it could; then all but ``batches`` is 0."""

    batches: int
    seconds: float
    gradient_evaluations_per_datapoint: float
    disk_bytes: int
    kept: int
    learner_bytes: int
    problem: str = ""


def estimate(sweep: Sweep, trials: list[Trial], store: TaskStore) -> dict[str, Cost]:
    """The cost of each trial, by key. Trials that differ in real-valued options alone are measured once, if that works.

    A learner that raises is no error here: a run marks its trial as failed, and goes on with the others.
    """
    torch.set_num_threads(min(sweep.threads, os.cpu_count() or 1))
    counted: dict[str, Counted] = {}
    measured: dict[str, Cost] = {}
    costs = {}
    for trial in trials:
        configuration = trial.configuration
        options = canonical([configuration.learner, _structure(trial)])
        kind = canonical([options, list(trial.seeds)])
        if kind not in measured:
            try:
                if options not in counted:
                    counted[options] = count(
                        store,
                        configuration.learner,
                        configuration.options,
                        trial.seeds[0],
                        configuration.batch_size,
                        sweep.schedule,
                    )
                measured[kind] = _measure(trial, sweep, store, counted[options])
            except UserError:
                raise
            except Exception as error:
                if is_disk_full(error):
                    raise
                costs[trial.key] = _unknown(trial, sweep, store, error)
                continue
        costs[trial.key] = measured[kind]
        if configuration.population:  # it keeps its chunks of two rounds' ends besides, for others to copy
            costs[trial.key] = replace(measured[kind], disk_bytes=2 * measured[kind].disk_bytes)
    return costs


def _structure(trial: Trial) -> dict[str, object]:
    return {key: value for key, value in trial.configuration.options.items() if not isinstance(value, float)}


def _measure(trial: Trial, sweep: Sweep, store: TaskStore, counted: Counted) -> Cost:
    configuration = trial.configuration
    source = StoreSource(store, list(trial.seeds), sweep.schedule)
    run = online.assemble(
        store,
        configuration.learner,
        one_pass(configuration.options),
        list(trial.seeds),
        configuration.batch_size,
        configuration.network,
        source=source,
    )
    shape = source.shape()
    seconds = _seconds_before(run, source, configuration, counted)
    run.advance(min(warm_up(configuration.options, configuration.batch_size), run.total_batches))
    begun = _next_task(run, shape)
    by_batch = _measured_batches(run)
    kept_at = retention.steps(sweep.document.keep_checkpoints, shape.ends, configuration.batch_size)
    learner_bytes = _learner_bytes(run, configuration)
    disk_bytes = _disk_bytes(run) + len(kept_at) * learner_bytes
    if run.finished:  # that was all of it
        seconds += float(run.curves.chunks["seconds"].sum())
    else:
        if by_batch.without_ends:
            seconds += by_batch.scaled(counted.updates, run.total_batches) + _seconds_of_ends(
                run, shape, counted, begun
            )
        else:
            seconds += by_batch.scaled(counted.updates + counted.ends, run.total_batches)
    return Cost(run.total_batches, seconds, counted.total / shape.length, disk_bytes, len(kept_at), learner_bytes)


@dataclass
class _Measured:
    """Some of a thing, which took so long, and so many gradients."""

    number: int = 0
    seconds: float = 0.0
    gradients: float = 0.0
    without_ends: bool = True

    def scaled(self, gradients: float, number: float) -> float:
        """Seconds of all of it: by its gradients, or by how many there are where none is taken."""
        return self.seconds * (gradients / self.gradients if self.gradients else number / self.number)


def _seconds_before(
    run: online.OnlineProtocol, source: StoreSource, configuration: Configuration, counted: Counted
) -> float:
    """Of pretraining; on few batches of it here."""
    if not run.learner.pretrain_tasks:
        return 0.0
    steps = pretraining_steps(run.learner, source, configuration.options)
    few = min(steps, warm_up(configuration.options, configuration.batch_size))
    started = time.perf_counter()
    gradients = run.pretrain(few)
    return _Measured(few, time.perf_counter() - started, gradients).scaled(counted.pretraining, steps)


def _next_task(run: online.OnlineProtocol, shape: StreamShape) -> int:
    """End the present task early for a learner that is told of tasks; returns the batches by then.

    In its first task it may lack what makes the others dear: a teacher, say, or class means.
    """
    if run.learner.needs_boundaries and run.batches not in _ends(run, shape):
        run.learner.end_task()
        run.learner.begin_task()
    return run.batches


def _ends(run: online.OnlineProtocol, shape: StreamShape) -> list[int]:
    """Batches by which each task is over, on a stream where all seeds leave it together."""
    return [math.ceil(at / run.learner.setting.batch_size) for at, _ in shape.ends[0]]


def _measured_batches(run: online.OnlineProtocol) -> _Measured:
    """Batches from where the run is; without those at a task's begin or end, unless each is at one."""
    inside, all_of_them = _Measured(), _Measured(without_ends=False)
    first, started = run.batches, time.perf_counter()
    while not run.finished and (run.batches - first < 4 or time.perf_counter() - started < MEASURED_SECONDS):
        slice_ = run.advance(2)
        at_an_end = bool(slice_.evaluations) or bool(np.isfinite(slice_.by_batch.get("forward_transfer", ())).any())
        for part in (all_of_them,) if at_an_end else (all_of_them, inside):
            part.number += slice_.batches - slice_.first_batch
            part.seconds += float(slice_.chunks["seconds"].sum())
            part.gradients += float(slice_.chunks["gradient_evaluations"].sum())
    return inside if inside.number else all_of_them


def _seconds_of_ends(run: online.OnlineProtocol, shape: StreamShape, counted: Counted, begun: int) -> float:
    """Of what happens at the ends of tasks: held-out evaluation, and what a learner does there that is told of them."""
    size = run.learner.setting.batch_size
    started = time.perf_counter()
    run.rehearse_evaluation()
    evaluation = time.perf_counter() - started
    # Where seeds leave their tasks at different batches, all are predicted whenever one of them does.
    seconds = evaluation * len({math.ceil(at / size) for ends in shape.ends for at, _ in ends})
    if run.learner.needs_boundaries:
        if run.batches in _ends(run, shape):
            run.advance(1)
        begun = max([begun, *(end for end in _ends(run, shape) if end < run.batches)])
        before = run.learner.setting.network.gradient_evaluations
        started = time.perf_counter()
        run.learner.end_task()  # before its time: what is due at one grows with the task's batches
        took = time.perf_counter() - started
        gradients = run.learner.setting.network.gradient_evaluations - before
        seconds += _Measured(run.batches - begun, took, gradients).scaled(counted.ends, run.total_batches)
    return seconds


def _unknown(trial: Trial, sweep: Sweep, store: TaskStore, error: Exception) -> Cost:
    length = StoreSource(store, list(trial.seeds), sweep.schedule).shape().length
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return Cost(-(-length // trial.configuration.batch_size), 0.0, 0.0, 0, 0, 0, lines[-1].strip())


def _learner_bytes(run: online.OnlineProtocol, of: Configuration) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / trial_files.LEARNER_FILE
        checkpoint.save(path, of.learner, run.learner, of.network, (1, 1, 1))
        return path.stat().st_size


def _disk_bytes(run: online.OnlineProtocol) -> int:
    """Two chunk files at the end of the stream: the state as it is now, and curves that grow with the batches."""
    with tempfile.TemporaryDirectory() as folder:
        whole = trial_files.write(Path(folder), 0, run.state_dict(), run.curves, run.finished).stat().st_size
    curves = sum(array.nbytes for array in run.curves.by_batch.values())
    return trial_files.KEPT * (whole + round(curves * (run.total_batches / run.batches - 1)))
