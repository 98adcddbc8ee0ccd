"""What two runs of one sweep must share, in its folder and in MLflow."""

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import fault
from streams.store.canonical_json import canonical

FIELDS = ("name", "stream", "network", "batch_size", "objective")
"""Learners, grids, samples and seeds are not among them: they may grow."""


def fields(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """The `FIELDS` of a resolved sweep."""
    return {key: sweep.get(key) for key in FIELDS}


def differences(where: str, earlier: Mapping[str, Any], sweep: Mapping[str, Any], remedy: str) -> list[str]:
    """One line for each of the `FIELDS` in which two resolved sweeps differ."""
    return [
        fault(where, key, f"another sweep has this name, with {canonical(earlier.get(key))}", canonical(value), remedy)
        for key, value in fields(sweep).items()
        if not _equal(key, earlier.get(key), value)
    ]


def _equal(key: str, earlier: Any, value: Any) -> bool:
    """Whether two values of one of the `FIELDS` are the same; a network has several notations."""
    if canonical(earlier) == canonical(value):
        return True
    if key != "network" or earlier is None or value is None:
        return False
    from learners.networks import build  # imports torch

    return build.described(earlier) == build.described(value)
