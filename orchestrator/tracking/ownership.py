"""Whether a run in MLflow belongs to the sweep that has its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from orchestrator.errors import ConfigError, fault
from orchestrator.plan.identity import differences, fields
from streams.store.canonical_json import canonical, digest

HASH, WHOLE = "foml.identity", "foml.identity_json"
"""On the sweep's run: the hash of what its `FIELDS` hold, and all of it as JSON."""


def tags(sweep: Mapping[str, Any]) -> dict[str, str]:
    """What the sweep's run carries in MLflow, for `check_tags`."""
    shared = fields(sweep)
    return {HASH: digest(shared, 12), WHOLE: canonical(shared)}


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
