"""A running sweep on one screen of the terminal, drawn once a second.

A single thread draws, and prints lines above the drawing: a signal handler, which can print a line at any moment, must
never wait for a lock.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.console.progress import Progress, State, TrialState, clock_time
from orchestrator.protocol import metrics
from orchestrator.protocol.objectives import ObjectiveMetric
from orchestrator.system import hardware

EVERY = 1.0
"""Seconds between two drawings."""
_COLOURS = {State.RUNNING: "cyan", State.DONE: "green", State.FAILED: "bold red", State.STOPPED: "yellow"}
_BAR = 16


@dataclass(frozen=True)
class Leader:
    """A configuration on the leaderboard.

    Attributes:
        label: the configuration's.
        objective: over seeds, so far.
        diverged: whether a seed diverged.
        share: the share of its streams that is learned.
    """

    label: str
    objective: metrics.Interval
    diverged: bool
    share: float


def leaders(trials: Sequence[TrialState], sign: int = 1) -> list[Leader]:
    """The configurations with an objective, the best first, and those with a diverged seed last.

    Args:
        trials: of the sweep.
        sign: the factor with which lower is better.
    """
    of_configuration: dict[str, list[TrialState]] = defaultdict(list)
    for trial in trials:
        of_configuration[trial.configuration].append(trial)
    board = []
    for stacks in of_configuration.values():
        values = [value for trial in stacks for value in trial.values]
        if values:
            diverged = not all(map(math.isfinite, values))
            seeds = sum(len(trial.seeds) for trial in stacks)
            share = sum(trial.share * len(trial.seeds) for trial in stacks) / seeds
            board.append(Leader(stacks[0].label, metrics.interval(np.array(values)), diverged, share))
    return sorted(board, key=lambda one: (one.diverged, math.isnan(one.objective.mean), sign * one.objective.mean))


class Screen:
    """Draws a sweep's progress during a `with` block.

    Args:
        progress: its lines are printed above the drawing during the block.
        objective: by which configurations are ordered.
        out: A terminal; standard error if None.
        before: called once in the drawing thread, to report the objectives of trials that ended before.
    """

    def __init__(
        self,
        progress: Progress,
        objective: ObjectiveMetric,
        out: TextIO | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._progress, self._objective, self._before = progress, objective, before
        self._console = Console(file=out or sys.stderr, highlight=False)
        self._lines: deque[str] = deque()
        self._gpus: list[hardware.Gpu] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="screen", daemon=True)

    def __enter__(self) -> Screen:
        self._state_before = self._progress.write, self._progress.periodic
        self._progress.write, self._progress.periodic = self._lines.append, False
        self._live = Live(console=self._console, auto_refresh=False, get_renderable=self.drawing)
        self._live.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.write, self._progress.periodic = self._state_before
        self._over.set()
        self._thread.join()
        self._live.stop()  # draws for the last time, and shows the cursor

    def _serve(self) -> None:
        if self._before is not None:
            self._before()
        while True:
            over = self._over.wait(EVERY)
            self._gpus = [] if over else hardware.gpus()
            while self._lines:
                self._console.print(Text(self._lines.popleft()), soft_wrap=True)
            if over:
                return
            self._live.refresh()

    def drawing(self) -> RenderableType:
        """The screen, no wider and no higher than the terminal."""
        trials, width, height = self._progress.trials, self._console.width, self._console.height
        running = [trial for trial in trials if trial.state is State.RUNNING]
        ranked = leaders(trials, self._objective.sign)
        room = max(2, height - 9)
        shown = min(len(running), max(1, room // 2), max(1, room - len(ranked)))
        parts: list[RenderableType] = [self._head(width), self._counts(trials), self._total(trials, width)]
        parts.append(_cut(self._memory(running)))
        parts.append(_rule("running", "" if shown == len(running) else f"{shown} of {len(running)}"))
        parts.append(_running(running[:shown], width))
        if ranked:
            best = ranked[: max(1, room - shown)]
            more = "" if len(best) == len(ranked) else f", {len(best)} of {len(ranked)}"
            parts.append(_rule(f"leaders by {self._objective.name.replace('_', ' ')} so far", f"mean ± 95 %{more}"))
            parts.append(_ranking(best))
        return Group(*parts)

    def _head(self, width: int) -> Text:
        pace = self._progress.datapoints_per_second()
        rate = "– datapoints/s" if pace is None else f"{pace:,.0f} datapoints/s".replace(",", " ")
        rest = " · ".join([clock_time(self._progress.seconds), self._progress.eta(), rate])
        head = Text(self._progress.name, style="bold")
        head.truncate(max(8, width - len(rest) - 3), overflow="ellipsis")
        return _cut(head + Text(f" · {rest}"))

    def _counts(self, trials: Sequence[TrialState]) -> Text:
        counts = {state: sum(trial.state is state for trial in trials) for state in State}
        counts[State.WAITING] += self._progress.size - len(trials)  # trials that are not sampled yet
        texts = [
            Text(f"{count} {state}", _COLOURS.get(state, "") if count else "dim") for state, count in counts.items()
        ]
        return _cut(Text.assemble(f"{self._progress.size} trials: ", Text(", ").join(texts)))

    def _total(self, trials: Sequence[TrialState], width: int) -> RenderableType:
        is_open = (State.WAITING, State.RUNNING)
        share = sum(trial.share if trial.state in is_open else 1.0 for trial in trials) / max(1, self._progress.size)
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=1, completed=share, width=max(10, width - 6)), f"{100 * share:3.0f} %")
        return grid

    def _memory(self, running: Sequence[TrialState]) -> Text:
        parts = [f"driver {hardware.size(hardware.resident_bytes())}"]
        if actors := [trial.memory for trial in running if trial.memory is not None]:
            parts.append(f"{len(actors)} learner{'s' if len(actors) > 1 else ''} {hardware.size(sum(actors))}")
        memory = f"{' + '.join(parts)} of {hardware.size(hardware.machine_bytes())}"
        parts = [f"memory: {memory}"]
        for index, gpu in enumerate(self._gpus):
            busy = "" if gpu.busy is None else f"{gpu.busy:.0%}, "
            parts.append(f"GPU {index}: {busy}{hardware.size(gpu.used)} of {hardware.size(gpu.total)}")
        if not self._gpus and (used := sum(trial.gpu_memory for trial in running)):  # on other machines
            parts.append(f"GPUs: {hardware.size(used)}")
        return Text("; ".join(parts))


# Strings are markup to rich, as in `[bold]`: what holds a label is a `Text`.
def _running(trials: Sequence[TrialState], width: int) -> RenderableType:
    grid = _grid()
    grid.add_column(width=min(_BAR, width // 5))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for trial in trials:
        error = "–" if trial.error is None else f"{trial.error:.3f}"
        bar = ProgressBar(total=1, completed=trial.share)
        grid.add_row(Text(trial.label), bar, f"{100 * trial.share:.0f} %", error)
    return grid


def _ranking(ranked: Sequence[Leader]) -> RenderableType:
    grid = _grid()
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for place, one in enumerate(ranked, 1):
        what = Text("diverged", style="red") if one.diverged else Text(str(one.objective))
        grid.add_row(Text(f"{place}. {one.label}"), what, f"{100 * one.share:.0f} %")
    return grid


def _grid() -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    return grid


def _rule(title: str, rest: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", style="bold")
    grid.add_column(justify="right", no_wrap=True, overflow="ellipsis", style="dim")
    grid.add_row(Text(title), Text(rest))
    return grid


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
