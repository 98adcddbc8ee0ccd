"""One folder at an address (`s3://bucket/prefix`, `file:///…`), and whether it can be reached.

Every file is put in one piece, so it is there whole or not at all, and nothing at an address is ever renamed.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from orchestrator.errors import ConfigError, fault
from streams.store.address import is_address, open_address, shown

FAILURES = (OSError, pa.ArrowException, ValueError)
"""What is raised by an address that is out of reach or refuses."""

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
            there = finished(self.listing())
            complete = all(take(self, name, info, folder / name) for name, info in there.items())
        for path in folder.iterdir():
            if path.name[0] != "." and path.name not in there and path.is_file():
                path.unlink(missing_ok=True)


def finished(there: dict[str, fs.FileInfo]) -> dict[str, fs.FileInfo]:
    """Without those that somebody is writing, or marks a place with."""
    return {name: info for name, info in there.items() if not name.startswith(".")}


def take(place: Place, name: str, info: fs.FileInfo, path: Path) -> bool:
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


@contextmanager
def reached(address: str) -> Iterator[None]:
    """For this block, what an address does not do is told in one line.

    Raises:
        ConfigError: naming the address.
    """
    try:
        yield
    except FAILURES as error:
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
    with reached(address):
        place = Place(address)
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / name).write_text(name)
            place.put(Path(scratch) / name)
    try:
        yield address, name
    finally:
        with reached(address):
            place.remove(name)


def is_there(address: str, name: str) -> bool:
    """Whether a file is at an address, seen from this machine; false if the address is out of reach."""
    try:
        return Place(address).has(name)
    except FAILURES as error:
        logger.warning("%s: %s", shown(address), error)
        return False
