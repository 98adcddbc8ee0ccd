"""`ray up cluster.yaml` against a server with the interfaces of EC2, IAM, SSM and STS, up to the first ssh connection."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator import ship
from orchestrator.cluster.images import PARAMETER, fill_images

ROOT = Path(__file__).resolve().parents[2]
REGION = "us-west-2"
IMAGE = "ami-0123456789abcdef0"
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass
class Laptop:
    """The machine that runs `ray up`: its home folder and working directory, and the output of its commands."""

    folder: Path
    endpoint: str
    output: str = ""
    connections: list[str] = field(default_factory=list)

    def client(self, service: str) -> Any:
        import boto3

        return boto3.client(service, region_name=REGION)

    def instances(self) -> list[Any]:
        pages = self.client("ec2").describe_instances()["Reservations"]
        return [instance for page in pages for instance in page["Instances"]]


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """A laptop on which `ray up -y cluster.yaml` was run, with the file of the project as it is."""
    pytest.importorskip("moto.server", reason="a server like AWS's: pip install 'moto[s3]'")
    pytest.importorskip("boto3", reason="AWS's client: pip install boto3")
    folder = tmp_path_factory.mktemp("aws")
    with pytest.MonkeyPatch.context() as patch, (folder / "moto.log").open("w") as log:
        patch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        server = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + 120
            while "Running on http" not in (text := (folder / "moto.log").read_text()):
                assert time.monotonic() < until and server.poll() is None, text
                time.sleep(0.1)
            patch.setenv("AWS_ENDPOINT_URL", text.partition("Running on ")[2].split()[0])
            for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                patch.setenv(key, "tests")
            patch.setenv("HOME", str(folder / "home"))
            patch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
            patch.chdir(folder)
            yield ray_up(Laptop(folder, os.environ["AWS_ENDPOINT_URL"]))
        finally:
            server.terminate()
            server.wait()


def ray_up(laptop: Laptop) -> Laptop:
    folder = laptop.folder
    for name in ("home", "bin", "tmp", "deploy/ship"):
        (folder / name).mkdir(parents=True)
    ship.make_token(Path("~/.foml/auth_token").expanduser())
    shutil.copy(ROOT / "cluster.yaml", folder)
    connections = folder / "connections"
    (folder / "bin/ssh").write_text(f'#!/bin/bash\necho "$*" >>{connections}\nexit 255\n')
    (folder / "bin/ssh").chmod(0o755)
    with (folder / "up.log").open("w") as log:
        words = [sys.executable, "-m", "ray.scripts.scripts", "up", "-y", "cluster.yaml"]
        environment = os.environ | {"TMPDIR": str(folder / "tmp"), "RAY_USAGE_STATS_ENABLED": "0"}
        up = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            until = time.monotonic() + 200
            while not connections.exists() or not connections.read_text().endswith("\n"):
                assert time.monotonic() < until and up.poll() is None, (folder / "up.log").read_text()
                time.sleep(0.2)
        finally:
            up.kill()
            up.wait()
    laptop.output = (folder / "up.log").read_text()
    laptop.connections = connections.read_text().splitlines()
    return laptop


def tags(instance: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance["Tags"]}


def disks(laptop: Laptop, instance: Any) -> list[tuple[int, str, bool]]:
    """Size, type, and whether the disk is deleted with the machine, for each disk."""
    held = {disk["Ebs"]["VolumeId"]: disk["Ebs"]["DeleteOnTermination"] for disk in instance["BlockDeviceMappings"]}
    volumes = laptop.client("ec2").describe_volumes(VolumeIds=list(held))["Volumes"]
    return [(volume["Size"], volume["VolumeType"], held[volume["VolumeId"]]) for volume in volumes]


def group(laptop: Laptop, instance: Any) -> Any:
    (entry,) = instance["SecurityGroups"]
    (found,) = laptop.client("ec2").describe_security_groups(GroupIds=[entry["GroupId"]])["SecurityGroups"]
    return found


def test_the_head_is_started_as_the_file_says(laptop: Laptop) -> None:
    (head,) = laptop.instances()
    assert head["ImageId"] == f"resolve:ssm:{PARAMETER}"
    assert head["InstanceType"] == "m6i.xlarge"
    assert "InstanceLifecycle" not in head  # no spot instance
    assert disks(laptop, head) == [(150, "gp3", True)]
    assert head["Placement"]["AvailabilityZone"] in ("us-west-2a", "us-west-2b", "us-west-2c")
    assert tags(head)["ray-cluster-name"] == "foml"
    assert tags(head)["ray-node-type"] == "head"
    assert tags(head)["ray-user-node-type"] == "head"


def test_ssh_is_the_only_way_in(laptop: Laptop) -> None:
    (head,) = laptop.instances()
    found = group(laptop, head)
    assert found["GroupName"] == "foml-ssh-only"
    rules = {
        (rule["IpProtocol"], rule.get("FromPort"), rule.get("ToPort")): (
            [one["CidrIp"] for one in rule["IpRanges"]],
            [one["GroupId"] for one in rule["UserIdGroupPairs"]],
        )
        for rule in found["IpPermissions"]
    }
    assert rules.pop(("tcp", 22, 22)) == (["0.0.0.0/0"], [])
    ((traffic, sources),) = rules.items()
    assert traffic[0] == "-1" and sources == ([], [found["GroupId"]])  # all traffic between the nodes
    key = Path(f"~/.ssh/{head['KeyName']}.pem").expanduser()
    assert key.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE KEY" in key.read_text()
    assert [pair["KeyName"] for pair in laptop.client("ec2").describe_key_pairs()["KeyPairs"]] == [head["KeyName"]]
    (first, *_) = laptop.connections
    assert f"-i {key} " in first and f" ubuntu@{head['PublicIpAddress']} " in first


def test_the_heads_role_may_start_machines_and_not_read_parameters(laptop: Laptop) -> None:
    """Therefore workers need an image's id, which `node.sh --image` finds."""
    (head,) = laptop.instances()
    profile = head["IamInstanceProfile"]["Arn"].rpartition("/")[2]
    iam = laptop.client("iam")
    (role,) = iam.get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]
    attached = iam.list_attached_role_policies(RoleName=role["RoleName"])["AttachedPolicies"]
    assert {policy["PolicyName"] for policy in attached} == {"AmazonEC2FullAccess", "AmazonS3FullAccess"}
    for policy in attached:
        version = iam.get_policy(PolicyArn=policy["PolicyArn"])["Policy"]["DefaultVersionId"]
        document = iam.get_policy_version(PolicyArn=policy["PolicyArn"], VersionId=version)["PolicyVersion"]["Document"]
        assert "ssm" not in json.dumps(document)


