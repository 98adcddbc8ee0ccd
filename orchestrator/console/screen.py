"""A running sweep on one screen of the terminal, drawn anew once a second. Where there is no terminal: `progress.py`.

One thread draws, and prints what is said meanwhile above the drawing, so that a signal's handler, which may say
something at any moment, never waits for a lock.
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

from orchestrator.console.progress import Progress, TrialState, clock_time
from orchestrator.protocol import metrics
from orchestrator.system import hardware

EVERY = 1.0
"""Seconds between two drawings."""
_STATES = ("waiting", "running", "done", "failed", "stopped")
_COLOURS = {"running": "cyan", "done": "green", "failed": "bold red", "stopped": "yellow"}
_BAR = 16


@dataclass(frozen=True)
class Leader:
    """A configuration as it stands: its objective over seeds so far, and how far it is. ``diverged``: some seed has."""

    label: str
    objective: metrics.Interval
    diverged: bool
    share: float


def leaders(trials: Sequence[TrialState]) -> list[Leader]:
    """The configurations that have an objective, the lowest first, those with a diverged seed last."""
    of_configuration: dict[str, list[TrialState]] = defaultdict(list)
    for trial in trials:
        of_configuration[trial.configuration].append(trial)
    found = []
    for stacks in of_configuration.values():
        values = [value for trial in stacks for value in trial.values]
        if values:
            lost = not all(map(math.isfinite, values))
            share = sum(_share(trial) * len(trial.seeds) for trial in stacks) / sum(
                len(trial.seeds) for trial in stacks
            )
            found.append(Leader(stacks[0].label, metrics.interval(np.array(values)), lost, share))
    return sorted(found, key=lambda one: (one.diverged, math.isnan(one.objective.mean), one.objective.mean))


class Screen:
    """Draws a sweep's progress for the length of a `with` block.

    Args:
        progress: what is drawn; while the block lasts, what it says is printed above the drawing.
        metric: the objective's name.
        out: a terminal; standard error if None.
        before: called once, in the drawing thread: to tell the progress of trials that had ended before.
    """

    def __init__(
        self,
        progress: Progress,
        metric: str,
        out: TextIO | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._progress, self._metric, self._before = progress, metric, before
        self._console = Console(file=out or sys.stderr, highlight=False)
        self._said: deque[str] = deque()
        self._gpus: list[hardware.Gpu] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="screen", daemon=True)

    def __enter__(self) -> Screen:
        self._printed, self._lines = self._progress.tell, self._progress.lines
        self._progress.tell, self._progress.lines = self._said.append, False
        self._live = Live(console=self._console, auto_refresh=False, get_renderable=self.drawing)
        self._live.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.tell, self._progress.lines = self._printed, self._lines
        self._over.set()
        self._thread.join()
        self._live.stop()  # draws a last time, and shows the cursor again

    def _serve(self) -> None:
        if self._before is not None:
            self._before()
        while True:
            over = self._over.wait(EVERY)
            self._gpus = [] if over else hardware.gpus()
            while self._said:
                self._console.print(Text(self._said.popleft()), soft_wrap=True)
            if over:
                return
            self._live.refresh()

    def drawing(self) -> RenderableType:
        """The screen as it is now, no wider and no higher than the terminal."""
        trials, width, height = self._progress.trials, self._console.width, self._console.height
        running = [trial for trial in trials if trial.state == "running"]
        ranked = leaders(trials)
        room = max(2, height - 9)
        shown = min(len(running), max(1, room // 2), max(1, room - len(ranked)))
        parts: list[RenderableType] = [self._head(width), self._counts(trials), self._total(trials, width)]
        parts.append(_cut(self._memory(running)))
        parts.append(_rule("running", "" if shown == len(running) else f"{shown} of {len(running)}"))
        parts.append(_running(running[:shown], width))
        if ranked:
            best = ranked[: max(1, room - shown)]
            more = "" if len(best) == len(ranked) else f", {len(best)} of {len(ranked)}"
            parts.append(_rule(f"leaders by {self._metric.replace('_', ' ')} so far", f"mean ± 95 %{more}"))
            parts.append(_ranking(best))
        return Group(*parts)

    def _head(self, width: int) -> Text:
        left, pace = self._progress.seconds_left(), self._progress.datapoints_per_second()
        told = [clock_time(self._progress.seconds), f"ETA {'–' if left is None else clock_time(left)}"]
        told.append("– datapoints/s" if pace is None else f"{pace:,.0f} datapoints/s".replace(",", " "))
        rest = " · ".join(told)
        head = Text(self._progress.name, style="bold")
        head.truncate(max(8, width - len(rest) - 3), overflow="ellipsis")
        return _cut(head + Text(f" · {rest}"))

    def _counts(self, trials: Sequence[TrialState]) -> Text:
        counts = {state: sum(trial.state == state for trial in trials) for state in _STATES}
        counts["waiting"] += self._progress.size - len(trials)  # those that are still to be drawn
        parts = [Text(f"{self._progress.size} trials: ")]
        for index, (state, count) in enumerate(counts.items()):
            parts.append(Text("" if index == 0 else ", "))
            parts.append(Text(f"{count} {state}", style=_COLOURS.get(state, "") if count else "dim"))
        return _cut(Text.assemble(*parts))

    def _total(self, trials: Sequence[TrialState], width: int) -> RenderableType:
        undrawn = self._progress.size - len(trials)
        share = sum(1.0 if trial.state in ("done", "failed", "stopped") else _share(trial) for trial in trials)
        share /= max(1, len(trials) + undrawn)
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=1, completed=share, width=max(10, width - 6)), f"{100 * share:3.0f} %")
        return grid

    def _memory(self, running: Sequence[TrialState]) -> Text:
        parts = [f"driver {hardware.size(hardware.resident_bytes())}"]
        if actors := [trial.memory for trial in running if trial.memory is not None]:
            parts.append(f"{len(actors)} learner{'s' if len(actors) > 1 else ''} {hardware.size(sum(actors))}")
        memory = f"{' + '.join(parts)} of {hardware.size(hardware.machine_bytes())}"
        told = [f"memory: {memory}"]
        for index, gpu in enumerate(self._gpus):
            busy = "" if gpu.busy is None else f"{gpu.busy:.0%}, "
            told.append(f"GPU {index}: {busy}{hardware.size(gpu.used)} of {hardware.size(gpu.total)}")
        if not self._gpus and (taken := sum(trial.gpu_memory for trial in running)):  # on other machines
            told.append(f"GPUs: {hardware.size(taken)}")
        return Text("; ".join(told))


def _running(trials: Sequence[TrialState], width: int) -> RenderableType:
    grid = _grid()
    grid.add_column(width=min(_BAR, width // 5))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for trial in trials:
        error = "–" if trial.error is None else f"{trial.error:.3f}"
        bar = ProgressBar(total=1, completed=_share(trial))
        grid.add_row(trial.label, bar, f"{100 * _share(trial):.0f} %", error)
    return grid


def _ranking(ranked: Sequence[Leader]) -> RenderableType:
    grid = _grid()
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for place, one in enumerate(ranked, 1):
        what = Text("diverged", style="red") if one.diverged else Text(str(one.objective))
        grid.add_row(f"{place}. {one.label}", what, f"{100 * one.share:.0f} %")
    return grid


def _grid() -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    return grid


def _rule(title: str, rest: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", style="bold")
    grid.add_column(justify="right", no_wrap=True, overflow="ellipsis", style="dim")
    grid.add_row(title, rest)
    return grid


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _share(trial: TrialState) -> float:
    return 1.0 if trial.state == "done" else trial.batches / trial.total if trial.total else 0.0
