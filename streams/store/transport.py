"""Transport of task stores: from any address of `pyarrow.fs` into the cache of a node, and to such an address."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from streams.errors import StoreError, fault, masked
from streams.recipe import Progress, silent
from streams.store import manifest as manifests
from streams.store.address import is_address, join, open_address, without_keys
from streams.store.cache import cache_folder, locked
from streams.store.manifest_rules import SEED_KEYS, seed_faults
from streams.store.publish import publish, remove_unfinished
from streams.store.tables import DATAPOINTS, IMAGES
from streams.store.task_store import TaskStore

_PIECE = 16 * 2**20


def localise(address: str | Path, progress: Progress = silent) -> Path:
    """The folder of a store on this node.

    A path is returned as it is. A store at an address such as `s3://bucket/store` or `file:///...` is copied into the
    cache folder, under its hash, unless it was copied before; seeds that were added at the address meanwhile are
    copied too. Every byte of a copy is compared with the manifests before the copy becomes visible. Several
    processes may call it simultaneously: one copies, the others wait.

    Args:
        address: a path or an address.
        progress: called with the number of bytes copied.

    Raises:
        StoreError: the address holds no store or cannot be reached, or the copy does not match its hash.
    """
    if not is_address(address):
        return Path(address).expanduser().absolute()
    remote = _Remote(str(address), progress)
    folder = cache_folder() / "copies" / remote.hash()
    with locked(folder):
        remove_unfinished(folder)
        if not folder.is_dir():
            publish(folder, remote.copy_store)
        for seed in remote.seeds():
            target = folder / seed
            if not target.is_dir():
                remove_unfinished(target)
                publish(target, lambda unfinished, s=seed: remote.copy_seed(unfinished, s, folder.name))  # type: ignore[misc]
    return folder


def share(store: TaskStore, where: Path | str) -> None:
    """Copy a store to a folder that other nodes see, or to an address, for them to `localise`.

    Existing parts of the copy stay as they are. Several processes may write it simultaneously, and others read it.

    Raises:
        OSError, pa.ArrowException: the copy cannot be written.
    """
    if is_address(where) and isinstance((opened := open_address(str(where)))[0], fs.LocalFileSystem):
        where = Path(opened[1])  # local files do not appear complete, as objects do: publish the folder
    parts = {"": (IMAGES, manifests.NAME)} | {
        seed.name: (DATAPOINTS, manifests.NAME) for seed in sorted(store.path.glob("seed-*"))
    }
    for part, names in parts.items():
        if is_address(where):
            _upload(store.path / part, join(str(where), part) if part else str(where), names)
        elif not (Path(where) / part).is_dir():

            def copy(unfinished: Path, source: Path = store.path / part, names: Iterable[str] = names) -> None:
                for name in names:
                    shutil.copyfile(source / name, unfinished / name)

            publish(Path(where) / part, copy)


def _upload(source: Path, address: str, names: Iterable[str]) -> None:
    """Copy files to an address, the manifest last, so that its presence means that all are complete."""
    files, root = open_address(address)
    files.create_dir(str(root))
    if files.get_file_info(str(root / manifests.NAME)).type != fs.FileType.File:
        for name in names:
            with (source / name).open("rb") as stream, files.open_output_stream(str(root / name)) as copy:
                shutil.copyfileobj(stream, copy, _PIECE)


class _Remote:
    """A store at an address, read through `pyarrow.fs`."""

    def __init__(self, address: str, progress: Progress) -> None:
        self._address = without_keys(address)
        self._progress = progress
        try:
            self._files, self._root = open_address(address)
        except (OSError, pa.ArrowException, ValueError) as error:
            line = fault(self._address, "must be an address that pyarrow.fs can open", masked(str(error), address))
            raise StoreError(line) from None

    def hash(self) -> str:
        """The store's hash, from its manifest; the copy is checked against it."""
        where = f"{self._address}/{manifests.NAME}"
        try:
            with self._files.open_input_stream(str(self._root / manifests.NAME)) as stream:
                recorded = json.loads(stream.read()).get("hash")
        except (OSError, pa.ArrowException) as error:
            raise StoreError(fault(where, "cannot be read", error, "check the address and your permissions")) from None
        except (ValueError, AttributeError):
            raise StoreError(fault(where, "cannot be read as JSON", remedy="copy the store there again")) from None
        if not isinstance(recorded, str) or not re.fullmatch(r"[0-9a-f]{64}", recorded):
            raise StoreError(fault(where, "hash: must be a sha256", recorded, "copy the store there again"))
        return recorded

    def seeds(self) -> list[str]:
        """Names of the folders of seeds; a folder without a manifest is still being uploaded."""
        entries = self._files.get_file_info(fs.FileSelector(str(self._root)))
        names = sorted(info.base_name for info in entries if re.fullmatch(r"seed-(0|[1-9][0-9]*)", info.base_name))
        infos = self._files.get_file_info([str(self._root / name / manifests.NAME) for name in names])
        return [name for name, info in zip(names, infos, strict=True) if info.type == fs.FileType.File]

    def copy_store(self, folder: Path) -> None:
        """Copy manifest and images into `folder`, and check them."""
        self._copy(folder, (manifests.NAME, IMAGES))
        try:
            TaskStore.open(folder, verify=True)
        except StoreError as error:
            raise self._blame(folder, self._address, error.faults) from None

    def copy_seed(self, folder: Path, seed: str, store_hash: str) -> None:
        """Copy a seed's manifest and datapoints into `folder`, and check them."""
        self._copy(folder, (f"{seed}/{manifests.NAME}", f"{seed}/{DATAPOINTS}"))
        origin = f"{self._address}/{seed}"
        try:
            manifest = manifests.read(folder, SEED_KEYS)
            faults = manifests.verify_bytes(folder, manifest)
        except StoreError as error:
            raise self._blame(folder, origin, error.faults) from None
        faults += seed_faults(folder / manifests.NAME, manifest, int(seed.removeprefix("seed-")), store_hash)
        if faults:
            raise self._blame(folder, origin, faults)

    def _copy(self, folder: Path, names: Iterable[str]) -> None:
        for name in names:
            source = str(self._root / name)
            try:
                total, done = self._files.get_file_info(source).size or 0, 0
                with self._files.open_input_stream(source) as stream, (folder / Path(name).name).open("wb") as copy:
                    while piece := stream.read(_PIECE):
                        copy.write(piece)
                        done += len(piece)
                        self._progress(f"copying {self._address}/{name}", done, total)
            except (OSError, pa.ArrowException) as error:
                where = f"{self._address}/{name}"
                raise StoreError(fault(where, "cannot be copied", error, "copy the store there again")) from None

    def _blame(self, folder: Path, origin: str, faults: Iterable[str]) -> StoreError:
        """The faults of a copy, as faults of its origin."""
        return StoreError(*(line.replace(str(folder), origin) for line in faults))
