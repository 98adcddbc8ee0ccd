"""What checks of cluster files have in common."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from orchestrator.errors import fault

TO_FILL_IN = "FILL-IN"
"""Stands in the project's cluster files where a value of one's own has to go."""


def walk(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar in a document with its dotted key.

    >>> list(walk({"a": [{"b": 1}, 2]}))
    [('a[0].b', 1), ('a[1]', 2)]
    """
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from walk(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from walk(part, f"{key}[{index}]")
    else:
        yield key, value


def unknown(keys: Mapping[str, Any], known: Collection[str], file: str, where: str) -> list[str]:
    """A line for every key that is not among the known ones."""
    lines = []
    for key in keys:
        if key not in known:
            remedy = did_you_mean(key, known) or f"known are {', '.join(sorted(known))}"
            lines.append(fault(file, f"{where}.{key}" if where else str(key), "unknown key", remedy=remedy))
    return lines


def did_you_mean(word: object, known: Collection[str]) -> str:
    """`did you mean …?` for a word close to a known one, else nothing."""
    near = difflib.get_close_matches(str(word), list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def pinned(image: str) -> bool:
    """Whether an image's name says which version of it is meant.

    >>> pinned("rayproject/ray:2.60.0-py311"), pinned("host:5000/ray"), pinned("ray:latest-gpu")
    (True, False, False)
    """
    tag = image.rpartition("/")[2].partition(":")[2]
    return "@sha256:" in image or bool(tag and not re.search(r"latest|nightly", tag))


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())
