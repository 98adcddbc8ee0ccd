"""What a command writes to standard error while it runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streams.errors import masked
from streams.progress import ProgressLine
from streams.recipe import Progress as BuildProgress
from streams.recipe import silent

if TYPE_CHECKING:
    from orchestrator.console.progress import Progress
    from orchestrator.protocol.objectives import ObjectiveMetric

SLOW_S = 2.0
"""Seconds from which on a step reports how long it took."""


@dataclass(frozen=True)
class Output:
    """The verbosity of a command, and the form of its result.

    Attributes:
        quiet: write errors and one final line only.
        as_json: print the result as one JSON document.
    """

    quiet: bool = False
    as_json: bool = False

    @property
    def options(self) -> list[str]:
        """The command-line options that select this output."""
        return ["--json"] * self.as_json + ["--quiet"] * self.quiet

    def say(self, line: str) -> None:
        """Write a line to standard error unless `quiet`."""
        if not self.quiet:
            print(masked(line), file=sys.stderr, flush=True)

    @contextmanager
    def step(self, action: str) -> Iterator[None]:
        """In a terminal, say what this block does before it starts, and how long it took if it was slow."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        self.say(f"{action} …")
        start = time.monotonic()
        yield
        if (seconds := time.monotonic() - start) >= SLOW_S:
            self.say(f"{action}: {seconds:.0f} s")

    def build_progress(self) -> BuildProgress:
        """The progress callback of a task store's build."""
        return silent if self.quiet else ProgressLine()

    @contextmanager
    def showing(self, progress: Progress, objective: ObjectiveMetric, on_screen: Callable[[], None]) -> Iterator[None]:
        """Show the progress inside this block: on a screen in a terminal, else as lines.

        Args:
            progress: the sweep's.
            objective: by which the screen orders configurations.
            on_screen: called once when a screen starts, to report the trials that ended before.
        """
        if self.quiet:
            progress.write, progress.periodic = lambda line: None, False
            yield
        elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            from orchestrator.console.screen import Screen  # rich: only in a terminal

            with Screen(progress, objective, before=on_screen):
                yield
        else:
            yield
