"""The run of a sweep in MLflow, found by name, and whether it belongs to the sweep of that name."""

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import ConfigError, fault
from orchestrator.plan.identity import differences, fields
from orchestrator.plan.plan import Plan
from orchestrator.tracking.database import connect, experiment_id, in_one_line
from orchestrator.tracking.names import INTERNAL, RUN_KEY, sweep_key
from orchestrator.tracking.requests import search
from streams.store.canonical_json import canonical, digest

HASH, IDENTITY = f"{INTERNAL}identity", f"{INTERNAL}identity_json"
"""Tags of the sweep's run: the hash of its identity (`plan.identity.fields`), and the identity as JSON."""


def tags(sweep: Mapping[str, Any]) -> dict[str, str]:
    """The tags of the sweep's run that `check_tags` compares."""
    shared = fields(sweep)
    return {HASH: digest(shared, 12), IDENTITY: canonical(shared)}


def check_tags(where: str, earlier: Mapping[str, str], sweep: Mapping[str, Any]) -> None:
    """Check that the run with these tags belongs to this sweep; a run without them, of an older version, passes.

    Raises:
        ConfigError: it belongs to another sweep; one line for each difference.
    """
    if earlier.get(HASH) in (None, tags(sweep)[HASH]):
        return
    remedy = "choose another name, or another tracking.experiment"
    try:
        faults = differences(where, json.loads(earlier.get(IDENTITY, "")), sweep, remedy)
    except ValueError:  # cut, because it was too long for a tag
        faults = [fault(where, "", "another sweep has this name", sweep["name"], remedy)]
    if faults:  # else a network is written in another notation
        raise ConfigError(*faults)


def check_tracked(uri: str, experiment: str, plan: Plan) -> None:
    """Check that the run of this name, if any, belongs to this sweep; nothing is created.

    Raises:
        ConfigError: it belongs to another sweep; one line for each difference.
        TrackingError: MLflow cannot be reached.
    """
    client = connect(uri)
    with in_one_line(uri):
        existing = client.get_experiment_by_name(experiment)
        run = None if existing is None else sweep_run(client, existing.experiment_id, plan.name)
    if run is not None:
        check_tags(f"{uri}, experiment {experiment}", run.data.tags, plan.resolved)


def sweep_run(client: Any, experiment: str, name: str) -> Any:
    """The run of the sweep of this name in an experiment, or None."""
    key, sweeps = sweep_key(name), search(client, [experiment], "tags.`foml.kind` = 'sweep'")
    return next((run for run in sweeps if run.data.tags.get(RUN_KEY) == key), None)


def forget(uri: str, experiment: str, name: str) -> None:
    """Delete all runs of a sweep, so that the next sweep of this name starts from nothing; MLflow can restore them.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    client = connect(uri)
    key = sweep_key(name)
    for run in search(client, [experiment_id(client, uri, experiment)], ""):
        if f"{run.data.tags.get(RUN_KEY, '')}/".startswith(f"{key}/"):
            client.delete_run(run.info.run_id)
