"""What `doctor` asks of each node of a cluster, by a task that runs there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.config.schema import Sweep
from orchestrator.execution import nodes
from orchestrator.execution.nodes import Node
from orchestrator.execution.ray_session import ray_running
from orchestrator.storage.remote_folder import has_file, marker_file
from streams.store.address import shown

CLOCKS_S = 2.0
_ANSWER_S = 120.0


def torch_gpus() -> tuple[int, str]:
    """GPUs as torch sees them, and why it may see none. Looked at in a process of its own, which no Ray has touched."""
    script = "import torch; print(torch.cuda.device_count(), torch.version.cuda, torch.cuda.is_available())"
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES" or value}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode:
        return 0, done.stderr.strip().splitlines()[-1]
    count, built, available = done.stdout.split()[-3:]
    return (int(count), "") if available == "True" else (0, f"torch is built for CUDA {built}")


def gpus_agree(by_torch: tuple[int, str], by_ray: float, where: str) -> Finding:
    """Whether torch and Ray count the same GPUs."""
    count, reason = by_torch
    if count == by_ray:
        return well(f"{count} GPUs {where}" if count else f"no GPU {where}: sweeps run there with resources.gpus=0")
    told = f"GPUs {where}: torch sees {count}, Ray {by_ray:g}"
    if count < by_ray:
        return ill(f"{told}; {reason or 'torch lacks CUDA'}: update NVIDIA's driver, or install a torch that fits it")
    return ill(f"{told}; look at CUDA_VISIBLE_DEVICES and at the --num-gpus that Ray was started with")


@dataclass(frozen=True)
class NodeReport:
    """A node's answer. `versions`: of what must be the same everywhere."""

    versions: dict[str, str]
    torch_gpus: tuple[int, str]
    sees_storage: bool


def report(storage: str, marker: str) -> NodeReport:
    """Runs on the node that is asked: what it has, and whether it sees the file `marker` in the storage."""
    import platform

    from orchestrator.tracking import provenance

    found = {name: provenance.package_version(name) for name in provenance.PACKAGES}
    commit, dirty = provenance.git_state()
    own = f"{commit[:12]}{' with changes' if dirty == 'true' else ''}"
    return NodeReport(
        {"python": platform.python_version(), **found, "this project": own},
        torch_gpus(),
        has_file(storage, marker),
    )


def clock() -> float:
    """Time in s since the epoch, of the node that is asked."""
    return time.time()


def check_nodes(sweep: Sweep, local: bool) -> Iterator[Finding]:
    """Connect (or start a Ray of our own), and ask every node."""
    began = time.monotonic()
    with ray_running(local):
        found = sorted(nodes.joined(), key=lambda node: node.address)
        if local:
            yield well(f"Ray starts here, in {time.monotonic() - began:.1f} s")
            return
        lacking = nodes.missing(found, nodes.promised())
        if lacking:
            yield ill(
                f"cluster: {lacking}; look at ssh to it, and on the head at /tmp/ray/session_latest/logs/monitor*"
            )
        total = f"{sum(node.cpus for node in found):g} CPUs and {sum(node.gpus for node in found):g} GPUs"
        yield well(f"cluster: {len(found)} nodes with {total}")
        with marker_file(sweep.document.storage) as marker:
            yield from _ask(found, *marker)


def _ask(found: list[Node], storage: str, marker: str) -> Iterator[Finding]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def there(node: Node, task: Any) -> Any:
        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        return ray.remote(task).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)

    # All at once: torch takes its time.
    asked_of = [(node, there(node, report).remote(storage, marker)) for node in found]
    here = report(storage, marker).versions
    for node, reference in asked_of:
        try:
            its: NodeReport = ray.get(reference, timeout=_ANSWER_S)
            asked = time.time()
            time_there: float = ray.get(there(node, clock).remote(), timeout=_ANSWER_S)
            answered = time.time()
        except Exception as error:
            reason = str(error).strip().splitlines()[-1][:200]
            yield ill(f"node {node.address}: no answer ({reason}); look at it by ssh: ray status, df, nvidia-smi")
            continue
        faults = [
            f"{name} is {its.versions.get(name, 'absent')} there and {value} here; ship again, and `ray up`"
            for name, value in here.items()
            if its.versions.get(name) != value
        ]
        offset = max(asked - time_there, time_there - answered, 0)
        if offset > CLOCKS_S:
            faults.append(f"its clock is {offset:.0f} s off; let it run an NTP client")
        if not its.sees_storage:
            faults.append(f"does not see {shown(storage)}; put storage where all nodes see it")
        gpus = gpus_agree(its.torch_gpus, node.gpus, "there")
        if not gpus.well:
            faults.append(gpus.text)
        for fault in faults:
            yield ill(f"node {node.address}: {fault}")
        if not faults:
            yield well(
                f"node {node.address}: {node.cpus:g} CPUs, {node.gpus:g} GPUs; versions, clock and storage agree"
            )


@dataclass(frozen=True)
class Finding:
    """What a look came to, in one line; a fault's line says what to do."""

    well: bool
    text: str


def well(text: str) -> Finding:
    return Finding(True, text)


def ill(text: str) -> Finding:
    return Finding(False, text)
