"""The result of a sweep as one JSON document: `python -m orchestrator.sweep --json`.

docs/sweeps.md lists its keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.plan.plan import Trial
from orchestrator.protocol.objectives import ObjectiveMetric
from orchestrator.report.comparison import ComparisonRow
from streams.errors import masked_values

if TYPE_CHECKING:
    from orchestrator.report.write import Report

FORMAT = 1
"""Increased when a key is removed or changes its meaning; new keys may be added at any time."""


@dataclass(frozen=True)
class SweepDocument:
    """The content of the document; every key is present, also for a command that was rejected.

    Attributes:
        sweep: the sweep's name; None if the command did not read it.
        exit_code: the command's.
        objective: of the sweep.
        report: the report; None if it was not written.
        failed: the failed trials, with the reason.
        folder: the folder of the chunk files.
        problems: one line each; of a rejected command, its faults.
        resume: the command that resumes the sweep; None if nothing is left to do.
    """

    sweep: str | None
    exit_code: int
    objective: ObjectiveMetric | None = None
    report: Report | None = None
    failed: Sequence[tuple[Trial, str]] = ()
    folder: Path | None = None
    problems: Sequence[str] = ()
    resume: str | None = None

    def to_json(self) -> str:
        """The document as text."""
        rows = () if self.report is None else self.report.rows
        folder = None if self.report is None else self.report.folder
        configurations = [_configuration(row) for row in rows]
        content = {
            "format": FORMAT,
            "sweep": self.sweep,
            "exit_code": self.exit_code,
            "objective": None if self.objective is None else self.objective.name,
            "mode": None if self.objective is None else self.objective.mode,
            "winner": next((each for each in configurations if each["usable"]), None),
            "configurations": configurations,
            "failures": [
                {"trial": trial.key, "label": trial.configuration.label, "seeds": list(trial.seeds), "reason": reason}
                for trial, reason in self.failed
            ],
            "diverged": [
                {"configuration": row.configuration.hash, "label": row.configuration.label, "seed": seed}
                for row in rows
                for seed in row.diverged_seeds
            ],
            "parent_run_id": None if self.report is None else self.report.run_id,
            "report": None if folder is None else str(folder.absolute()),
            "folder": None if self.folder is None else str(self.folder.absolute()),
            "problems": list(self.problems),
            "resume": self.resume,
        }
        return json.dumps(masked_values(content), indent=2, ensure_ascii=False, allow_nan=False)


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
        "so_far": None if row.so_far is None else _number(row.so_far.mean),
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
