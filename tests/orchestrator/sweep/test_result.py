"""The exit code and the winner are those of the present sweep, whatever an earlier version contained."""

import itertools
import json
import shutil
from pathlib import Path

from orchestrator.config.load import check_sweep
from orchestrator.errors import ExitCode
from orchestrator.execution.outcome import Outcome
from orchestrator.plan import fate
from orchestrator.plan.plan import Trial
from orchestrator.report import __main__ as report_command
from orchestrator.report import write
from orchestrator.storage.journal import Journal
from orchestrator.sweep.result import SweepResult, report_on
from orchestrator.system.signals import StopRequest
from orchestrator.tracking.writer import TrackingProblem, Writer
from tests.orchestrator import synthetic_sweep as synthetic

GOOD, OTHER = Trial(synthetic.configuration("online"), (0, 1)), Trial(synthetic.configuration("tfs"), (0, 1))
BROKEN = Trial(synthetic.configuration("online", alpha1=9.0), (0, 1))


def ended(
    root: Path, uri: str, *trials: Trial, untracked: tuple[TrackingProblem, ...] = (), report: bool = False
) -> SweepResult:
    """The end of a sweep of these trials; the broken one fails."""
    sweep = synthetic.make_sweep(root, "sweep", *trials)
    for trial in trials:
        sweep.whole[trial.key] = synthetic.curves_of(trial, level=0.2 if trial == GOOD else 0.8)
    writer = Writer(uri, "experiment", sweep.plan, sweep.root, {}, synthetic.START_MS)
    writer.start()
    outcome = Outcome(sweep.plan)
    for trial in trials:
        if trial == BROKEN:
            outcome.fates[trial.key] = fate.failed("broken")
            writer.results(trial.key, sweep.part(trial, 0, 20))
            writer.failed(trial.key, "broken")
        else:
            sweep.write_chunk(trial)
            writer.finished(trial.key)
            outcome.finish([trial.key])
    assert writer.drain() == []
    writer.close("FINISHED")
    checked = check_sweep(
        {
            "name": "sweep",
            "stream": {"name": "rainbow_digits"},
            "learners": [{"name": "online"}],
            "seeds": 2,
            "tracking": {"uri": uri, "experiment": "experiment"},
            "report": report,
        }
    )
    return report_on(checked, Journal(root, sweep.plan), outcome, list(untracked), StopRequest())


def sentence(result: SweepResult) -> list[str]:
    """The line after the one with the best configuration."""
    lines = result.text.splitlines()
    return [line for before, line in itertools.pairwise(lines) if before.startswith("best: ")]


def test_a_removed_configuration_neither_wins_nor_decides_the_exit_code(tmp_path, tracking_uri):
    first = ended(tmp_path / "sweep", tracking_uri, GOOD, OTHER)
    assert (first.exit_code, first.best) == (ExitCode.SUCCESS, "online")
    shrunk = ended(tmp_path / "sweep", tracking_uri, OTHER)
    assert (shrunk.exit_code, shrunk.best) == (ExitCode.SUCCESS, "tfs")
    assert sentence(first) == [
        "online leads: its cumulative error of 0.1289 is 0.4428 ± 0.1213 below that of tfs, the best of the other learners. "
        "The difference is significant with 2 seeds (p = 0.014)."
    ]
    content = json.loads(shrunk.json)
    assert content["winner"]["label"] == "tfs"
    assert [(one["label"], one["withdrawn"], one["usable"]) for one in content["configurations"]] == [
        ("tfs", False, True), ("online", True, False),
    ]  # fmt: skip
    assert shrunk.text.splitlines()[3].endswith("  of an earlier version of this sweep")
    nothing = ended(tmp_path / "sweep", tracking_uri, BROKEN)
    assert (nothing.exit_code, nothing.best) == (ExitCode.NOTHING_USABLE, None)
    assert "best: none, no configuration finished with every seed" in nothing.text
    assert ["checkpoints: " in each.text for each in (first, shrunk, nothing)] == [True, True, False]
    assert write.write_report("sweep", tracking_uri, tmp_path / "later").best is None  # from MLflow alone
    grown = ended(tmp_path / "sweep", tracking_uri, GOOD, BROKEN)
    assert (grown.exit_code, grown.best) == (ExitCode.SOME_FAILED, "online")
    assert grown.summary.withdrawn.tolist() == [False, False, True]


def test_a_failed_write_to_mlflow_is_a_problem_unless_a_retry_resolved_it(tmp_path, tracking_uri):
    resolved = ended(tmp_path / "sweep", tracking_uri, GOOD, untracked=(TrackingProblem("late", resolved=True),))
    assert (resolved.exit_code, resolved.problems) == (ExitCode.SUCCESS, ())
    missing = ended(tmp_path / "sweep", tracking_uri, GOOD, untracked=(TrackingProblem("late"),))
    assert (missing.exit_code, missing.problems) == (ExitCode.SOME_FAILED, ("late",))


def test_without_a_report_the_result_is_the_same_and_names_the_command_that_writes_one(tmp_path, tracking_uri, capsys):
    full = ended(tmp_path / "sweep", tracking_uri, GOOD, OTHER, report=True)
    folder = tmp_path / "sweep" / "report"
    assert full.report == folder and (folder / "report.html").exists() and (folder / "learning_curves.svg").exists()
    assert full.line == f"sweep: best: online; exit code 0; report: {folder}"
    assert json.loads(full.json)["report"] == str(folder)
    shutil.rmtree(folder)
    short = ended(tmp_path / "sweep", tracking_uri, GOOD, OTHER)
    assert (short.report, short.line) == (None, "sweep: best: online; exit code 0")
    assert not folder.exists()
    assert json.loads(short.json) == json.loads(full.json) | {"report": None}
    assert short.summary.equals(full.summary)
    written = [f"report: {folder}", f"curves: {folder / 'report.html'}"]
    command = ["foml", "report", "--tracking-uri", tracking_uri, "sweep"]
    instead = f"report: not written (report: false); this writes it: {' '.join(command)}"
    assert short.text.splitlines() == [
        {written[0]: instead}.get(line, line) for line in full.text.splitlines() if line != written[1]
    ]
    assert report_command.main([*command[2:], "--out", str(tmp_path / "later")]) == 0
    assert (tmp_path / "later" / "report.html").exists() and sentence(full)[0] in capsys.readouterr().out
