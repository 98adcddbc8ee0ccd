"""Chunk files: a trial's state, and where its curves so far are: the source of truth about the trial.

A chunk file is written atomically, after its curves are in the log, so that state and curves always belong together. A
trial keeps its two newest, and those that other members of its population may still copy from. Each start of a trial
claims the next attempt number; an actor of an earlier attempt that still runs (after its driver was killed, for
example) can no longer write. `--rerun` deletes the claims, and numbers begin at 1 again, so that a writer also compares
the line of its claim.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import secrets
import socket
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from orchestrator.errors import OrchestratorError
from orchestrator.protocol.curves import Curves
from orchestrator.storage import atomic, curve_log
from orchestrator.storage.curve_log import CurveLog, Extent

if TYPE_CHECKING:
    import torch

FORMAT = 2
_FORMAT_WITH_CURVES = 1
"""The format of earlier versions, whose chunk files hold the curves themselves."""
KEPT = 2
LEARNER_FILE = "learner.pt"
_DAMAGE = (*atomic.DAMAGE, RuntimeError, EOFError, pickle.UnpicklingError)
_NAME = re.compile(r"chunk-(\d{8})-(\d{4})\.pt")

logger = logging.getLogger(__name__)


class SupersededError(OrchestratorError):
    """A newer attempt at this trial has started: this one must not write."""


class NotLoadedError(OrchestratorError):
    """There is too little memory for a file of a trial, on the GPU for example: the file is not damaged."""


def not_loaded(path: Path, error: BaseException) -> NotLoadedError:
    """The error of a file for which there is too little memory."""
    return NotLoadedError(f"{path}: cannot be loaded ({atomic.reason(error)})")


@dataclass(frozen=True)
class Chunk:
    """A trial after `batches` batches.

    Attributes:
        path: the chunk file.
        state: the state of protocol and learner.
        curves: everything measured so far.
        finished: whether the trial has reached the end of the stream.
        extents: where the curves are in the log; empty in a file of an earlier version.
    """

    path: Path
    state: dict[str, Any]
    curves: Curves
    finished: bool
    extents: tuple[Extent, ...] = ()

    @property
    def batches(self) -> int:
        return self.curves.batches


def claim(folder: Path) -> int:
    """Start a new attempt at the trial in this folder, and return its number, which fences off all earlier attempts.

    The claim, a file `attempt-NNNN`, names host and process; a random number distinguishes it from all others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    attempt = _attempt(folder) + 1
    while True:
        try:
            with (folder / f"attempt-{attempt:04d}").open("x") as file:
                file.write(f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}\n")
            break
        except FileExistsError:
            attempt += 1
    # After the claim exists: an earlier attempt that is about to rename its temporary file fails, see `write`.
    for temporary in folder.glob(".chunk-*"):
        temporary.unlink(missing_ok=True)
    return attempt


class ChunkWriter:
    """Writes the chunk files of one attempt at a trial.

    What a chunk writes is the state and the chunk's own curves, however long the stream before it.
    """

    def __init__(self, folder: Path, attempt: int) -> None:
        self._folder, self._attempt = folder, attempt
        self._log = CurveLog(folder, attempt)
        self._owner = _owner(folder, attempt)

    def check_newest(self) -> None:
        """Check that no other attempt was claimed since, not even after the deletion of this one's claim.

        Raises:
            SupersededError: one was.
        """
        newest = _attempt(self._folder)
        if newest != self._attempt or not self._owner or _owner(self._folder, self._attempt) != self._owner:
            by = f"attempt {newest}" if newest > self._attempt else "a rerun"
            rule = f"attempt {self._attempt} was superseded by {by}; it writes nothing more"
            raise SupersededError(f"{self._folder}: {rule}")

    def continue_from(self, chunk: Chunk | None) -> None:
        """Write on after this chunk, or from the start of the stream."""
        extents = () if chunk is None else chunk.extents
        self._log.continue_from(extents, chunk.batches if chunk is not None and extents else 0)

    def write(self, state: dict[str, Any], curves: Curves, finished: bool, keep: Collection[int] = ()) -> Path:
        """Write one chunk file, and delete those older than the two newest.

        Args:
            state: of the trial.
            curves: everything measured so far.
            finished: whether the trial has reached the end of the stream.
            keep: batches after which chunk files are not deleted.

        Raises:
            SupersededError: another attempt was claimed since.
        """
        import torch

        folder, attempt = self._folder, self._attempt
        path = folder / f"chunk-{curves.batches:08d}-{attempt:04d}.pt"
        self.check_newest()  # the logs of a rerun have the same names

        def save(file: BinaryIO) -> None:
            extents = [list(extent) for extent in self._log.extents]
            torch.save({"format": FORMAT, "state": state, "curves": extents, "finished": finished}, file)
            self.check_newest()

        try:
            self._log.append(curves)
            atomic.write(path, save)
        except FileNotFoundError:
            self.check_newest()  # another attempt has deleted the temporary file, or the folder
            raise
        for (batches, _), old in _files(folder)[KEPT:]:
            if batches not in keep:
                old.unlink(missing_ok=True)
        return path


