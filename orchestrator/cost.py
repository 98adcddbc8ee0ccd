"""What a plan costs, from a few measured batches of each kind of configuration."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from orchestrator import protocol
from orchestrator.config import Sweep
from orchestrator.plan import Plan, Trial, canonical
from streams.store import TaskStore

MEASURED_SECONDS = 1.0
"""How long the measured batches of one kind of configuration may take (at least four are run)."""


@dataclass(frozen=True)
class Cost:
    """Of one trial: its batches, seconds in a learner actor of its own, and gradient evaluations per datapoint."""

    batches: int
    seconds: float
    gradient_evaluations_per_datapoint: float


def estimate(sweep: Sweep, plan: Plan, store: TaskStore) -> dict[str, Cost]:
    """The cost of each trial, by key. Trials that differ in real-valued options alone are measured once."""
    torch.set_num_threads(sweep.document.resources.cpus)
    measured: dict[str, Cost] = {}
    costs = {}
    for trial in plan.trials:
        kind = canonical([trial.configuration.learner, _structure(trial), list(trial.seeds)])
        if kind not in measured:
            measured[kind] = _measure(trial, sweep, store)
        costs[trial.key] = measured[kind]
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
    return Cost(
        run.total_batches,
        seconds / batches * run.total_batches,
        float(evaluations) / (batches * configuration.batch_size),
    )
