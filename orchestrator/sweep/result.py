"""How a sweep's command ends: its report, its exit code, and what it prints."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from orchestrator.config.schema import Sweep
from orchestrator.config.strict_yaml import parsed
from orchestrator.errors import DiskFullError, ExitCode, OrchestratorError, disk_full_line, is_disk_full
from orchestrator.execution.outcome import Outcome
from orchestrator.plan.plan import sweep_folder
from orchestrator.storage.journal import Journal
from orchestrator.system.signals import StopRequest

if TYPE_CHECKING:
    from orchestrator.report.write import Report
    from orchestrator.tracking.writer import TrackingProblem


class Interrupted(KeyboardInterrupt):
    """A signal ended a sweep that is begun, and there is no report. ``resume``: the command that goes on with it."""

    def __init__(self, resume: str) -> None:
        super().__init__(f"go on with: {resume}")
        self.resume = resume


@contextmanager
def begun(sweep: Sweep, root: Path) -> Iterator[None]:
    """Around a sweep whose folder `root` is there: a signal or a full disk says how to go on with it.

    Raises:
        Interrupted: in the place of a KeyboardInterrupt.
        DiskFullError: with its `resume`, in the place of whatever a full disk led to.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(resume_command(sweep)) from error
    except Exception as error:
        if not is_disk_full(error):
            raise
        full = DiskFullError(str(error) if isinstance(error, DiskFullError) else disk_full_line(root))
        full.resume = resume_command(sweep)
        raise full from error


@dataclass(frozen=True)
class SweepResult:
    """What a sweep came to.

    ``summary``: one row per configuration, as in the report's `summary.csv`. ``best``: the label of the configuration
    with the lowest objective, None if none is usable. ``folder``: chunk files and report. ``text``: what the command
    prints at the end. ``problems``: one line each. ``exit_code``: see `orchestrator.sweep`. ``json``: all of it as one
    document; its keys stand in docs/sweeps.md.
    """

    name: str
    summary: pd.DataFrame
    best: str | None
    folder: Path
    report: Path
    text: str
    problems: tuple[str, ...]
    exit_code: int
    json: str

    @property
    def line(self) -> str:
        """It all in one line."""
        best = "none is usable" if self.best is None else f"best: {self.best}"
        return f"{self.name}: {best}; exit code {self.exit_code}; report: {self.report}"


def report_on(
    sweep: Sweep,
    journal: Journal,
    outcome: Outcome,
    failed: list[str],
    untracked: list[TrackingProblem],
    stop_request: StopRequest,
) -> SweepResult:
    """Report on what MLflow has.

    Args:
        failed: a line for each failed trial.
        untracked: failures to write to MLflow.
    """
    from orchestrator.report import write

    uri, mirror = sweep.document.tracking.uri, journal.mirror
    root = journal.root if mirror is None else sweep_folder("results", sweep.name)  # the report is wanted here too
    shown = root if mirror is None else mirror.shown
    try:
        written = write.write_report(sweep.name, uri, root / "report", sweep.experiment)
        if mirror is not None:
            mirror.push_report(root / "report")
    except OrchestratorError as error:
        lines = [*failed, *(problem.text for problem in untracked), *error.faults]
        return _unreported(sweep, root, lines, stop_request, outcome)
    lacking = [problem.text for problem in untracked if not problem.resolved]
    problems = [*failed, *lacking, *written.problems]
    if stop_request.interrupted:
        code = ExitCode.INTERRUPTED
    elif written.best is None and not lacking and not outcome.over_budget:
        code = ExitCode.NOTHING_USABLE
    elif outcome.failed or problems:
        code = ExitCode.SOME_FAILED
    else:
        code = ExitCode.OVER_BUDGET if outcome.over_budget else ExitCode.SUCCESS
    lines = [written.table, ""]
    if written.best is not None:
        lines.append(f"best: {written.best}")
        lines += [written.explained] if written.explained else []
    elif lacking:
        lines.append("best: not known, MLflow has not everything yet")
    else:
        lines.append("best: none, no configuration finished with every seed")
    lines += [
        f"report: {root / 'report'}",
        f"checkpoints: {shown}/<trial>/learner.pt, and in MLflow as checkpoint/learner.pt of each configuration's run",
        f"compare runs: mlflow ui --backend-store-uri {shlex.quote(uri)}",
    ]
    if outcome.spent:
        lines.append(f"spent: {outcome.spent}")
    lines += [f"problem: {line}" for line in problems]
    resume = resume_command(sweep) if stop_request.requested.is_set() or lacking else None
    if outcome.over_budget:
        resume = f"{resume_command(sweep)} {outcome.over_budget}"
        left = outcome.plan.size - len(outcome.ended) - len(outcome.failed)
        lines.append(f"budget reached, {left} {'trial' if left == 1 else 'trials'} not ended: go on with: {resume}")
    if stop_request.requested.is_set():
        lines.append(f"{stop_request.reason}: go on with: {resume_command(sweep)}")
    elif lacking:
        lines.append(f"everything is in {root}; this sends MLflow what it lacks: {resume_command(sweep)}")
    told = _document(sweep, outcome, root, code, problems, resume, written)
    return SweepResult(
        sweep.name, written.summary, written.best, root, root / "report", "\n".join(lines), tuple(problems), code, told
    )


def _unreported(
    sweep: Sweep, root: Path, problems: list[str], stop_request: StopRequest, outcome: Outcome
) -> SweepResult:
    """What a sweep came to whose results are on disk while MLflow is away, or the report cannot be written."""
    told = list(dict.fromkeys(problems))
    lines = [f"problem: {line}" for line in told]
    if stop_request.requested.is_set():
        lines.append(f"{stop_request.reason}: go on with: {resume_command(sweep)}")
    lines.append(
        f"everything is in {root}; once that is mended, this sends MLflow what it lacks and writes the report: "
        f"{resume_command(sweep)}"
    )
    code = ExitCode.INTERRUPTED if stop_request.interrupted else ExitCode.SOME_FAILED
    empty = pd.DataFrame()
    document = _document(sweep, outcome, root, code, told, resume_command(sweep), None)
    return SweepResult(sweep.name, empty, None, root, root / "report", "\n".join(lines), tuple(told), code, document)


def _document(
    sweep: Sweep,
    outcome: Outcome,
    root: Path,
    code: int,
    problems: Sequence[str],
    resume: str | None,
    written: Report | None,
) -> str:
    from orchestrator.report.json_document import document

    failed = [(outcome.plan.trial(key), reason) for key, reason in outcome.failed.items()]
    metric = sweep.document.objective.metric
    if written is None:
        return document(sweep.name, code, metric, (), failed, None, root, None, problems, resume)
    report = root / "report"
    return document(sweep.name, code, metric, written.rows, failed, written.run_id, root, report, problems, resume)


def resume_command(sweep: Sweep) -> str:
    """What to type to go on with a sweep."""
    name, storage = sweep.name, sweep.document.storage
    resume = f"--resume={shlex.quote(name)}" if name.startswith("-") else f"--resume {shlex.quote(name)}"
    elsewhere = "" if storage == "results" else f" {shlex.quote(f'storage={_as_word(storage)}')}"
    return f"python -m orchestrator.sweep {resume}{elsewhere}"


def _as_word(value: str) -> str:
    """What stands behind `key=` for this text: itself, or quoted where YAML would take it for something else."""
    try:
        same = parsed(value) == value
    except Exception:  # whatever YAML finds in it
        same = False
    return value if same else json.dumps(value, ensure_ascii=False)
