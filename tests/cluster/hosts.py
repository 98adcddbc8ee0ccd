"""Hosts on one Linux machine for `ray up`: network namespaces with an sshd each.

Each host has its own address on a bridge, process ids, home folder and /tmp. All share one folder as /srv/foml, as with
NFS. As on a prepared machine image, each host has the packages of the environment that runs the tests, but not the project.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
from importlib import metadata
from pathlib import Path

COMMANDS = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "rsync": "rsync",
}


def why_not() -> str:
    """The reason why this machine cannot have such hosts, or an empty string."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts as network namespaces need Linux and root"
    missing = sorted({package for command, package in COMMANDS.items() if shutil.which(command) is None})
    if missing:
        return f"not installed: {', '.join(missing)}"
    for words in (["unshare", "-m", "-p", "--fork", "--mount-proc", "true"], ["unshare", "-n", "true"]):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            return f"no namespaces here: {done.stderr.strip()}"
    return ""


class Hosts:
    """Hosts h0 (the head), h1, …: `make` creates and starts them, `close` removes them."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.folder = folder
        free = [number for number in range(1, 255) if not Path(f"/sys/class/net/foml{number}").exists()]
        self._net = f"10.77.{random.choice(free)}"
        self._bridge = f"foml{self._net.rpartition('.')[2]}"
        self.names = [f"h{index}" for index in range(count)]
        self.address = {name: f"{self._net}.{10 + index}" for index, name in enumerate(self.names)}
        self.gateway = f"{self._net}.1"
        self.shared = folder / "shared"
        self.key = folder / "key"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def make(self) -> None:
        """Create and start the hosts.

        Raises:
            AssertionError: a command failed, or a host does not answer.
        """
        self.shared.mkdir(parents=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        Path("/srv/foml").mkdir(parents=True, exist_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key))
        run("ip", "link", "add", self._bridge, "type", "bridge")
        run("ip", "address", "add", f"{self.gateway}/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")
        for name in self.names:
            self._make(name)
        for name in self.names:
            self.await_ssh(name)

    def _space(self, name: str) -> str:
        return f"{self._bridge}-{name}"

    def _make(self, name: str) -> None:
        space, root = self._space(name), self.folder / name
        (root / "tmp").mkdir(parents=True, mode=0o1777)
        (root / "tmp").chmod(0o1777)
        home = root / "home"
        home.mkdir()
        self._provide(home)
        outer, inner = f"{self._bridge}{name}", "eth0"
        run("ip", "netns", "add", space)
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
        run("ip", "link", "set", outer, "master", self._bridge, "up")
        run("ip", "-n", space, "address", "add", f"{self.address[name]}/24", "dev", inner)
        run("ip", "-n", space, "link", "set", inner, "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        run(
            "ip", "-n", space, "route", "add", "default", "via", self.gateway
        )  # Ray determines its address from this route
        self.start(name)

    def _provide(self, home: Path) -> None:
        """Create a venv on the host with access to the packages of this environment, but not to the project."""
        venv = home / "foml-venv"
        run(sys.executable, "-m", "venv", "--without-pip", str(venv))
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (venv / "lib" / version / "site-packages" / "image.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for command, module in {"ray": "ray.scripts.scripts"}.items():
            script = venv / "bin" / command
            script.write_text(f"#!{Path.home()}/foml-venv/bin/python\nfrom {module} import main\nmain()\n")
            script.chmod(0o755)
        (home / ".bashrc").write_text("")
        (home / "mlflow").mkdir()

    def start(self, name: str) -> None:
        """Start the host."""
        root = self.folder / name
        config = root / "sshd_config"
        hostkey = root / "hostkey"
        if not hostkey.exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(hostkey))
        config.write_text(
            textwrap.dedent(f"""\
                ListenAddress {self.address[name]}
                HostKey {hostkey}
                AuthorizedKeysFile {self.key}.pub
                PermitRootLogin prohibit-password
                PasswordAuthentication no
                UsePAM no
                StrictModes no
                PidFile none
                MaxStartups 100
                MaxSessions 100
                """)
        )
        visible = {
            sys.base_prefix,
            sys.prefix,
            str(self.folder),
        }  # mounted again where the host's /tmp and home folder hide them
        addresses = "".join(f"{address} {host}\n" for host, address in self.address.items())
        (root / "hosts").write_text(f"127.0.0.1 localhost\n{addresses}")
        script = [f"mount --bind {self.shared} /srv/foml", f"mount --bind {root / 'hosts'} /etc/hosts"]
        for own, over in (("tmp", "/tmp"), ("home", "/root")):
            for path in visible:
                if path.startswith(f"{over}/"):
                    place = f"{root / own}{path.removeprefix(over)}"
                    script += [f"mkdir -p {place}", f"mount --bind {path} {place}"]
            script.append(f"mount --rbind {root / own} {over}")
        # Process 1 is bash and not sshd, since bash reaps orphaned processes.
        script += [f"hostname {name}", f"/usr/sbin/sshd -D -e -f {config} 2>>{root / 'sshd.log'} &", "wait"]
        inside = [
            "unshare",
            "-m",
            "-p",
            "-u",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-ec",
            "\n".join(script),
        ]
        # The hosts end with this process, however it ends.
        words = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self._space(name), *inside]
        self._processes[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)

    def await_ssh(self, name: str, seconds: float = 120) -> None:
        """Wait until the host answers."""
        until = time.monotonic() + seconds
        while (output := self.ssh(name, "echo here", check=False)) != "here\n":
            assert time.monotonic() < until, f"{name} does not answer: {output.strip()}"
            time.sleep(0.2)

    def stop(self, name: str) -> None:
        """Kill every process on the host, as a power failure would."""
        process = self._processes.pop(name, None)
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def ssh(self, name: str, command: str, timeout: float = 120, check: bool = True) -> str:
        """Run a command on a host. Returns its standard output and standard error."""
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=10"]
        words = ["ssh", "-i", str(self.key), *(word for option in options for word in ("-o", option))]
        words += [f"root@{self.address[name]}", command]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode:
            raise AssertionError(f"{name}: {command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    def close(self) -> None:
        for name in self.names:
            self.stop(name)
            subprocess.run(["ip", "link", "delete", f"{self._bridge}{name}"], capture_output=True)
            subprocess.run(["ip", "netns", "delete", self._space(name)], capture_output=True)
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True)


def constrain(file: Path) -> None:
    """Replace the tested versions with those of this environment: the hosts have no network to install others."""
    names = [line.partition("==")[0] for line in file.read_text().splitlines() if "==" in line and line[0] != "#"]
    present = {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
    lines = [f"{name}=={present[name.lower()]}" for name in names if name.lower() in present]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(*words: str, timeout: float = 60) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout
