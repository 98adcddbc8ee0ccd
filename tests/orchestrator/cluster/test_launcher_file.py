"""Cluster files: the project's own four are valid, and each fault of a changed one is one line."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from orchestrator import ship
from orchestrator.cluster import launcher_file
from orchestrator.cluster.images import PARAMETER
from orchestrator.cluster.launcher_file import (
    check_cluster_file,
    is_cluster_file,
    read_cluster_file,
    unreachable_hosts,
)
from orchestrator.doctor import __main__ as doctor
from orchestrator.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
FILES = ["cluster.yaml", "deploy/gcp.yaml", "deploy/onprem.yaml", "deploy/kuberay.yaml"]
TO_FILL_IN = {
    "cluster.yaml": {},
    "deploy/gcp.yaml": {
        "sourceImage: FILL-IN": "sourceImage: projects/p/global/images/ubuntu-2204-nvidia-580-v20260801",
        "FILL-IN": "my-project",
    },
    "deploy/onprem.yaml": {
        "head_ip: FILL-IN": "head_ip: 10.0.0.1",
        "[FILL-IN]": "[10.0.0.2, 10.0.0.3]",
        "FILL-IN": "me",
    },
    "deploy/kuberay.yaml": {"storageClassName: FILL-IN": "storageClassName: nfs", "FILL-IN": "registry/foml:4263260"},
}


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that cluster files mount."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy/ship").mkdir(parents=True)
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id_ed25519").write_text("key")
    ship.make_token(Path("~/.foml/auth_token").expanduser())
    return tmp_path


def filled_in(name: str) -> str:
    text = (ROOT / name).read_text(encoding="utf-8")
    for marked, value in TO_FILL_IN[name].items():
        text = text.replace(marked, value)
    return text


def faults_of(folder: Path, name: str, change: Callable[[Any], object]) -> list[str]:
    documents = list(yaml.safe_load_all(filled_in(name)))
    change(documents[0])
    (folder / "changed.yaml").write_text(yaml.safe_dump_all(documents, sort_keys=False), encoding="utf-8")
    return check_cluster_file(folder / "changed.yaml", "c.yaml")


@pytest.mark.parametrize("name", FILES)
def test_the_projects_files_are_valid_once_filled_in(name: str, laptop: Path) -> None:
    faults = check_cluster_file(ROOT / name, name)
    assert all("must be filled in (got FILL-IN)" in line for line in faults)
    count = {"cluster.yaml": 0, "deploy/gcp.yaml": 2, "deploy/onprem.yaml": 3, "deploy/kuberay.yaml": 3}[name]
    assert len(faults) == count
    (laptop / "filled.yaml").write_text(filled_in(name), encoding="utf-8")
    assert check_cluster_file(laptop / "filled.yaml") == []
    assert is_cluster_file(laptop / "filled.yaml")


def test_a_sweep_is_not_a_cluster_file() -> None:
    assert not any(is_cluster_file(path) for path in (ROOT / "tune_configs").glob("*.yaml"))


def test_versions_agree_with_the_tested_ones() -> None:
    (pinned,) = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ray==")]
    version = pinned.removeprefix("ray==")
    assert f"FROM rayproject/ray:{version}-py311" in (ROOT / "deploy/Dockerfile").read_text()
    assert f"rayVersion: {version}\n" in (ROOT / "deploy/kuberay.yaml").read_text()
    assert ray.__version__ == version


def test_aws_workers_autoscale_from_zero_on_spot_and_the_head_has_no_gpu() -> None:
    document = yaml.safe_load(filled_in("cluster.yaml"))
    head, gpu = document["available_node_types"]["head"], document["available_node_types"]["gpu"]
    assert gpu["min_workers"] == 0
    assert gpu["resources"]["GPU"] == 1
    assert gpu["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "GPU" not in head["resources"]
    assert "InstanceMarketOptions" not in head["node_config"]


def gpu(document: Any) -> Any:
    return document["available_node_types"]["gpu"]


def started(document: Any, key: str, word: str, by: str) -> None:
    document[key] = [command.replace(word, by) for command in document[key]]


AWS_FAULTS: list[tuple[Callable[[Any], object], str]] = [
    (lambda d: d.update(idle_timeout_minute=3), "c.yaml: Ray's schema: Additional properties are not allowed ('idle_timeout_minute' was unexpected)"),
    (lambda d: d.pop("cluster_name"), "c.yaml: Ray's schema: 'cluster_name' is a required property"),
    (lambda d: gpu(d).update(min_worker=1), "c.yaml: available_node_types.gpu: Ray's schema: Additional properties are not allowed ('min_worker' was unexpected)"),
    (lambda d: gpu(d).pop("resources"), "c.yaml: available_node_types.gpu: Ray's schema: 'resources' is a required property"),
    (lambda d: d.update(max_workers="8"), "c.yaml: max_workers: Ray's schema: '8' is not of type 'integer'"),
    (lambda d: d["provider"].update(type="awz"), "c.yaml: Ray's validator: Unsupported node provider: awz"),
    (lambda d: d.update(head_node_type="haed"), "c.yaml: Ray's validator: `head_node_type` must be one of `available_node_types`."),
    (lambda d: gpu(d).update(min_workers=9), "c.yaml: Ray's validator: The specified global `max_workers` is smaller than"),
    (lambda d: gpu(d)["node_config"].update(InstanceTyp="x"), 'c.yaml: available_node_types.gpu.node_config: AWS: Unknown parameter in input: "InstanceTyp"'),
    (lambda d: gpu(d)["node_config"].update(InstanceMarketOptions={"MarketTyp": "spot"}), 'c.yaml: available_node_types.gpu.node_config: AWS: Unknown parameter in InstanceMarketOptions: "MarketTyp"'),
    (lambda d: gpu(d)["node_config"].update(BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": "150"}}]), "c.yaml: available_node_types.gpu.node_config: AWS: Invalid type for parameter BlockDeviceMappings[0].Ebs.VolumeSize, value: 150"),
    (lambda d: gpu(d)["node_config"].update(ImageId="latest_dlami"), "c.yaml: available_node_types.gpu.node_config.ImageId: must be one version of an image (got latest_dlami)"),
    (lambda d: d["head_start_ray_commands"].pop(2), f"c.yaml: available_node_types.gpu.node_config.ImageId: must be an id: the role that Ray gives the head may not read SSM's parameters (got resolve:ssm:{PARAMETER}); run doctor with --fill"),
    (lambda d: d.update(docker={"image": "rayproject/ray:latest", "container_name": "r"}), "c.yaml: docker.image: must be one version of an image (got rayproject/ray:latest)"),
    (lambda d: d["file_mounts"].update({"~/x": "no/such/folder"}), "c.yaml: file_mounts[~/x]: must exist (got no/such/folder); paths start at the working directory"),
    (lambda d: d["file_mounts"].pop("~/.ray/auth_token"), "c.yaml: file_mounts: must bring the cluster's token to every node; add ~/.ray/auth_token: ~/.foml/auth_token"),
    (lambda d: d.pop("setup_commands"), "c.yaml: setup_commands: must be given: Ray's defaults install nothing, or a nightly build of Ray"),
    (lambda d: d.pop("worker_start_ray_commands"), "c.yaml: worker_start_ray_commands: must set RAY_AUTH_MODE=token for `ray start`: anyone who can reach"),
    (lambda d: started(d, "head_start_ray_commands", "RAY_AUTH_MODE=token", ""), "c.yaml: head_start_ray_commands: must set RAY_AUTH_MODE=token for `ray start`: anyone who can reach"),
    (lambda d: d["provider"].update(aws_credentials={"aws_access_key_id": "AKIAABCDEFGHIJKLMNOP"}), "c.yaml: provider.aws_credentials.aws_access_key_id: must not hold a secret"),
    (lambda d: started(d, "head_start_ray_commands", "export ", "export RAY_AUTH_TOKEN=0123456789abcdef "), "c.yaml: head_start_ray_commands[3]: must not hold a secret"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), AWS_FAULTS)
def test_each_fault_is_one_line(laptop: Path, change: Callable[[Any], object], line: str) -> None:
    faults = faults_of(laptop, "cluster.yaml", change)
    assert len(faults) == 1
    assert faults[0].startswith(line)


def containers(group: Any) -> Any:
    return group["template"]["spec"]["containers"][0]


OTHER_FAULTS: list[tuple[str, Callable[[Any], object], str]] = [
    ("deploy/gcp.yaml", lambda d: gpu(d)["node_config"].update(disks=[{"boot": True, "initializeParams": {"sourceImage": "projects/p/global/images/family/x"}}]), "disks[0].initializeParams.sourceImage: must be one version of an image (got projects/p/global/images/family/x)"),
    ("deploy/onprem.yaml", lambda d: d["auth"].update(ssh_private_key="~/.ssh/none"), "auth.ssh_private_key: must be a file (got ~/.ssh/none)"),
    ("deploy/onprem.yaml", lambda d: d["provider"].pop("worker_ips"), "c.yaml: Ray's validator: "),
    ("deploy/onprem.yaml", lambda d: d.update(setup_commands=[]), "c.yaml: setup_commands: must be given"),
    ("deploy/kuberay.yaml", lambda d: d["spec"].update(rayVersion="2.9.0"), "spec.rayVersion: must be the version of this installation"),
    ("deploy/kuberay.yaml", lambda d: containers(d["spec"]["workerGroupSpecs"][0]).update(env=[{"name": "RAY_AUTH_MODE", "value": "token"}]), "spec.workerGroupSpecs[0]: must set RAY_AUTH_TOKEN from a Secret"),
    ("deploy/kuberay.yaml", lambda d: containers(d["spec"]["headGroupSpec"]).update(env=containers(d["spec"]["headGroupSpec"])["env"][1:]), "spec.headGroupSpec: must set RAY_AUTH_MODE=token"),
    ("deploy/kuberay.yaml", lambda d: containers(d["spec"]["headGroupSpec"]).update(image="registry/foml:latest"), "must be one version of an image (got registry/foml:latest)"),
    ("deploy/kuberay.yaml", lambda d: containers(d["spec"]["headGroupSpec"])["env"].append({"name": "X_PASSWORD", "value": "hunter2"}), "containers[ray-head].env[X_PASSWORD].value: must not hold a secret"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "line"), OTHER_FAULTS)
def test_other_providers(laptop: Path, name: str, change: Callable[[Any], object], line: str) -> None:
    faults = faults_of(laptop, name, change)
    assert len(faults) == 1
    assert line in faults[0]


def test_a_token_must_be_private(laptop: Path) -> None:
    Path("~/.foml/auth_token").expanduser().chmod(0o644)
    (line,) = faults_of(laptop, "cluster.yaml", lambda document: None)
    assert line.endswith("must be readable by you only (got ~/.foml/auth_token); run: chmod 600 ~/.foml/auth_token")


def test_all_faults_are_reported_together_and_files_that_cannot_be_read(laptop: Path) -> None:
    def change(document: Any) -> None:
        document["setup_commands"] = []
        document["file_mounts"]["~/x"] = "nowhere"
        document["clustername"] = "x"

    assert len(faults_of(laptop, "cluster.yaml", change)) == 3
    (laptop / "x.yaml").write_text("a: 1\na: 2\n")
    assert "written twice" in check_cluster_file(laptop / "x.yaml")[0]
    assert "must be a readable file" in check_cluster_file(laptop / "none.yaml")[0]
    with pytest.raises(ConfigError, match="must be filled in"):
        read_cluster_file(ROOT / "deploy/onprem.yaml")


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster file with hosts whose ports are those of ssh's configuration, here a script: open, closed, by proxy."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as closed:
        ports = {"up": listening.getsockname()[1], "down": closed.getsockname()[1]}
        closed.close()
        ssh = tmp_path / "bin/ssh"
        ssh.parent.mkdir()
        cases = "".join(f"{host}) echo hostname 127.0.0.1; echo port {port} ;;\n" for host, port in ports.items())
        ssh.write_text(f'#!/bin/bash\ncase $3 in\n{cases}inside) echo "proxyjump gate" ;;\n*) exit 255 ;;\nesac\n')
        ssh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
        file = tmp_path / "cluster.yaml"
        provider = {"type": "local", "head_ip": "up", "worker_ips": ["down", "inside", "up", "no.such.host.invalid"]}
        file.write_text(yaml.safe_dump({"cluster_name": "x", "provider": provider}))
        yield file


def test_hosts_that_do_not_answer_are_named(hosts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remedy = "start the host, or correct its address; --offline leaves this check out"
    down, unknown = unreachable_hosts(hosts)
    assert down.startswith(f"{hosts}: provider.worker_ips[0]: must answer ssh within 2 s (port ")
    assert down.endswith(f": Connection refused) (got down); {remedy}")
    assert unknown.startswith(f"{hosts}: provider.worker_ips[3]: must answer ssh within 2 s (port 22: ")
    assert unknown.endswith(f" (got no.such.host.invalid); {remedy}")
    assert doctor.main([str(hosts)]) == 1
    assert f"FAULT  {down}" in capsys.readouterr().out.splitlines()
    assert doctor.main([str(hosts), "--offline"]) == 1  # its other faults
    assert "must answer ssh" not in capsys.readouterr().out


def test_hosts_are_asked_in_parallel(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(20)

    def silent(address: tuple[str, int], timeout: float) -> None:
        together.wait(60)  # until all have been asked
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)
    workers = [f"192.0.2.{n}" for n in range(20)]
    hosts.write_text(yaml.safe_dump({"provider": {"type": "local", "head_ip": "FILL-IN", "worker_ips": workers}}))
    lines = unreachable_hosts(hosts)
    assert len(lines) == 20 and all("(port 22: timed out) (got 192.0.2." in line for line in lines)


def test_a_cloud_and_a_faulty_file_name_no_hosts(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    for text in ("provider: {type: aws}\ncluster_name: x\n", "provider: [1]\n", "{", "- 1\n"):
        file.write_text(text)
        assert unreachable_hosts(file) == []
    assert unreachable_hosts(tmp_path / "missing.yaml") == []


def places(value: object, depth: int, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of the values at most this deep in a document."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*path, key)
        if depth > 1:
            yield from places(part, depth - 1, (*path, key))


@pytest.mark.parametrize("wrong", [5, True, "x", None, [5], {"a": 5}, "2026-01-01"])
@pytest.mark.parametrize("name", ["deploy/onprem.yaml", "deploy/kuberay.yaml"])
def test_a_value_of_another_type_is_no_traceback(
    name: str, wrong: object, laptop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_file, "_validator", lambda *_: [])  # slow, and what it raises is one line
    monkeypatch.setattr(launcher_file, "_schema", lambda *_: [])
    (document, *_) = yaml.safe_load_all(filled_in(name))
    for *path, last in places(document, 3):

        def change(changed: Any, path: list[Any] = path, last: object = last) -> None:
            for key in path:
                changed = changed[key]
            changed[last] = yaml.safe_load(wrong) if isinstance(wrong, str) else wrong  # one is a date

        assert all(line.startswith("c.yaml") for line in faults_of(laptop, name, change)), (path, last)


def test_numbers_where_keys_or_a_list_belong(laptop: Path) -> None:
    numbers: list[tuple[str, str]] = [
        ("cluster.yaml", "available_node_types"),
        ("cluster.yaml", "file_mounts"),
        ("cluster.yaml", "head_start_ray_commands"),
        ("deploy/kuberay.yaml", "spec"),
    ]
    for name, key in numbers:
        faults = faults_of(laptop, name, lambda document, key=key: document.update({key: 5}))  # type: ignore[misc]
        assert any(line.startswith(f"c.yaml: {key}: ") for line in faults), faults
