"""How a trial, or one of its seeds, ended."""

from dataclasses import dataclass
from enum import StrEnum

from streams.errors import masked


class Ending(StrEnum):
    """The kinds of ends, by the word that a report shows.

    Attributes:
        FINISHED: the whole stream was learned.
        DIVERGED: A loss or a diagnostic of the seed is not finite.
        STOPPED: the scheduler stopped the trial.
        FAILED: the trial raised an error or its process died, and it is not tried again.
        INTERRUPTED: the command was stopped; the trial can be resumed.
        UNFINISHED: the trial is still running, or its process was killed.
        MISSING: nothing is known of the seed.
    """

    FINISHED = "finished"
    DIVERGED = "diverged"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNFINISHED = "unfinished"
    MISSING = "missing"


@dataclass(frozen=True)
class Fate:
    """How a trial, or one of its seeds, ended.

    >>> str(Fate(Ending.DIVERGED, batch=7)), str(Fate(Ending.FAILED, reason="division by zero"))
    ('diverged at batch 7', 'failed')

    Attributes:
        ending: the kind of end.
        batch: the batch at which it diverged, or after which it was stopped; else None.
        reason: why it failed, in one line; else empty.
    """

    ending: Ending
    batch: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        return str(self.ending) if self.batch is None else f"{self.ending} at batch {self.batch}"


FINISHED = Fate(Ending.FINISHED)
INTERRUPTED = Fate(Ending.INTERRUPTED)


def failed(reason: str) -> Fate:
    """The fate of a trial that failed for this reason, which is put in one line and `masked`."""
    return Fate(Ending.FAILED, reason=masked(" ".join(reason.split())))


def stopped(batches: int) -> Fate:
    """The fate of a trial that the scheduler stopped after this number of batches."""
    return Fate(Ending.STOPPED, batch=batches)
