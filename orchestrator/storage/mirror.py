"""A sweep whose results lie at an address (`storage=s3://bucket/prefix`): what is there is the truth.

All that reads and writes a sweep's folder reads and writes files here; this module carries them. The driver has a copy
of the sweep's folder in its cache, and each learner actor one of its trial's in a scratch folder. A copy is made equal
to what is at the address before it is read, so a machine that is new to the sweep, or was away, knows all of it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.errors import ConfigError, fault
from orchestrator.plan.plan import sweep_folder
from orchestrator.storage.remote_folder import Place, finished, reached, take
from streams.store.address import is_address, joined, shown
from streams.store.cache import cache_folder, locked


class Mirror:
    """The driver's copy of a sweep's folder at an address.

    Args:
        storage: the address of the storage.
        name: the sweep's.

    ``local``: the copy. ``address``: of the sweep's folder; ``shown``: the same without keys.

    Raises:
        ConfigError: the address cannot be opened.
    """

    def __init__(self, storage: str, name: str) -> None:
        folder = sweep_folder("", name).name
        self.address = joined(storage, quote(folder))
        self.storage, self.shown = storage, shown(self.address)
        known = hashlib.sha256(shown(storage).encode()).hexdigest()[:12]
        self.local = cache_folder() / "sweeps" / known / folder
        with reached(storage):
            self._place = Place(self.address)

    def trial_address(self, key: str) -> str:
        return joined(self.address, key)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else makes the copy equal to the address inside this block: neither the writer's thread nor another
        command on this machine, such as `--plan`. What is written here and not yet there would be lost by that."""
        with locked(self.local):
            yield

    def pull(self) -> None:
        """Know all that is at the address.

        Raises:
            ConfigError: it cannot be read.
        """
        with reached(self.address):
            with self.alone():
                there, folders = finished(self._place.listing()), self._place.folders()
                self.local.mkdir(parents=True, exist_ok=True)
                for path in self.local.glob("*.json"):
                    if path.name not in there:
                        path.unlink()
                for name, info in there.items():
                    take(self._place, name, info, self.local / name)
                for path in self.local.glob("*/chunk-*"):
                    if path.parent.name not in folders:
                        shutil.rmtree(path.parent, ignore_errors=True)
            for key in folders:
                if key != "report":
                    self.pull_trial(key)

    def pull_trial(self, key: str) -> None:
        """Know all that is there of one trial."""
        with self.alone():
            Place(self.trial_address(key)).pull(self.local / key)

    def push(self, path: Path) -> None:
        """Put a file of the local copy at the address.

        Raises:
            ConfigError: it cannot be written.
        """
        with reached(self.address):
            folder = path.parent.relative_to(self.local)
            Place(joined(self.address, *folder.parts) if folder.parts else self.address).put(path)

    def remove(self, path: Path) -> None:
        """Delete at the address what a file of the sweep's own folder was put as."""
        with reached(self.address):
            self._place.remove(path.name)

    def push_report(self, folder: Path) -> None:
        """Put a report at the address, beside the trials."""
        with reached(self.address):
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                Place(joined(self.address, "report", *path.parent.relative_to(folder).parts)).put(path)

    def forget(self, key: str) -> None:
        """Delete all that is there of one trial."""
        with reached(self.address):
            Place(self.trial_address(key)).clear()


def open_folder(storage: str, name: str) -> tuple[Path, Mirror | None]:
    """The sweep's folder on this machine, and the mirror if it is a copy of what lies at an address.

    Raises:
        ConfigError: the address cannot be read, or the path is no folder that can be written or made.
    """
    if not is_address(storage):
        whole = Path(storage).absolute()
        there = next(path for path in (whole, *whole.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            rule = "must be a folder that can be written, or be made"
            raise ConfigError(fault("storage", "", rule, storage, f"look at {there}"))
        return sweep_folder(storage, name), None
    mirror = Mirror(storage, name)
    mirror.pull()
    return mirror.local, mirror


class TrialCopy:
    """A learner actor's scratch copy of its trial's folder at an address.

    ``folder``: the copy. Once the trial is claimed it is equal to what is at the address, and the actor's alone.
    """

    def __init__(self, address: str) -> None:
        self._place = Place(address)
        self.folder = Path(tempfile.mkdtemp(prefix="foml-trial-"))
        self._place.pull(self.folder)
        self._there = self._stamps()

    def claim(self, attempt: int) -> None:
        """Tell all that this attempt has begun."""
        self._claim = self.folder / f"attempt-{attempt:04d}"
        self._owned_by = _first_line(self._claim.read_bytes())
        self._push(self._claim)
        self._place.pull(self.folder)  # once more: what the attempt before wrote until now
        self._there = self._stamps()

    def push(self, attempt: int) -> None:
        """Bring the address up to this copy: what is new first, the chunk file last of it, then what is old goes.

        Raises:
            SupersededError: another attempt was begun since, here or elsewhere: nothing is written.
        """
        from orchestrator.storage.trial_files import SupersededError

        names = [name for name in self._place.listing() if name.startswith("attempt-")]
        if max(names, default="") != self._claim.name or self._owner(self._claim.name) != self._owned_by:
            raise SupersededError(f"{self._place.shown}: attempt {attempt} was superseded; it writes no more")
        stamps = self._stamps()
        changed = [path for path, stamp in stamps.items() if self._there.get(path) != stamp]
        for path in sorted(changed, key=lambda path: (path.name.startswith("chunk-"), path.name)):
            self._push(path)
        for path in set(self._there) - set(stamps):
            self._place.remove(path.name)
        self._there = stamps

    def _owner(self, claim: str) -> bytes:
        return _first_line(self._place.read(claim))

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _push(self, path: Path) -> None:
        self._place.put(path)
        self._there = {**getattr(self, "_there", {}), path: _stamp(path)}

    def _stamps(self) -> dict[Path, Any]:
        return {path: _stamp(path) for path in self.folder.iterdir() if path.is_file() and path.name[0] != "."}


def _first_line(content: bytes) -> bytes:
    return content.partition(b"\n")[0]


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
