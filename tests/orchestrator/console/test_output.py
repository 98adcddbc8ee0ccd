"""What a command writes to standard error while it runs."""

import io
import sys
import time

import pytest

from orchestrator.console import output
from orchestrator.console.output import Output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that each call of the clock returns."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: seconds.pop(0))
    return seconds


def test_a_step_is_named_in_a_terminal_and_its_seconds_if_it_is_slow(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    clock += [5.0, 5.0 + output.SLOW_S - 0.1, 8.0, 11.2]
    with Output().step("starting Ray"):
        assert terminal.getvalue() == "starting Ray …\n"
    with Output().step("writing the report"):
        pass
    assert terminal.getvalue() == "starting Ray …\nwriting the report …\nwriting the report: 3 s\n"
    with Output(quiet=True).step("more"):
        pass
    assert "more" not in terminal.getvalue()


def test_elsewhere_standard_error_has_no_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().step("starting Ray"):
        pass
    assert capsys.readouterr().err == ""
