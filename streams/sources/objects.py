"""Reads data sets that are Python objects: map-style ones of PyTorch, and those of Hugging Face."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streams.errors import SourceError, fault
from streams.recipe import WHITE
from streams.sources.decode import Content, Picture, UnsupportedImageError, shown_picture
from streams.sources.folder import SPLIT_OF
from streams.sources.image_files import Listing, shortened
from streams.sources.labels import NO_COLUMN, ONE_LABEL, Columns, class_labels, one_numbering, pool_numbers


@dataclass(frozen=True)
class _Part:
    name: str
    dataset: Any
    rows: int


def list_dataset(
    dataset: Any, columns: Columns, class_names: Sequence[str] | None = None, background: str = WHITE
) -> Listing:
    """List the images of a map-style data set, or of a mapping from splits to such data sets.

    An item is a pair of image and label, or a mapping. Labels are read first: from the attribute `targets`, from the
    column of a Hugging Face data set, or else item by item, so that each item is read twice.

    Args:
        dataset: has `len` and items by index, or maps `train`, `val` and `test` to such data sets.
        columns: the keys of items that are mappings.
        class_names: the names of the classes 0, 1, ...; from `classes` or `features` of each data set if None.
        background: the colour that transparent pixels of PIL images are composited on.

    Raises:
        SourceError: the data set is not map-style; one line for every item without an image and a whole number or text.
    """
    parts, named = _parts(dataset), isinstance(dataset, Mapping)
    if not any(part.rows for part in parts):
        raise SourceError(fault("dataset", "must hold at least one image", "0 items"))
    labels_of = [_labels(part, columns) for part in parts]
    names_of = [list(class_names) if class_names is not None else _names(part.dataset, columns) for part in parts]
    labels, names, notices = one_numbering(labels_of, names_of, [part.name for part in parts])
    where = type(parts[0].dataset).__name__
    try:
        column = pa.chunked_array([pa.array([label for part in labels for label in part])])
    except NO_COLUMN as error:
        raise SourceError(fault(where, f"labels must be whole numbers or text; {ONE_LABEL}", error)) from None
    of_rows = class_labels(column, where, names)
    if None in of_rows.of_rows:
        raise SourceError(fault(where, "each item must have a label", -1))
    return Listing(
        f"data set {where}",
        Path(where),
        [f"{part.name}[{row}]" for part in parts for row in range(part.rows)],
        [str(label) for label in of_rows.of_rows],
        notices,
        splits=pool_numbers([part.name for part in parts for _ in range(part.rows)], where) if named else None,
        class_names=of_rows.names,
        contents=lambda: _contents(parts, columns, background),
        paths=(),
    )


def _parts(dataset: Any) -> list[_Part]:
    items = dataset.items() if isinstance(dataset, Mapping) else [("item", dataset)]
    parts, faults = [], []
    for name, part in items:
        try:
            if not hasattr(part, "__getitem__"):
                raise TypeError("it has no items by index")
            parts.append(_Part(str(name), part, len(part)))
        except TypeError as error:
            rule = "must be map-style: it needs a length and items by index"
            faults.append(fault(type(part).__name__, rule, error, "collect an iterable data set into a list"))
    if isinstance(dataset, Mapping) and not all(part.name.lower() in SPLIT_OF for part in parts):
        faults.append(fault("dataset", f"keys must be of {', '.join(SPLIT_OF)}", ", ".join(map(str, dataset))))
    if not parts and not faults:
        faults.append(fault("dataset", "must hold at least one data set"))
    if faults:
        raise SourceError(*faults)
    return parts


def _labels(part: _Part, columns: Columns) -> list[Any]:
    names = getattr(part.dataset, "column_names", None)
    if isinstance(names, list):  # Hugging Face: a column, without its images
        label = columns.find("label", names, part.name)
        return [_scalar(value) for value in part.dataset[label]]
    targets = getattr(part.dataset, "targets", None)
    if targets is not None and len(targets) == part.rows and getattr(part.dataset, "target_transform", None) is None:
        return [_scalar(value) for value in targets]
    labels: list[Any] = []
    faults: list[str] = []
    for row in range(part.rows):
        try:
            labels.append(_scalar(_item(part, row, columns)[1]))
        except SourceError as error:
            faults += error.faults
    if faults:
        raise SourceError(*shortened(faults, f"{part.name}: {{}} more items are wrong"))
    return labels


def _scalar(value: Any) -> Any:
    """A label as a plain value: a tensor or array of one element is that element."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", 1) is not None:
        try:
            return item()
        except (ValueError, RuntimeError):  # several elements
            return getattr(value, "tolist", lambda: value)()
    return value


def _item(part: _Part, row: int, columns: Columns) -> tuple[Any, Any]:
    """The image and the label of an item."""
    where = f"{part.name}[{row}]"
    try:
        item = part.dataset[row]
    except Exception as error:  # the code of a user may raise anything
        raise SourceError(fault(where, "cannot be read", f"{type(error).__name__}: {error}")) from None
    if isinstance(item, Mapping):
        image, label = (columns.find(meaning, [*item], where) for meaning in ("image", "label"))
        return item[str(image)], item[str(label)]
    if not isinstance(item, tuple | list) or len(item) != 2:
        got = f"{len(item)} values" if isinstance(item, tuple | list) else type(item).__name__
        raise SourceError(fault(where, "an item must be an image and a label, or a mapping", got))
    return item[0], item[1]


def _names(dataset: Any, columns: Columns) -> list[str] | None:
    """The class names that a data set has: `features[label].names` or `classes`."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping) and isinstance(getattr(dataset, "column_names", None), list):
        names = getattr(features.get(str(columns.find("label", [*features], "features"))), "names", None)
    else:
        names = getattr(dataset, "classes", None)
    return [str(name) for name in names] if isinstance(names, list | tuple) and names else None


def _contents(parts: Sequence[_Part], columns: Columns, background: str) -> Iterator[Content]:
    for part in parts:
        for row in range(part.rows):
            try:
                content: Content = _content(_item(part, row, columns)[0], f"{part.name}[{row}]", background)
            except (SourceError, UnsupportedImageError) as error:
                content = ValueError(str(error))
            except Exception as error:  # an image that is read when it is used raises what Pillow or a user raises
                content = ValueError(f"{type(error).__name__}: {error}")
            yield content


def _content(image: Any, where: str, background: str) -> Picture | np.ndarray[Any, np.dtype[np.uint8]]:
    """The picture of a PIL image; uint8 [H, W] or [H, W, 3] of a tensor or an array, channels first or last.

    Raises:
        SourceError: it is none of these, has another number of channels, or values that are no pixels.
        Exception: see `decode.shown_picture`.
    """
    if callable(getattr(image, "convert", None)) and hasattr(image, "getbands"):
        return shown_picture(image, "L" if image.mode in ("1", "L") else "RGB", background)
    to_numpy: Callable[[], Any] | None = getattr(image, "numpy", None)
    array = np.asarray(to_numpy() if callable(to_numpy) else image)
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or not array.size:
        rule = "an image must be of PIL, or [H, W], [C, H, W] or [H, W, C] with 1 or 3 channels"
        raise SourceError(fault(where, rule, list(array.shape) if array.ndim else type(image).__name__))
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):
            rule = "an image of floats must be within 0..1"
            got = f"{array.min():.3g} to {array.max():.3g}"
            raise SourceError(fault(where, rule, got, "leave the normalization of pixels out"))
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise SourceError(fault(where, "an image must be uint8, or floats within 0..1", array.dtype))
    return np.ascontiguousarray(array)
