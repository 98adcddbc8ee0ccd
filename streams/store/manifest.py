"""`manifest.json`: its text, its hash, and the checksums of the files beside it.

A manifest has one form, so that a changed byte is a fault even if the JSON values are the same. `hash` covers the
*content* of the store (recipe, source, tables) and not `files`, the checksums of the bytes on this disk: two versions
of Arrow may write the same table as different bytes, and both are the same store.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from streams.errors import StoreError, fault
from streams.store.canonical_json import digest

FORMAT_VERSION = 1
"""Of stores without views that a later version introduced (`View.format_version`), and part of the cache's names."""
COLOUR_VIEWS_VERSION = 3
"""Of stores with views of images that have three channels."""
NEWEST_VERSION = COLOUR_VIEWS_VERSION
NAME = "manifest.json"
_NOT_IDENTITY = ("hash", "files")


def text(manifest: dict[str, Any]) -> str:
    """The text of a manifest: sorted keys, indented by two spaces, a newline at the end."""
    return json.dumps(manifest, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def identity(manifest: dict[str, Any]) -> str:
    """sha256 (hex) over the canonical JSON of everything but `hash` and `files`."""
    return digest({key: value for key, value in manifest.items() if key not in _NOT_IDENTITY})


def content_digest(*columns: np.ndarray[Any, Any]) -> str:
    """sha256 (hex) over the little-endian bytes of the columns, which do not depend on Arrow's layout."""
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
    """The manifest's entry for a file beside it: `{"bytes": size, "sha256": hex}`."""
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def read(folder: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """Read the manifest of a folder; check its version, keys and hash, and the lengths of its files.

    Raises:
        StoreError: the manifest or one of `keys` is missing, it is not JSON, has a newer version or another hash than
            its content, or a file is missing or has another length than recorded.
    """
    path = folder / NAME
    try:
        manifest = json.loads(path.read_bytes(), parse_constant=_refuse)
        values = manifest if isinstance(manifest, dict) else {}
        hash_of_values = identity(values)  # a ValueError for text that UTF-8 cannot encode
    except FileNotFoundError:
        if not folder.is_dir():
            raise StoreError(fault(folder, "does not exist", remedy="build it with python -m streams.build")) from None
        raise StoreError(fault(folder, f"is not a task store: it holds no {NAME}", remedy="build it again")) from None
    except OSError as error:
        remedy = "get read access, or copy the store again"
        raise StoreError(fault(path, "cannot be read", error.strerror, remedy)) from None
    except (ValueError, RecursionError) as error:
        raise StoreError(fault(path, "cannot be read as JSON", type(error).__name__, "build the store again")) from None
    version = values.get("format_version")
    if type(version) is not int or version < 1:
        raise StoreError(fault(path, "format_version: must be a whole number", version, "build the store again"))
    if version > NEWEST_VERSION:
        rule = f"format_version: this package reads versions up to {NEWEST_VERSION}"
        raise StoreError(fault(path, rule, version, "update foml-orchestrator or build the store again"))
    missing = [key for key in keys if key not in manifest]
    if missing:
        raise StoreError(*(fault(path, f"{key}: is missing", remedy="build the store again") for key in missing))
    if hash_of_values != manifest["hash"]:
        rule = f"hash: must be the hash of the manifest, {hash_of_values}"
        raise StoreError(
            fault(path, rule, manifest["hash"], "it was changed after it was written: build the store again")
        )
    if not isinstance(manifest["files"], dict):
        raise StoreError(fault(path, "files: must be a mapping", remedy="build the store again"))
    _check_lengths(folder, manifest["files"])
    return values


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _check_lengths(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    faults = []
    for name, entry in files.items():
        if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
            rule = f"files.{name}: must hold bytes and sha256"
            faults.append(fault(folder / NAME, rule, entry, "build the store again"))
            continue
        try:
            size = (folder / name).stat().st_size
        except (OSError, ValueError):  # a ValueError for a name with a null character
            faults.append(fault(folder / name, "is missing", remedy="copy or build the store again"))
            continue
        if size != entry["bytes"]:
            rule = f"must have {entry['bytes']} bytes"
            faults.append(fault(folder / name, rule, size, "it was cut or changed: copy or build the store again"))
    if faults:
        raise StoreError(*faults)


def verify_bytes(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """One line for each file of a folder, the manifest included, whose bytes are not those that were written."""
    faults = []
    if (folder / NAME).read_bytes() != text(manifest).encode():
        rule = "must be in the form in which it was written"
        faults.append(fault(folder / NAME, rule, remedy="build the store again"))
    for name, entry in manifest["files"].items():
        try:
            actual = file_digest(folder / name)
        except OSError as error:
            faults.append(fault(folder / name, "cannot be read", error.strerror, "copy or build the store again"))
            continue
        if actual != entry["sha256"]:
            rule = f"sha256 must be {entry['sha256']}"
            faults.append(fault(folder / name, rule, actual, "it was changed: copy or build the store again"))
    return faults
