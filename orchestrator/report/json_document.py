"""What a sweep came to as one JSON document: `python -m orchestrator.sweep --json`. docs/sweeps.md names the keys."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.plan.plan import Trial
from orchestrator.report.comparison import Row

FORMAT = 1
"""Raised when a key goes or changes its meaning; new keys may come at any time."""


def document(
    sweep: str | None,
    exit_code: int,
    metric: str | None = None,
    rows: Sequence[Row] = (),
    failed: Sequence[tuple[Trial, str]] = (),
    run_id: str | None = None,
    folder: Path | None = None,
    report: Path | None = None,
    problems: Sequence[str] = (),
    resume: str | None = None,
) -> str:
    """The document as text; every key is there, also for a command that was refused.

    Args:
        sweep: its name; None if the command did not get as far.
        metric: of the objective.
        rows: the configurations, the best first.
        failed: the trials that failed, and why.
        run_id: of the sweep's own run in MLflow.
        folder: chunk files. report: where it was written, None if it was not.
        problems: one line each; of a refused command, its faults.
        resume: the command that goes on with it, None if there is nothing to go on with.
    """
    configurations = [_configuration(row) for row in rows]
    content = {
        "format": FORMAT,
        "sweep": sweep,
        "exit_code": exit_code,
        "objective": metric,
        "winner": next((one for one in configurations if one["usable"]), None),
        "configurations": configurations,
        "failures": [
            {"trial": trial.key, "label": trial.configuration.label, "seeds": list(trial.seeds), "reason": reason}
            for trial, reason in failed
        ],
        "diverged": [
            {"configuration": one["configuration"], "label": one["label"], "seed": seed}
            for one in configurations
            for seed in one["diverged"]
        ],
        "parent_run_id": run_id,
        "report": None if report is None else str(report.absolute()),
        "folder": None if folder is None else str(folder.absolute()),
        "problems": list(problems),
        "resume": resume,
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)


def _configuration(row: Row) -> dict[str, Any]:
    diverged = [seed for seed, what in row.lost.items() if what.startswith("diverged")]
    return {
        "configuration": row.of.hash,
        "label": row.of.label,
        "learner": row.of.learner,
        "parameters": row.of.parameters,
        "population": row.of.population or None,
        "mean": _number(row.objective.mean),
        "low": row.objective.low,
        "high": row.objective.high,
        "n": row.objective.n,
        "seeds": list(row.of.planned),
        "values": {str(seed): _number(value) for seed, value in row.values.items()},
        "diverged": diverged,
        "missing": [seed for seed in row.lost if seed not in diverged],
        "complete": row.of.complete,
        "withdrawn": row.of.removed,
        "usable": row.usable,
        "run_id": row.of.run_id,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
