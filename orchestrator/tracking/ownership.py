"""Whether a run in MLflow belongs to the sweep that has its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from orchestrator.errors import ConfigError, fault
from orchestrator.plan.identity import differences, fields
from streams.store.canonical_json import canonical, digest

HASH, IDENTITY = "foml.identity", "foml.identity_json"
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
    faults: list[str] = []
    with suppress(ValueError):  # cut, because it was too long for a tag
        faults = differences(where, json.loads(earlier.get(IDENTITY, "")), sweep, remedy)
    raise ConfigError(*faults or [fault(where, "", "another sweep has this name", sweep["name"], remedy)])
