"""The terminal's screen: what is drawn, and a real sweep in a real pseudo-terminal."""

import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest
from rich.console import Console

from orchestrator.config.load import check_sweep
from orchestrator.console.progress import Progress
from orchestrator.console.screen import Screen, leaders
from orchestrator.plan.expand import make_plan
from orchestrator.plan.fate import Ending
from orchestrator.protocol.objectives import ObjectiveMetric
from tests.orchestrator.sweep_command import LONG, PATIENCE_S, assert_long_is_whole, command, folder_with


def progress_of(learners: list[dict[str, object]], now: list[float], **more: object) -> tuple[Progress, list[str]]:
    sweep = check_sweep({"name": "p", "stream": {"name": "rainbow_digits"}, "learners": learners, "seeds": 2, **more})
    plan = make_plan(sweep, "store")
    return Progress(plan, slots=2, out=io.StringIO(), clock=lambda: now[0]), [trial.key for trial in plan.trials]


def drawn(progress: Progress, width: int, height: int = 24) -> list[str]:
    out = io.StringIO()
    screen = Screen(progress, ObjectiveMetric("cumulative_error"), out)
    screen._console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    screen._console.print(screen.drawing())
    return out.getvalue().splitlines()


def test_what_is_drawn() -> None:
    now = [0.0]
    learners_ = [{"name": "foml", "K": {"grid": [1, 5]}}, {"name": "online"}, {"name": "tfs"}, {"name": "toe"}]
    progress, (one, two, three, four, _) = progress_of(learners_, now)
    progress.started(one)
    progress.started(two)
    now[0] = 20.0
    progress.measured(one, [0.25, 0.35], memory=600_000_000)
    progress.advanced(one, 100, 400, learned=100, seconds=10.0, error=0.3)
    progress.measured(two, [0.5, float("nan")], memory=700_000_000)
    progress.advanced(two, 200, 400, learned=200, seconds=10.0, error=None)
    progress.measured(three, [0.1, 0.1])
    progress.ended_before(three, Ending.FINISHED)
    progress.ended(four, Ending.STOPPED)
    # 300 batches of 10 datapoints for each of two seeds, in 20 s
    assert progress.datapoints_per_second() == 300.0
    lines = [line.rstrip() for line in drawn(progress, 80)]
    assert lines[0].startswith("p · 0:20 · ETA ") and lines[0].endswith(" · 300 datapoints/s")
    assert lines[1] == "5 trials: 1 waiting, 2 running, 1 done, 0 failed, 1 stopped"
    assert lines[2].endswith(" 55 %")  # (0.25 + 0.5 + 1 + 1) / 5
    assert lines[3].startswith("memory: driver ") and " + 2 learners 1.3 GB of " in lines[3]
    assert lines[4] == "running"
    assert lines[5].split() == ["foml", "K=1", "━━━━", "25", "%", "0.300"]
    assert lines[6].split() == ["foml", "K=5", "━━━━━━━━", "50", "%", "–"]
    assert lines[7].split()[:6] == ["leaders", "by", "cumulative", "error", "so", "far"]
    assert lines[8].split() == ["1.", "online", "0.1000", "±", "0.0000", "(n=2)", "100", "%"]
    assert lines[9].split() == ["2.", "foml", "K=1", "0.3000", "±", "0.6353", "(n=2)", "25", "%"]
    assert lines[10].split() == ["3.", "foml", "K=5", "diverged", "50", "%"]
    now[0] = 80.5  # what was learned at 20 s is more than a minute ago
    assert progress.datapoints_per_second() == 0.0


