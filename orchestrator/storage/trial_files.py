"""The files of a trial as its learner actor writes them: claim, chunk files, log, and their copies at an address."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files
from orchestrator.storage.chunk_files import Chunk
from orchestrator.storage.mirror import TrialCopy
from orchestrator.storage.trial_log import TrialLog

if TYPE_CHECKING:
    import torch


class TrialFiles:
    """The files of one attempt at a trial, which is claimed here.

    Args:
        folder: of the trial.
        address: where the files are kept instead; the folder is then a copy. None if nowhere else.

    Attributes:
        folder: where the files are written.
        attempt: the number of this attempt.
        log: the log of the trial.
        remarks: lines for the sweep's output about damaged files.
    """

    def __init__(self, folder: str, address: str | None) -> None:
        # Results at an address are written to a local copy, and each file is uploaded.
        self._copy = None if address is None else TrialCopy(address)
        self.folder = Path(folder) if self._copy is None else self._copy.folder
        self.attempt = chunk_files.claim(self.folder)
        self._chunks = chunk_files.ChunkWriter(self.folder, self.attempt)
        if self._copy is not None:
            self._copy.claim(self.attempt)
        self.log = TrialLog(self.folder, f"attempt {self.attempt}")
        self.remarks: list[str] = []

    @property
    def claim(self) -> Path:
        """The file that claims the trial for this attempt."""
        return self.folder / f"attempt-{self.attempt:04d}"

    def newest(self, device: torch.device) -> Chunk | None:
        """The newest intact chunk, after which the attempt continues."""
        chunk = chunk_files.newest(self.folder, device, self.remarks)
        self._chunks.continue_from(chunk)
        for remark in self.remarks:
            self.log.say(remark)
        return chunk

    def check_newest(self) -> None:
        """Check that no other attempt was claimed since; see `ChunkWriter.check_newest`."""
        self._chunks.check_newest()

    def write(self, state: dict[str, Any], curves: Curves, finished: bool, keep: Collection[int]) -> None:
        """Write a chunk file; see `ChunkWriter.write`."""
        self._chunks.write(state, curves, finished, keep)

    def push(self) -> None:
        """Upload what is new, if the files are kept at an address."""
        if self._copy is not None:
            self._copy.push(self.attempt)

    def close(self) -> None:
        """Delete the local copy of a trial whose files are kept at an address."""
        if self._copy is not None:
            self._copy.close()
