"""From labels as data sets bring them to class numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.errors import SourceError, fault


def classes_from_labels(
    labels: Sequence[Any] | npt.NDArray[Any], where: object
) -> tuple[npt.NDArray[np.int32], list[Any]]:
    """Number the distinct labels 0, 1, 2 ... in their sorted order.

    Whole numbers, texts and booleans are classes. Floats are refused: a measurement is no class, and 0.1 + 0.2 would be
    another one than 0.3.

    Args:
        labels: n labels, all of one kind.
        where: named in the error.

    Returns:
        int32 [n] class numbers, and the distinct labels in order.

    Raises:
        SourceError: the labels are empty, of mixed kinds, or of a kind that is no class.

    >>> numbers, distinct = classes_from_labels(["dog", "cat", "dog"], "pets.csv")
    >>> numbers.tolist(), distinct
    ([1, 0, 1], ['cat', 'dog'])
    """
    values = labels.reshape(-1).tolist() if isinstance(labels, np.ndarray) else list(labels)
    kinds = sorted({type(value).__name__ for value in values})
    if len(kinds) != 1 or kinds[0] not in ("int", "str", "bool"):
        remedy = "whole numbers, text or true/false name classes; round or name these yourself"
        raise SourceError(
            fault(where, "labels must be of one kind that names classes", ", ".join(kinds) or "none", remedy)
        )
    distinct = sorted(set(values))
    number_of = {value: index for index, value in enumerate(distinct)}
    return np.array([number_of[value] for value in values], dtype=np.int32), distinct
