"""What a plan costs, from a few measured batches of each kind of configuration."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from learners import checkpoint
from orchestrator import chunks, kept, protocol
from orchestrator.budget import open_ledger
from orchestrator.config import Sweep
from orchestrator.journal import Journal
from orchestrator.plan import Configuration, Study, Trial, canonical
from orchestrator.source import StoreSource
from orchestrator.usage import size
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


def plan_text(sweep: Sweep, journal: Journal, store: TaskStore) -> str:
    """The plan as a table: each trial, what is done already, and what the rest costs in time, disk and memory."""
    plan, done = journal.plan, journal.finished()
    stand_ins = {study.key: _any_trial(study) for study in plan.studies}
    costs = estimate(sweep, [*plan.trials, *stand_ins.values()], store)
    rows = [(trial.configuration.hash, trial.configuration.label, trial, 1, trial.key in done) for trial in plan.trials]
    for study in plan.studies:
        left = study.wanted - len({t.configuration.hash for t in plan.trials if t.drawn_by == study.key})
        if left > 0:
            names = " ".join(f"{key}=?" for key in sorted(study.spaces))
            rows.append(("to be drawn", f"{study.template.label} {names}", stand_ins[study.key], left, False))
    width = max(len(label) for _, label, *_ in rows)
    lines = [f"{'hash':12}  {'configuration':{width}}  trials  seeds  batches  gradients/datapoint  seconds"]
    for name, label, trial, count, finished in rows:
        its = costs[trial.key]
        lines.append(
            f"{name:12}  {label:{width}}  {count:6}  {len(trial.seeds):5}  {its.batches:7}"
            f"  {its.gradient_evaluations_per_datapoint:19.1f}  {its.seconds:7.0f}{'  finished' if finished else ''}"
        )
    slots = max(1, int((os.cpu_count() or 1) // sweep.document.resources.cpus))
    to_run = [(costs[trial.key], count) for _, _, trial, count, finished in rows if not finished]
    seconds = sum(its.seconds * count for its, count in to_run)
    disk = sum(its.disk_bytes * count for its, count in to_run)
    ledger = open_ledger(sweep, journal.root)
    as_here = "on this machine's CPU" if not ledger.rates.gpus else "if a GPU is no faster than this machine's CPU"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # a learner actor holds what this process holds
    lines += [
        f"{plan.size} trials, {sum(count for _, count in to_run)} to run: {seconds:.0f} s one after the other, "
        f"about {seconds / slots:.0f} s with {slots} at a time (measured on this machine's CPU)",
        f"disk: about {size(disk)} in {journal.root}; memory: about {size(memory)} for each of {slots} learner actors",
        f"cost: about {ledger.rates.text(seconds)} ({as_here}; learning alone)",
    ]
    if kept_in_all := sum(its.kept * count for its, count in to_run):
        each = max(its.learner_bytes for its, _ in to_run)
        lines.append(
            f"checkpoints: {kept_in_all} are kept besides the last of each trial, of at most {size(each)}; "
            "they are in the figure above, and once more in MLflow"
        )
    if ledger.limited:
        lines.append(f"budget: {ledger.text()}")
    return "\n".join(lines)


def _any_trial(study: Study) -> Trial:
    rng = np.random.default_rng(0)
    return study.trial({key: space.draw(rng) for key, space in study.spaces.items()})


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
