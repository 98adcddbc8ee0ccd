"""How a sweep's command ends: its report, its exit code, and what it prints."""

import html
import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from orchestrator.config.schema import Sweep
from orchestrator.errors import DiskFullError, ExitCode, OrchestratorError, disk_full_line, is_disk_full
from orchestrator.execution.outcome import Outcome
from orchestrator.plan.plan import sweep_folder
from orchestrator.plan.task_store import objective_of
from orchestrator.report import write
from orchestrator.report.json_document import SweepDocument
from orchestrator.report.write import Report
from orchestrator.storage.journal import Journal
from orchestrator.system.signals import StopRequest
from orchestrator.tracking.database import charts_link, report_command, ui_command
from orchestrator.tracking.writer import TrackingProblem
from streams.errors import masked
from streams.yaml_values import parsed

_HTML_COLUMNS = {
    "label": "configuration",
    "objective": "objective",
    "objective_mean": "mean",
    "objective_low": "95 % low",
    "objective_high": "95 % high",
    "n": "n",
    "difference_mean": "difference to best",
    "difference_p_holm": "p",
    "final_error_mean": "final error",
    "seconds": "seconds",
}
"""Column of the summary → its heading in a notebook."""


class Interrupted(KeyboardInterrupt):
    """A signal ended a sweep after its start, and no report was written.

    Attributes:
        resume: the command that resumes the sweep.
    """

    def __init__(self, resume: str) -> None:
        super().__init__(f"resume with: {resume}")
        self.resume = resume


@contextmanager
def resumable(sweep: Sweep, root: Path) -> Iterator[None]:
    """Inside this block the sweep's folder `root` exists: a signal or a full disk names the command that resumes it.

    Raises:
        Interrupted: instead of a KeyboardInterrupt.
        DiskFullError: with its `resume`, instead of any error that a full disk caused.
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
    """The result of a sweep.

    Attributes:
        name: the sweep.
        summary: one row per configuration, as in the report's `summary.csv`.
        best: the label of the best configuration; None if none is usable.
        folder: the folder of chunk files and report.
        report: the folder of the report; None if the sweep has `report: false`.
        text: what the command prints at its end.
        problems: one line each.
        exit_code: an `ExitCode`.
        json: all of it as one document; docs/sweeps.md describes its keys.
    """

    name: str
    summary: pd.DataFrame
    best: str | None
    folder: Path
    report: Path | None
    text: str
    problems: tuple[str, ...]
    exit_code: int
    json: str

    @property
    def line(self) -> str:
        """The result in one line."""
        best = "none is usable" if self.best is None else f"best: {self.best}"
        report = "" if self.report is None else f"; report: {self.report}"
        return f"{self.name}: {best}; exit code {self.exit_code}{report}"

    def _repr_html_(self) -> str:
        """The result in one line, and the comparison's most important columns, for notebooks."""
        columns = [name for name in _HTML_COLUMNS if name in self.summary]
        table = self.summary[columns].rename(columns=_HTML_COLUMNS)
        text = table.to_html(index=False, border=0, na_rep="–", float_format="{:.4g}".format) if len(table) else ""
        problems = "".join(f"<li>{html.escape(line)}</li>" for line in self.problems)
        return f"<div><b>{html.escape(self.line)}</b>{text}{f'<ul>{problems}</ul>' if problems else ''}</div>"


def report_on(
    sweep: Sweep,
    journal: Journal,
    outcome: Outcome,
    untracked: Sequence[TrackingProblem],
    stop_request: StopRequest,
) -> SweepResult:
    """The result of a sweep, with a report on what MLflow holds of it; with `report: false` without the report's files.

    Args:
        sweep: the checked configuration.
        journal: the plan, and the sweep's folder.
        outcome: how its trials ended.
        untracked: failures to write to MLflow.
        stop_request: whether the sweep was stopped, and why.
    """
    mirror = journal.mirror
    root = journal.root if mirror is None else sweep_folder("results", sweep.name)  # the report is wanted here, too
    ending = _Ending(sweep, outcome, stop_request, root, root if mirror is None else mirror.shown)
    try:
        report = write.write_report(sweep.name, sweep.document.tracking.uri, ending.report, sweep.experiment)
        if mirror is not None and ending.report is not None:
            mirror.push_report(ending.report)
    except OrchestratorError as error:
        return ending.without_report([*(problem.text for problem in untracked), *error.faults])
    return ending.with_report(report, [problem.text for problem in untracked if not problem.resolved])