@pytest.mark.parametrize("option", ["[v2]/learner.pt", "a[/old].pt", "C:[bold]x", "x\\\\[a]"])
def test_a_label_is_no_markup(option: str) -> None:
    """Markup would vanish, and a closing bracket of none that is open would end the sweep."""
    progress, (key,) = progress_of([{"name": "online"}], [0.0])
    progress.started(key)
    progress.measured(key, [0.25, 0.35])
    progress.trials[0].label = f"online start={option}"
    lines = drawn(progress, 80)
    assert [f"online start={option}" in line for line in lines] == [False] * 5 + [True, False, True]


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 12), (200, 50)])
def test_hundreds_of_trials_fit_the_terminal(width: int, height: int) -> None:
    now = [0.0]
    learners_: list[dict[str, object]] = [{"name": "foml", "alpha1": {"grid": [1e-4 * k for k in range(1, 301)]}}]
    progress, keys = progress_of(learners_, now)
    now[0] = 1.0
    for place, key in enumerate(keys):
        if place < 100:
            progress.measured(key, [place / 1000, place / 1000])
            progress.ended(key, Ending.FINISHED)
        elif place < 130:
            progress.started(key)
            progress.advanced(key, 10, 100, 10, 1.0, 0.5)
    lines = drawn(progress, width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "170 waiting, 30 running, 100 done" in text
    assert "of 30" in text and "of 100" in text
    assert "1. foml alpha1=0.0001" in text


def test_leaders_take_all_stacks_of_a_configuration_together() -> None:
    progress, _ = progress_of([{"name": "online"}], [0.0])
    (state,) = progress.trials
    from dataclasses import replace

    two = [
        replace(state, values=(0.1, 0.2), batches=50, total=100, seeds=(0, 1)),
        replace(state, values=(0.6,), batches=0, total=100, seeds=(2,)),
    ]
    (leader,) = leaders(two)
    assert leader.objective.n == 3 and leader.objective.mean == pytest.approx(0.3)
    assert leader.share == pytest.approx(1 / 3)
    assert leaders([replace(state, values=())]) == []
    others = [
        replace(state, configuration=name, label=name, values=(value,)) for name, value in (("a", 0.1), ("b", 0.3))
    ]
    assert [one.label for one in leaders(others)] == ["a", "b"]
    assert [one.label for one in leaders(others, sign=-1)] == ["b", "a"]


LEADERS = "leaders by cumulative error so far"


class Terminal:
    """A command in a pseudo-terminal, and the screen as a person would see it."""

    def __init__(self, master: int, process: subprocess.Popen[bytes], columns: int, lines: int) -> None:
        self.process, self._master = process, master
        self._screen = pyte.HistoryScreen(columns, lines, history=1000)
        self._stream, self._lock = pyte.ByteStream(self._screen), threading.Lock()
        self.raw = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                content = os.read(self._master, 4096)
            except OSError:
                return
            if not content:
                return
            with self._lock:
                self.raw += content
                self._stream.feed(content)

    def text(self) -> str:
        with self._lock:
            return "\n".join(line.rstrip() for line in self._screen.display).strip()

    def history(self) -> str:
        """What has scrolled away, and the screen."""
        with self._lock:
            above = ["".join(line[at].data for at in sorted(line)).rstrip() for line in self._screen.history.top]
        return "\n".join([*above, self.text()])

    def type(self, what: bytes) -> None:
        os.write(self._master, what)

    def cursor_hidden(self) -> bool:
        with self._lock:
            return bool(self._screen.cursor.hidden)

    def wait_for(self, condition: Callable[[str], bool], timeout: float = PATIENCE_S) -> str:
        """The screen, once it is as wished: what is looked at in the middle of a drawing is looked at again."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            text = self.text()
            if condition(text):
                return text
            assert self.process.poll() is None, self.history()
            time.sleep(0.05)
        raise AssertionError(f"not seen in time:\n{self.text()}")

    def end(self, timeout: float = PATIENCE_S) -> int:
        code = self.process.wait(timeout)
        self._reader.join(60)  # until all that was written is on the screen
        return code


@contextmanager
def terminal(words: list[str], folder: Path, columns: int, lines: int) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)

    def owns_the_terminal() -> None:  # so that Ctrl-C typed there is a signal to the command
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        words, cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=environment, preexec_fn=owns_the_terminal
    )
    os.close(slave)
    try:
        yield Terminal(master, process, columns, lines)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(master)


def test_a_sweep_in_a_narrow_terminal_is_interrupted_and_resumed(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LONG.replace("train: 150", "train: 400"))
    with terminal(command("sweep.yaml"), folder, columns=60, lines=24) as seen:
        texts = [LEADERS, "1 trials: 0 waiting, 1 running, 0 done, 0 failed", "datapoints/s", "memory: driver "]
        texts += ["1 learner ", "1. foml ", "(n=2)"]
        seen.wait_for(lambda text: all(words in text for words in texts))
        assert seen.cursor_hidden()
        # Each drawing replaces the one before.
        drawn_before = seen.raw.count(LEADERS.encode())
        seen.wait_for(lambda text: seen.raw.count(LEADERS.encode()) >= drawn_before + 2 and LEADERS in text)
        assert seen.history().count(LEADERS) <= 1
        seen.type(b"\x03")
        assert seen.end() == 130
        text = seen.history()
        assert "stopping: the chunks in flight are finished and kept" in " ".join(text.split())
        assert "interrupted: resume with: python -m orchestrator.sweep" in text
        assert not seen.cursor_hidden()
        assert seen.raw.rfind(b"\x1b[?25h") > seen.raw.rfind(b"\x1b[?25l")
        assert "Traceback" not in text
    with terminal(command("sweep.yaml"), folder, columns=100, lines=30) as seen:
        assert seen.end() == 0
        text = seen.history()
        assert "1 trials: 0 waiting, 0 running, 1 done, 0 failed, 0 stopped" in text
        assert "100 %" in text and "best: foml" in text
        steps = ["loading the libraries …", "opening MLflow …", "starting Ray …", "ending Ray …"]
        steps += ["writing the last results to MLflow …", "comparing the configurations …"]
        places = [text.find(step) for step in steps]
        assert places[0] >= 0 and places == sorted(places), text
        assert not seen.cursor_hidden()
    assert_long_is_whole(folder, train=400)
