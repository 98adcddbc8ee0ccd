"""What `doctor` says: one line for each thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What a look came to, in one line; a fault's line says what to do."""

    well: bool
    text: str


def well(text: str) -> Finding:
    return Finding(True, text)


def ill(text: str) -> Finding:
    return Finding(False, text)
