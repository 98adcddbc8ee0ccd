"""`manifest.json`: canonical text, identity hash, and the checksums of the files beside it.

A manifest is written in one canonical form, so that a changed byte is a fault even where JSON would read the same.
`hash` covers what the store *means* (recipe, source, content of the tables) and leaves out `files`, the checksums of
the bytes on this disk: two versions of Arrow may lay the same table out in different bytes, and it is the same store.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from streams.errors import StoreError, fault
from streams.store.canonical_json import digest

FORMAT_VERSION = 1
NAME = "manifest.json"
_NOT_IDENTITY = ("hash", "files")


def text(manifest: dict[str, Any]) -> str:
    """The one form in which a manifest stands on disk: sorted, indented by two, a newline at the end."""
    return json.dumps(manifest, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def identity(manifest: dict[str, Any]) -> str:
    """sha256 (hex) over the canonical JSON of everything but `hash` and `files`."""
    kept = {key: value for key, value in manifest.items() if key not in _NOT_IDENTITY}
    return digest(kept)


def content_digest(*columns: np.ndarray[Any, Any]) -> str:
    """sha256 (hex) over the columns' little-endian bytes, one after the other: independent of Arrow's layout."""
    sha256 = hashlib.sha256()
    for column in columns:
        contiguous = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
        sha256.update(contiguous.reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(path: Path) -> dict[str, Any]:
    """What a manifest records of a file beside it: `{"bytes": size, "sha256": hex}`."""
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def read(folder: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """Read a folder's manifest and check version, keys, hash, and that its files are there in full length.

    Raises:
        StoreError: it is missing, not JSON, of a newer version, lacks one of `keys`, does not match its own hash,
            or a file is missing or has another length than recorded.
    """
    path = folder / NAME
    try:
        manifest = json.loads(path.read_bytes(), parse_constant=_refuse)
        told = manifest if isinstance(manifest, dict) else {}
        found = identity(told)  # of text that UTF-8 cannot hold there is none
    except FileNotFoundError:
        if not folder.is_dir():
            raise StoreError(fault(folder, "is not there", remedy="build it with python -m streams.build")) from None
        raise StoreError(fault(folder, f"holds no {NAME}, so it is no task store", remedy="build it anew")) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(fault(path, "cannot be read as JSON", type(error).__name__, "build the store anew")) from None
    version = told.get("format_version")
    if type(version) is not int or version < 1:
        raise StoreError(fault(path, "format_version: must be a whole number", version, "build the store anew"))
    if version > FORMAT_VERSION:
        rule = f"format_version: this package reads versions up to {FORMAT_VERSION}"
        raise StoreError(fault(path, rule, version, "update foml-orchestrator or build the store anew"))
    missing = [key for key in keys if key not in manifest]
    if missing:
        raise StoreError(*(fault(path, f"{key}: is missing", remedy="build the store anew") for key in missing))
    if found != manifest["hash"]:
        rule = f"hash: must be the hash of the manifest, {found}"
        raise StoreError(
            fault(path, rule, manifest["hash"], "it was changed after it was written: build the store anew")
        )
    if not isinstance(manifest["files"], dict):
        raise StoreError(fault(path, "files: must be a mapping", remedy="build the store anew"))
    _check_lengths(folder, manifest["files"])
    whole: dict[str, Any] = manifest
    return whole


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _check_lengths(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    faults = []
    for name, entry in files.items():
        if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
            rule = f"files.{name}: must hold bytes and sha256"
            faults.append(fault(folder / NAME, rule, entry, "build the store anew"))
            continue
        try:
            size = (folder / name).stat().st_size
        except (OSError, ValueError):  # a ValueError of a name that no file can have
            faults.append(fault(folder / name, "is missing", remedy="copy or build the store anew"))
            continue
        if size != entry["bytes"]:
            rule = f"must have {entry['bytes']} bytes"
            faults.append(fault(folder / name, rule, size, "it was cut or changed: copy or build the store anew"))
    if faults:
        raise StoreError(*faults)


def verify_bytes(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """Compare every byte of a folder's manifest and files with what was written; returns one line per difference."""
    faults = []
    if (folder / NAME).read_bytes() != text(manifest).encode():
        rule = "must be in the form in which it was written"
        faults.append(fault(folder / NAME, rule, remedy="build the store anew"))
    for name, entry in manifest["files"].items():
        try:
            found = file_digest(folder / name)
        except OSError as error:
            faults.append(fault(folder / name, "cannot be read", error.strerror, "copy or build the store anew"))
            continue
        if found != entry["sha256"]:
            rule = f"sha256 must be {entry['sha256']}"
            faults.append(fault(folder / name, rule, found, "it was changed: copy or build the store anew"))
    return faults
