"""What makes two sweeps of one name the same sweep: in its folder, and in MLflow, where it may meet one of another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from orchestrator.errors import ConfigError, fault
from orchestrator.plan import Plan, canonical, short_hash

FIELDS = ("name", "stream", "network", "batch_size", "objective")
"""What two runs under one name must share. Learners, grids, samples and seeds may grow."""
HASH, WHOLE = "foml.identity", "foml.identity_json"
"""On the sweep's run: the hash of what its `FIELDS` hold, and all of it as JSON."""


def differences(where: str, earlier: Mapping[str, Any], sweep: Mapping[str, Any], remedy: str) -> list[str]:
    """A line for each field in which two resolved sweeps are not the same one."""
    return [
        fault(where, key, f"another sweep has this name, with {canonical(earlier.get(key))}", canonical(now), remedy)
        for key, now in _fields(sweep).items()
        if canonical(earlier.get(key)) != canonical(now)
    ]


def tags(sweep: Mapping[str, Any]) -> dict[str, str]:
    """What the sweep's run carries in MLflow, for `check_tags`."""
    fields = _fields(sweep)
    return {HASH: short_hash(fields), WHOLE: canonical(fields)}


def check_tags(where: str, earlier: Mapping[str, str], sweep: Mapping[str, Any]) -> None:
    """See that the run with these tags is of this sweep. One of an older version has none, and is taken as it is.

    Raises:
        ConfigError: it is of another sweep; every difference is told.
    """
    known = earlier.get(HASH)
    if known in (None, tags(sweep)[HASH]):
        return
    remedy = "choose another name, or another tracking.experiment"
    faults: list[str] = []
    with suppress(ValueError):  # too long for a tag, and therefore cut
        faults = differences(where, json.loads(earlier.get(WHOLE, "")), sweep, remedy)
    raise ConfigError(*faults or [fault(where, "", "another sweep has this name", sweep["name"], remedy)])


def check_tracked(uri: str, experiment: str, plan: Plan) -> None:
    """See that what MLflow has under this name, if anything, is of this sweep; nothing is made.

    Raises:
        ConfigError: it is of another sweep; every difference is told.
        TrackingError: MLflow cannot be reached.
    """
    from orchestrator.run_tree import sweep_run
    from orchestrator.tracking_database import connect, in_one_line

    client = connect(uri)
    with in_one_line(uri):
        found = client.get_experiment_by_name(experiment)
        run = None if found is None else sweep_run(client, found.experiment_id, plan.name)
    if run is not None:
        check_tags(f"{uri}, experiment {experiment}", run.data.tags, plan.resolved)


def _fields(sweep: Mapping[str, Any]) -> dict[str, Any]:
    return {key: sweep.get(key) for key in FIELDS}
