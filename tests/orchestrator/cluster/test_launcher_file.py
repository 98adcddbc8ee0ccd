"""Cluster files: the project's own four, and what is told of files with faults that Ray lets pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from orchestrator import ship
from orchestrator.cluster.launcher_file import check_cluster_file, expected_nodes, is_cluster_file, read_cluster_file
from orchestrator.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
FILES = ["cluster.yaml", "deploy/gcp.yaml", "deploy/onprem.yaml", "deploy/kuberay.yaml"]
AMI = "ami-0123456789abcdef0"
TO_FILL_IN = {
    "cluster.yaml": {"FILL-IN": AMI},
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
    """A folder to give commands in, with what the files mount."""
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
def test_the_projects_files_have_nothing_wrong_but_what_is_to_be_filled_in(name: str, laptop: Path) -> None:
    told = check_cluster_file(ROOT / name, name)
    assert all("must be filled in (got FILL-IN)" in line for line in told)
    assert (
        len(told) == {"cluster.yaml": 1, "deploy/gcp.yaml": 2, "deploy/onprem.yaml": 3, "deploy/kuberay.yaml": 2}[name]
    )
    (laptop / "filled.yaml").write_text(filled_in(name), encoding="utf-8")
    assert check_cluster_file(laptop / "filled.yaml") == []
    assert is_cluster_file(laptop / "filled.yaml")


def test_a_sweep_is_no_cluster_file() -> None:
    assert not any(is_cluster_file(path) for path in (ROOT / "tune_configs").glob("*.yaml"))


def test_versions_agree_with_those_that_were_tested() -> None:
    (pinned,) = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ray==")]
    version = pinned.removeprefix("ray==")
    assert f"FROM rayproject/ray:{version}-py311" in (ROOT / "deploy/Dockerfile").read_text()
    assert f"rayVersion: {version}\n" in (ROOT / "deploy/kuberay.yaml").read_text()
    assert ray.__version__ == version


def test_aws_files_autoscale_from_none_on_spot_and_the_head_has_no_gpu() -> None:
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
    (lambda d: d.update(idle_timeout_minute=3), "c.yaml: idle_timeout_minute: unknown key; did you mean idle_timeout_minutes?"),
    (lambda d: d.pop("cluster_name"), "c.yaml: cluster_name: must be a name of its own: two clusters called default are one to Ray (got nothing)"),
    (lambda d: d["provider"].update(regoin="us-west-2"), "c.yaml: provider.regoin: unknown key; did you mean region?"),
    (lambda d: d["provider"].update(region="us-west-9"), "c.yaml: provider.region: must be a region of AWS (got us-west-9); did you mean us-west-"),
    (lambda d: d["provider"].update(type="awz"), "c.yaml: provider.type: must be one of aws, gcp, local (got awz); did you mean aws?"),
    (lambda d: d["provider"].update(availability_zone="us-east-1a"), "c.yaml: provider.availability_zone: must be in the region us-west-2 (got us-east-1a)"),
    (lambda d: gpu(d)["node_config"].update(InstanceTyp="x"), "c.yaml: available_node_types.gpu.node_config.InstanceTyp: unknown key; did you mean InstanceType?"),
    (lambda d: gpu(d)["node_config"].update(InstanceType="g5.xlarg"), "c.yaml: available_node_types.gpu.node_config.InstanceType: AWS knows no such value (got g5.xlarg); did you mean g5.xlarge?"),
    (lambda d: gpu(d)["node_config"].update(InstanceMarketOptions={"MarketTyp": "spot"}), "c.yaml: available_node_types.gpu.node_config.InstanceMarketOptions.MarketTyp: unknown key; did you mean MarketType?"),
    (lambda d: gpu(d)["node_config"].update(BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": "150"}}]), "c.yaml: available_node_types.gpu.node_config.BlockDeviceMappings[0].Ebs.VolumeSize: must be of type integer (got 150)"),
    (lambda d: gpu(d)["node_config"].pop("ImageId"), "c.yaml: available_node_types.gpu.node_config.ImageId: must be given: Ray's default is Ubuntu 18.04, too old for torch"),
    (lambda d: gpu(d)["node_config"].update(ImageId="latest_dlami"), "c.yaml: available_node_types.gpu.node_config.ImageId: must be the id of one image, ami- and 17 hexadecimal digits (got latest_dlami)"),
    (lambda d: d["available_node_types"]["head"]["node_config"].update(InstanceMarketOptions={"MarketType": "spot"}), "c.yaml: available_node_types.head.node_config.InstanceMarketOptions: must be left out: a head on spot takes the cluster with it"),
    (lambda d: gpu(d).update(min_workers=9), "c.yaml: available_node_types.gpu.min_workers: must be at most max_workers, 8 (got 9)"),
    (lambda d: gpu(d).update(min_worker=1), "c.yaml: available_node_types.gpu: Ray's schema: Additional properties are not allowed ('min_worker' was unexpected)"),
    (lambda d: gpu(d).pop("resources"), "c.yaml: available_node_types.gpu.resources: must be given"),
    (lambda d: d.update(head_node_type="haed"), "c.yaml: head_node_type: must be one of available_node_types, head, gpu (got haed)"),
    (lambda d: d.update(max_workers="8"), "c.yaml: max_workers: Ray's schema: '8' is not of type 'integer'"),
    (lambda d: (d.update(max_workers=2), gpu(d).update(min_workers=3)), "c.yaml: Ray's validator: The specified global `max_workers` is smaller than"),
    (lambda d: d["file_mounts"].update({"~/x": "no/such/folder"}), "c.yaml: file_mounts[~/x]: must be there (got no/such/folder); paths are seen from where you are now"),
    (lambda d: d["file_mounts"].pop("~/.ray/auth_token"), "c.yaml: file_mounts: the cluster's token must be on every node; add ~/.ray/auth_token: ~/.foml/auth_token"),
    (lambda d: d.pop("setup_commands"), "c.yaml: setup_commands: must be given: Ray's default installs a nightly build of Ray"),
    (lambda d: d.pop("worker_start_ray_commands"), "c.yaml: worker_start_ray_commands: must be a list of commands: Ray's default starts without a token"),
    (lambda d: started(d, "worker_start_ray_commands", "RAY_AUTH_MODE=token", ""), "c.yaml: worker_start_ray_commands: must set RAY_AUTH_MODE=token: whoever reaches the port could run what he likes"),
    (lambda d: started(d, "head_start_ray_commands", "--autoscaling-config", "--x"), "c.yaml: head_start_ray_commands: `ray start` must have --autoscaling-config="),
    (lambda d: started(d, "head_start_ray_commands", "--include-dashboard=false", "--dashboard-host=0.0.0.0"), "c.yaml: head_start_ray_commands: the dashboard must listen to localhost only; reach it by ssh"),
    (lambda d: d.update(docker={"image": "rayproject/ray:latest", "container_name": "r"}), "c.yaml: docker.image: must be one version of an image (got rayproject/ray:latest)"),
    (lambda d: d["provider"].update(aws_credentials={"aws_access_key_id": "AKIAABCDEFGHIJKLMNOP"}), "c.yaml: provider.aws_credentials.aws_access_key_id: a secret must not stand in this file"),
    (lambda d: started(d, "head_start_ray_commands", "export ", "export RAY_AUTH_TOKEN=0123456789abcdef "), "a secret must not stand in this file"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), AWS_FAULTS)
def test_what_ray_lets_pass_is_told_in_one_line(laptop: Path, change: Callable[[Any], object], line: str) -> None:
    told = faults_of(laptop, "cluster.yaml", change)
    assert len(told) == 1
    assert line in told[0]


OTHER_FAULTS: list[tuple[str, Callable[[Any], object], str]] = [
    ("deploy/gcp.yaml", lambda d: gpu(d)["node_config"].update(machinType="x"), "available_node_types.gpu.node_config.machinType: unknown key; did you mean machineType?"),
    ("deploy/gcp.yaml", lambda d: gpu(d)["node_config"].update(disks=[{"boot": True, "initializeParams": {"sourceImage": "projects/p/global/images/family/x"}}]), "must be one image, not a family"),
    ("deploy/gcp.yaml", lambda d: gpu(d)["node_config"]["scheduling"].pop("onHostMaintenance"), "scheduling.onHostMaintenance: must be TERMINATE for a machine with GPUs"),
    ("deploy/gcp.yaml", lambda d: d["provider"].pop("project_id"), "provider.project_id: must be given"),
    ("deploy/onprem.yaml", lambda d: d["provider"].update(worker_ip=["10.0.0.2"]), "provider.worker_ip: unknown key; did you mean worker_ips?"),
    ("deploy/onprem.yaml", lambda d: d["provider"]["worker_ips"].append("10.0.0.1"), "provider.worker_ips: must be different hosts, none of them the head (got 10.0.0.1)"),
    ("deploy/onprem.yaml", lambda d: started(d, "head_start_ray_commands", "RAY_enable_autoscaler_v2=0", ""), "must set RAY_enable_autoscaler_v2=0"),
    ("deploy/onprem.yaml", lambda d: d["auth"].pop("ssh_private_key"), "auth.ssh_private_key: must be given"),
    ("deploy/onprem.yaml", lambda d: d.update(setup_commands=[]), "setup_commands: must be given: nothing would be installed"),
    ("deploy/kuberay.yaml", lambda d: d["spec"].update(enableInTreeAutoscalin=True), "spec.enableInTreeAutoscalin: unknown key; did you mean enableInTreeAutoscaling?"),
    ("deploy/kuberay.yaml", lambda d: d["spec"].update(rayVersion="2.9.0"), "spec.rayVersion: must be the version of this installation"),
    ("deploy/kuberay.yaml", lambda d: d["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0].update(env=[{"name": "RAY_AUTH_MODE", "value": "token"}]), "containers[0].env: must have RAY_AUTH_TOKEN, from a Secret"),
    ("deploy/kuberay.yaml", lambda d: d["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0].update(image="registry/foml:latest"), "must be one version of an image (got registry/foml:latest)"),
    ("deploy/kuberay.yaml", lambda d: d["spec"]["headGroupSpec"].update(serviceType="LoadBalancer"), "serviceType: must be ClusterIP"),
    ("deploy/kuberay.yaml", lambda d: d["spec"]["workerGroupSpecs"][0].update(minReplicas=9), "minReplicas <= replicas <= maxReplicas must hold (got 9, 0, 8)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "line"), OTHER_FAULTS)
def test_other_providers(laptop: Path, name: str, change: Callable[[Any], object], line: str) -> None:
    told = faults_of(laptop, name, change)
    assert len(told) == 1
    assert line in told[0]


def test_a_token_that_others_may_read(laptop: Path) -> None:
    Path("~/.foml/auth_token").expanduser().chmod(0o644)
    (line,) = faults_of(laptop, "cluster.yaml", lambda document: None)
    assert line.endswith("others may read the token (got ~/.foml/auth_token); run: chmod 600 ~/.foml/auth_token")


def test_all_faults_at_once_and_unreadable_files(laptop: Path) -> None:
    def change(document: Any) -> None:
        document["provider"].pop("region")
        document["file_mounts"]["~/x"] = "nowhere"
        document["clustername"] = "x"

    assert len(faults_of(laptop, "cluster.yaml", change)) == 3
    (laptop / "x.yaml").write_text("a: 1\na: 2\n")
    assert "written twice" in check_cluster_file(laptop / "x.yaml")[0]
    assert "must be a readable file" in check_cluster_file(laptop / "none.yaml")[0]
    with pytest.raises(ConfigError, match="must be filled in"):
        read_cluster_file(ROOT / "deploy/onprem.yaml")


def test_nodes_that_an_on_prem_file_promises(laptop: Path) -> None:
    (laptop / "filled.yaml").write_text(filled_in("deploy/onprem.yaml"), encoding="utf-8")
    assert expected_nodes(read_cluster_file(laptop / "filled.yaml")) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
