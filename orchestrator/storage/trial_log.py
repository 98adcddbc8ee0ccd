"""The log of a trial, a text file in its folder: its events, and what its actor printed.

If the log of an attempt ends without an event, the attempt was killed; the next attempt or the driver reports that.
"""

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

from streams.errors import masked

FILE = "trial.log"
LIMIT_BYTES = 1_000_000
"""The size of the log beyond which printed lines are dropped; events are still logged."""
_FAILED, _STARTS = "failed for good: ", "starts on "
PROGRESS_S = 30.0
"""Seconds between two lines about the progress of the trial."""


class TrialLog:
    """Appends lines to the log in a trial's folder, each with the time and the author `who`."""

    def __init__(self, folder: Path, who: str) -> None:
        self._path, self._who = folder / FILE, who
        self._last_progress = -PROGRESS_S
        self._full = False

    def say(self, text: str) -> None:
        """Log one or several lines; a log that cannot be written does not stop the trial."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with suppress(OSError), self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(f"{now} {self._who}: {line}\n" for line in masked(text).splitlines())

    def failed_for_good(self, reason: str) -> None:
        """Log that the trial is not tried again."""
        self.say(f"{_FAILED}{reason}")

    def starts_on(self, facts: str) -> None:
        """Log the start of an attempt, on the machine that the facts describe."""
        self.say(f"{_STARTS}{facts}")

    def now_and_then(self, text: str) -> None:
        """Log the text unless the previous one was less than `PROGRESS_S` ago."""
        if time.monotonic() - self._last_progress >= PROGRESS_S:
            self._last_progress = time.monotonic()
            self.say(text)

    def printed(self, text: str) -> None:
        """Log what the actor's code printed, up to the size limit."""
        if self._full:
            return
        with suppress(OSError):
            self._full = self._path.exists() and self._path.stat().st_size > LIMIT_BYTES
        self.say(f"| {text}" if not self._full else f"the log has {LIMIT_BYTES} bytes: printed lines are dropped")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Copy what this process prints, logs and warns into the log; log an exception with its traceback."""
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


def has_failed(folder: Path) -> bool:
    """Whether a trial's log ends with a failure for good: no attempt has started since."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rfind(f" driver: {_FAILED}") > text.rfind(f": {_STARTS}")


class _Tee:
    """A text stream that forwards everything and logs complete lines."""

    def __init__(self, stream: TextIO, log: TrialLog) -> None:
        self._stream, self._log, self._incomplete = stream, log, ""

    def write(self, text: str) -> int:
        *lines, self._incomplete = (self._incomplete + text).split("\n")
        for line in lines:
            self._log.printed(line)
        return self._stream.write(text)

    def end(self) -> None:
        if self._incomplete:
            self._log.printed(self._incomplete)
            self._incomplete = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Handler(logging.Handler):
    def __init__(self, log: TrialLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.printed(f"{record.levelname} {record.name}: {self.format(record)}")


def note_machine(claim: Path, tags: dict[str, str]) -> None:
    """Append the properties of the machine to the claim of an attempt."""
    with claim.open("a", encoding="utf-8") as file:
        file.write(json.dumps(tags) + "\n")


def machine_tags(folder: Path) -> dict[str, str]:
    """The properties of the machines that ran a trial; values of several attempts that differ are joined in order."""
    values: dict[str, dict[str, None]] = {}
    for claim in sorted(folder.glob("attempt-*")):
        with suppress(OSError, ValueError, IndexError, AttributeError):
            for key, value in json.loads(claim.read_text(encoding="utf-8").splitlines()[1]).items():
                values.setdefault(key, {})[value] = None
    return {key: ", ".join(different) for key, different in values.items()}
