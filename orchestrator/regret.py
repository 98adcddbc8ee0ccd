"""Regret of a finished sweep: `python -m orchestrator.regret NAME`.

It fits the reference once (`hindsight.py`; it costs about as much as one `online` learner times the epochs), keeps it
with the sweep's run, and writes the curve `regret` to the runs of its seeds and configurations. A report of the sweep
shows it from then on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.errors import ExitCode, OrchestratorError, fault
from orchestrator.protocol import metrics
from orchestrator.report.derived_curves import with_regret
from orchestrator.tracking import reader, tables
from orchestrator.tracking.points import REGRET, Point
from orchestrator.tracking.reader import SweepRuns
from orchestrator.tracking.runs import write
from orchestrator.tracking.tables import HINDSIGHT_FILE
from streams.errors import UserError

_EPOCHS = "foml.hindsight_epochs"


def add_regret(name: str, storage: str = "results", epochs: int | None = None) -> pd.DataFrame:
    """Compute the regret of a sweep that was run in this storage, and keep it in MLflow.

    Returns:
        The points: configuration, label, learner, seed, metric, step (task), value.

    Raises:
        UserError: no such sweep, no complete configuration, a stream without sharp boundaries.
    """
    from learners.networks import build
    from orchestrator.config.load import check_sweep
    from orchestrator.plan.plan import sweep_folder
    from orchestrator.plan.task_store import open_store
    from orchestrator.protocol import hindsight
    from orchestrator.storage.journal import given_before
    from streams.progress import ProgressLine

    sweep = check_sweep(given_before(sweep_folder(storage, name), name, "NAME"), f"{storage}/{name}")
    runs = reader.find_sweep(name, sweep.document.tracking.uri, sweep.document.tracking.experiment)
    if not any(of.complete for of in runs.configurations):
        raise OrchestratorError(fault("sweep", "", "has no complete configuration to compare with hindsight", name))
    epochs = epochs or hindsight.EPOCHS
    if (before := runs.tags.get(_EPOCHS)) not in (None, str(epochs)):
        rule = f"this sweep's regret was computed with {before}, and what is in MLflow cannot be changed"
        raise OrchestratorError(fault("--epochs", "", rule, epochs))
    store = open_store(sweep)
    network = build.build(sweep.network, store.shape, store.classes)
    size = sweep.document.batch_size
    made = hindsight.reference(store, network, sweep.seeds, sweep.schedule, size, epochs, ProgressLine())
    curves = with_regret(runs, reader.curves_of(runs), made)
    found = curves[curves.metric == REGRET]
    # Kept once it has served: every report of the sweep reads it from then on.
    tables.keep(runs.client, runs.run_id, {HINDSIGHT_FILE: made}, {_EPOCHS: str(epochs)})
    _write(runs, found)
    return found


def _write(runs: SweepRuns, found: pd.DataFrame) -> None:
    """The curves as metrics of their runs. A run's end is their time, so to write them again changes nothing."""
    for of in runs.configurations:
        own = found[found.configuration == of.hash]
        if not len(own):
            continue
        time_ms = int(runs.client.get_run(of.run_id).info.end_time or 0)
        for run in of.seeds:
            points = own[own.seed == run.seed]
            _send(runs.client, run.run_id, REGRET, points.step.to_numpy(), points.value.to_numpy(), time_ms)
        by_seed = own.pivot(index="seed", columns="step", values="value")
        whole = by_seed.dropna(axis=1)
        for suffix, values in zip(("", "_low", "_high"), metrics.interval_curve(whole.to_numpy()), strict=True):
            _send(runs.client, of.run_id, REGRET + suffix, whole.columns.to_numpy(), values, time_ms)


def _send(client: Any, run_id: str, metric: str, steps: np.ndarray, values: np.ndarray, time_ms: int) -> None:
    there = np.isfinite(values)
    points = [Point(metric, int(s), float(v), time_ms) for s, v in zip(steps[there], values[there], strict=True)]
    write(client, run_id, points)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.regret", description="Regret against hindsight.")
    parser.add_argument("name", metavar="NAME", help="a sweep that was run here")
    parser.add_argument("--storage", default="results", metavar="DIR", help="where it was run; default: results")
    parser.add_argument("--epochs", type=int, metavar="N", help="passes over a task in hindsight; default: 10")
    arguments = parser.parse_args(argv)
    if arguments.epochs is not None and arguments.epochs < 1:
        print(fault("--epochs", "", "must be at least 1", arguments.epochs), file=sys.stderr)
        return ExitCode.BAD_INPUT
    try:
        found = add_regret(arguments.name, arguments.storage, arguments.epochs)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    last = found[found.step == found.groupby("configuration").step.transform("max")]
    for label, values in last.groupby("label").value:
        print(f"{label}: {metrics.interval(values.to_numpy())}")
    print(f"in the report from now on: python -m orchestrator.report {arguments.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
