"""The columns of a table of labelled images: which column means what, and the classes and pools that they name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa

from streams.errors import SourceError, fault
from streams.recipe import TRAIN
from streams.sources.folder import SPLIT_OF
from streams.sources.image_files import shortened

_USUAL = {
    "image": ("image", "img", "file_name", "filename", "file", "path", "image_path"),
    "label": ("label", "labels", "class", "target", "category", "fine_label"),
    "split": ("split",),
    "task": ("task", "domain"),
}
"""The names of columns that are recognized, by their meaning, in lower case."""
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?|nan|[+-]?inf", re.IGNORECASE)
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
NO_COLUMN = (pa.ArrowException, OverflowError, UnicodeError)
"""What Arrow raises for values of several types, whole numbers beyond 64 bits, and text that is not Unicode."""
ONE_LABEL = "an image has one label that names its class; several labels for an image are not supported"
NO_REGRESSION = "labels must name classes; regression is not supported"


@dataclass(frozen=True)
class Columns:
    """The columns that a user names; None for the usual names.

    Attributes:
        image: of images or the paths of their files.
        label: of classes.
        split: of pools.
        task: of tasks.
        order: of numbers or times that order the images.
        tasks: whether tasks are read.
    """

    image: str | None = None
    label: str | None = None
    split: str | None = None
    task: str | None = None
    order: str | None = None
    tasks: bool = False

    def find(self, meaning: str, names: Sequence[str], where: object, required: bool = True) -> str | None:
        """The name of the column with a meaning, an attribute of this class.

        Raises:
            SourceError: the table does not have the named column; or, if it is required, several with usual names or
                none.
        """
        named: str | None = getattr(self, meaning)
        if named is not None and named not in names:
            rule = f"must have the column {named}, which {meaning}_column names"
            raise SourceError(fault(where, rule, ", ".join(names)))
        usual = [name for name in names if name.lower() in _USUAL[meaning]]
        if named is not None or (not required and len(usual) != 1):
            return named
        if len(usual) != 1:
            rule = f"must have one column of {meaning}s, such as {_USUAL[meaning][0]}"
            raise SourceError(fault(where, rule, ", ".join(names), f"name the column by {meaning}_column"))
        return usual[0]


@dataclass(frozen=True)
class Labels:
    """The classes of n rows.

    Attributes:
        of_rows: n class names, None where a row has no label.
        names: the distinct names, in the order of the classes.
    """

    of_rows: list[str | None]
    names: list[str]


def class_labels(column: pa.ChunkedArray, where: object, names: Sequence[str] | None = None) -> Labels:
    """The classes that a column of whole numbers or text names.

    Numbers are sorted by value, text as text. Text in which each value is a whole number is sorted like numbers.

    Args:
        column: n labels.
        where: the start of an error's line.
        names: the names of the classes 0, 1, ...; -1 is a row without a label then.

    Raises:
        SourceError: one line for every row with a missing label or an unknown class; or the labels do not name classes.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_nested(kind):
        raise SourceError(fault(where, ONE_LABEL, kind, "name another column by label_column"))
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        raise SourceError(fault(where, NO_REGRESSION, kind, "name another column by label_column"))
    values = column.to_pylist()
    missing = [number for number, value in enumerate(values) if value is None or value == ""]
    if missing:
        faults = [fault(f"{where}: row {number}", "has no label") for number in missing]
        raise SourceError(*shortened(faults, f"{where}: {{}} more rows have no label", 5))
    if names is not None and pa.types.is_integer(kind):
        outside = sorted({value for value in values if not -1 <= value < len(names)})
        if outside:
            rule = f"labels must be within 0..{len(names) - 1}, the classes that the source names"
            raise SourceError(fault(where, rule, outside[0]))
        return Labels([names[value] if value >= 0 else None for value in values], list(names))
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_text(kind)):
        raise SourceError(fault(where, "labels must be whole numbers or text", kind, "name another by label_column"))
    text = [str(value) for value in values]
    distinct = set(text)
    if all(_WHOLE.fullmatch(value) for value in distinct):
        return Labels([*text], sorted(distinct, key=int))
    if _is_text(kind) and all(_WHOLE.fullmatch(value) or _FLOAT.fullmatch(value) for value in distinct):
        example = next(value for value in sorted(distinct) if not _WHOLE.fullmatch(value))
        raise SourceError(fault(where, NO_REGRESSION, example, "name another column by label_column"))
    return Labels([*text], sorted(distinct))


