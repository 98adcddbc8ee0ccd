"""Reads images whose labels are in a file beside them: CSV, JSON lines or Parquet."""

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streams.errors import SourceError, fault
from streams.sources.decode import SUFFIXES
from streams.sources.folder import SPLIT_OF, walk
from streams.sources.image_files import Listing, shortened
from streams.sources.labels import NO_COLUMN, Columns, Meanings, read_rows

STEMS = frozenset({"metadata", "labels"})
"""The names of label files that are recognized beside images."""
FILES = frozenset({".csv", ".tsv", ".jsonl"})
_ALL = FILES | {".parquet"}
_Columns = Mapping[str, pa.Array | pa.ChunkedArray | list[Any]]
"""The columns of a label file by name; lists where types are not known before they are converted."""


def label_files(root: Path) -> list[Path]:
    """The label files of a folder: one in it, or one in each of its folders that name a split."""
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name.lower() in SPLIT_OF]
    files = [_in_folder(folder) for folder in (root, *folders)]
    return files[0] or [path for part in files[1:] for path in part]


def _in_folder(folder: Path) -> list[Path]:
    named = [path for path in folder.iterdir() if path.stem.lower() in STEMS and path.suffix.lower() in _ALL]
    if len(named) > 1:
        names = ", ".join(sorted(path.name for path in named))
        raise SourceError(fault(folder, "must have one label file", names, "name one of them by data"))
    return [path for path in named if not path.is_dir()]


def list_labelled(files: list[Path], columns: Columns, given_split: bool) -> Listing:
    """List the images that label files name, by their paths or names in the folder of the file.

    A name may be a path, or the name of a file in any folder below, with or without its suffix, if one image has it.

    Args:
        files: one label file, or one in the folder of each split.
        columns: the columns that the user names.
        given_split: whether a column of splits, or the folders' names, are used.

    Raises:
        SourceError: one line for every file that cannot be read and every row without an image; or see `read_rows`.
    """
    root = files[0].parent if len(files) == 1 else files[0].parent.parent
    read = [_read(file) for file in files]
    where = files[0] if len(files) == 1 else root
    image = columns.find("image", [*read[0]], where)
    assert image is not None
    meanings = Meanings.find(columns, [*read[0]], where, given_split)
    tables = _tables(files, read, [image, *meanings.names])
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise SourceError(fault(root, "label files must have the same columns", error)) from None
    splits = None
    if len(files) > 1 and given_split:
        splits = [file.parent.name for file, part in zip(files, tables, strict=True) for _ in range(part.num_rows)]
    rows = read_rows(table.select(meanings.names), meanings, where, None, splits)
    paths: list[str] = []
    faults: list[str] = []
    for file, part in zip(files, tables, strict=True):
        prefix = "" if len(files) == 1 else f"{file.parent.name}/"
        find, line = _finder(file.parent), 1 if file.suffix.lower() == ".jsonl" else 2
        for row, name in enumerate(part.column(image).to_pylist()):
            try:
                paths.append(prefix + find(name))
            except LookupError as error:
                faults.append(fault(f"{file}: line {row + line}", str(error), name))
    if faults:
        raise SourceError(*shortened(faults, f"{root}: {{}} more rows have no image"))
    twice = sorted(path for path, count in Counter(paths).items() if count > 1)
    if twice:
        rule = "an image must be in one row; several labels for an image are not supported"
        raise SourceError(fault(where, rule, f"{len(twice)} are in several, such as {twice[0]}"))
    named = set(paths)
    unnamed = sum(1 for path in walk(root).images if path not in named) if paths else 0
    remarks = [f"{unnamed} images have no row in the label file and are left out"] if unnamed else []
    return Listing(
        "image folder with a label file",
        root,
        paths,
        rows.labels,
        rows.notices,
        remarks,
        splits=rows.splits,
        class_names=rows.class_names,
        paths=[*files, *(root / path for path in paths)],
        tasks=rows.tasks,
        order=rows.order,
    )


def _finder(folder: Path) -> Callable[[object], str]:
    """A function from the name in a row to the image's path relative to the folder; it raises `LookupError`."""
    images = walk(folder).images
    exact = set(images)
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in images:
        pure = PurePosixPath(path)
        by_name[pure.name].append(path)
        by_name[pure.stem].append(path)

    def find(name: object) -> str:
        text = "" if name is None else PurePosixPath(str(name)).as_posix()
        if text in exact:
            return text
        candidates = by_name.get(text, [])
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise LookupError(f"names several images, such as {candidates[0]} and {candidates[1]}")
        if (folder / text).is_file() and PurePosixPath(text).suffix.lower() not in SUFFIXES:
            raise LookupError(f"names a file that is no image ({' '.join(sorted(SUFFIXES))})")
        raise LookupError("names no image")

    return find


def _tables(files: Sequence[Path], read: Sequence[_Columns], names: Sequence[str]) -> list[pa.Table]:
    """One table for each label file, of the named columns only: values of others need no common type.

    Raises:
        SourceError: one line for every column that is missing, or whose values are not of one type.
    """
    tables: list[dict[str, Any]] = []
    faults: list[str] = []
    for file, columns in zip(files, read, strict=True):
        tables.append({})
        for name in dict.fromkeys(names):
            if name not in columns:
                faults.append(fault(file, f"must have the column {name}, as {files[0]} has", ", ".join(columns)))
                continue
            try:
                values = columns[name]
                tables[-1][name] = pa.array(values) if isinstance(values, list) else values
            except NO_COLUMN as error:
                faults.append(fault(f"{file}: {name}", "must hold values of one type", error, "correct this column"))
    if faults:
        raise SourceError(*faults)
    return [pa.table(table) for table in tables]


def _read(file: Path) -> _Columns:
    """The columns of a label file by name; text in CSV, where types are not known."""
    try:
        if file.suffix.lower() == ".parquet":
            table = pq.read_table(file)
            return dict(zip(table.column_names, table.columns, strict=True))
        text = file.read_text(encoding="utf-8-sig")
        return _json_lines(text, file) if file.suffix.lower() == ".jsonl" else _csv(text, file)
    except (OSError, UnicodeDecodeError, pa.ArrowException, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SourceError(fault(file, "cannot be read", reason, "replace this file")) from None


def _csv(text: str, file: Path) -> _Columns:
    lines = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if file.suffix.lower() == ".tsv" else ",", strict=True
    )
    header = [name.strip() for name in next(lines, [])]
    if len(set(header)) != len(header) or not header:
        raise SourceError(fault(file, "must start with a line of distinct column names", ", ".join(header)))
    rows: list[list[str]] = []
    for line in lines:
        if line and len(line) != len(header):
            raise SourceError(fault(f"{file}: line {lines.line_num}", f"must have {len(header)} values", len(line)))
        rows += [line] if line else []
    return {name: pa.array([row[number].strip() for row in rows], pa.string()) for number, name in enumerate(header)}


def _json_lines(text: str, file: Path) -> _Columns:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), start=1):  # a value may hold the other ends of lines, as U+2028
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise SourceError(fault(f"{file}: line {number}", "cannot be read as JSON", error)) from None
        if row is not None and not isinstance(row, dict):
            raise SourceError(fault(f"{file}: line {number}", "must be a mapping", type(row).__name__))
        rows += [row] if row is not None else []
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
