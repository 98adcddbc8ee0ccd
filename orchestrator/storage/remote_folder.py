"""One folder at an address (`s3://bucket/prefix`, `file:///…`), and whether the address is reachable.

Every file is uploaded in one operation, so it exists completely or not at all; files at an address are never renamed.
"""

import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import fs

from orchestrator.errors import ConfigError, fault
from orchestrator.storage import atomic
from streams.errors import masked
from streams.store.address import is_address, open_address, without_keys

FAILURES = (OSError, pa.ArrowException, ValueError)
"""What an address that is unreachable or denies access raises."""

logger = logging.getLogger(__name__)


class RemoteFolder:
    """One folder at an address, without subfolders: files are uploaded, read and removed by name."""

    def __init__(self, address: str) -> None:
        self.shown = without_keys(address)
        self._files, self._root = open_address(address)

    def listing(self) -> dict[str, fs.FileInfo]:
        """The files of the folder: name → size and time of writing."""
        infos = self._files.get_file_info(fs.FileSelector(str(self._root), allow_not_found=True))
        return {info.base_name: info for info in infos if info.type == fs.FileType.File}

    def has(self, name: str) -> bool:
        """Whether a file of this name exists."""
        exists: bool = self._files.get_file_info(str(self._root / name)).type == fs.FileType.File
        return exists

    def folders(self) -> list[str]:
        """Names of the subfolders."""
        infos = self._files.get_file_info(fs.FileSelector(str(self._root), allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    @property
    def disk(self) -> Path | None:
        """The folder on a disk of this machine (`file://`), or None."""
        return Path(self._root) if isinstance(self._files, fs.LocalFileSystem) else None

    def put(self, path: Path) -> None:
        """Upload a file under its name, atomically; an older one of that name is replaced."""
        if (folder := self.disk) is not None:  # a stream would expose an incomplete file
            folder.mkdir(parents=True, exist_ok=True)
            atomic.write(folder / path.name, path.read_bytes())
            return
        with self._files.open_output_stream(str(self._root / path.name)) as stream:
            stream.write(path.read_bytes())

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with self._files.open_input_stream(str(self._root / name)) as stream:
            content: bytes = stream.read()
        return content

    def remove(self, name: str) -> None:
        """Delete a file if it exists, also if another process deletes it at the same time."""
        with suppress(FileNotFoundError):
            if self.has(name):
                self._files.delete_file(str(self._root / name))

    def clear(self) -> None:
        """Delete every file of the folder."""
        for name in self.listing():
            self.remove(name)

    def pull(self, folder: Path) -> None:
        """Make a local folder equal to this one; equal files are not transferred."""
        folder.mkdir(parents=True, exist_ok=True)
        complete = False
        while not complete:  # a file that was deleted after the listing has a successor that was not listed
            files = complete_files(self.listing())
            complete = all(download(self, name, info, folder / name) for name, info in files.items())
        for path in folder.iterdir():
            if path.name[0] != "." and path.name not in files and path.is_file():
                path.unlink(missing_ok=True)


def complete_files(listing: dict[str, fs.FileInfo]) -> dict[str, fs.FileInfo]:
    """A listing without hidden files: temporary files, leases and markers."""
    return {name: info for name, info in listing.items() if not name.startswith(".")}


def download(remote: RemoteFolder, name: str, info: fs.FileInfo, path: Path) -> bool:
    """Download one file unless the local one has its size and time; false if the remote file no longer exists."""
    stamp = int(info.mtime_ns or 0)
    if path.is_file() and path.stat().st_size == info.size and path.stat().st_mtime_ns == stamp:
        return True
    try:
        content = remote.read(name)
    except FileNotFoundError:
        return False

    def save(file: BinaryIO) -> None:
        file.write(content)
        file.flush()
        os.utime(file.fileno(), ns=(stamp, stamp))

    atomic.write(path, save)
    return True


@contextmanager
def address_faults(address: str) -> Iterator[None]:
    """Report what the address raises in this block as one line.

    Raises:
        ConfigError: naming the address.
    """
    try:
        yield
    except FAILURES as error:
        rule = f"must be a folder, or an address that can be read and written ({masked(atomic.reason(error), address)})"
        raise ConfigError(
            fault("storage", "", rule, without_keys(address), "check bucket, rights and AWS_* here")
        ) from None


@contextmanager
def marker_file(storage: str) -> Iterator[tuple[str, str]]:
    """Keep a file with a random name in the storage (a path or an address) during this block.

    Yields the address of the storage and the file's name, for `has_file` on another machine.

    Raises:
        ConfigError: the storage cannot be written.
    """
    name = f".seen-{secrets.token_hex(8)}"
    address = storage if is_address(storage) else Path(storage).absolute().as_uri()
    with address_faults(address):
        remote = RemoteFolder(address)
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / name).write_text(name)
            remote.put(Path(scratch) / name)
    try:
        yield address, name
    finally:
        with address_faults(address):
            remote.remove(name)


def has_file(address: str, name: str) -> bool:
    """Whether a file exists at an address, as seen from this machine; false if the address is unreachable."""
    try:
        return RemoteFolder(address).has(name)
    except FAILURES as error:
        logger.warning("%s: %s", without_keys(address), masked(str(error), address))
        return False
