"""The log of a trial's curves: each chunk appends its part, in a record with a checksum.

A trial has several log files, `curves-ATTEMPT-NUMBER.log`: each is written by one attempt only, and a new one is
started after `ROLL_BYTES`, so that storage without an append operation uploads a bounded file. A chunk file says which
bytes of which files hold its curves. Bytes beyond them were torn by a crash, or are of a superseded attempt.
"""

import json
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.protocol.curves import Curves, joined

ROLL_BYTES = 1_000_000
_HEADER = struct.Struct("<4sQI")
"""Of a record: `_MAGIC`, the bytes of its content, and the CRC-32 of its content."""
_MAGIC = b"FOCL"
_SECTIONS = ("by_batch", "evaluations", "past", "chunks")

Extent = tuple[str, int, int]
"""A range of bytes: file name, first byte, byte after the last one."""


class CurveLog:
    """Appends the curves of one attempt at a trial.

    Args:
        folder: of the trial.
        attempt: the number of the attempt, which no other process has.

    Attributes:
        extents: where the curves so far are.
        batches: the number of batches of these curves.
    """

    def __init__(self, folder: Path, attempt: int) -> None:
        self._folder, self._attempt = folder, attempt
        self.extents: list[Extent] = []
        self.batches = 0
        self._name, self._end = "", 0

    def continue_from(self, extents: Sequence[Extent], batches: int) -> None:
        """Append to curves that are already stored, in a new file: a kept chunk file may refer to the present one."""
        self.extents, self.batches, self._name = list(extents), batches, ""

    def append(self, curves: Curves) -> None:
        """Store what these curves, which start at batch 0, have beyond `batches`, and wait until it is on the disk."""
        part = curves.since(self.batches)
        record = _encoded(part)
        if not self._name or self._end >= ROLL_BYTES:
            present = self._folder.glob(f"curves-{self._attempt:04d}-*.log")
            number = max((int(path.stem.rpartition("-")[2]) for path in present), default=-1) + 1
            self._name, self._end = f"curves-{self._attempt:04d}-{number:04d}.log", 0
        with (self._folder / self._name).open("ab") as file:
            file.truncate(self._end)  # a failed attempt to append may have left bytes
            file.write(record)
            file.flush()
            os.fsync(file.fileno())
        start, self._end = self._end, self._end + len(record)
        if self.extents and self.extents[-1][::2] == (self._name, start):
            start = self.extents.pop()[1]
        self.extents.append((self._name, start, self._end))
        self.batches = curves.batches


def read(folder: Path, extents: Sequence[Extent]) -> Curves:
    """The curves in these ranges of a trial's log files.

    Raises:
        ValueError: a file is missing, shorter, or does not match its checksums.
    """
    parts: list[Curves] = []
    for name, start, stop in extents:
        try:
            with (folder / name).open("rb") as file:
                file.seek(start)
                content = file.read(stop - start)
        except FileNotFoundError:
            raise ValueError(f"{name} is missing") from None
        if len(content) != stop - start:
            raise ValueError(f"{name} ends at byte {start + len(content)}, and must have {stop}")
        at = 0
        while at < len(content):
            magic, length, checksum = _HEADER.unpack(content[at : at + _HEADER.size].ljust(_HEADER.size, b"\0"))
            record = content[at + _HEADER.size : at + _HEADER.size + length]
            if magic != _MAGIC or len(record) != length or zlib.crc32(record) != checksum:
                raise ValueError(f"{name} has a wrong checksum at byte {start + at}")
            parts.append(_decoded(record))
            at += _HEADER.size + length
    return joined(parts)


def _encoded(curves: Curves) -> bytes:
    """A record: a line of JSON that describes the arrays, and their bytes."""
    arrays = [(section, name, array) for section in _SECTIONS for name, array in getattr(curves, section).items()]
    described = {
        **{key: value for key, value in vars(curves).items() if key not in _SECTIONS},
        "arrays": [[section, name, array.dtype.str, array.shape] for section, name, array in arrays],
    }
    content = b"".join(
        [json.dumps(described).encode(), b"\n", *(np.ascontiguousarray(array).tobytes() for *_, array in arrays)]
    )
    return _HEADER.pack(_MAGIC, len(content), zlib.crc32(content)) + content


def _decoded(content: bytes) -> Curves:
    line, _, _ = content.partition(b"\n")
    described: dict[str, Any] = json.loads(line)
    described |= {section: {} for section in _SECTIONS}
    at = len(line) + 1
    for section, name, dtype, shape in described.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(content, dtype, count, at).reshape(shape)
        described[section][name] = array
        at += array.nbytes
    return Curves(**described)
