"""The checks of doctor; those of a real cluster's nodes are in tests/cluster."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from orchestrator.config.load import check_sweep
from orchestrator.config.schema import Sweep
from orchestrator.doctor import __main__, checks, nodes
from orchestrator.doctor.nodes import Check, gpus_agree, torch_gpus
from orchestrator.execution import ray_session
from orchestrator.execution.nodes import Node, missing, promised, startable
from streams.store.task_store import TaskStore
from tests.orchestrator.synthetic_sweep import new_database
from tests.rights import denied


def sweep(store: TaskStore | None = None, **changes: object) -> Sweep:
    stream: dict[str, object] = {"name": "rainbow_digits", "tasks": 3, "train": 25, "validation": 12, "test": 12}
    if store is not None:
        stream["store"] = str(store.path)
    document: dict[str, object] = {"name": "x", "stream": stream, "learners": [{"name": "online"}], "seeds": 2}
    return check_sweep(document | changes)


def test_versions_of_this_environment_meet_the_requirements() -> None:
    (check,) = list(checks.versions())
    assert check.passed
    assert "ray 2." in check.text
    assert "torch 2." in check.text


def test_this_machine() -> None:
    results = list(checks.machine(sweep()))
    assert all(check.passed for check in results)
    assert "a learner gets 1" in results[0].text


def test_gpus_as_torch_and_ray_see_them() -> None:
    assert gpus_agree((2, ""), 2, "here") == Check(True, "2 GPUs here")
    assert not gpus_agree((0, "torch is built for CUDA None"), 1, "here").passed
    assert (
        "torch sees 0, Ray 1; torch is built for CUDA None: update NVIDIA's driver"
        in gpus_agree((0, "torch is built for CUDA None"), 1, "here").text
    )
    assert "--num-gpus" in gpus_agree((2, ""), 0, "there").text
    count, reason = torch_gpus()
    assert (count > 0) == (reason == "")


def test_free_space_and_folders_that_cannot_be_written(tmp_path: Path) -> None:
    storage, cache = checks.disk_space(sweep(storage=str(tmp_path / "not" / "yet")))
    assert storage.passed == cache.passed == True  # noqa: E712
    assert str(tmp_path / "not" / "yet") in storage.text
    storage, _ = checks.disk_space(sweep(storage="/proc/results"))
    assert not storage.passed
    assert "storage /proc/results: cannot be written" in storage.text
    inside = tmp_path / "outer" / "inner" / "results"
    inside.mkdir(parents=True)
    with denied(tmp_path / "outer"):
        storage, cache = checks.disk_space(sweep(storage=str(inside)))
    assert cache.passed and storage == Check(
        False, f"storage {inside}: cannot be written (Permission denied); set storage= to another folder"
    )


def test_a_run_is_written_to_mlflow_and_read_back(tmp_path: Path) -> None:
    uri = new_database(tmp_path)
    (check,) = checks.tracking(sweep(tracking={"uri": uri}))
    assert check == Check(True, f"MLflow {uri}: a run and a file were written and read back")


def test_a_stopped_mlflow_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    results = checks.examine(sweep(tracking={"uri": "http://127.0.0.1:9"}), local=True)
    faults = [check.text for check in (next(results) for _ in range(6)) if not check.passed]
    assert len(faults) == 1
    assert "no server answers" in faults[0]
    assert "start the server" in faults[0]


def test_a_store_is_read_to_its_last_byte(store: TaskStore, tmp_path: Path) -> None:
    (check,) = checks.store(sweep(store))
    assert check.passed
    assert "seeds [0, 1, 2]" in check.text
    shutil.copytree(store.path, tmp_path / "damaged")
    images = tmp_path / "damaged" / "images.arrow"
    content = bytearray(images.read_bytes())
    content[len(content) // 2] ^= 1
    images.write_bytes(content)
    results = checks.examine(sweep(TaskStore.open(tmp_path / "damaged")), local=True)
    faults = [check.text for check in (next(results) for _ in range(7)) if not check.passed]
    assert len(faults) == 1
    assert "images.arrow" in faults[0]


def test_the_command_checks_cluster_files(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).resolve().parents[3]
    assert __main__.main([str(root / "deploy/kuberay.yaml")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "3 faults"
    assert all(line.startswith("FAULT  ") and "must be filled in" in line for line in lines[:-1])


def test_nodes_that_a_cluster_file_promises(tmp_path: Path) -> None:
    bootstrap = tmp_path / "ray_bootstrap_config.yaml"
    bootstrap.write_text(
        '{"provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2", "10.0.0.3"]}}'
    )
    joined = [Node("a", "10.0.0.1", 0, 0), Node("b", "10.0.0.3", 4, 1)]
    assert promised(bootstrap) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert missing(joined, promised(bootstrap)) == "2 of 3 nodes: 10.0.0.2 has not joined"
    assert missing(joined, promised(tmp_path / "none")) == ""


def test_nodes_that_an_autoscaler_may_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    bootstrap = tmp_path / "ray_bootstrap_config.yaml"
    bootstrap.write_text((Path(__file__).resolve().parents[3] / "cluster.yaml").read_text())
    assert startable(bootstrap) == [({"CPU": 4, "GPU": 1}, 8)]
    assert startable(tmp_path / "none") == []


def test_nodes_that_the_operator_of_kubernetes_may_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads the RayCluster as the autoscaler does; without the permission, the limits are not known."""
    from ray.autoscaler._private.kuberay.node_provider import KubernetesHttpApiClient

    cluster = next(yaml.safe_load_all((Path(__file__).resolve().parents[3] / "deploy/kuberay.yaml").read_text()))
    cluster["metadata"]["namespace"] = "foml"
    asked = []

    def get(self: KubernetesHttpApiClient, path: str) -> object:
        asked.append((self._namespace, path))
        return cluster

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("RAY_CLUSTER_NAME", "foml")
    assert startable(tmp_path / "none") is None
    (tmp_path / "namespace").write_text("foml\n")
    monkeypatch.setattr("orchestrator.execution.nodes._NAMESPACE", tmp_path / "namespace")
    monkeypatch.setattr(KubernetesHttpApiClient, "get", get)
    (resources, most), *others = startable(tmp_path / "none") or []
    assert ((resources["CPU"], resources["GPU"]), most, others) == ((4, 1), 8, [])
    assert asked == [("foml", "rayclusters/foml")]
    cluster["spec"]["enableInTreeAutoscaling"] = False
    assert startable(tmp_path / "none") == []


