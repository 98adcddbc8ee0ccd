"""Chunk files: a trial's state and its curves so far in one file, which is the truth about the trial.

A chunk file is written under a temporary name and renamed, so it is whole or not there, and state and curves cannot
part. A trial keeps its newest two, and those that others may still copy from. Files are numbered by attempt: a trial
that starts claims the next number, and a predecessor that still runs somewhere (after its driver was killed, say) can
no longer write.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learners.checkpoint import check_whole
from orchestrator.errors import OrchestratorError
from orchestrator.protocol.curves import Curves

FORMAT = 1
KEPT = 2
DAMAGED = "damaged-"
"""Stands before the name of a chunk file that was set aside: it is kept, and read no more."""
LEARNER_FILE = "learner.pt"
_DAMAGE = (OSError, RuntimeError, EOFError, pickle.UnpicklingError, KeyError, TypeError, ValueError)
_NAME = re.compile(r"chunk-(\d{8})-(\d{4})\.pt")

logger = logging.getLogger(__name__)


class SupersededError(OrchestratorError):
    """A newer attempt at this trial has begun: this one must write no more."""


@dataclass(frozen=True)
class Chunk:
    """A trial after `curves.batches` batches. `state`: of protocol and learner. `finished`: the stream is over."""

    path: Path
    state: dict[str, Any]
    curves: Curves
    finished: bool

    @property
    def batches(self) -> int:
        return self.curves.batches


def claim(folder: Path) -> int:
    """Begin a new attempt at the trial in this folder; its number fences off all earlier ones.

    The file that claims it says who it is: host and process id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    attempt = _attempt(folder) + 1
    while True:
        try:
            with (folder / f"attempt-{attempt:04d}").open("x") as file:
                file.write(f"{socket.gethostname()} {os.getpid()}\n")
            break
        except FileExistsError:
            attempt += 1
    for unfinished in folder.glob(".chunk-*"):  # of those who were killed while they wrote
        unfinished.unlink(missing_ok=True)
    return attempt


def write(
    folder: Path, attempt: int, state: dict[str, Any], curves: Curves, finished: bool, keep: Collection[int] = ()
) -> Path:
    """Write one chunk file, and delete those older than the newest two; not those after the batches in `keep`.

    Raises:
        SupersededError: another attempt has been claimed since `attempt` was.
    """
    path = folder / f"chunk-{curves.batches:08d}-{attempt:04d}.pt"
    temporary = folder / f".{path.name}.{os.getpid()}"
    content = {"format": FORMAT, "state": state, "curves": _as_tensors(curves.state_dict()), "finished": finished}
    try:
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if _attempt(folder) != attempt:
        temporary.unlink(missing_ok=True)
        raise _superseded(folder, attempt)
    try:
        temporary.replace(path)
    except FileNotFoundError:  # removed by one that has claimed the trial since we looked
        raise _superseded(folder, attempt) from None
    for (batches, _), old in _files(folder)[KEPT:]:
        if batches not in keep:
            old.unlink(missing_ok=True)
    return path


def _superseded(folder: Path, attempt: int) -> SupersededError:
    newer = _attempt(folder)
    return SupersededError(f"{folder}: attempt {attempt} was superseded by attempt {newer}; it writes no more")


def until(folder: Path, batches: int, map_location: torch.device | str = "cpu") -> Chunk | None:
    """The newest chunk of at most so many batches that is whole; None if there is none. For those who only look."""
    return _settled(folder, map_location, batches)[0]


def reached(folder: Path) -> int:
    """The batches of the newest chunk by its name, 0 if there is none; whether it is whole is not looked at."""
    files = _files(folder)
    return files[0][0][0] if files else 0


def newest(folder: Path, map_location: torch.device | str = "cpu", aside: list[str] | None = None) -> Chunk | None:
    """The newest chunk that is whole; None if there is none.

    Damaged ones that are newer are passed over, which the log tells. With `aside`, for one who alone writes here, they
    are renamed, and `aside` is given a line for each.
    """
    found, damaged = _settled(folder, map_location)
    instead = f"batch {found.batches}, from the chunk before it" if found else "the beginning: no older one is whole"
    for path, reason in damaged:
        line = f"{path}: damaged ({reason}); the trial goes on at {instead}"
        if aside is None:
            logger.warning("%s", line)
        else:
            path.replace(path.with_name(DAMAGED + path.name))
            aside.append(f"{line}; the damaged one is kept as {DAMAGED}{path.name}")
    return found


def _settled(
    folder: Path, map_location: torch.device | str, limit: int | None = None
) -> tuple[Chunk | None, list[tuple[Path, str]]]:
    """The newest chunk that is whole, of at most `limit` batches, and the newer ones that are damaged, and why; its
    writer may write and delete meanwhile."""
    before: list[Path] = []
    while (listed := [path for (there, _), path in _files(folder) if limit is None or there <= limit]) != before:
        before = listed
        try:
            return _first_whole(listed, map_location)
        except FileNotFoundError:
            continue  # deleted by its writer since it was listed: newer ones are there
    return None, []


def _first_whole(files: list[Path], map_location: torch.device | str) -> tuple[Chunk | None, list[tuple[Path, str]]]:
    """The first of these that is whole, and those before it that are damaged, and why.

    Raises:
        FileNotFoundError: one that comes before it is not there.
    """
    damaged: list[tuple[Path, str]] = []
    for path in files:
        try:
            return _read(path, map_location), damaged
        except FileNotFoundError:
            raise
        except _DAMAGE as error:
            damaged.append((path, str(error).splitlines()[0] if str(error) else type(error).__name__))
    return None, damaged


def _read(path: Path, map_location: torch.device | str) -> Chunk:
    check_whole(path)
    content = torch.load(path, map_location=map_location, weights_only=True)
    if content["format"] != FORMAT:
        raise ValueError(f"format must be {FORMAT} (got {content['format']})")
    curves = Curves(**_as_arrays(content["curves"]))
    return Chunk(path, content["state"], curves, content["finished"])


def _files(folder: Path) -> list[tuple[tuple[int, int], Path]]:
    """Chunk files, newest first: by batches, then by attempt."""
    found = [(match, path) for path in folder.glob("chunk-*.pt") if (match := _NAME.fullmatch(path.name))]
    return sorted((((int(m[1]), int(m[2])), path) for m, path in found), reverse=True)


def _attempt(folder: Path) -> int:
    numbers = (path.name.removeprefix("attempt-") for path in folder.glob("attempt-*"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _as_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, dict):
        return {key: _as_tensors(part) for key, part in value.items()}
    return value


def _as_arrays(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu().numpy()
    if isinstance(value, dict):
        return {key: _as_arrays(part) for key, part in value.items()}
    return value
