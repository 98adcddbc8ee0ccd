"""The cost of a plan: gradients are counted, and seconds measured on a few batches of each kind of trial."""

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
from orchestrator.storage import atomic, chunk_files, retention
from orchestrator.sweep.gradient_count import GradientCount, count, one_pass, pretraining_steps, warm_up
from orchestrator.system import hardware
from streams.errors import UserError
from streams.store.canonical_json import canonical
from streams.store.task_store import TaskStore

MEASURED_SECONDS = 1.0
"""Seconds of measured batches for each kind of configuration; at least four batches are run."""


@dataclass(frozen=True)
class Cost:
    """The cost of one trial.

    Attributes:
        batches: batches of the stream.
        seconds: seconds of learning on this machine's CPU, beside as many trials as run here.
        gradient_evaluations_per_datapoint: gradient evaluations of a replicate, divided by its datapoints.
        disk_bytes: bytes that it leaves on disk.
        checkpoints: the number of checkpoints besides the last one, which are among these bytes.
        learner_bytes: bytes of each checkpoint.
        memory: the most bytes that the process held while this was measured.
        problem: why the cost cannot be measured, or empty; all but `batches` is 0 then.
    """

    batches: int
    seconds: float
    gradient_evaluations_per_datapoint: float
    disk_bytes: int
    checkpoints: int
    learner_bytes: int
    memory: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Counts:
    """The gradients of a plan's trials.

    Attributes:
        counted: the learner's name and its options that are no real numbers → what one replicate takes.
        problems: trial's key → why its gradients cannot be counted.
    """

    counted: dict[str, GradientCount]
    problems: dict[str, str]


def count_gradients(sweep: Sweep, trials: list[Trial], store: TaskStore) -> Counts:
    """Count the gradients of each kind of trial, once if that succeeds.

    A learner that raises is no error here: a run marks its trial as failed, and continues with the others.
    """
    hardware.set_threads(threads_here(sweep))
    counts = Counts({}, {})
    for trial in trials:
        configuration, kind = trial.configuration, _kind(trial)
        if kind in counts.counted:
            continue
        learner, options, size = configuration.learner, configuration.options, configuration.batch_size
        try:
            counts.counted[kind] = count(store, learner, options, trial.seeds[0], size, sweep.schedule)
        except Exception as error:
            counts.problems[trial.key] = _problem(error)
    return counts


def measure(sweep: Sweep, trials: list[Trial], store: TaskStore, counts: Counts) -> dict[str, Cost]:
    """The cost of each trial, by key; those that differ only in real-valued options are measured once, if that
    succeeds."""
    hardware.set_threads(threads_here(sweep))
    measured: dict[str, Cost] = {}
    costs = {}
    for trial in trials:
        kind = canonical([_kind(trial), list(trial.seeds)])
        problem = counts.problems.get(trial.key, "")
        if not problem and kind not in measured:
            try:
                hardware.reset_peak_memory(torch.device("cpu"))
                cost = _measure(trial, sweep, store, counts.counted[_kind(trial)])
                measured[kind] = replace(cost, memory=hardware.peak_memory())
            except Exception as error:
                problem = _problem(error)
        costs[trial.key] = _unknown(trial, sweep, store, problem) if problem else measured[kind]
        if trial.configuration.population:  # it also keeps the chunks of two generations, for others to copy
            costs[trial.key] = replace(costs[trial.key], disk_bytes=2 * costs[trial.key].disk_bytes)
    return costs


def threads_here(sweep: Sweep) -> int:
    """Torch's threads in a learner actor, and at most the cores of this machine."""
    return min(sweep.threads, os.cpu_count() or 1)


def _problem(error: Exception) -> str:
    """What a trial's row says about an error of its learner; other errors are raised again."""
    if isinstance(error, UserError) or is_disk_full(error):
        raise error
    return atomic.reason(error)


def _kind(trial: Trial) -> str:
    options = {key: value for key, value in trial.configuration.options.items() if not isinstance(value, float)}
    return canonical([trial.configuration.learner, options])


def _measure(trial: Trial, sweep: Sweep, store: TaskStore, gradients: GradientCount) -> Cost:
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
    seconds = _seconds_of_pretraining(run, source, configuration, gradients)
    run.advance(min(warm_up(configuration.options, configuration.batch_size), run.total_batches))
    task_start = _enter_second_task(run, shape)
    sample = _measured_batches(run)
    kept_at = retention.steps(sweep.document.keep_checkpoints, shape.ends, configuration.batch_size)
    learner_bytes = _learner_bytes(run, configuration)
    disk_bytes = _disk_bytes(run) + len(kept_at) * learner_bytes
    if run.finished:  # the whole stream was measured
        seconds += float(run.curves.chunks["seconds"].sum())
    elif sample.without_ends:
        seconds += sample.scaled(gradients.updates, run.total_batches)
        seconds += _seconds_of_ends(run, shape, gradients, task_start)
    else:
        seconds += sample.scaled(gradients.updates + gradients.ends, run.total_batches)
    seconds += _seconds_of_past(run, shape, sweep.document.evaluate_past)
    return Cost(run.total_batches, seconds, gradients.total / shape.length, disk_bytes, len(kept_at), learner_bytes)


