"""The checks of `doctor` on each node of a cluster, by a Ray task that runs there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.config.schema import Sweep
from orchestrator.errors import ConfigError
from orchestrator.execution import nodes
from orchestrator.execution.nodes import Node
from orchestrator.execution.ray_session import check_resources, ray_running
from orchestrator.storage.remote_folder import has_file, marker_file
from streams.store.address import without_keys

CLOCKS_S = 2.0
_ANSWER_S = 120.0


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        passed: whether there is nothing to do.
        text: one line; of a failed check it says what to do.
    """

    passed: bool
    text: str

    @classmethod
    def ok(cls, text: str) -> Check:
        return cls(True, text)

    @classmethod
    def failed(cls, text: str) -> Check:
        return cls(False, text)


def torch_gpus() -> tuple[int, str]:
    """The number of GPUs that torch sees, and the reason if it sees none.

    Torch runs in a process of its own: Ray hides GPUs from the processes that it starts.
    """
    script = "import torch; print(torch.cuda.device_count(), torch.version.cuda, torch.cuda.is_available())"
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES" or value}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode:
        return 0, done.stderr.strip().splitlines()[-1]
    count, built, available = done.stdout.split()[-3:]
    return (int(count), "") if available == "True" else (0, f"torch is built for CUDA {built}")


def gpus_agree(torch_sees: tuple[int, str], ray_sees: float, where: str) -> Check:
    """Whether torch and Ray count the same GPUs."""
    count, reason = torch_sees
    if count == ray_sees:
        return Check.ok(f"{count} GPUs {where}" if count else f"no GPU {where}: sweeps run there with resources.gpus=0")
    line = f"GPUs {where}: torch sees {count}, Ray {ray_sees:g}"
    if count < ray_sees:
        return Check.failed(
            f"{line}; {reason or 'torch has no CUDA'}: update NVIDIA's driver, or install a torch that fits it"
        )
    return Check.failed(f"{line}; check CUDA_VISIBLE_DEVICES and the --num-gpus that Ray was started with")


@dataclass(frozen=True)
class NodeReport:
    """What a node reports about itself.

    Attributes:
        versions: of everything that must be the same on all nodes.
        torch_gpus: see `torch_gpus`.
        sees_storage: whether the node reads the marker file in the storage.
    """

    versions: dict[str, str]
    torch_gpus: tuple[int, str]
    sees_storage: bool


def report(storage: str, marker: str) -> NodeReport:
    """The report of the node that this runs on; `marker` is a file in `storage`."""
    import platform

    from orchestrator.tracking import provenance

    packages = {name: provenance.package_version(name) for name in provenance.PACKAGES}
    commit, dirty = provenance.git_state()
    project = f"{commit[:12]}{' with changes' if dirty == 'true' else ''}"
    versions = {"python": platform.python_version(), **packages, "this project": project}
    return NodeReport(versions, torch_gpus(), has_file(storage, marker))


def clock() -> float:
    """The time of the node that this runs on, in s since the epoch."""
    return time.time()


def resources(sweep: Sweep, cpus: float, gpus: float, where: str) -> Iterator[Check]:
    """A failed check for each resource that no node has; see `check_resources`."""
    try:
        check_resources(sweep, cpus, gpus, where)
    except ConfigError as error:
        yield from map(Check.failed, error.faults)


def check_nodes(sweep: Sweep, local: bool) -> Iterator[Check]:
    """Connect to Ray (or start it here if `local`), and check every node."""
    start = time.monotonic()
    with ray_running(local) as cluster:
        joined = sorted(nodes.joined(), key=lambda node: node.address)
        if local:
            yield Check.ok(f"Ray starts here, in {time.monotonic() - start:.1f} s")
            return
        if line := nodes.missing(joined, nodes.promised()):
            remedy = "check ssh to it, and on the head /tmp/ray/session_latest/logs/monitor*"
            yield Check.failed(f"cluster: {line}; {remedy}")
        total = f"{sum(node.cpus for node in joined):g} CPUs and {sum(node.gpus for node in joined):g} GPUs"
        yield Check.ok(f"cluster: {len(joined)} nodes with {total}")
        yield from resources(sweep, cluster.node_cpus, cluster.node_gpus, "a node of this cluster")
        with marker_file(sweep.document.storage) as marker:
            yield from _check_joined(joined, *marker)


def _check_joined(joined: list[Node], storage: str, marker: str) -> Iterator[Check]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def on(node: Node, task: Any) -> Any:
        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        return ray.remote(task).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)

    # All nodes work in parallel: importing torch takes seconds.
    reports = [(node, on(node, report).remote(storage, marker)) for node in joined]
    expected = report(storage, marker).versions
    for node, reference in reports:
        try:
            reported: NodeReport = ray.get(reference, timeout=_ANSWER_S)
            sent = time.time()
            node_time: float = ray.get(on(node, clock).remote(), timeout=_ANSWER_S)
            received = time.time()
        except Exception as error:
            reason = str(error).strip().splitlines()[-1][:200]
            remedy = "check it by ssh: ray status, df, nvidia-smi"
            yield Check.failed(f"node {node.address}: no answer ({reason}); {remedy}")
            continue
        faults = [
            f"{name} is {reported.versions.get(name, 'absent')} there and {value} here; ship again, and `ray up`"
            for name, value in expected.items()
            if reported.versions.get(name) != value
        ]
        offset = max(sent - node_time, node_time - received, 0)
        if offset > CLOCKS_S:
            faults.append(f"its clock is {offset:.0f} s off; run an NTP client there")
        if not reported.sees_storage:
            faults.append(f"does not see {without_keys(storage)}; put storage where all nodes see it")
        gpus = gpus_agree(reported.torch_gpus, node.gpus, "there")
        if not gpus.passed:
            faults.append(gpus.text)
        for fault in faults:
            yield Check.failed(f"node {node.address}: {fault}")
        if not faults:
            agreement = "versions, clock and storage agree"
            yield Check.ok(f"node {node.address}: {node.cpus:g} CPUs, {node.gpus:g} GPUs; {agreement}")
