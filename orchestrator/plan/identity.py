"""What makes two sweeps of one name the same sweep: in its folder, and in MLflow, where it may meet one of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import fault
from orchestrator.plan.plan import canonical

FIELDS = ("name", "stream", "network", "batch_size", "objective")
"""What two runs under one name must share. Learners, grids, samples and seeds may grow."""


def differences(where: str, earlier: Mapping[str, Any], sweep: Mapping[str, Any], remedy: str) -> list[str]:
    """A line for each field in which two resolved sweeps are not the same one."""
    return [
        fault(where, key, f"another sweep has this name, with {canonical(earlier.get(key))}", canonical(now), remedy)
        for key, now in fields(sweep).items()
        if canonical(earlier.get(key)) != canonical(now)
    ]


def fields(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """The `FIELDS` of a resolved sweep."""
    return {key: sweep.get(key) for key in FIELDS}