def write(
    folder: Path, attempt: int, state: dict[str, Any], curves: Curves, finished: bool, keep: Collection[int] = ()
) -> Path:
    """Write one chunk file with all its curves; see `ChunkWriter.write`."""
    return ChunkWriter(folder, attempt).write(state, curves, finished, keep)


def load_at_most(folder: Path, batches: int, map_location: torch.device | str = "cpu") -> Chunk | None:
    """The newest intact chunk of at most `batches` batches, or None; changes no file.

    Raises:
        NotLoadedError: there is too little memory for it.
    """
    return _newest_intact(folder, map_location, batches)[0]


def newest_step(folder: Path) -> int:
    """The batches in the name of the newest chunk file, 0 if none exists; its content is not checked."""
    return newest_step_of(path.name for path in folder.glob("chunk-*.pt"))


def newest_step_of(names: Iterable[str]) -> int:
    """As `newest_step`, of a folder with files of these names."""
    return max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)


def newest(
    folder: Path, map_location: torch.device | str = "cpu", quarantined: list[str] | None = None
) -> Chunk | None:
    """The newest intact chunk, or None; newer, damaged ones are logged.

    Args:
        quarantined: for the only writer of the folder: damaged files are quarantined instead of logged, and a line for
            each is appended.

    Raises:
        NotLoadedError: there is too little memory for a chunk.
    """
    chunk, damaged = _newest_intact(folder, map_location)
    for path, reason in damaged:
        rest = f"resumes at batch {chunk.batches}, from an older chunk" if chunk else "has no older intact chunk"
        line = f"{path}: damaged ({reason}); the trial {rest}"
        if quarantined is None:
            logger.warning("%s", line)
        else:
            quarantined.append(f"{line}; {atomic.quarantine(path)}")
    return chunk


def _newest_intact(
    folder: Path, map_location: torch.device | str, limit: int | None = None
) -> tuple[Chunk | None, list[tuple[Path, str]]]:
    """The newest intact chunk of at most `limit` batches, and the newer damaged ones with the reason.

    The trial may write and delete files meanwhile: if a file disappears, the folder is listed again.
    """
    before: list[Path] = []
    while (paths := [path for (step, _), path in _files(folder) if limit is None or step <= limit]) != before:
        before = paths
        try:
            return _first_intact(paths, map_location)
        except FileNotFoundError:
            continue
    return None, []


def _first_intact(paths: list[Path], map_location: torch.device | str) -> tuple[Chunk | None, list[tuple[Path, str]]]:
    """The first intact chunk, and the damaged ones before it with the reason.

    Raises:
        FileNotFoundError: a file before it does not exist.
    """
    damaged: list[tuple[Path, str]] = []
    for path in paths:
        try:
            return _read(path, map_location), damaged
        except FileNotFoundError:
            raise
        except _DAMAGE as error:
            damaged.append((path, str(error).splitlines()[0] if str(error) else type(error).__name__))
    return None, damaged


def _read(path: Path, map_location: torch.device | str) -> Chunk:
    import torch

    from learners.checkpoint import check_intact, is_resource_error

    try:
        check_intact(path)
        content = torch.load(path, map_location=map_location, weights_only=True)
    except (RuntimeError, MemoryError) as error:
        if not is_resource_error(error):
            raise
        raise not_loaded(path, error) from error
    if content["format"] == _FORMAT_WITH_CURVES:
        curves = Curves(**_converted(content["curves"], torch.Tensor, lambda tensor: tensor.cpu().numpy()))
        return Chunk(path, content["state"], curves, content["finished"])
    if content["format"] != FORMAT:
        raise ValueError(f"format must be {FORMAT} (got {content['format']})")
    extents = tuple((str(name), int(start), int(stop)) for name, start, stop in content["curves"])
    return Chunk(path, content["state"], curve_log.read(path.parent, extents), content["finished"], extents)


def _files(folder: Path) -> list[tuple[tuple[int, int], Path]]:
    """Chunk files, newest first: by batches, then by attempt."""
    matches = [(match, path) for path in folder.glob("chunk-*.pt") if (match := _NAME.fullmatch(path.name))]
    return sorted((((int(m[1]), int(m[2])), path) for m, path in matches), reverse=True)


def _attempt(folder: Path) -> int:
    numbers = (path.name.removeprefix("attempt-") for path in folder.glob("attempt-*"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _owner(folder: Path, attempt: int) -> bytes:
    """The first line of an attempt's claim; empty if there is no such claim."""
    try:
        return (folder / f"attempt-{attempt:04d}").read_bytes().partition(b"\n")[0]
    except FileNotFoundError:
        return b""


def _converted(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """A nested dictionary with `convert` applied to all values of type `kind`."""
    if isinstance(value, dict):
        return {key: _converted(part, kind, convert) for key, part in value.items()}
    return convert(value) if isinstance(value, kind) else value