@pytest.fixture
def metadata() -> Iterator[str]:
    """The address of a metadata service as EC2's (version 2: with a token) that knows the image of the machine."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self, text: str, status: int = 200) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_PUT(self) -> None:
            good = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            self.answer("a-token" if good else "", 200 if good else 400)

        def do_GET(self) -> None:
            good = self.path == "/latest/meta-data/ami-id" and self.headers["X-aws-ec2-metadata-token"] == "a-token"
            self.answer(IMAGE if good else "", 200 if good else 401)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_the_autoscaler_starts_spot_workers_from_the_heads_image(laptop: Laptop, metadata: str) -> None:
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import hash_launch_conf

    # What `ray up` copies to the head, from its cache, and what the head's commands do with it.
    (cached,) = (laptop.folder / "tmp").glob("ray-config-*")
    config = json.loads(cached.read_text())["config"]
    home = laptop.folder / "head"
    (home / "foml-venv/bin").mkdir(parents=True)
    (home / "foml-venv/bin/python").symlink_to(sys.executable)
    (home / "ray_bootstrap_config.yaml").write_text(json.dumps(config))
    assert "bash ~/foml/node.sh --image" in config["head_start_ray_commands"]
    environment = os.environ | {"HOME": str(home), "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata}
    done = subprocess.run(["bash", ROOT / "deploy/node.sh", "--image"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    config = json.loads((home / "autoscaling.yaml").read_text())
    before = {instance["InstanceId"] for instance in laptop.instances()}
    provider = AWSNodeProvider(config["provider"], config["cluster_name"])
    node = config["available_node_types"]["gpu"]["node_config"]
    labels = {"ray-node-type": "worker", "ray-user-node-type": "gpu"}
    provider.create_node(node, labels | {"ray-launch-config": hash_launch_conf(node, config["auth"])}, 1)
    (head,) = (instance for instance in laptop.instances() if instance["InstanceId"] in before)
    (worker,) = (instance for instance in laptop.instances() if instance["InstanceId"] not in before)
    assert worker["ImageId"] == IMAGE
    assert worker["InstanceType"] == "g5.xlarge"
    assert worker["InstanceLifecycle"] == "spot"
    assert disks(laptop, worker) == [(150, "gp3", True)]
    assert "IamInstanceProfile" not in worker
    assert worker["KeyName"] == head["KeyName"]
    assert group(laptop, worker) == group(laptop, head)
    assert tags(worker)["ray-node-type"] == "worker"
    assert tags(worker)["ray-user-node-type"] == "gpu"


def test_fill_writes_the_parameters_id_into_the_file(laptop: Laptop) -> None:
    """With a parameter that the server has."""
    name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
    file = laptop.folder / "filled.yaml"
    text = (ROOT / "cluster.yaml").read_text().replace(PARAMETER, name)
    file.write_text(text)
    image = laptop.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    assert image.startswith("ami-")
    assert fill_images(file) == [f"{file}: {image} in us-west-2, written in place of resolve:ssm:{name}"]
    assert file.read_text() == text.replace(f"resolve:ssm:{name}", image)
    assert fill_images(file) == []
