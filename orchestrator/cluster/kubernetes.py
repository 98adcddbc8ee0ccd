"""Checks of a file for Kubernetes: the RayCluster that KubeRay reads, and what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.cluster.rules import TO_FILL_IN, pinned, unknown, words
from orchestrator.errors import fault

# Fields of KubeRay 1.6's ray.io/v1 RayCluster.
_TOP = frozenset({"apiVersion", "kind", "metadata", "spec"})
_SPEC = words(
    "rayVersion enableInTreeAutoscaling autoscalerOptions headGroupSpec workerGroupSpecs suspend managedBy authOptions "
    "gcsFaultToleranceOptions headServiceAnnotations upgradeStrategy networkPolicy"
)
_GROUP = frozenset({"template", "rayStartParams", "resources", "labels"})
_HEAD = _GROUP | {"serviceType", "headService", "enableIngress"}
_WORKER = _GROUP | words(
    "groupName replicas minReplicas maxReplicas idleTimeoutSeconds numOfHosts scaleStrategy suspend"
)
_CONTAINER = words(
    "name image imagePullPolicy command args env envFrom ports resources volumeMounts volumeDevices workingDir "
    "livenessProbe readinessProbe startupProbe lifecycle securityContext terminationMessagePath "
    "terminationMessagePolicy stdin stdinOnce tty restartPolicy resizePolicy"
)
_GPU = "nvidia.com/gpu"


def check_kubernetes(documents: list[dict[str, Any]], file: str) -> list[str]:
    """A line for everything that is wrong with the documents of one file."""
    clusters = [document for document in documents if document.get("kind") == "RayCluster"]
    if len(clusters) != 1:
        return [fault(file, "kind", "there must be one RayCluster", len(clusters))]
    faults: list[str] = []
    for document in documents:
        kind = document.get("kind", "nothing")
        for key in ("apiVersion", "kind", "metadata"):
            if not document.get(key):
                faults.append(fault(file, f"{kind}.{key}", "must be given"))
        for where, container in _containers(document, str(kind)):
            faults += unknown(container, _CONTAINER, file, where)
            image = str(container.get("image", ""))
            if image != TO_FILL_IN and not pinned(image):
                rule = "must be one version of an image"
                faults.append(fault(file, f"{where}.image", rule, image, "name its tag or digest"))
            faults += _literal_secrets(container, file, where)
        service = (document.get("spec") or {}).get("type", "ClusterIP") if kind == "Service" else "ClusterIP"
        if service != "ClusterIP":
            rule = "must be ClusterIP: anything else can be reached from outside"
            faults.append(fault(file, f"{kind}.spec.type", rule, service, "use kubectl port-forward"))
    return faults + _ray_cluster(clusters[0], file)


def _containers(document: Mapping[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every container of a document, with its dotted key."""

    def look(value: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if isinstance(value, Mapping):
            for key, part in value.items():
                if key in ("containers", "initContainers") and isinstance(part, list):
                    yield from ((f"{where}.{key}[{i}]", one) for i, one in enumerate(part) if isinstance(one, dict))
                else:
                    yield from look(part, f"{where}.{key}")
        elif isinstance(value, list):
            for index, part in enumerate(value):
                yield from look(part, f"{where}[{index}]")

    yield from look(document.get("spec") or {}, f"{kind}.spec")


def _literal_secrets(container: Mapping[str, Any], file: str, where: str) -> list[str]:
    lines = []
    for entry in container.get("env") or []:
        name = str(entry.get("name", ""))
        secret = any(word in name for word in ("PASSWORD", "SECRET", "AUTH_TOKEN"))
        if secret and entry.get("value"):
            rule = "a secret must not stand in this file"
            lines.append(fault(file, f"{where}.env[{name}]", rule, remedy="take it from a Secret by secretKeyRef"))
    return lines


def _ray_cluster(document: Mapping[str, Any], file: str) -> list[str]:
    import ray

    spec = document.get("spec") or {}
    faults = unknown(document, _TOP, file, "RayCluster") + unknown(spec, _SPEC, file, "spec")
    if spec.get("rayVersion") != ray.__version__:
        rule = f"must be the version of this installation, {ray.__version__}: a driver and its cluster must agree"
        faults.append(fault(file, "spec.rayVersion", rule, spec.get("rayVersion", "nothing")))
    if not spec.get("enableInTreeAutoscaling"):
        faults.append(
            fault(file, "spec.enableInTreeAutoscaling", "must be true, or no worker is ever started or ended")
        )
    by_operator = (spec.get("authOptions") or {}).get("mode") == "token"
    head = spec.get("headGroupSpec") or {}
    faults += unknown(head, _HEAD, file, "spec.headGroupSpec")
    faults += _group(head, file, "spec.headGroupSpec", by_operator)
    if head.get("serviceType", "ClusterIP") != "ClusterIP":
        rule = "must be ClusterIP: anything else can be reached from outside"
        faults.append(fault(file, "spec.headGroupSpec.serviceType", rule, head["serviceType"]))
    workers = spec.get("workerGroupSpecs") or []
    if not workers:
        faults.append(fault(file, "spec.workerGroupSpecs", "must have one at least: learners run on workers"))
    for index, group in enumerate(workers):
        where = f"spec.workerGroupSpecs[{index}]"
        faults += unknown(group, _WORKER, file, where) + _group(group, file, where, by_operator)
        if "groupName" not in group:
            faults.append(fault(file, f"{where}.groupName", "must be given"))
        low, wanted, high = (group.get(key, 0) for key in ("minReplicas", "replicas", "maxReplicas"))
        if not low <= wanted <= high:
            rule = "minReplicas <= replicas <= maxReplicas must hold"
            faults.append(fault(file, where, rule, f"{low}, {wanted}, {high}"))
        for place, container in _containers({"spec": group}, where):
            asked = {
                part: _GPU in ((container.get("resources") or {}).get(part) or {}) for part in ("limits", "requests")
            }
            if asked["requests"] and not asked["limits"]:
                faults.append(fault(file, f"{place}.resources.limits", f"must have {_GPU} as the requests do"))
    return faults


def _group(group: Mapping[str, Any], file: str, where: str, by_operator: bool) -> list[str]:
    containers = list(_containers({"spec": group}, where))
    if not containers:
        return [fault(file, f"{where}.template", "must have a container")]
    place, ray_container = containers[0]  # KubeRay's rule: the first one is Ray's
    place = place.replace(f"{where}.spec", where, 1)
    variables = {entry.get("name"): entry for entry in ray_container.get("env") or []}
    faults = []
    if not by_operator:
        if variables.get("RAY_AUTH_MODE", {}).get("value") != "token":
            rule = "must have RAY_AUTH_MODE=token: whoever reaches the port could run what he likes"
            faults.append(fault(file, f"{place}.env", rule))
        if "RAY_AUTH_TOKEN" not in variables:
            rule = "must have RAY_AUTH_TOKEN, from a Secret: the token must be on every node"
            faults.append(fault(file, f"{place}.env", rule))
    if not (ray_container.get("resources") or {}).get("limits"):
        rule = "must be given: Ray takes the limits for what the node has"
        faults.append(fault(file, f"{place}.resources.limits", rule))
    return faults
