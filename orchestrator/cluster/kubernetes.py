"""Checks of the RayCluster in a file for KubeRay that Kubernetes itself does not make."""

from typing import Any

from orchestrator.cluster.rules import walk
from orchestrator.errors import fault


def check_kubernetes(documents: list[dict[str, Any]], file: str) -> list[str]:
    """One line for each fault of the documents of one file."""
    import ray

    clusters = [document for document in documents if document.get("kind") == "RayCluster"]
    if len(clusters) != 1:
        return [fault(file, "kind", "there must be one RayCluster", len(clusters))]
    spec = clusters[0].get("spec")
    if not isinstance(spec, dict):
        return [fault(file, "spec", "must hold keys and values", spec)]
    faults = []
    if spec.get("rayVersion") != ray.__version__:
        rule = f"must be the version of this installation, {ray.__version__}: a driver and its cluster must agree"
        faults.append(fault(file, "spec.rayVersion", rule, spec.get("rayVersion", "nothing")))
    options, workers = spec.get("authOptions"), spec.get("workerGroupSpecs")
    if isinstance(options, dict) and options.get("mode") == "token":  # KubeRay itself sets the token
        return faults
    groups = {"spec.headGroupSpec": spec.get("headGroupSpec")}
    if workers is not None and not isinstance(workers, list):
        faults.append(fault(file, "spec.workerGroupSpecs", "must be a list", workers))
        workers = None
    groups |= {f"spec.workerGroupSpecs[{i}]": group for i, group in enumerate(workers or [])}
    for where, group in groups.items():
        values = dict(walk(group))
        if not any(key.endswith(".env[RAY_AUTH_MODE].value") and value == "token" for key, value in values.items()):
            rule = "must set RAY_AUTH_MODE=token: anyone who can reach the port could run arbitrary code"
            faults.append(fault(file, where, rule))
        if not any(".env[RAY_AUTH_TOKEN]." in key for key in values):
            faults.append(fault(file, where, "must set RAY_AUTH_TOKEN from a Secret: every node needs the token"))
    return faults
