"""One cluster of three hosts for all tests here, set up as docs/cluster.md says: ship, fill in the file, `ray up`."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from orchestrator import ship
from orchestrator.cluster.launcher_file import check_cluster_file

from . import hosts as hosts_of
from .hosts import Hosts, constrain

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class OnPrem:
    """The cluster, and the folder of the "laptop" that started it."""

    hosts: Hosts
    laptop: Path
    file: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def command(self, *words: str, timeout: float = 180, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the laptop."""
        settings = {
            "HOME": str(self.laptop / "home"),
            "TMPDIR": str(self.laptop / "tmp"),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "MLFLOW_", "FOML_"))
        }
        return subprocess.run(
            words,
            cwd=self.laptop,
            env=inherited | settings | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def ray(self, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return self.command(sys.executable, "-m", "ray.scripts.scripts", *words, timeout=timeout)

    def on_head(self, command: str, timeout: float = 240, check: bool = True) -> str:
        return self.hosts.ssh("h0", command, timeout, check)

    def alive(self) -> int:
        """The number of nodes that Ray counts."""
        script = "import ray; ray.init('auto', logging_level='ERROR'); print(sum(n['Alive'] for n in ray.nodes()))"
        output = self.on_head(f'cd / && RAY_AUTH_MODE=token ~/foml-venv/bin/python -c "{script}"', check=False)
        numbers = [line for line in output.splitlines() if line.isdigit()]
        return int(numbers[-1]) if numbers else 0


@pytest.fixture(scope="session")
def on_prem(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnPrem]:
    reason = hosts_of.why_not()
    if not reason and not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        reason = "not installed: postgresql"
    if reason:
        pytest.skip(reason)
    # Not in pytest's folder: Ray's sockets need short paths.
    folder = Path("/tmp") / f"foml-hosts-{os.getpid()}"
    hosts = hosts_or_skip(folder, 3)
    try:
        cluster = OnPrem(hosts, folder / "laptop", folder / "laptop" / "onprem.yaml")
        bring_up(cluster)
        yield cluster
    finally:
        hosts.close()
        shutil.rmtree(folder, ignore_errors=True)


def hosts_or_skip(folder: Path, count: int) -> Hosts:
    """Hosts that answer; skips the test where the machine does not allow them, as in most containers."""
    hosts = Hosts(folder, count)
    try:
        hosts.make()
        return hosts
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        hosts.close()
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"no hosts on this machine: {error}")


def bring_up(cluster: OnPrem) -> None:
    hosts, laptop = cluster.hosts, cluster.laptop
    for name in ("home", "tmp", "deploy"):
        (laptop / name).mkdir(parents=True)
    shipped = cluster.command(
        sys.executable, "-m", "orchestrator.ship", "--out", str(laptop / "deploy/ship"), PYTHONPATH=str(ROOT)
    )
    assert shipped.returncode == 0, shipped.stderr
    constrain(laptop / "deploy/ship/constraints.txt")
    assert (laptop / "home" / ship.TOKEN.relative_to("~")).stat().st_mode & 0o777 == 0o600
    document = yaml.safe_load((ROOT / "deploy/onprem.yaml").read_text(encoding="utf-8"))
    head, *workers = hosts.address.values()
    document["provider"] |= {"head_ip": head, "worker_ips": workers}
    document["auth"] = {"ssh_user": "root", "ssh_private_key": str(hosts.key)}
    document["file_mounts"] = {
        "~/foml": "deploy/ship",
        "~/.ray/auth_token": str(laptop / "home/.foml/auth_token"),
    }
    cluster.file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    before = Path.cwd()
    os.chdir(laptop)
    try:
        assert check_cluster_file(cluster.file) == []
    finally:
        os.chdir(before)
    start = time.monotonic()
    up = cluster.ray("up", "-y", "--no-config-cache", str(cluster.file))
    assert up.returncode == 0, up.stdout[-3000:] + up.stderr[-3000:]
    cluster.seconds["ray up"] = time.monotonic() - start
    until = start + 240
    while not all("raylet" in hosts.ssh(name, "ps -eo comm") for name in hosts.names) or cluster.alive() < 3:
        monitor = "tail -n 60 /tmp/ray/session_latest/logs/monitor*"
        assert time.monotonic() < until, cluster.on_head(monitor, check=False)
        time.sleep(0.5)
    cluster.seconds["three nodes"] = time.monotonic() - start