def test_resources_that_no_node_has_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the sweep command refuses them, on this machine and on a cluster."""
    large = sweep(resources={"cpus": 1024, "gpus": 64})
    monkeypatch.setattr(checks, "check_nodes", lambda *_: iter(()))
    here = list(checks.cluster(large, local=True))
    assert [(check.passed, check.text.split(": ")[1]) for check in here] == [
        (False, "resources.cpus"),
        (False, "resources.gpus"),
    ]
    assert all("that this machine has (got " in check.text for check in here)
    assert list(checks.cluster(sweep(), local=True)) == []
    cluster = ray_session.Cluster(32, 8, 4, 1, local=False)
    monkeypatch.setattr(nodes, "ray_running", lambda local: nullcontext(cluster))
    monkeypatch.setattr(nodes.nodes, "joined", lambda: [Node("a", "10.0.0.1", 4, 1)])
    monkeypatch.setattr(nodes.nodes, "promised", list)
    monkeypatch.setattr(nodes, "marker_file", lambda storage: nullcontext(("", "")))
    monkeypatch.setattr(nodes, "_check_joined", lambda *_: iter(()))
    there = [check.text for check in nodes.check_nodes(large, local=False) if not check.passed]
    rule = "must be at most the 4 that a node of this cluster has (got 1024"
    assert len(there) == 2 and there[0].startswith(f"configuration: resources.cpus: {rule}")
    assert all(check.passed for check in nodes.check_nodes(sweep(), local=False))
