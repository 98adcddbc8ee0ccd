"""The nodes of the Ray that this process is connected to, against those that its cluster file promised."""

from __future__ import annotations

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


def promised(bootstrap: Path = BOOTSTRAP) -> list[str]:
    """Addresses that the cluster's file names; empty where an autoscaler decides, and away from a head."""
    import yaml

    try:
        document: Any = yaml.safe_load(bootstrap.expanduser().read_text(encoding="utf-8"))
        provider = document["provider"]
        return [str(provider["head_ip"]), *map(str, provider["worker_ips"])]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return []


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