def one_numbering(
    labels: Sequence[Sequence[Any]], names: Sequence[Sequence[str] | None], where: Sequence[object]
) -> tuple[list[Sequence[Any]], list[str] | None, list[str]]:
    """Labels of the parts of a source, such as its splits, as numbers of one list of classes.

    Classes are those of the first part and then the others' in their order, so that labels stay where all parts number
    their classes alike. Labels that are text or -1 stay.

    Args:
        labels: those of each part.
        names: the names of each part's classes 0, 1, ...; None if it has none.
        where: each part, for errors.

    Returns:
        The labels of each part, the names of all classes (None if the first part has none and the others agree), and a
        line if labels are changed.

    Raises:
        SourceError: one line for every part with a number that names no class, where parts number classes differently.

    >>> one_numbering([[0, 1], [0, 1, 1]], [["ant", "bee"], ["ant", "cow"]], ["train", "test"])[:2]
    ([[0, 1], [0, 2, 2]], ['ant', 'bee', 'cow'])
    """
    named = [list(each) for each in names if each is not None]
    longest = max(named, key=len, default=[])
    if all(each == longest[: len(each)] for each in named):
        return [*labels], None if names[0] is None else longest, []
    common = list(dict.fromkeys(name for each in named for name in each))
    number_of = {name: number for number, name in enumerate(common)}
    results: list[Sequence[Any]] = []
    faults: list[str] = []
    for part, own_names, place in zip(labels, names, where, strict=True):
        numbers = sorted({value for value in part if _is_number(value)})
        outside = [value for value in numbers if own_names is not None and not -1 <= value < len(own_names)]
        if own_names is None and numbers:
            rule = "must have names of its classes, since the others number theirs differently"
            faults.append(fault(place, rule, f"number {numbers[0]}", "name classes by text"))
        elif own_names is not None and outside:
            rule = f"labels must be within 0..{len(own_names) - 1}, the classes that it names"
            faults.append(fault(place, rule, outside[0]))
        new_of = {-1: -1, **{number: number_of[name] for number, name in enumerate(own_names or ())}}
        results.append([new_of.get(value, value) if _is_number(value) else value for value in part])
    if faults:
        raise SourceError(*faults)
    changed = sum(1 for old, new in zip(labels, results, strict=True) if [*old] != new)
    line = f"{changed} of {len(results)} parts number their classes differently; classes are matched by their names"
    return results, common, [line] if changed else []


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def pool_numbers(values: Sequence[object], where: object) -> list[int]:
    """The numbers of the pools that texts such as `train`, `val` and `test` name.

    Raises:
        SourceError: a value names no pool, or no image trains.
    """
    number_of = {value: SPLIT_OF.get(str(value).strip().lower(), -1) for value in set(values)}
    unknown = sorted(str(value) for value, number in number_of.items() if number < 0)
    if unknown:
        remedy = "set given_split=false to draw the pools"
        raise SourceError(fault(where, f"a split must be one of {', '.join(SPLIT_OF)}", unknown[0], remedy))
    if 0 not in number_of.values():
        raise SourceError(fault(where, "must have training images", ", ".join(sorted(map(str, number_of)))))
    return [number_of[value] for value in values]


def file_splits(paths: Sequence[Path], root: Path) -> list[str] | None:
    """The split that the name of each file or of a folder around it gives, such as `train-00000-of-00002.parquet`.

    The first word of a file's name counts, or else a whole folder's name. If no file has such a name, any word of both
    counts, provided that the files name both training and held-out images (`cifar-train-0.tar`, `cifar-test-0.tar`).

    Returns:
        One name for each file, or None if no file names a split or `root` is the only file.

    Raises:
        SourceError: some of the files name a split and others do not.
    """
    if root.is_file():
        return None
    names = [path.relative_to(root).parts[::-1] for path in paths]
    splits = [_first_split([_words(name)[0], *folders]) for name, *folders in names]
    if not any(splits):
        splits = [_first_split([word for part in parts for word in _words(part)]) for parts in names]
        pools = {SPLIT_OF[split.lower()] for split in splits if split is not None}
        if TRAIN not in pools or len(pools) < 2:
            return None
    named = [split for split in splits if split is not None]
    if len(named) < len(splits):
        other = paths[splits.index(None)].relative_to(root)
        rule = "the names of all files must give a split, or none of them"
        raise SourceError(fault(root, rule, other, "move it, or set given_split=false"))
    return named


def _words(name: str) -> list[str]:
    return re.split(r"[-_.]", name)


def _first_split(words: Sequence[str]) -> str | None:
    return next((word for word in words if word.lower() in SPLIT_OF), None)


