"""`deploy/slurm.sh` on a real SLURM with two nodes: a sweep that reaches its time limit, is queued again and resumes."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.storage import chunk_files
from orchestrator.sweep.one_run import run_one

from . import hosts as hosts_of
from .conftest import ROOT, hosts_or_skip
from .hosts import Hosts

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1700)]

STREAM = {"name": "rainbow_digits", "tasks": 3, "train": 400, "validation": 12, "test": 12}
ALPHAS = (0.01, 0.1)
SWEEP = f"""
name: limited
stream: {json.dumps(STREAM)}
learners: [{{name: of.own, alpha1: {{grid: {list(ALPHAS)}}}}}]
seeds: 2
chunk: 1
resources: {{cpus: 2}}
"""
LEARNER = """
import os, time
from learners.online import Online

class Learner(Online):
    def update(self, batch):
        time.sleep(float(os.environ.get("UPDATE_S", "0")))  # so that 120 batches take two minutes, however busy the machine
        return super().update(batch)
"""
CONFIGURATION = """
ClusterName=foml
SlurmctldHost=h0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/tmp/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=/tmp/slurmctld
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdLogFile=/tmp/slurmd.log
ReturnToService=2
KillWait=20
BatchStartTimeout=5
NodeName=h0,h1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """SLURM on hosts of this machine; its processes end with the hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        shared = hosts.shared
        (shared / "slurm.conf").write_text(CONFIGURATION)
        (shared / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # slurmd requires one, although nothing uses it
        (shared / "munge.key").write_bytes(secrets.token_bytes(128))
        (shared / "munge.key").chmod(0o600)
        for package in ("learners", "streams", "orchestrator", "tune_configs", "deploy"):
            shutil.copytree(ROOT / package, shared / "project" / package, ignore=shutil.ignore_patterns("__pycache__"))
        (shared / "limited.yaml").write_text(SWEEP)
        (shared / "project/of").mkdir()
        (shared / "project/of/own.py").write_text(LEARNER)
        for name in hosts.names:
            munge = "--key-file=/srv/foml/munge.key --socket=/tmp/munge.socket --pid-file=/tmp/munge.pid"
            self.on(name, f"munged --force {munge} --log-file=/tmp/munge.log --seed-file=/tmp/munge.seed")
        self.on("h0", "mkdir -p /tmp/slurmctld && slurmctld -f /srv/foml/slurm.conf")
        for name in hosts.names:
            self.on(
                name,
                "mount -t tmpfs cgroup /sys/fs/cgroup && mkdir -p /tmp/slurmd && slurmd -f /srv/foml/slurm.conf || (cat /tmp/slurmd.log; false)",
            )

    def on(self, name: str, command: str, check: bool = True) -> str:
        settings = {
            "SLURM_CONF": "/srv/foml/slurm.conf",
            "PYTHONPATH": "/srv/foml/project",
            "PATH": "$HOME/foml-venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "UPDATE_S": "0.9",
        }
        words = " ".join(f"{key}={value}" for key, value in settings.items())
        return self.hosts.ssh(name, f"cd /srv/foml && export {words} && {command}", check=check)

    def log(self) -> str:
        texts = [path.read_text(errors="replace") for path in self.hosts.shared.glob("foml-*.log")]
        return "\n".join(texts)

    def state(self, job: str) -> dict[str, str]:
        words = self.on("h0", f"scontrol show job {job}", check=False).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    reason = hosts_of.why_not()
    missing = [command for command in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(command) is None]
    if missing and not reason:
        reason = f"not installed: slurm-wlm, munge ({', '.join(missing)})"
    if reason:
        pytest.skip(reason)
    folder = Path("/tmp") / f"foml-slurm-{os.getpid()}"
    hosts = hosts_or_skip(folder, 2)
    try:
        slurm = Slurm(hosts)
        until = time.monotonic() + 60
        while (nodes := slurm.on("h0", "sinfo -h -o '%D %t'", check=False).split()) != ["2", "idle"]:
            assert time.monotonic() < until, (nodes, slurm.on("h0", "tail -n 30 /tmp/slurm*.log", check=False))
            time.sleep(0.5)
        yield slurm
    finally:
        hosts.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_sweep_that_reaches_the_time_limit_is_queued_again_and_resumes(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = slurm.hosts.shared
    options = "--nodes=2 --time=60 --signal=B:USR1@110"
    job = slurm.on("h0", f"sbatch --parsable {options} project/deploy/slurm.sh limited.yaml").strip()
    until, limit, resumed = time.monotonic() + 1400, 60, 0.0
    while (state := slurm.state(job)).get("JobState") not in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"):
        assert time.monotonic() < until, slurm.log()
        again = state.get("Restarts") == "1"
        if state.get("Reason") == "BeginTime":  # SLURM waits for two minutes before it starts a job again
            slurm.on("h0", f"scontrol update JobId={job} StartTime=now", check=False)
        if not again and limit == 60 and len(list((shared / "results/limited").glob("*/chunk-*"))) >= 2:
            hours, minutes, _ = map(int, state["RunTime"].split(":"))
            limit = 60 * hours + minutes + 3  # SLURM sends its signal within 70 s
            slurm.on("h0", f"scontrol update JobId={job} TimeLimit={limit}")
        elif again and limit < 60:
            limit, resumed = 60, time.time()
            slurm.on("h0", f"scontrol update JobId={job} TimeLimit=60")
        time.sleep(2)
    log = slurm.log()
    assert state["JobState"] == "COMPLETED" and state["ExitCode"] == "0:0", log
    assert state["Restarts"] == "1", log
    assert f"time limit: job {job} is queued again" in log
    assert "the chunks in flight are finished and kept" in log
    assert not list(shared.glob(".foml-*"))  # the token is deleted
    # Both nodes computed, and the curves equal those of one process without SLURM, Ray and an interruption.
    hosts = {path.read_text().split()[0] for path in (shared / "results/limited").glob("*/attempt-*")}
    assert len(hosts) == 2
    held = [chunk_files.newest(path.parent) for path in (shared / "results/limited").glob("*/attempt-*")]
    curves = {done.curves.by_batch["online_loss"].tobytes(): done for done in held if done is not None}
    assert len(curves) == 2 and all(done.finished for done in curves.values())
    times = [done.curves.chunks["time_ms"] / 1000 for done in curves.values()]
    assert any(ends.min() < resumed < ends.max() for ends in times)  # chunks of the first run were kept
    monkeypatch.syspath_prepend(str(shared / "project"))
    for alpha in ALPHAS:
        bare = run_one("of.own", alpha1=alpha, stream=STREAM, seeds=2, threads=2, progress=False).measured
        assert bare.by_batch["online_loss"].shape == (2, 120)
        assert curves.pop(bare.by_batch["online_loss"].tobytes()).curves.seeds == bare.seeds
    assert curves == {}
    database = f"sqlite:///{shared / 'mlflow.db'}"
    script = f"import mlflow; c = mlflow.MlflowClient('{database}'); e = c.get_experiment_by_name('limited'); print(sorted({{r.info.status for r in c.search_runs([e.experiment_id])}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "['FINISHED']", done.stderr
