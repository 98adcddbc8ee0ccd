"""Compute the regret of a finished sweep: `python -m orchestrator.regret NAME`.

The reference of `orchestrator.protocol.hindsight` is fitted, which costs about one `online` learner for each epoch, and
stored with the sweep's run. The curve `regret` is written to the runs of its seeds and configurations; from then on,
reports show it.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.errors import OrchestratorError, fault
from orchestrator.protocol import metrics
from orchestrator.report.derived_curves import with_regret
from orchestrator.tracking import reader, tables
from orchestrator.tracking.database import report_command
from orchestrator.tracking.names import INTERNAL
from orchestrator.tracking.points import REGRET, Point, bound_names
from orchestrator.tracking.reader import SweepRuns
from orchestrator.tracking.requests import write
from orchestrator.tracking.tables import HINDSIGHT_FILE
from streams.command_line import CommandLine, command

_EPOCHS = f"{INTERNAL}hindsight_epochs"


def add_regret(
    name: str, storage: str = "results", epochs: int | None = None, tracking_uri: str | None = None
) -> pd.DataFrame:
    """Compute the regret of a sweep and store it in MLflow.

    Args:
        name: the sweep's.
        storage: the folder in which it ran.
        epochs: passes over each task; those of `hindsight.EPOCHS` if None.
        tracking_uri: where it was tracked; the sweep's own if None, of which the folder holds no password.

    Returns:
        The points: configuration, label, learner, seed, metric, step (task), value. Configurations of earlier versions
        of the sweep are included: `reader.find_sweep` says which are `removed`.

    Raises:
        UserError: the sweep does not exist or has no complete configuration, or its stream has no sharp boundaries.
    """
    return _add_regret(name, storage, epochs, tracking_uri)[1]


def _add_regret(
    name: str, storage: str, epochs: int | None, tracking_uri: str | None
) -> tuple[SweepRuns, pd.DataFrame]:
    """`add_regret`, with the runs of the sweep."""
    from learners.networks import build
    from orchestrator.config.load import check_sweep
    from orchestrator.config.strict_yaml import overridden
    from orchestrator.plan.plan import sweep_folder
    from orchestrator.plan.task_store import open_store
    from orchestrator.protocol import hindsight
    from orchestrator.storage.journal import given_before
    from orchestrator.system import hardware
    from streams.progress import ProgressLine

    document, folder = given_before(sweep_folder(storage, name), name, "NAME")
    changes = [] if tracking_uri is None else [f"tracking.uri={json.dumps(tracking_uri)}"]
    sweep = check_sweep(overridden(document, changes), f"{storage}/{name}", folder)
    runs = reader.find_sweep(name, sweep.document.tracking.uri, sweep.experiment)
    if not any(configuration.complete for configuration in runs.configurations):
        raise OrchestratorError(fault("sweep", "", "has no complete configuration to compare with hindsight", name))
    epochs = epochs or hindsight.EPOCHS
    if (stored := runs.tags.get(_EPOCHS)) not in (None, str(epochs)):
        rule = f"this sweep's regret was computed with {stored}, and points in MLflow cannot be changed"
        raise OrchestratorError(fault("--epochs", "", rule, epochs))
    store = open_store(sweep, any_objective=True)
    hardware.set_threads(sweep.threads)
    network = build.build(sweep.network, store.shape, store.classes)
    size = sweep.document.batch_size
    reference = hindsight.reference(store, network, sweep.seeds, sweep.schedule, size, epochs, ProgressLine())
    curves = with_regret(runs, reader.curves_of(runs), reference)
    regret = curves[curves.metric == REGRET]
    tables.keep(
        runs.client,
        runs.run_id,
        {HINDSIGHT_FILE: reference},
        lambda digests: write(runs.client, runs.run_id, tags={_EPOCHS: str(epochs), **digests}),
    )
    _write(runs, regret)
    return runs, regret


def _write(runs: SweepRuns, regret: pd.DataFrame) -> None:
    """Write the curves as metrics of their runs. Their time is the end of the run, so that writing is idempotent."""
    for configuration in runs.configurations:
        curves = regret[regret.configuration == configuration.hash]
        if curves.empty:
            continue
        time_ms = int(runs.client.get_run(configuration.run_id).info.end_time or 0)
        for run in configuration.seeds:
            if not run.run_id:
                continue
            points = curves[curves.seed == run.seed]
            _send(runs.client, run.run_id, REGRET, points.step.to_numpy(), points.value.to_numpy(), time_ms)
        by_step = curves.pivot(index="seed", columns="step", values="value").dropna(axis=1)
        curves_of_seeds = metrics.interval_curve(by_step.to_numpy())
        for metric, values in zip((REGRET, *bound_names(REGRET)), curves_of_seeds, strict=True):
            _send(runs.client, configuration.run_id, metric, by_step.columns.to_numpy(), values, time_ms)


def _send(client: Any, run_id: str, metric: str, steps: np.ndarray, values: np.ndarray, time_ms: int) -> None:
    points = zip(steps, values, strict=True)
    write(client, run_id, [Point(metric, int(s), float(v), time_ms) for s, v in points if np.isfinite(v)])


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.regret") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Compute the regret of a sweep against networks that are fitted in hindsight.")
    parser.add_argument("name", metavar="NAME", help="a sweep that ran on this machine")
    parser.add_argument("--storage", default="results", metavar="DIR", help="the folder in which it ran")
    parser.add_argument("--epochs", type=int, metavar="N", help="passes over a task in hindsight (default: 10)")
    parser.add_argument("--tracking-uri", metavar="URI", help="where it was tracked (default: as the sweep says)")
    options = parser.parse_args(argv)
    if options.epochs is not None and options.epochs < 1:
        raise OrchestratorError(fault("--epochs", "", "must be at least 1", options.epochs))
    runs, regret = _add_regret(options.name, options.storage, options.epochs, options.tracking_uri)
    last = regret[regret.step == regret.groupby("configuration").step.transform("max")]
    for configuration in runs.configurations:
        values = last[last.configuration == configuration.hash].value
        if len(values) and not configuration.removed:
            print(f"{configuration.label}: {metrics.interval(values.to_numpy())}")
    print(f"shown in the report: {report_command(runs.client.tracking_uri, runs.name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