@dataclass(frozen=True)
class Meanings:
    """The columns of a table of n rows, except for the images.

    Attributes:
        label: the name of the column of classes.
        split: of pools; None if the table has none or it is not used.
        task: of tasks; None if the table has none or it is not used.
        order: of times; None if the table has none or it is not used.
    """

    label: str
    split: str | None
    task: str | None
    order: str | None

    @classmethod
    def find(cls, columns: Columns, names: Sequence[str], where: object, given_split: bool) -> "Meanings":
        """The columns that are named by the user or by usual names.

        Raises:
            SourceError: see `Columns.find`; or tasks are read, and there is no column of tasks or times.
        """
        label = columns.find("label", names, where)
        assert label is not None
        split = columns.find("split", names, where, required=False) if given_split else None
        task = columns.find("task", names, where, required=False) if columns.tasks else None
        if columns.order is not None and columns.order not in names:
            rule = f"must have the column {columns.order}, which order_column names"
            raise SourceError(fault(where, rule, ", ".join(names)))
        if columns.tasks and task is None and columns.order is None:
            rule = "must have a column of tasks, such as task, or of times"
            raise SourceError(fault(where, rule, ", ".join(names), "name one by task_column or order_column"))
        return cls(label, split, task, columns.order)

    @property
    def names(self) -> list[str]:
        """All columns."""
        return [name for name in (self.label, self.split, self.task, self.order) if name is not None]


@dataclass(frozen=True)
class Rows:
    """The rows of a table that have a label.

    Attributes:
        labelled: which of all rows these are.
        labels: the class of each.
        class_names: the classes in order.
        splits: the numbers of their pools; None if the table has no splits.
        tasks: the names of their tasks; None if the table has none or they are not used.
        order: what orders them; None if the table has no such column or it is not used.
        notices: one line if rows are left out.
    """

    labelled: list[bool]
    labels: list[str]
    class_names: list[str]
    splits: list[int] | None
    tasks: list[str] | None
    order: list[Any] | None
    notices: list[str]


def read_rows(
    table: pa.Table, meanings: Meanings, where: Path, names: Sequence[str] | None, splits: Sequence[str] | None
) -> Rows:
    """The labels, pools, tasks and times in a table.

    Args:
        table: with the columns of `meanings`.
        meanings: what they mean.
        where: the start of an error's line.
        names: the names of classes 0, 1, ... (see `class_labels`).
        splits: n splits that the files' names give, if there is no column of them.

    Raises:
        SourceError: one line for every fault of a column.
    """
    labels = class_labels(table.column(meanings.label), f"{where}: {meanings.label}", names)
    labelled = [label is not None for label in labels.of_rows]

    def values(column: str | None) -> list[Any] | None:
        if column is None:
            return None
        present = [*compress(table.column(column).to_pylist(), labelled)]
        missing = [number for number, value in enumerate(present) if value is None or value == "" or value != value]
        if missing:
            raise SourceError(fault(f"{where}: {column}", "must have a value in each row", f"none in row {missing[0]}"))
        return present

    texts = values(meanings.split) or (None if splits is None else [*compress(splits, labelled)])
    tasks, order = values(meanings.task), values(meanings.order)
    without = len(labelled) - sum(labelled)
    return Rows(
        labelled,
        [label for label in labels.of_rows if label is not None],
        labels.names,
        None if texts is None else pool_numbers(texts, where),
        None if tasks is None else [str(task) for task in tasks],
        None if order is None else comparable(order, f"{where}: {meanings.order}"),
        [f"{without} rows without a label (-1) are left out"] if without else [],
    )


def comparable(values: Sequence[Any], where: str) -> list[Any]:
    """Numbers or times of one kind; text is read as a number other than nan, or else as a date and time of ISO 8601.

    >>> comparable(["10", "9.5"], "a.csv: time"), comparable(["2024-01-31"], "a.csv: time")
    ([10.0, 9.5], [datetime.datetime(2024, 1, 31, 0, 0)])

    Raises:
        SourceError: a value is neither, or the values cannot be compared.
    """
    results: list[Any] = [*values]
    if any(isinstance(value, str) for value in values):
        try:
            results = [float(value) for value in values]
        except ValueError:
            try:
                results = [datetime.fromisoformat(str(value)) for value in values]
            except ValueError as error:
                rule = "must be numbers, or dates and times of ISO 8601"
                raise SourceError(fault(where, rule, error, "write 2024-01-31 or 2024-01-31T12:00:00")) from None
    if unordered := [value for value, result in zip(values, results, strict=True) if result != result]:
        raise SourceError(fault(where, "must be numbers that have an order", unordered[0], "remove these rows"))
    try:
        sorted(results)
    except TypeError as error:
        raise SourceError(fault(where, "must be of one kind, all with a time zone or none", error)) from None
    return results


def class_names_of(features: Mapping[str, Any], column: str) -> list[str] | None:
    """The class names that Hugging Face's description of a column holds; None if it has none."""
    feature = features.get(column)
    names = feature.get("names") if isinstance(feature, Mapping) else None
    if isinstance(names, Mapping):  # an older form
        names = [names[key] for key in sorted(names, key=int)]
    return [str(name) for name in names] if isinstance(names, list) and names else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
