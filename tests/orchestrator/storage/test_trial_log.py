"""The log of a trial: printed lines, log records, warnings, and errors with tracebacks."""

import logging
import sys
import warnings
from pathlib import Path

import pytest

from orchestrator.storage import trial_log
from orchestrator.storage.trial_log import TrialLog, machine_tags, note_machine


def lines(folder: Path) -> list[str]:
    return [line.partition(" ")[2] for line in (folder / trial_log.FILE).read_text(encoding="utf-8").splitlines()]


def test_printed_and_logged_lines_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = TrialLog(tmp_path, "attempt 1")
    log.say("starts")
    with log.recording():
        print("half a ", end="")
        print("line")
        print("Größe", file=sys.stderr)
        logging.getLogger("mine").warning("take care of %s", "this")
        warnings.warn("deprecated", stacklevel=1)
        print("no end", end="")
    print("outside")
    log.say("finished")
    logged = lines(tmp_path)
    assert logged[:4] == [
        "attempt 1: starts",
        "attempt 1: | half a line",
        "attempt 1: | Größe",
        "attempt 1: | WARNING mine: take care of this",
    ]
    assert logged[-2:] == ["attempt 1: | no end", "attempt 1: finished"]
    assert not any("outside" in line for line in logged)
    assert capsys.readouterr().out == "half a line\nno endoutside\n"


def test_an_error_is_logged_with_its_traceback_and_raised(tmp_path: Path) -> None:
    log = TrialLog(tmp_path, "attempt 2")
    with pytest.raises(ZeroDivisionError), log.recording():
        1 / 0  # noqa: B018
    logged = lines(tmp_path)
    assert logged[:2] == ["attempt 2: failed:", "attempt 2: Traceback (most recent call last):"]
    assert logged[-1] == "attempt 2: ZeroDivisionError: division by zero"
    assert sum("test_trial_log.py" in line for line in logged) == 1


def test_printed_lines_end_at_the_limit_and_events_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_log, "LIMIT_BYTES", 1_000)
    log = TrialLog(tmp_path, "attempt 1")
    with log.recording():
        for number in range(1_000):
            print(f"line {number}")
    log.say("finished")
    logged = lines(tmp_path)
    assert len(logged) < 40
    assert logged[-2:] == ["attempt 1: the log has 1000 bytes: printed lines are dropped", "attempt 1: finished"]


def test_machine_tags_of_several_attempts(tmp_path: Path) -> None:
    for number, host in enumerate(("one", "two", "one"), 1):
        claim = tmp_path / f"attempt-{number:04d}"
        claim.write_text(f"{host} 123\n")
        note_machine(claim, {"foml.hostname": host, "foml.device": "CPU"})
    (tmp_path / "attempt-0004").write_text("three 5\n")  # killed before it wrote its machine
    assert machine_tags(tmp_path) == {"foml.hostname": "one, two", "foml.device": "CPU"}
