"""The log of a trial, a text file in its folder: its life, and what its actor printed on the way.

An attempt at a trial that ends without a word was killed: its successor, or the driver, says so.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, cast

FILE = "trial.log"
LIMIT_BYTES = 1_000_000
"""Where printed lines end; a trial's life is told beyond it."""
PROGRESS_S = 30.0
"""Seconds between two lines about how far the trial is."""


class TrialLog:
    """Appends lines to the log in a trial's folder; `who` begins each."""

    def __init__(self, folder: Path, who: str) -> None:
        self._path, self._who = folder / FILE, who
        self._told = -PROGRESS_S
        self._full = False

    def say(self, text: str) -> None:
        """One line, or several; a log that cannot be written ends no trial."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with suppress(OSError), self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(f"{now} {self._who}: {line}\n" for line in text.splitlines())

    def now_and_then(self, text: str) -> None:
        """The same, but not more often than every `PROGRESS_S`."""
        if time.monotonic() - self._told >= PROGRESS_S:
            self._told = time.monotonic()
            self.say(text)

    def printed(self, text: str) -> None:
        """What came out of the actor's code, up to a limit."""
        if self._full:
            return
        with suppress(OSError):
            self._full = self._path.exists() and self._path.stat().st_size > LIMIT_BYTES
        self.say(f"| {text}" if not self._full else f"the log has {LIMIT_BYTES} bytes: what is printed is left out")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What this process prints, logs and warns of inside the block goes here too; an error is told and goes on."""
        handler = _Handler(self)
        logging.getLogger().addHandler(handler)
        out, err = _Tee(sys.stdout, self), _Tee(sys.stderr, self)
        try:
            with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, err)):
                yield
        except Exception:
            self.say("failed:\n" + traceback.format_exc())
            raise
        finally:
            out.end()
            err.end()
            logging.getLogger().removeHandler(handler)


class _Tee:
    """A text stream that passes everything on, and gives whole lines to the log."""

    def __init__(self, stream: TextIO, log: TrialLog) -> None:
        self._stream, self._log, self._begun = stream, log, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._log.printed(line)
        return self._stream.write(text)

    def end(self) -> None:
        if self._begun:
            self._log.printed(self._begun)
            self._begun = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Handler(logging.Handler):
    def __init__(self, log: TrialLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.printed(f"{record.levelname} {record.name}: {self.format(record)}")


def note_machine(claim: Path, tags: dict[str, str]) -> None:
    """Write what an attempt runs on into the file that claims it, below who claimed it."""
    with claim.open("a", encoding="utf-8") as file:
        file.write(json.dumps(tags) + "\n")


def machine_tags(folder: Path) -> dict[str, str]:
    """What a trial ran on, by its attempts' claims; where they differ, all that there were, in their order."""
    values: dict[str, dict[str, None]] = {}
    for claim in sorted(folder.glob("attempt-*")):
        with suppress(OSError, ValueError, IndexError, AttributeError):
            for key, value in json.loads(claim.read_text(encoding="utf-8").splitlines()[1]).items():
                values.setdefault(key, {})[value] = None
    return {key: ", ".join(different) for key, different in values.items()}
