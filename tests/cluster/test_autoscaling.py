"""A cluster without workers until a sweep requests a GPU: Ray's real autoscaler with simulated machines.

It has a host of its own, because stopping Ray there stops every Ray that is visible.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestrator import ship
from orchestrator.storage import chunk_files

from . import hosts as hosts_of
from .conftest import ROOT, hosts_or_skip
from .hosts import Hosts, constrain, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLUSTER = {
    "cluster_name": "simulated",
    "max_workers": 2,
    "idle_timeout_minutes": 5,
    "upscaling_speed": 1.0,
    "provider": {
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "disable_node_updaters": True,
    },
    "auth": {},
    "docker": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 2, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    },
}
SWEEP = """
name: scaled
stream: {name: rainbow_digits, tasks: 3, train: 50, validation: 12, test: 12}
learners: [{name: foml, K: {grid: [1, 2]}}]
seeds: 2
chunk: 4
resources: {gpus: 1}
"""


@pytest.fixture
def host() -> Iterator[Hosts]:
    if reason := hosts_of.why_not():
        pytest.skip(reason)
    folder = Path("/tmp") / f"foml-host-{os.getpid()}"
    hosts = hosts_or_skip(folder, 1)
    try:
        yield hosts
    finally:
        hosts.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_nodes_start_when_a_sweep_requests_gpus(host: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "TOKEN", host.folder / "token")
    wheel = ship.ship(host.folder / "ship", ROOT)
    constrain(host.folder / "ship/constraints.txt")
    run("cp", "-r", str(host.folder / "ship"), str(host.folder / "h0/home/foml"))
    bootstrap = host.folder / "h0/home/ray_bootstrap_config.yaml"
    bootstrap.write_text(yaml.safe_dump(CLUSTER), encoding="utf-8")
    (host.shared / "scaled.yaml").write_text(SWEEP, encoding="utf-8")
    output = host.ssh("h0", "bash ~/foml/node.sh && ls ~/foml-venv/installed.whl")
    assert wheel.suffix == ".whl" and "installed.whl" in output
    environment = "cd /srv/foml && export RAY_AUTH_MODE=disabled RAY_ADDRESS=auto PATH=$HOME/foml-venv/bin:$PATH"
    start = "AUTOSCALER_UPDATE_INTERVAL_S=1 RAY_FAKE_CLUSTER=1 ray start --head --num-cpus=0 --include-dashboard=false"
    host.ssh("h0", f"{environment}; {start} --autoscaling-config=$HOME/ray_bootstrap_config.yaml")
    output = host.ssh("h0", f"{environment}; python -m orchestrator.sweep scaled.yaml resources.gpus=2; echo code $?")
    assert "resources.gpus: must be at most the 1 that a node of this cluster has (got 2" in output, output
    assert "code 2" in output
    output = host.ssh("h0", f"{environment}; python -m orchestrator.sweep scaled.yaml; echo code $?", timeout=300)
    assert "code 0" in output, output
    assert "2 at a time" in output
    assert output.count("joined: ") >= 1
    trials = {path.parent for path in (host.shared / "results/scaled").glob("*/chunk-*.pt")}
    newest = [chunk_files.newest(path) for path in trials]
    assert [chunk is not None and chunk.finished for chunk in newest] == [True, True]
