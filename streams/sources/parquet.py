"""Reads data sets in the forms of Hugging Face: Parquet files, and folders written by `save_to_disk`.

An image is a struct of `bytes` and `path`, or binary. Labels are read first, images one batch after the other.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streams.errors import SourceError, fault
from streams.sources.decode import Content, name_fault
from streams.sources.image_files import Listing
from streams.sources.labels import Columns, Meanings, class_names_of, file_splits, one_numbering, read_rows

STATE = "state.json"
"""The file that `save_to_disk` writes beside the data."""
SPLITS_FILE = "dataset_dict.json"
_ROWS = 128
"""Images that are in memory as they are stored."""


@dataclass(frozen=True)
class _Table:
    """One file of a data set, of which `read` and `batches` read the named columns."""

    path: Path
    schema: pa.Schema
    read: Callable[[list[str]], pa.Table]
    batches: Callable[[list[str]], Iterable[pa.RecordBatch]]


def list_parquet(root: Path, columns: Columns, given_split: bool = True) -> Listing:
    """List a Parquet file, or a folder of them (`train-00000-of-00002.parquet`, `train/0000.parquet`).

    Raises:
        SourceError: one line for every file that cannot be read; or the columns do not hold one image and one class.
    """
    files = [root] if root.is_file() else sorted(path for path in root.rglob("*.parquet") if not path.is_dir())
    splits = file_splits(files, root) if given_split else None
    return _list(root, _open_all(files, _open_parquet), splits, columns, given_split, "Parquet files")


def holds_images(path: Path) -> bool:
    """Whether a Parquet file has a column of images, rather than of their files' names.

    Raises:
        SourceError: the file cannot be read.
    """
    (table,) = _open_all([path], _open_parquet)
    return any(_is_image(column.type) for column in table.schema)


def list_saved(root: Path, columns: Columns, given_split: bool = True) -> Listing:
    """List a folder written by `save_to_disk` of a data set, or of a dictionary of data sets by split.

    Raises:
        SourceError: see `list_parquet`.
    """
    folders, names = [root], None
    if (root / SPLITS_FILE).is_file():
        names = _json(root / SPLITS_FILE).get("splits")
        if not isinstance(names, list) or not names:
            raise SourceError(fault(root / SPLITS_FILE, "must name splits", names))
        folders = [root / str(name) for name in names]
    files: list[Path] = []
    splits: list[str] = []
    for number, folder in enumerate(folders):
        state = _json(folder / STATE)
        if state.get("_indices_data_files"):
            remedy = "call flatten_indices() before save_to_disk"
            raise SourceError(
                fault(folder, "holds a selection of rows by indices, which is not supported", ..., remedy)
            )
        try:
            parts = [folder / entry["filename"] for entry in state["_data_files"]]
        except (KeyError, TypeError):
            raise SourceError(fault(folder / STATE, "must name _data_files", remedy="save it again")) from None
        files += parts
        splits += [str(names[number])] * len(parts) if names else []
    tables = _open_all(files, _open_stream)
    return _list(root, tables, splits if names and given_split else None, columns, given_split, "saved data set")


def _list(
    root: Path, tables: Sequence[_Table], splits: Sequence[str] | None, columns: Columns, given_split: bool, form: str
) -> Listing:
    folder = root if root.is_dir() else root.parent
    image, columns = _columns(tables[0], columns)
    meanings = Meanings.find(columns, tables[0].schema.names, tables[0].path, given_split)
    parts, faults = [], []
    for table in tables:
        missing = sorted({image, *meanings.names} - {*table.schema.names})
        try:
            parts += [] if missing else [table.read(meanings.names)]
        except (pa.ArrowException, OSError) as error:
            faults.append(_unreadable(table.path, error))
        if missing:
            faults.append(fault(table.path, f"must have the columns {image}, {', '.join(meanings.names)}", missing[0]))
    if faults:
        raise SourceError(*faults)
    names_of = [class_names_of(_features(table.schema), meanings.label) for table in tables]
    labels_of = [part.column(meanings.label).to_pylist() for part in parts]
    numbers, names, notices = one_numbering(labels_of, names_of, [table.path for table in tables])
    if notices:
        parts = [_with_labels(part, meanings.label, each) for part, each in zip(parts, numbers, strict=True)]
    try:
        joined = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
    except pa.ArrowException as error:
        raise SourceError(fault(root, "columns must have one type in all files", error)) from None
    sizes = [part.num_rows for part in parts]
    texts = None if splits is None else [name for name, size in zip(splits, sizes, strict=True) for _ in range(size)]
    where = tables[0].path if len(tables) == 1 else root
    rows = read_rows(joined, meanings, where, names, texts)
    files = [
        f"{table.path.relative_to(folder).as_posix()}: row {row}"
        for table, size in zip(tables, sizes, strict=True)
        for row in range(size)
    ]
    return Listing(
        form,
        folder,
        [*compress(files, rows.labelled)],
        rows.labels,
        [*notices, *rows.notices],
        splits=rows.splits,
        class_names=rows.class_names,
        contents=lambda: compress(_contents(tables, image), rows.labelled),
        paths=[table.path for table in tables],
        tasks=rows.tasks,
        order=rows.order,
    )


def _with_labels(part: pa.Table, label: str, values: Sequence[Any]) -> pa.Table:
    kind = part.column(label).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    array = pa.array(values, pa.int64() if pa.types.is_integer(kind) else kind)
    return part.set_column(part.schema.names.index(label), label, array)


def _contents(tables: Sequence[_Table], column: str) -> Iterator[Content]:
    for table in tables:
        try:
            for batch in table.batches([column]):
                for value in batch.column(0):
                    yield _content(value.as_py(), table.path.parent)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(_unreadable(table.path, error)) from None


def _content(value: object, folder: Path) -> Content:
    if isinstance(value, Mapping):
        content, path = value.get("bytes"), value.get("path")
        value = content if content is not None or path is None else folder / str(path)
    return value if isinstance(value, bytes | Path) else None


def _columns(table: _Table, columns: Columns) -> tuple[str, Columns]:
    """The column of images, and the columns with that of the classes: as the user or the metadata names them."""
    names, features = table.schema.names, _features(table.schema)
    images = [name for name in names if _is_image(table.schema.field(name).type)]
    if columns.image is None and len(images) == 1:
        columns = replace(columns, image=images[0])
    classes = [name for name in names if class_names_of(features, name)]
    if columns.label is None and len(classes) == 1:
        columns = replace(columns, label=classes[0])
    elif columns.label is None and len(classes) > 1:
        rule = "must have one column of classes"
        raise SourceError(fault(table.path, rule, ", ".join(classes), "name one of them by label_column"))
    image = columns.find("image", names, table.path)
    assert image is not None
    kind = table.schema.field(image).type
    if not _is_image(kind):
        rule = f"{image}: images must be a struct of bytes and path, or binary"
        raise SourceError(fault(table.path, rule, kind, "name another column by image_column"))
    return image, columns


def _is_image(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return "bytes" in {kind.field(number).name for number in range(kind.num_fields)}
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _features(schema: pa.Schema) -> Mapping[str, Any]:
    """Hugging Face's descriptions of the columns, from the schema's metadata; empty if it has none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _open_all(paths: Sequence[Path], open_one: Callable[[Path], _Table]) -> list[_Table]:
    tables, faults = [], []
    for path in paths:
        try:
            tables.append(open_one(path))
        except (pa.ArrowException, OSError, UnicodeError) as error:  # Arrow opens names in UTF-8 only
            faults.append(name_fault(path.parent, path.name) or _unreadable(path, error))
    if faults:
        raise SourceError(*faults)
    return tables


def _open_parquet(path: Path) -> _Table:
    with pq.ParquetFile(path, memory_map=True) as file:
        schema = file.schema_arrow

    def read(names: list[str]) -> pa.Table:
        return pq.ParquetFile(path, memory_map=True).read(columns=names)

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        # Through a buffer and not read ahead, so that no row group is in memory as a whole, however large it is.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            for group in range(file.num_row_groups):
                yield from file.iter_batches(_ROWS, row_groups=[group], columns=names, use_threads=False)

    return _Table(path, schema, read, batches)


def _open_stream(path: Path) -> _Table:
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        schema = reader.schema

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                yield batch.select(names)

    def read(names: list[str]) -> pa.Table:
        return pa.Table.from_batches(batches(names), schema=pa.schema([schema.field(name) for name in names]))

    return _Table(path, schema, read, batches)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(fault(path, "cannot be read as JSON", reason, "save the data set again")) from None
    if not isinstance(value, dict):
        raise SourceError(fault(path, "must be a mapping", type(value).__name__, "save the data set again"))
    return value


def _unreadable(path: Path, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return fault(path, "cannot be read", reason, "it was cut or damaged: copy it again")
