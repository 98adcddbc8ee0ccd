"""A real cluster: `ray up`, sweeps on it, MLflow on PostgreSQL, and failures.

All tests share one cluster and depend on their order; the last ones shut it down.
"""

import json
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.storage import chunk_files

from .conftest import ROOT, OnPrem

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SWEEP = """
name: {name}
stream: {{name: rainbow_digits, tasks: 4, train: {train}, validation: 12, test: 12}}
learners: [{{name: foml, K: {{grid: [1, 2]}}}}, {{name: online}}]
seeds: 2
chunk: 2
resources: {{cpus: 1.5}}
tracking: {{points: 1000}}
"""
READ_BACK = """
import json, mlflow
client = mlflow.MlflowClient()
(found,) = client.search_experiments(filter_string="name = 'NAME'")
runs = client.search_runs([found.experiment_id], max_results=1000)
seeds = [run for run in runs if run.data.tags["foml.kind"] == "seed"]
steps = [[point.step for point in client.get_metric_history(run.info.run_id, "online_error")] for run in seeds]
files = [file.path for run in runs for file in client.list_artifacts(run.info.run_id)]
print(json.dumps({"status": sorted({run.info.status for run in runs}), "steps": steps, "files": sorted(set(files))}))
"""


def read_back(cluster: OnPrem, name: str) -> dict[str, list[str] | list[list[int]]]:
    """What MLflow has of a sweep, read on the head: MLflow listens nowhere else."""
    script = cluster.hosts.shared / "read_back.py"
    script.write_text(READ_BACK.replace("NAME", name))
    output = cluster.on_head("set -a; . ~/mlflow/env; cd /; ~/foml-venv/bin/python /srv/foml/read_back.py 2>/dev/null")
    held: dict[str, list[str] | list[list[int]]] = json.loads(output.splitlines()[-1])
    return held


def results(cluster: OnPrem, name: str) -> Path:
    return cluster.hosts.shared / "results" / name


