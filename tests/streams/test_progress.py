"""The progress of a build on a terminal and in a log."""

import io

import pytest

from streams import progress
from streams.progress import ProgressLine, format_seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_shows_one_line_with_the_remaining_time(clock: list[float]) -> None:
    out = Terminal()
    line = ProgressLine(out)
    for done, seconds in ((0, 100.0), (1, 100.1), (250, 105.0), (1_000, 120.0)):
        clock[0] = seconds
        line("decoding images", done, 1_000)
    assert out.getvalue() == (
        "\r\x1b[Kdecoding images: 0/1,000"
        "\r\x1b[Kdecoding images: 250/1,000 (25%, 15 s left)"
        "\r\x1b[Kdecoding images: 1,000/1,000 in 20 s\n"
    )


def test_a_log_gets_a_line_every_ten_seconds(clock: list[float]) -> None:
    out = io.StringIO()
    line = ProgressLine(out)
    for second in range(25):
        clock[0] = 100.0 + second
        line("copying", second + 1, 25)
    assert out.getvalue() == (
        "copying: 11/25 (44%, 13 s left)\ncopying: 21/25 (84%, 4 s left)\ncopying: 25/25 in 24 s\n"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3_599.9, "1 h 00 min"), (9_000, "2 h 30 min")],
)
def test_durations_in_text(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
