"""What a cluster file may say to each provider: of the provider itself, and of one machine of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from orchestrator.cluster.rules import TO_FILL_IN, did_you_mean, unknown, words
from orchestrator.errors import fault

# Keys that Ray 2.60 reads, per provider; the second set must be given.
PROVIDERS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "aws": (
        words(
            "type region availability_zone cache_stopped_nodes use_internal_ips use_external_head_ip security_group "
            "key_pair cloudwatch aws_credentials disable_node_updaters"
        ),
        frozenset({"region"}),
    ),
    "gcp": (
        words(
            "type region availability_zone project_id cache_stopped_nodes use_internal_ips use_external_head_ip "
            "gcp_credentials disable_node_updaters"
        ),
        frozenset({"region", "availability_zone", "project_id"}),
    ),
    "local": (
        words("type head_ip worker_ips external_head_ip coordinator_address use_internal_ips"),
        frozenset({"head_ip", "worker_ips"}),
    ),
}

# Fields of a Compute Engine instance that can be set when it is made, and of its parts.
_GCP_INSTANCE = words(
    "machineType disks networkInterfaces scheduling guestAccelerators metadata serviceAccounts labels tags "
    "minCpuPlatform description canIpForward deletionProtection shieldedInstanceConfig confidentialInstanceConfig "
    "advancedMachineFeatures reservationAffinity resourcePolicies sourceInstanceTemplate sourceMachineImage "
    "displayDevice networkPerformanceConfig params hostname name zone"
)
_GCP_PARTS = {
    "disks": words(
        "boot autoDelete type initializeParams deviceName diskSizeGb index interface mode source architecture "
        "diskEncryptionKey forceAttach guestOsFeatures licenses"
    ),
    "disks.initializeParams": words(
        "diskSizeGb sourceImage diskType diskName labels description sourceSnapshot onUpdateAction provisionedIops "
        "provisionedThroughput resourcePolicies sourceImageEncryptionKey architecture"
    ),
    "scheduling": words(
        "provisioningModel instanceTerminationAction onHostMaintenance automaticRestart preemptible nodeAffinities "
        "minNodeCpus locationHint maxRunDuration localSsdRecoveryTimeout availabilityDomain"
    ),
    "guestAccelerators": frozenset({"acceleratorType", "acceleratorCount"}),
}
# Set by Ray itself, or read by it beside what EC2 knows.
_AWS_ALSO = frozenset({"SubnetIds"})


def check_provider(provider: Mapping[str, Any], file: str) -> list[str]:
    """A line for everything that is wrong under `provider`, whose type is known."""
    kind = provider["type"]
    known, required = PROVIDERS[kind]
    faults = unknown(provider, known, file, "provider")
    if kind == "local" and "coordinator_address" in provider:
        required = frozenset()
    faults += [fault(file, f"provider.{key}", "must be given") for key in sorted(required - set(provider))]
    region, zones = provider.get("region"), provider.get("availability_zone")
    if kind == "aws" and region is not None:
        wrong = _aws_region(str(region), file)
        faults += wrong
        zones = None if wrong else zones
    for zone in str(zones).split(",") if zones else ():
        if region and not zone.strip().startswith(str(region)):
            faults.append(fault(file, "provider.availability_zone", f"must be in the region {region}", zone.strip()))
    if kind == "local" and isinstance(provider.get("worker_ips"), list):
        hosts = [host for host in (provider.get("head_ip"), *provider["worker_ips"]) if host != TO_FILL_IN]
        for host in sorted({str(host) for host in hosts if hosts.count(host) > 1}):
            faults.append(fault(file, "provider.worker_ips", "must be different hosts, none of them the head", host))
        if not provider["worker_ips"]:
            faults.append(fault(file, "provider.worker_ips", "must have one at least: learners run on workers"))
    return faults


def _aws_region(region: str, file: str) -> list[str]:
    service = _ec2()
    if service is None:
        rule = "cannot be checked without AWS's client"
        return [fault(file, "provider.type", rule, "aws", "run: pip install -e '.[cluster]'")]
    import botocore.session

    regions = botocore.session.get_session().get_available_regions("ec2")
    if region in regions:
        return []
    return [fault(file, "provider.region", "must be a region of AWS", region, did_you_mean(region, regions))]


def check_node_config(
    kind: str, provider: Mapping[str, Any], config: dict[str, Any], file: str, where: str, head: bool
) -> list[str]:
    """A line for everything that is wrong with one machine; `head`: it is the head's."""
    if kind == "aws":
        return _aws_node(config, file, where, head)
    if kind == "gcp":
        return _gcp_node(config, file, where, head)
    return []


