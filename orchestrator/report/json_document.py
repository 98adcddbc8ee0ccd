"""The result of a sweep as one JSON document: `python -m orchestrator.sweep --json`. docs/sweeps.md lists its keys."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.plan.plan import Trial
from orchestrator.report.comparison import ComparisonRow

FORMAT = 1
"""Increased when a key is removed or changes its meaning; new keys may be added at any time."""


def document(
    sweep: str | None,
    exit_code: int,
    metric: str | None = None,
    rows: Sequence[ComparisonRow] = (),
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


def _configuration(row: ComparisonRow) -> dict[str, Any]:
    runs = row.configuration
    return {
        "configuration": runs.hash,
        "label": runs.label,
        "learner": runs.learner,
        "parameters": runs.parameters,
        "population": runs.population or None,
        "mean": _number(row.objective.mean),
        "low": row.objective.low,
        "high": row.objective.high,
        "n": row.objective.n,
        "seeds": list(runs.planned),
        "values": {str(seed): _number(value) for seed, value in row.values.items()},
        "diverged": row.diverged_seeds,
        "missing": row.missing_seeds,
        "complete": runs.complete,
        "withdrawn": runs.removed,
        "usable": row.usable,
        "run_id": runs.run_id,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