@dataclass
class _Sample:
    """A part of the work that was measured.

    Attributes:
        number: its size, in batches.
        seconds: how long it took.
        gradients: gradient evaluations.
        without_ends: whether it contains no start or end of a task.
    """

    number: int = 0
    seconds: float = 0.0
    gradients: float = 0.0
    without_ends: bool = True

    def scaled(self, gradients: float, number: float) -> float:
        """Seconds of the whole work, in proportion to its gradients, or to its size if it takes none."""
        return self.seconds * (gradients / self.gradients if self.gradients else number / self.number)


def _seconds_of_pretraining(
    run: online.OnlineProtocol, source: StoreSource, configuration: Configuration, gradients: GradientCount
) -> float:
    """Seconds of pretraining, scaled from a few batches of it."""
    if not run.learner.pretrain_tasks:
        return 0.0
    steps = pretraining_steps(run.learner, source, configuration.options)
    few = min(steps, warm_up(configuration.options, configuration.batch_size))
    started = time.perf_counter()
    taken = run.pretrain(few)
    return _Sample(few, time.perf_counter() - started, taken).scaled(gradients.pretraining, steps)


def _enter_second_task(run: online.OnlineProtocol, shape: StreamShape) -> int:
    """End the present task early for a learner with boundaries; returns the batches by then.

    The first task may be cheaper than the others: it has no teacher, say, and no class means.
    """
    if run.learner.needs_boundaries and run.batches not in _ends(run, shape):
        run.learner.end_task()
        run.learner.begin_task()
    return run.batches


def _ends(run: online.OnlineProtocol, shape: StreamShape) -> list[int]:
    """The batches after which each task has ended, on a stream where all seeds leave it together."""
    return [math.ceil(at / run.learner.setting.batch_size) for at, _ in shape.ends[0]]


def _measured_batches(run: online.OnlineProtocol) -> _Sample:
    """The next batches of the run; without those at a task's start or end, unless all of them are."""
    inside, all_of_them = _Sample(), _Sample(without_ends=False)
    first, started = run.batches, time.perf_counter()
    while not run.finished and (run.batches - first < 4 or time.perf_counter() - started < MEASURED_SECONDS):
        slice_ = run.advance(2)
        at_an_end = bool(slice_.evaluations) or bool(np.isfinite(slice_.by_batch.get("forward_transfer", ())).any())
        for part in (all_of_them,) if at_an_end else (all_of_them, inside):
            part.number += slice_.batches - slice_.first_batch
            part.seconds += float(slice_.chunks["seconds"].sum())
            part.gradients += float(slice_.chunks["gradient_evaluations"].sum())
    return inside if inside.number else all_of_them


def _seconds_of_ends(
    run: online.OnlineProtocol, shape: StreamShape, gradients: GradientCount, task_start: int
) -> float:
    """Seconds at the ends of tasks: held-out evaluation, and `end_task` of a learner with boundaries."""
    size = run.learner.setting.batch_size
    started = time.perf_counter()
    run.rehearse_evaluation()
    evaluation = time.perf_counter() - started
    # Where seeds leave their tasks at different batches, all of them predict whenever one leaves.
    seconds = evaluation * len({math.ceil(at / size) for ends in shape.ends for at, _ in ends})
    if run.learner.needs_boundaries:
        if run.batches in _ends(run, shape):
            run.advance(1)
        task_start = max([task_start, *(end for end in _ends(run, shape) if end < run.batches)])
        before = run.learner.setting.network.gradient_evaluations
        started = time.perf_counter()
        run.learner.end_task()  # early: its cost grows with the task's batches, by which it is scaled
        took = time.perf_counter() - started
        taken = run.learner.setting.network.gradient_evaluations - before
        seconds += _Sample(run.batches - task_start, took, taken).scaled(gradients.ends, run.total_batches)
    return seconds


def _seconds_of_past(run: online.OnlineProtocol, shape: StreamShape, evaluate_past: int | str | None) -> float:
    """Seconds of evaluating past tasks, each of which predicts one validation set."""
    if evaluate_past is None:
        return 0.0
    tasks = max(map(len, shape.ends))
    every = evaluate_past if isinstance(evaluate_past, int) else tasks
    predictions: int = sum(done - 1 for done in {*range(every, tasks + 1, every), tasks})
    started = time.perf_counter()
    run.rehearse_evaluation()  # both held-out sets and, where tasks have boundaries, the validation set twice more
    return (time.perf_counter() - started) / (4 if shape.has_boundaries else 2) * predictions


def _unknown(trial: Trial, sweep: Sweep, store: TaskStore, problem: str) -> Cost:
    length = StoreSource(store, list(trial.seeds), sweep.schedule).shape().length
    return Cost(-(-length // trial.configuration.batch_size), 0.0, 0.0, 0, 0, 0, problem=problem)


def _learner_bytes(run: online.OnlineProtocol, of: Configuration) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / chunk_files.LEARNER_FILE
        checkpoint.save(path, of.learner, run.learner, of.network, (1, 1, 1))
        return path.stat().st_size


def _disk_bytes(run: online.OnlineProtocol) -> int:
    """The bytes at the end of the stream: two chunk files with the present state, and the log of all curves."""
    with tempfile.TemporaryDirectory() as folder:
        attempt = chunk_files.claim(Path(folder))
        path = chunk_files.write(Path(folder), attempt, run.state_dict(), run.curves, run.finished)
        state = path.stat().st_size
        curves = sum(path.stat().st_size for path in Path(folder).glob("curves-*"))
    return chunk_files.KEPT * state + round(curves * run.total_batches / run.batches)