@cache
def _ec2() -> Any:
    """EC2's own description of a request for machines, which its client brings along; None without the client."""
    try:
        import botocore.session
    except ImportError:
        return None
    return botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape


def _aws_node(config: dict[str, Any], file: str, where: str, head: bool) -> list[str]:
    shape = _ec2()
    faults = []
    for key, rule in (
        ("InstanceType", "must be given"),
        ("ImageId", "must be given: Ray's default is Ubuntu 18.04, too old for torch"),
    ):
        if key not in config:
            faults.append(fault(file, f"{where}.{key}", rule))
    image = config.get("ImageId")
    if image not in (None, TO_FILL_IN) and not re.fullmatch(r"ami-[0-9a-f]{8}([0-9a-f]{9})?", str(image)):
        rule = "must be the id of one image, ami- and 17 hexadecimal digits"
        faults.append(fault(file, f"{where}.ImageId", rule, image, "a name or `latest` means another image tomorrow"))
    if head and "InstanceMarketOptions" in config:
        rule = "must be left out: a head on spot takes the cluster with it when it is taken away"
        faults.append(fault(file, f"{where}.InstanceMarketOptions", rule))
    if shape is not None:
        known = {key: value for key, value in config.items() if key not in _AWS_ALSO}
        faults += _shape_faults(known, shape, file, where)
    return faults


def _shape_faults(value: Any, shape: Any, file: str, where: str) -> list[str]:
    """Where a value is not of the shape that AWS's own model has for it."""
    kind = shape.type_name
    if kind == "structure":
        if not isinstance(value, dict):
            return [fault(file, where, "must be a mapping", value)]
        faults = unknown(value, shape.members, file, where)
        for key, part in value.items():
            if key in shape.members:
                faults += _shape_faults(part, shape.members[key], file, f"{where}.{key}")
        return faults
    if kind == "list":
        if not isinstance(value, list):
            return [fault(file, where, "must be a list", value)]
        parts = [_shape_faults(part, shape.member, file, f"{where}[{index}]") for index, part in enumerate(value)]
        return [line for part in parts for line in part]
    wanted = {"string": str, "integer": int, "long": int, "boolean": bool, "float": (int, float)}.get(kind, object)
    if not isinstance(value, wanted) or (kind in ("integer", "long") and isinstance(value, bool)):  # type: ignore[arg-type]
        return [fault(file, where, f"must be of type {kind}", value)]
    options = getattr(shape, "enum", None)
    if options and value not in options and value != TO_FILL_IN:
        return [fault(file, where, "AWS knows no such value", value, did_you_mean(value, options))]
    return []


def _gcp_node(config: dict[str, Any], file: str, where: str, head: bool) -> list[str]:
    faults = unknown(config, _GCP_INSTANCE, file, where)
    if "machineType" not in config:
        faults.append(fault(file, f"{where}.machineType", "must be given"))
    for key, fields in _GCP_PARTS.items():
        first, _, second = key.partition(".")
        entries = config.get(first, [])
        for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            place = f"{where}.{first}[{index}]" if isinstance(entries, list) else f"{where}.{first}"
            part = entry.get(second, {}) if second and isinstance(entry, dict) else entry
            if isinstance(part, dict):
                faults += unknown(part, fields, file, f"{place}.{second}" if second else place)
            else:
                faults.append(fault(file, place, "must be a mapping", part))
    images = [
        disk.get("initializeParams", {}).get("sourceImage")
        for disk in config.get("disks", [])
        if isinstance(disk, dict)
    ]
    if not any(images):
        faults.append(fault(file, f"{where}.disks", "must name an image in initializeParams.sourceImage"))
    for image in images:
        if image and "/family/" in str(image):
            rule = "must be one image, not a family, which means another image tomorrow"
            faults.append(fault(file, f"{where}.disks", rule, image))
    scheduling = config.get("scheduling", {})
    spot = isinstance(scheduling, dict) and (
        scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible")
    )
    if head and spot:
        rule = "must not be spot: a head that is taken away takes the cluster with it"
        faults.append(fault(file, f"{where}.scheduling", rule))
    if (
        config.get("guestAccelerators")
        and isinstance(scheduling, dict)
        and scheduling.get("onHostMaintenance") != "TERMINATE"
    ):
        faults.append(fault(file, f"{where}.scheduling.onHostMaintenance", "must be TERMINATE for a machine with GPUs"))
    return faults