@dataclass(frozen=True)
class _Ending:
    """The end of a sweep, from which its result is made.

    Attributes:
        root: the folder on this machine.
        shown: where the trials' files are, as the user is shown it.
    """

    sweep: Sweep
    outcome: Outcome
    stop_request: StopRequest
    root: Path
    shown: Path | str

    def with_report(self, report: Report, untracked: list[str]) -> SweepResult:
        """The result of a sweep with a report; `untracked`: what MLflow is missing."""
        outcome, resume = self.outcome, resume_command(self.sweep)
        problems = [*self._failures(), *untracked, *report.problems]
        lines = [report.table, "", *self._best(report, untracked), *self._places(report)]
        if outcome.spent:
            lines.append(f"spent: {outcome.spent}")
        lines += [f"problem: {line}" for line in problems]
        if outcome.budget_arguments:
            resume, trials = f"{resume} {outcome.budget_arguments}", "trial" if outcome.open == 1 else "trials"
            lines.append(f"budget reached, {outcome.open} {trials} not ended: resume with: {resume}")
        if self._stopped:
            lines.append(f"{self.stop_request.reason}: resume with: {resume_command(self.sweep)}")
        elif untracked:
            lines.append(
                f"everything is in {self.root}; this sends MLflow what is missing: {resume_command(self.sweep)}"
            )
        resumes = self._stopped or bool(untracked) or bool(outcome.budget_arguments)
        code = self._exit_code(report, problems, untracked)
        return self._result(code, lines, problems, resume if resumes else None, report)

    def without_report(self, untracked: list[str]) -> SweepResult:
        """The result of a sweep that is on disk while MLflow does not answer, or whose report cannot be written."""
        problems, resume = list(dict.fromkeys([*self._failures(), *untracked])), resume_command(self.sweep)
        lines = [f"problem: {line}" for line in problems]
        if self._stopped:
            lines.append(f"{self.stop_request.reason}: resume with: {resume}")
        lines.append(
            f"everything is in {self.root}; once that is repaired, this sends MLflow what is missing"
            f"{' and writes the report' if self.report else ''}: {resume}"
        )
        code = ExitCode.INTERRUPTED if self.stop_request.interrupted else ExitCode.SOME_FAILED
        return self._result(code, lines, problems, resume, None)

    @property
    def report(self) -> Path | None:
        """The folder of the report, if the sweep writes one."""
        return self.root / "report" if self.sweep.document.report else None

    @property
    def _stopped(self) -> bool:
        return self.stop_request.requested

    def _failures(self) -> list[str]:
        trial = self.outcome.plan.trial
        failures = self.outcome.failed.items()
        return [f"{trial(key).configuration.label} ({key}): failed: {reason}" for key, reason in failures]

    def _exit_code(self, report: Report, problems: list[str], untracked: list[str]) -> ExitCode:
        if self.stop_request.interrupted:
            return ExitCode.INTERRUPTED
        if report.best is None and not untracked and not self.outcome.budget_arguments:
            return ExitCode.NOTHING_USABLE
        if self.outcome.failed or problems:
            return ExitCode.SOME_FAILED
        return ExitCode.OVER_BUDGET if self.outcome.budget_arguments else ExitCode.SUCCESS

    def _best(self, report: Report, untracked: list[str]) -> list[str]:
        if report.best is not None:
            return [f"best: {report.best}", *filter(None, [report.sentence, report.explanation])]
        if untracked:
            return ["best: not known, MLflow does not have everything yet"]
        return ["best: none, no configuration finished with every seed"]

    def _places(self, report: Report) -> list[str]:
        learner = f"{self.shown}/<trial>/learner.pt"
        if self.report is None:
            writes = report_command(self.sweep.document.tracking.uri, self.sweep.name)
            files = [f"report: not written (report: false); this writes it: {writes}"]
        else:
            files = [f"report: {self.report}", f"curves: {self.report / 'report.html'}"]
        if self.outcome.finished:
            files += [f"checkpoints: {learner}, and in MLflow as checkpoint/learner.pt of each configuration's run"]
        return [*files, f"curves in MLflow: {self._ui(report)}"]

    def _ui(self, report: Report) -> str:
        uri = self.sweep.document.tracking.uri
        return charts_link(uri, report.charts) or ui_command(uri, self.sweep.name)

    def _result(
        self, code: ExitCode, lines: list[str], problems: list[str], resume: str | None, report: Report | None
    ) -> SweepResult:
        name = self.sweep.name
        failed = [(self.outcome.plan.trial(key), reason) for key, reason in self.outcome.failed.items()]
        objective = objective_of(self.sweep)
        json_text = SweepDocument(name, code, objective, report, failed, self.root, problems, resume).to_json()
        summary, best = (pd.DataFrame(), None) if report is None else (report.summary, report.best)
        text, shown = masked("\n".join(lines)), tuple(map(masked, problems))
        return SweepResult(name, summary, best, self.root, self.report, text, shown, code, json_text)


def resume_command(sweep: Sweep) -> str:
    """The command that resumes a sweep; where it has `***`, the user fills in what the sweep's folder does not hold."""
    name = sweep.name
    resume = f"--resume={shlex.quote(name)}" if name.startswith("-") else f"--resume {shlex.quote(name)}"
    addresses = {"storage": sweep.document.storage, "tracking.uri": sweep.document.tracking.uri}
    if sweep.store is not None:
        addresses["stream.store"] = sweep.store
    words = [
        shlex.quote(f"{key}={_as_argument(masked(address))}")
        for key, address in addresses.items()
        if masked(address) != address or (key == "storage" and address != "results")
    ]
    return " ".join(["python -m orchestrator.sweep", resume, *words])


def _as_argument(value: str) -> str:
    """The text after `key=` that YAML reads as this string: itself, or quoted."""
    try:
        same = parsed(value) == value
    except Exception:  # any error of the YAML parser
        same = False
    return value if same else json.dumps(value, ensure_ascii=False)
