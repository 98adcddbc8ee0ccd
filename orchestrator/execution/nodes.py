"""The nodes of the Ray that this process is connected to, against those that its cluster file promised."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BOOTSTRAP = Path("~/ray_bootstrap_config.yaml")
"""What `ray up` leaves on a head: the cluster file as it was used."""


@dataclass(frozen=True)
class Node:
    """A node that is alive. `cpus`, `gpus`: as Ray counts them."""

    id: str
    address: str
    cpus: float
    gpus: float


def joined() -> list[Node]:
    """The nodes that are alive."""
    import ray

    return [
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0),
            node["Resources"].get("GPU", 0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def startable(bootstrap: Path = BOOTSTRAP) -> list[tuple[dict[str, float], int]] | None:
    """What an autoscaler may start: resources of one node, and how many of them. None: there is one that does not say.

    Ray itself keeps this nowhere that a driver could look.
    """
    document = _left_by_launcher(bootstrap)
    if document is None:
        return None if "KUBERNETES_SERVICE_HOST" in os.environ else []
    head, types = document.get("head_node_type"), document.get("available_node_types") or {}
    limit = document.get("max_workers", 0)
    return [
        (dict(entry.get("resources") or {}), min(entry.get("max_workers", limit), limit))
        for name, entry in types.items()
        if name != head
    ]


def promised(bootstrap: Path = BOOTSTRAP) -> list[str]:
    """Addresses that the cluster's file names; empty where an autoscaler decides, and away from a head."""
    document = _left_by_launcher(bootstrap) or {}
    try:
        provider = document["provider"]
        return [str(provider["head_ip"]), *map(str, provider["worker_ips"])]
    except (KeyError, TypeError):
        return []


def _left_by_launcher(bootstrap: Path) -> dict[str, Any] | None:
    import yaml

    try:
        document = yaml.safe_load(bootstrap.expanduser().read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    return document if isinstance(document, dict) else None


def missing(nodes: list[Node], expected: list[str]) -> str:
    """One line that says which of the promised nodes are not there; empty if all are.

    >>> missing([Node("a", "10.0.0.1", 1, 0)], ["10.0.0.1", "10.0.0.2"])
    '1 of 2 nodes: 10.0.0.2 has not joined'
    """
    there = {node.address for node in nodes}
    lacking = [address for address in expected if address not in there]
    if not lacking:
        return ""
    have = "has" if len(lacking) == 1 else "have"
    return f"{len(expected) - len(lacking)} of {len(expected)} nodes: {', '.join(lacking)} {have} not joined"
