"""A sweep whose results are at an address (`storage=s3://bucket/prefix`): the files there are the source of truth.

All other code reads and writes local files; this module transfers them. The driver has a copy of the sweep's folder in
its cache, and each learner actor has a copy of its trial's folder in a scratch folder. A copy is synchronized before it
is read, so that any machine knows the whole sweep.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from urllib.parse import quote

from orchestrator.errors import ConfigError, disk_full_as_error, existing, fault
from orchestrator.plan.plan import sweep_folder
from orchestrator.storage import chunk_files
from orchestrator.storage.remote_folder import FAILURES, RemoteFolder, address_faults, complete_files, download
from streams.store.address import is_address, join, without_keys
from streams.store.cache import cache_folder, locked


class Mirror:
    """The driver's copy of a sweep's folder at an address.

    Args:
        storage: the address of the storage.
        name: the name of the sweep.

    Attributes:
        local: the copy.
        address: of the sweep's folder.
        shown: the same address without access keys.

    Raises:
        ConfigError: the address cannot be opened.
    """

    def __init__(self, storage: str, name: str) -> None:
        folder = sweep_folder("", name).name
        self.address = join(storage, quote(folder))
        self.storage, self.shown = storage, without_keys(self.address)
        storage_hash = hashlib.sha256(without_keys(storage).encode()).hexdigest()[:12]
        self.local = cache_folder() / "sweeps" / storage_hash / folder
        with address_faults(storage):
            self._remote = RemoteFolder(self.address)

    def trial_address(self, key: str) -> str:
        return join(self.address, key)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the copy against synchronization by the writer's thread or another command on this machine (`--plan`).

        A synchronization would delete files that are written locally and not yet uploaded.
        """
        with locked(self.local):
            yield

    def pull(self) -> None:
        """Synchronize the copy with the address.

        Raises:
            ConfigError: the address cannot be read.
        """
        with address_faults(self.address):
            with self.alone():
                files, folders = complete_files(self._remote.listing()), self._remote.folders()
                self.local.mkdir(parents=True, exist_ok=True)
                for path in self.local.glob("*.json"):
                    if path.name not in files:
                        path.unlink()
                for name, info in files.items():
                    download(self._remote, name, info, self.local / name)
                for path in self.local.glob("*/chunk-*"):
                    if path.parent.name not in folders:
                        shutil.rmtree(path.parent, ignore_errors=True)
            for key in folders:
                if key != "report":
                    self.pull_trial(key)

    def pull_trial(self, key: str) -> None:
        """Synchronize the folder of one trial."""
        with self.alone():
            RemoteFolder(self.trial_address(key)).pull(self.local / key)

    def newest_step(self, key: str) -> int:
        """The batches in the name of a trial's newest chunk file at the address, 0 if none exists."""
        return chunk_files.newest_step_of(RemoteFolder(self.trial_address(key)).listing())

    @contextmanager
    def appending(self, path: Path) -> Iterator[None]:
        """Download a file before this block appends lines to the copy, and upload it afterwards.

        Nothing is raised if the address is unreachable: the lines are then in the copy until it is synchronized.
        """
        remote = RemoteFolder(join(self.address, *path.parent.relative_to(self.local).parts))
        with self.alone():
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(*FAILURES):
                if (info := remote.listing().get(path.name)) is not None:
                    download(remote, path.name, info, path)
            yield
            with suppress(*FAILURES):
                remote.put(path)

    def push(self, path: Path) -> None:
        """Upload a file of the copy.

        Raises:
            ConfigError: the address cannot be written.
        """
        with address_faults(self.address):
            folder = path.parent.relative_to(self.local)
            RemoteFolder(join(self.address, *folder.parts) if folder.parts else self.address).put(path)

    def remove(self, path: Path) -> None:
        """Delete a file of the sweep's folder (not of a trial's) at the address."""
        with address_faults(self.address):
            self._remote.remove(path.name)

    def remove_all(self, prefix: str) -> None:
        """Delete all files of the sweep's folder (not of the trials') at the address whose names start so."""
        with address_faults(self.address):
            for name in self._remote.listing():
                if name.startswith(prefix):
                    self._remote.remove(name)

    def push_report(self, folder: Path) -> None:
        """Upload a report beside the trials."""
        with address_faults(self.address):
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                RemoteFolder(join(self.address, "report", *path.parent.relative_to(folder).parts)).put(path)

    def forget(self, key: str) -> None:
        """Delete all files of one trial at the address."""
        with address_faults(self.address):
            RemoteFolder(self.trial_address(key)).clear()


def open_folder(storage: str, name: str) -> tuple[Path, Mirror | None]:
    """The sweep's folder on this machine, and its mirror if the storage is an address.

    Raises:
        ConfigError: the address cannot be read, or the path is not a folder that can be written or created.
    """
    if not is_address(storage):
        folder = Path(storage).absolute()
        closest = existing(folder)
        if not closest.is_dir() or not os.access(closest, os.W_OK | os.X_OK):
            rule = "must be a folder that can be written or created"
            raise ConfigError(fault("storage", "", rule, storage, f"check {closest}"))
        return sweep_folder(storage, name), None
    mirror = Mirror(storage, name)
    mirror.pull()
    return mirror.local, mirror


class TrialCopy:
    """A learner actor's scratch copy of its trial's folder at an address.

    Attributes:
        folder: the copy. After the trial is claimed it is synchronized, and only this actor writes it.
    """

    _uploaded: dict[Path, tuple[int, int]]

    def __init__(self, address: str) -> None:
        self._remote = RemoteFolder(address)
        self.folder = Path(tempfile.mkdtemp(prefix="foml-trial-"))
        self._synchronize()

    def claim(self, attempt: int) -> None:
        """Upload the claim of this attempt, then synchronize again: an earlier attempt may have written meanwhile."""
        self._claim = self.folder / f"attempt-{attempt:04d}"
        self._owner = _first_line(self._claim.read_bytes())
        self._remote.put(self._claim)
        self._synchronize()

    def push(self, attempt: int) -> None:
        """Upload what is new, the chunk file last, and then delete what no longer exists in the copy.

        Raises:
            SupersededError: another attempt was claimed since, on any machine; nothing is uploaded.
            DiskFullError: the address is on a disk that is full.
        """
        with nullcontext() if (disk := self._remote.disk) is None else disk_full_as_error(disk):
            self._push(attempt)

    def _push(self, attempt: int) -> None:
        names = [name for name in self._remote.listing() if name.startswith("attempt-")]
        if (
            max(names, default="") != self._claim.name
            or _first_line(self._remote.read(self._claim.name)) != self._owner
        ):
            rule = f"attempt {attempt} was superseded; it writes nothing more"
            raise chunk_files.SupersededError(f"{self._remote.shown}: {rule}")
        stamps = self._stamps()
        changed = [path for path, stamp in stamps.items() if self._uploaded.get(path) != stamp]
        for path in sorted(changed, key=lambda path: (path.name.startswith("chunk-"), path.name)):
            self._remote.put(path)
        for path in set(self._uploaded) - set(stamps):
            self._remote.remove(path.name)
        self._uploaded = stamps

    def close(self) -> None:
        """Delete the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _synchronize(self) -> None:
        self._remote.pull(self.folder)
        self._uploaded = self._stamps()

    def _stamps(self) -> dict[Path, tuple[int, int]]:
        """Size in bytes and time of modification in ns of each file, hidden ones excluded."""
        stats = {path: path.stat() for path in self.folder.iterdir() if path.is_file() and path.name[0] != "."}
        return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def _first_line(content: bytes) -> bytes:
    return content.partition(b"\n")[0]