def log_of(cluster: OnPrem, name: str) -> str:
    return (cluster.hosts.shared / "jobs" / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def claims(cluster: OnPrem, name: str) -> set[Path]:
    """One file for each start of a trial."""
    return set(results(cluster, name).glob("*/attempt-*"))


def hosts_at_work(cluster: OnPrem, name: str, before: Collection[Path] = ()) -> set[str]:
    """Hosts that have written a chunk, according to the claims that are not in `before`."""

    def has_written(claim: Path) -> bool:
        return any(claim.parent.glob(f"chunk-*-{claim.name.removeprefix('attempt-')}.pt"))

    fresh = [claim for claim in claims(cluster, name) - set(before) if has_written(claim)]
    return {text.split()[0] for claim in fresh if (text := claim.read_text())}


def wait_for(what: Callable[[], bool], seconds: float, cluster: OnPrem, name: str) -> None:
    """Wait until `what` returns True, at most until the sweep of this name has ended."""
    until = time.monotonic() + seconds
    while not what():
        over = (cluster.hosts.shared / "jobs" / f"{name}.code").exists()
        assert time.monotonic() < until and (not over or what()), log_of(cluster, name)[-3000:]
        time.sleep(0.2)


def refused_clients(cluster: OnPrem) -> None:
    """Assert that clients without a token or with a wrong one cannot connect."""
    head = cluster.hosts.address["h0"]
    script = f"import ray; ray.init('{head}:6379', logging_level='ERROR', _node_ip_address='{cluster.hosts.gateway}')"
    stranger = {"HOME": str(cluster.laptop)}
    for token in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        done = cluster.command(sys.executable, "-c", script, timeout=120, **stranger, **token)
        assert done.returncode != 0
        assert "uthenticat" in done.stderr, done.stderr[-2000:]


def complete(cluster: OnPrem, name: str, batches: int) -> None:
    """Assert that every step exists once, in MLflow and in the chunk files."""
    held = read_back(cluster, name)
    assert held["status"] == ["FINISHED"]
    assert [sorted(steps) for steps in held["steps"]] == [list(range(batches))] * 6  # type: ignore[type-var]
    assert {"checkpoint", "report"} <= set(held["files"])  # type: ignore[arg-type]
    folders = {path.parent for path in results(cluster, name).glob("*/chunk-*.pt")}
    assert len(folders) == 3
    for folder in folders:
        done = chunk_files.newest(folder)
        assert done is not None and done.finished
        assert done.curves.batches == batches


def test_ray_up_sets_up_every_node_with_one_state_of_the_project(on_prem: OnPrem) -> None:
    output = on_prem.on_head("bash ~/foml/foml.sh doctor", check=False)
    assert "cluster: 3 nodes with 4 CPUs and 0 GPUs" in output, output
    for address in on_prem.hosts.address.values():
        assert f"node {address}: " in output
    assert output.count("versions, clock and storage agree") == 3, output
    assert "a run and a file were written and read back" in output
    assert "\nall checks passed\n" in output, output


@pytest.mark.parametrize(
    ("name", "away_s", "train", "lost_host"),
    [
        pytest.param("long", 60, 900, None, marks=pytest.mark.slow),  # first, since the next one loses a worker
        ("hard", 10, 150, "h2"),
    ],
)
def test_a_killed_driver_a_lost_worker_and_a_stopped_mlflow_lose_no_step(
    on_prem: OnPrem, name: str, away_s: float, train: int, lost_host: str | None
) -> None:
    """The laptop starts the sweep twice: the second command resumes and follows it, and fetches its report."""
    (on_prem.laptop / f"{name}.yaml").write_text(SWEEP.format(name=name, train=train), encoding="utf-8")
    code = on_prem.hosts.shared / f"jobs/{name}.code"
    words = (sys.executable, "-m", "orchestrator.sweep", "--cluster", str(on_prem.file), f"{name}.yaml")
    start = on_prem.command(*words, "--detach", PYTHONPATH=str(ROOT))
    assert start.returncode == 0, start.stdout + start.stderr
    assert f"--attach {name}" in start.stdout
    wait_for(lambda: len(hosts_at_work(on_prem, name)) == 2, 120, on_prem, name)
    on_prem.on_head("pkill -KILL -f orchestrator.sweep", check=False)
    wait_for(code.exists, 120, on_prem, name)
    assert code.read_text() == "137\n"
    before = claims(on_prem, name)
    with ThreadPoolExecutor(2) as beside:
        following = beside.submit(on_prem.command, *words, timeout=380, PYTHONPATH=str(ROOT))
        until = time.monotonic() + 180
        while code.exists():  # until the job runs again
            assert time.monotonic() < until and not following.done(), following
            time.sleep(0.2)
        wait_for(lambda: len(hosts_at_work(on_prem, name, before)) == 2, 120, on_prem, name)
        if lost_host is not None:
            on_prem.hosts.stop(lost_host)
        on_prem.on_head("bash ~/foml/mlflow.sh stop")
        strangers = beside.submit(refused_clients, on_prem)
        time.sleep(away_s)
        on_prem.on_head("bash ~/foml/mlflow.sh start")
        followed = following.result()
        assert followed.returncode == 0, followed.stdout + followed.stderr
        strangers.result()
    assert "3/3 trials done" in followed.stdout
    assert "best: " in followed.stdout
    assert (on_prem.laptop / f"results/{name}/report/learning_curves.png").stat().st_size > 10_000
    complete(on_prem, name, 4 * train // 10)
    again = [claim.parent.name for claim in claims(on_prem, name) - before]
    assert lost_host is None or len(again) > len(set(again))  # trials of the lost host continued on the other one
    result = on_prem.command(*words, "--json", "--quiet", PYTHONPATH=str(ROOT))
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert (document["sweep"], document["problems"], len(document["configurations"])) == (name, [], 3)
    assert document["report"] == str(on_prem.laptop / f"results/{name}/report")
    for host in ("h1", "h2"):  # each host copied the store from the shared folder into its own cache
        copies = on_prem.hosts.folder / host / "home/.cache/foml-orchestrator/copies"
        assert {seed.name for seed in copies.glob("*/seed-*")} == {"seed-0", "seed-1"}


def test_a_missing_worker_is_reported_and_storage_that_is_not_shared_is_refused(on_prem: OnPrem) -> None:
    (on_prem.hosts.shared / "alone.yaml").write_text(SWEEP.format(name="alone", train=30), encoding="utf-8")
    until = time.monotonic() + 240  # Ray needs half a minute to declare a silent node dead
    while on_prem.alive() != 2:
        assert time.monotonic() < until
    output = on_prem.on_head(
        "set -a; . ~/mlflow/env; export RAY_ADDRESS=auto RAY_AUTH_MODE=token; cd /srv/foml;"
        "~/foml-venv/bin/python -m orchestrator.sweep alone.yaml storage=/tmp/results tracking.uri=$MLFLOW_TRACKING_URI;"
        "echo exit code $?",
        check=False,
    )
    assert f"cluster: 2 of 3 nodes: {on_prem.hosts.address['h2']} has not joined" in output, output
    assert "exit code 2\n" in output, output
    where = f"not seen from {on_prem.hosts.address['h1']} (got /tmp/results); put it on"
    assert f"storage: must be a folder that every node sees; {where}" in output
    assert "Traceback" not in output


def test_ray_down_stops_ray_and_a_restarted_head_has_mlflow_unchanged(on_prem: OnPrem) -> None:
    logged_in = "set -a; . ~/mlflow/env; cd /; ~/foml-venv/bin/python -c"
    on_prem.on_head(f"""{logged_in} "import mlflow; mlflow.MlflowClient().create_experiment('kept')" """)
    down = on_prem.ray("down", "-y", str(on_prem.file))
    assert down.returncode == 0, down.stdout + down.stderr
    assert "raylet" not in on_prem.on_head("ps -eo comm")
    on_prem.hosts.stop("h0")
    on_prem.hosts.start("h0")
    on_prem.hosts.await_ssh("h0")
    on_prem.on_head("bash ~/foml/mlflow.sh start")
    named = """print(mlflow.MlflowClient().get_experiment_by_name('kept').lifecycle_stage)"""
    assert "active" in on_prem.on_head(f"""{logged_in} "import mlflow; {named}" """)
