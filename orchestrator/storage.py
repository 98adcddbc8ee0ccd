"""A sweep whose results lie at an address (`storage=s3://bucket/prefix`): what is there is the truth.

All that reads and writes a sweep's folder reads and writes files here; this module carries them. Every file is put in
one piece, so it is there whole or not at all, and nothing at an address is ever renamed. The driver has a copy of the
sweep's folder in its cache, and each learner actor one of its trial's in a scratch folder. A copy is made equal to what
is at the address before it is read, so a machine that is new to the sweep, or was away, knows all of it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from orchestrator.errors import ConfigError, fault
from orchestrator.plan import sweep_folder
from streams.address import is_address, joined, open_address, shown
from streams.cache import cache_folder, locked

_FAILURES = (OSError, pa.ArrowException, ValueError)

logger = logging.getLogger(__name__)


class Place:
    """One folder at an address, flat: files are put, taken and removed by their names."""

    def __init__(self, address: str) -> None:
        self.shown = shown(address)
        self._files, self._root = open_address(address)

    def listing(self) -> dict[str, fs.FileInfo]:
        """The files there by name."""
        found = self._files.get_file_info(fs.FileSelector(str(self._root), allow_not_found=True))
        return {info.base_name: info for info in found if info.type == fs.FileType.File}

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        there: bool = self._files.get_file_info(str(self._root / name)).type == fs.FileType.File
        return there

    def folders(self) -> list[str]:
        """Names of the folders there."""
        found = self._files.get_file_info(fs.FileSelector(str(self._root), allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def put(self, path: Path) -> None:
        """Copy a file there, whole or not at all, in place of what has its name."""
        if isinstance(self._files, fs.LocalFileSystem):  # a folder (`file://`): there, whole means renamed
            (folder := Path(self._root)).mkdir(parents=True, exist_ok=True)
            unfinished = folder / f".{path.name}.{secrets.token_hex(4)}"
            shutil.copyfile(path, unfinished)
            unfinished.replace(folder / path.name)
            return
        with self._files.open_output_stream(str(self._root / path.name)) as stream:
            stream.write(path.read_bytes())

    def read(self, name: str) -> bytes:
        """A file's content."""
        with self._files.open_input_stream(str(self._root / name)) as stream:
            content: bytes = stream.read()
        return content

    def remove(self, name: str) -> None:
        """Delete a file; nothing if it is not there, or if another deletes it at the same time."""
        with suppress(FileNotFoundError):
            if self.has(name):
                self._files.delete_file(str(self._root / name))

    def clear(self) -> None:
        """Delete every file there."""
        for name in self.listing():
            self.remove(name)

    def pull(self, folder: Path) -> None:
        """Make a local folder equal to this one; files that are the same stay as they are."""
        folder.mkdir(parents=True, exist_ok=True)
        complete = False
        while not complete:  # where a file was deleted since it was listed, there is a newer one that was not
            there = _finished(self.listing())
            complete = all(_take(self, name, info, folder / name) for name, info in there.items())
        for path in folder.iterdir():
            if path.name[0] != "." and path.name not in there and path.is_file():
                path.unlink(missing_ok=True)


def _finished(there: dict[str, fs.FileInfo]) -> dict[str, fs.FileInfo]:
    """Without those that somebody is writing, or marks a place with."""
    return {name: info for name, info in there.items() if not name.startswith(".")}


def _take(place: Place, name: str, info: fs.FileInfo, path: Path) -> bool:
    """Bring one file, unless it is here already. Returns whether it was still there."""
    stamp = int(info.mtime_ns or 0)
    if path.is_file() and path.stat().st_size == info.size and path.stat().st_mtime_ns == stamp:
        return True
    try:
        content = place.read(name)
    except FileNotFoundError:
        return False
    unfinished = path.with_name(f".{name}.{os.getpid()}")
    unfinished.write_bytes(content)
    os.utime(unfinished, ns=(stamp, stamp))
    unfinished.replace(path)
    return True


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
        with _reached(storage):
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
        with _reached(self.address):
            with self.alone():
                there, folders = _finished(self._place.listing()), self._place.folders()
                self.local.mkdir(parents=True, exist_ok=True)
                for path in self.local.glob("*.json"):
                    if path.name not in there:
                        path.unlink()
                for name, info in there.items():
                    _take(self._place, name, info, self.local / name)
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
        with _reached(self.address):
            folder = path.parent.relative_to(self.local)
            Place(joined(self.address, *folder.parts) if folder.parts else self.address).put(path)

    def remove(self, path: Path) -> None:
        """Delete at the address what a file of the sweep's own folder was put as."""
        with _reached(self.address):
            self._place.remove(path.name)

    def push_report(self, folder: Path) -> None:
        """Put a report at the address, beside the trials."""
        with _reached(self.address):
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                Place(joined(self.address, "report", *path.parent.relative_to(folder).parts)).put(path)

    def forget(self, key: str) -> None:
        """Delete all that is there of one trial."""
        with _reached(self.address):
            Place(self.trial_address(key)).clear()


def open_folder(storage: str, name: str) -> tuple[Path, Mirror | None]:
    """The sweep's folder on this machine, and the mirror if it is a copy of what lies at an address.

    Raises:
        ConfigError: the address cannot be read.
    """
    if not is_address(storage):
        return sweep_folder(storage, name), None
    mirror = Mirror(storage, name)
    mirror.pull()
    return mirror.local, mirror


@contextmanager
def _reached(address: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        rule = f"must be a folder, or an address that can be read and written ({' '.join(str(error).split())})"
        raise ConfigError(fault("storage", "", rule, shown(address), "look at bucket, rights and AWS_* here")) from None


@contextmanager
def marked(storage: str) -> Iterator[tuple[str, str]]:
    """For this block, a file in the storage (a path or an address). Gives the storage's address and the file's name,
    for `is_there` to be asked elsewhere.

    Raises:
        ConfigError: it cannot be written there.
    """
    name = f".seen-{secrets.token_hex(8)}"
    address = storage if is_address(storage) else Path(storage).absolute().as_uri()
    with _reached(address):
        place = Place(address)
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / name).write_text(name)
            place.put(Path(scratch) / name)
    try:
        yield address, name
    finally:
        with _reached(address):
            place.remove(name)


def is_there(address: str, name: str) -> bool:
    """Whether a file is at an address, seen from this machine; false if the address is out of reach."""
    try:
        return Place(address).has(name)
    except _FAILURES as error:
        logger.warning("%s: %s", shown(address), error)
        return False


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
        from orchestrator.chunks import SupersededError

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
