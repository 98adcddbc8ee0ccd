"""The nodes of the Ray that this process is connected to, and those that the cluster's file promises."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import OrchestratorError

BOOTSTRAP = Path("~/ray_bootstrap_config.yaml")
"""The copy of the cluster file that `ray up` leaves on the head."""
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""The namespace of the pod that this runs in."""
_LEAVING = Path("~/foml-leaving")
"""The file that `deploy/node.sh --spot` creates on a node that AWS is about to take."""


class NodeLeavingError(OrchestratorError):
    """The node of an actor is about to be taken: the trial continues on another one, and this is no failure."""


def check_node_stays() -> None:
    """Raise `NodeLeavingError` if the cloud has announced that it takes this node."""
    if _LEAVING.expanduser().exists():
        raise NodeLeavingError("the cloud takes this node: the attempt ends after its chunk")


@dataclass(frozen=True)
class Node:
    """A node that is alive.

    Attributes:
        id: ray's id.
        address: its IP address.
        cpus: CPUs as Ray counts them.
        gpus: GPUs as Ray counts them.
    """

    id: str
    address: str
    cpus: float
    gpus: float


def joined() -> list[Node]:
    """The nodes that are alive."""
    import ray  # after `prepare_environment`

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
    """The nodes that an autoscaler may start: resources of one, and their number; None if its limits are not known.

    Ray offers a driver no way to ask: the limits are read where the autoscaler reads them.
    """
    document = _launcher_document(bootstrap)
    if document is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        return []
    if document is None:
        document = _kuberay_document()
    if document is None:
        return None
    head, types = document.get("head_node_type"), document.get("available_node_types") or {}
    limit = document.get("max_workers", 0)
    return [
        (dict(entry.get("resources") or {}), min(entry.get("max_workers", limit), limit))
        for name, entry in types.items()
        if name != head
    ]


def promised(bootstrap: Path = BOOTSTRAP) -> list[str]:
    """The addresses that the cluster's file names; empty with an autoscaler, and on machines other than the head."""
    document = _launcher_document(bootstrap) or {}
    try:
        provider = document["provider"]
        return [str(provider["head_ip"]), *map(str, provider["worker_ips"])]
    except (KeyError, TypeError):
        return []


def _launcher_document(bootstrap: Path) -> dict[str, Any] | None:
    try:
        document = yaml.safe_load(bootstrap.expanduser().read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    return document if isinstance(document, dict) else None


def _kuberay_document() -> dict[str, Any] | None:
    """The RayCluster of this pod in the form of a cluster file, or None if it cannot be read.

    The operator lets the head's pod read it, as the autoscaler runs there.
    """
    try:
        from ray.autoscaler._private.kuberay import autoscaling_config, node_provider

        client = node_provider.KubernetesHttpApiClient(_NAMESPACE.read_text(encoding="utf-8").strip())
        cluster = client.get(f"rayclusters/{os.environ['RAY_CLUSTER_NAME']}")
        if not cluster["spec"].get("enableInTreeAutoscaling"):
            return {}
        document: dict[str, Any] = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)
        return document
    except Exception:  # of Ray's internals, of HTTP, or of a RayCluster in another form: the limits are not known
        return None


def missing(nodes: list[Node], expected: list[str]) -> str:
    """One line that names the promised nodes that have not joined; empty if all have.

    >>> missing([Node("a", "10.0.0.1", 1, 0)], ["10.0.0.1", "10.0.0.2"])
    '1 of 2 nodes: 10.0.0.2 has not joined'
    """
    addresses = {node.address for node in nodes}
    absent = [address for address in expected if address not in addresses]
    if not absent:
        return ""
    have = "has" if len(absent) == 1 else "have"
    return f"{len(expected) - len(absent)} of {len(expected)} nodes: {', '.join(absent)} {have} not joined"
