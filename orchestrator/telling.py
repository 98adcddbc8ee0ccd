"""How much a command says while it works: a screen on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.progress import Progress
from streams.progress import ProgressLine

if TYPE_CHECKING:
    from orchestrator.ending import SweepResult


@dataclass(frozen=True)
class Telling:
    """What goes to standard error besides errors; nothing if `quiet`.

    ``at_loss``: who is given the result where the process ends without coming back; see `run_sweep`.
    """

    quiet: bool = False
    at_loss: Callable[[SweepResult], None] | None = None

    def say(self, line: str) -> None:
        """One line."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def building(self) -> Callable[[str, int, int], None]:
        """What a task store that is being built tells."""
        return _nothing if self.quiet else ProgressLine()

    @contextmanager
    def following(self, progress: Progress, metric: str, before: Callable[[], None] | None = None) -> Iterator[None]:
        """Inside this block the progress is seen: on a screen where there is a terminal.

        Args:
            progress: of the sweep.
            metric: the objective's name.
            before: called once by a screen, to be told of trials that had ended before.
        """
        if self.quiet:
            progress.tell, progress.lines = _unheard, False
            yield
        elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            from orchestrator.screen import Screen

            with Screen(progress, metric, before=before):
                yield
        else:
            yield


def _nothing(what: str, done: int, total: int) -> None:
    """For whoever tells of a build."""


def _unheard(line: str) -> None:
    """For whoever has a line to say."""
