"""Reads image folders in ZIP and TAR files without unpacking them, and WebDataset's shards."""

import bz2
import gzip
import json
import lzma
import posixpath
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow as pa

from streams.errors import SourceError, fault
from streams.sources.decode import SUFFIXES, Content
from streams.sources.folder import Names, list_names
from streams.sources.image_files import Listing, shortened
from streams.sources.labels import NO_COLUMN, Columns, class_labels, file_splits, pool_numbers
from streams.store.cache import cache_folder

ZIP, TAR = (".zip",), (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_DAMAGE: tuple[type[Exception], ...] = (OSError, EOFError, RuntimeError, ValueError, tarfile.TarError)
_DAMAGE += (zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""What reading an archive that is damaged, encrypted or packed in an unknown way raises."""


def list_archive(path: Path, given_split: bool, nested_classes: bool) -> Listing:
    """List the image folder in a ZIP or TAR file, which may be in one more folder.

    Raises:
        SourceError: the archive cannot be read, or see `folder.list_names`.
    """
    contents = _zip_contents if path.name.lower().endswith(ZIP) else _tar_contents
    try:
        members = _zip_members(path) if path.name.lower().endswith(ZIP) else _tar_members(path)
    except _DAMAGE as error:
        raise SourceError(_unreadable(path, error)) from None
    links = {name for name, is_held in members.items() if not is_held and not _is_image(name)}
    files = [PurePosixPath(name) for name in members if name not in links]
    names, top = Names(), _common_top(files)
    for name in files:
        names.add(name.relative_to(top) if name.is_relative_to(top) else name)
    listing = list_names(path, names, given_split, nested_classes)
    full_names = [(PurePosixPath(top) / name).as_posix() for name in listing.files]
    return Listing(
        "archive of an image folder",
        path,
        listing.files,
        listing.labels,
        listing.notices,
        [*listing.remarks, *_links_left_out(sorted(links))],
        listing.splits,
        contents=lambda: contents(path, full_names),
        paths=[path],
    )


def _is_image(name: str) -> bool:
    """Whether a file's name, or a suffix of several parts such as `seg.png`, ends like an image's."""
    return f".{name.rpartition('.')[2].lower()}" in SUFFIXES


def _links_left_out(links: Sequence[str]) -> list[str]:
    if not links:
        return []
    words = f"{len(links)} links to folders, or to files that are not in the archive, are left out"
    return [f"{words}: {', '.join(shortened(links, '{} more', 5))}"]


def _common_top(members: Sequence[PurePosixPath]) -> str:
    """The one folder that holds all images of an archive, if several folders in it hold images; `.` otherwise."""
    names = Names()
    for member in members:
        names.add(member)
    images = [name.split("/") for name in names.images]
    tops, folders = {parts[0] for parts in images}, {parts[1] for parts in images if len(parts) > 2}
    return tops.pop() if len(tops) == 1 and len(folders) > 1 else "."


def _zip_members(path: Path) -> dict[str, bool]:
    with zipfile.ZipFile(path) as archive:
        return {_name(info.filename): True for info in archive.infolist() if not info.is_dir()}


def _zip_contents(path: Path, names: Sequence[str]) -> Iterator[Content]:
    with zipfile.ZipFile(path) as archive:
        original = {_name(info.filename): info for info in archive.infolist() if not info.is_dir()}
        for name in names:
            try:
                yield archive.read(original[name])
            except _DAMAGE as error:
                yield error


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo | None]]:
    """The name of each file and link in an archive, and the member with its content.

    The member of a link is the file that it leads to; None if this is a folder or not in the archive. Symbolic links
    come last, because a link may precede its target.

    Raises:
        tarfile.TarError: the archive is damaged, or was cut between two files, which Python's reader does not notice.
    """
    members: dict[str, tarfile.TarInfo | None] = {}
    links: list[str] = []
    for member in archive:
        # A hard link leads to a file before it, even one of its own name, which tar writes for a file given twice.
        content = members.get(posixpath.normpath(member.linkname)) if member.islnk() else member
        members[posixpath.normpath(member.name)] = content
        if content is not None and content.issym():
            links.append(member.name)
        elif content is None or content.isfile():
            yield _name(member.name), content
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the end of the archive is missing")
    yield from ((_name(link), _target(link, members)) for link in links)


def _target(link: str, members: Mapping[str, tarfile.TarInfo | None]) -> tarfile.TarInfo | None:
    """The file that a symbolic link leads to; None if this is a folder or not in the archive."""
    for _ in range(40):  # links that Linux follows, too; more are a circle
        member = members.get(posixpath.normpath(link))
        if member is None or not member.issym():
            return member if member is not None and member.isfile() else None
        link = posixpath.join(posixpath.dirname(link), member.linkname)
    return None


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo | None) -> Content:
    file = None if member is None else archive.extractfile(member)
    return tarfile.ReadError("the archive does not hold the file that this link names") if file is None else file.read()


def _tar_members(path: Path) -> dict[str, bool]:
    with tarfile.open(path) as archive:
        return {name: member is not None for name, member in _members(archive)}


def _tar_contents(path: Path, names: Sequence[str]) -> Iterator[Content]:
    with _seekable(path) as file, tarfile.open(fileobj=file) as archive:
        original = dict(_members(archive))
        for name in names:
            try:
                yield _read(archive, original[name])
            except _DAMAGE as error:
                yield error


@contextmanager
def _seekable(path: Path) -> Iterator[IO[bytes]]:
    """A TAR file, unpacked into a temporary file if it is packed, since a packed one is read from its start only."""
    openers: dict[str, Any] = {".gz": gzip.open, ".tgz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    if (opener := openers.get(path.suffix.lower())) is None:
        with path.open("rb") as file:
            yield file
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    with opener(path) as packed, tempfile.TemporaryFile(dir=cache_folder()) as file:
        shutil.copyfileobj(packed, file, 1 << 20)
        file.seek(0)
        yield file


def _name(member: str) -> str:
    return PurePosixPath(member).as_posix()


def list_shards(root: Path, columns: Columns, given_split: bool) -> Listing:
    """List WebDataset's shards: TAR files, in which files of one name and different suffixes are a sample.

    The label is in `NAME.cls`, or in `NAME.json` under a usual name or the one that the user names. Shards are read in
    the order of their names, samples in the order of the shard.

    Raises:
        SourceError: one line for every shard that cannot be read and every sample without an image or a label.
    """
    folder = root if root.is_dir() else root.parent
    shards = sorted(path for path in root.rglob("*") if is_tar(path)) if root.is_dir() else [root]
    faults: list[str] = []
    files: list[str] = []
    labels: list[object] = []
    shard_of: list[int] = []
    for number, shard in enumerate(shards):
        where = shard.relative_to(folder).as_posix()
        try:
            samples = _samples(shard)
        except _DAMAGE as error:
            faults.append(_unreadable(shard, error))
            continue
        for key, parts in samples.items():
            images = [suffix for suffix in parts if _is_image(suffix)]
            if len(images) != 1:
                faults.append(fault(f"{shard}: {key}", "must have one image", ", ".join(sorted(parts))))
                continue
            try:
                labels.append(_label(parts, columns, f"{shard}: {key}"))
            except SourceError as error:
                faults += error.faults
                continue
            files.append(f"{where}/{key}.{images[0]}")
            shard_of.append(number)
    if faults:
        raise SourceError(*shortened(faults, f"{root}: {{}} more samples are wrong"))
    if not files:
        raise SourceError(fault(root, "must hold samples of an image and a label"))
    splits = file_splits(shards, root) if given_split else None
    of_rows = class_labels(_column(labels, root), root)
    return Listing(
        "WebDataset shards",
        folder,
        files,
        [str(label) for label in of_rows.of_rows],
        splits=None if splits is None else pool_numbers([splits[number] for number in shard_of], root),
        class_names=of_rows.names,
        contents=lambda: _shard_contents(folder, shards, set(files)),
        paths=shards,
    )


def is_tar(path: Path) -> bool:
    """Whether this is the name of a TAR file, packed or not."""
    return path.name.lower().endswith(TAR) and not path.is_dir()


def holds_samples(path: Path) -> bool:
    """Whether a TAR file holds samples, an image and a `.cls` or `.json` file of one name, as WebDataset's shards do.

    The first 21 files decide, unless there are such label files among them and no sample.

    Raises:
        SourceError: the archive cannot be read.
    """
    images: set[str] = set()
    labels: set[str] = set()
    try:
        with tarfile.open(path) as archive:
            for number, (name, _) in enumerate(_members(archive)):
                key, suffix = _split_name(name)
                if suffix in ("cls", "json"):
                    labels.add(key)
                elif _is_image(suffix):
                    images.add(key)
                if key in labels and key in images:
                    return True
                if number >= 20 and not labels:
                    return False
    except _DAMAGE as error:
        raise SourceError(_unreadable(path, error)) from None
    return bool(labels) and not images  # samples without their images, which `list_shards` reports


def _split_name(member: str) -> tuple[str, str]:
    """The key of a sample and the suffix after the first dot of the file's name, which is empty for a hidden file."""
    folder, slash, name = _name(member).rpartition("/")
    stem, _, suffix = name.partition(".")
    return folder + slash + stem, suffix.lower() if stem else ""


def _samples(shard: Path) -> dict[str, dict[str, bytes]]:
    """The files of each sample by suffix, images without their content, in the order of the shard."""
    samples: dict[str, dict[str, bytes]] = defaultdict(dict)
    with tarfile.open(shard) as archive:
        for name, member in _members(archive):
            key, suffix = _split_name(name)
            if not suffix:
                continue
            if _is_image(suffix):
                samples[key] = samples.pop(key, {})  # samples are in the order of their images
            content = _read(archive, member) if suffix in ("cls", "json") else None
            samples[key][suffix] = content if isinstance(content, bytes) else b""
    return samples


def _label(parts: dict[str, bytes], columns: Columns, where: str) -> object:
    try:
        if "cls" in parts and columns.label is None:
            return parts["cls"].decode().strip()
        values: Any = json.loads(parts["json"])
    except KeyError:
        raise SourceError(fault(where, "must have a label, in .cls or .json", ", ".join(sorted(parts)))) from None
    except ValueError as error:
        raise SourceError(fault(where, "its label cannot be read", error)) from None
    value = values[str(columns.find("label", [*values], where))] if isinstance(values, dict) else values
    return str(value) if type(value) is int else value  # as text, like in .cls files; `class_labels` sorts numbers


def _column(labels: list[object], where: Path) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([pa.array(labels)])
    except NO_COLUMN as error:
        raise SourceError(fault(where, "labels must be of one type", error)) from None


def _shard_contents(folder: Path, shards: Sequence[Path], names: set[str]) -> Iterator[Content]:
    for shard in shards:
        where = shard.relative_to(folder).as_posix()
        try:
            with tarfile.open(shard) as archive:
                for name, member in _members(archive):
                    key, suffix = _split_name(name)
                    if f"{where}/{key}.{suffix}" in names:
                        yield _read(archive, member)
        except _DAMAGE as error:
            raise SourceError(_unreadable(shard, error)) from None


def _unreadable(path: Path, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return fault(path, "cannot be read as an archive", reason, "it was cut, damaged or encrypted: copy it again")
