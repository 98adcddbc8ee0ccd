"""Stream actors on a cluster of several nodes inside one process tree; tests/cluster has one of several hosts."""

import gc
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import ray
from ray._private.state import jobs
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.config.load import check_sweep
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.execution.learner_actor import ActorSource
from orchestrator.execution.ray_session import check_resources, prepare_environment, ray_running
from orchestrator.execution.stream_actor import SHARED_STORES, StreamActor, StreamActors, node_stream_actor
from orchestrator.protocol.source import StoreSource
from streams.errors import StoreError
from streams.schedule import Sequential
from streams.store.task_store import TaskStore
from streams.store.transport import localise, share

PATIENCE_S = 400
"""Seconds for what takes a few on an idle machine."""
SWEEP = {"name": "x", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    prepare_environment(local=False)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=2, num_gpus=1)
    yield made
    made.shutdown()


@ray.remote(num_cpus=0)
def read_there(store_hash: str, start: int, count: int) -> tuple[str, np.ndarray]:
    actor = node_stream_actor(store_hash)
    stack = ActorSource(actor, [0, 1], Sequential()).read(start, count)
    return ray.get(actor.path.remote()), stack.image_ids


@ray.remote(num_cpus=0)
def objects_between_collections() -> int:
    return gc.get_threshold()[0]


def on(node: str) -> dict[str, object]:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def look_until_gone(store_hash: str) -> None:
    """Ray forgets an actor's name a moment after the actor is gone."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        node_stream_actor(store_hash, wait_s=0.5)
        time.sleep(0.1)


def test_every_node_has_an_actor_also_those_that_join_later(
    cluster: Cluster, store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    expected = StoreSource(store, [0, 1], Sequential()).read(7, 20).image_ids
    lines: list[str] = []
    with ray_running(local=False) as found:
        assert (found.cpus, found.gpus, found.node_cpus, found.node_gpus, found.local) == (3, 1, 2, 1, False)
        before = [node["NodeID"] for node in ray.nodes()]
        with StreamActors(store, [0, 1], None, tmp_path, lines.append) as actors:
            for node in before:
                path, ids = ray.get(read_there.options(**on(node)).remote(store.hash, 7, 20))
                assert path == str(store.path)
                assert np.array_equal(ids, expected)
            assert ray.get(objects_between_collections.remote()) == 10_000
            cluster.add_node(num_cpus=1)
            (new,) = {node["NodeID"] for node in ray.nodes()} - set(before)
            _, ids = ray.get(read_there.options(**on(new)).remote(store.hash, 7, 20), timeout=PATIENCE_S)
            assert np.array_equal(ids, expected)
            until = time.monotonic() + PATIENCE_S
            while not lines and time.monotonic() < until:
                time.sleep(0.1)
            assert [line.split(":")[0] for line in lines] == ["joined"]
            assert (
                actors._provide({"e1" * 28: "10.0.0.9"}) == []
            )  # it was listed, and is gone: Ray places nothing there
            assert len(actors._handles) == 3
        with pytest.raises(OrchestratorError, match=r"no stream actor started within 0\.5 s"):
            look_until_gone(store.hash)
    assert list(tmp_path.glob(".seen-*")) == []


ANOTHER_DRIVER = """
import sys
from pathlib import Path
from orchestrator.execution.ray_session import ray_running
from orchestrator.execution.stream_actor import StreamActors
from streams.store.task_store import TaskStore
with ray_running(local=False), StreamActors(TaskStore.open(sys.argv[1]), [0, 1], None, Path(sys.argv[2]), print):
    print("serves", flush=True)
    sys.stdin.readline()
"""


def test_a_sweep_that_ends_does_not_end_the_actors_of_another(
    cluster: Cluster, store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers with one store on one cluster; the one that came first goes first."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    expected = StoreSource(store, [0, 1], Sequential()).read(7, 20).image_ids
    words = [sys.executable, "-c", ANOTHER_DRIVER, str(store.path), str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "serves\n"
        with ray_running(local=False), StreamActors(store, [0, 1], None, tmp_path, print):
            nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            other.communicate("end\n", timeout=PATIENCE_S)
            assert other.returncode == 0
            until = time.monotonic() + PATIENCE_S
            while any(job["DriverPid"] == other.pid and not job["IsDead"] for job in jobs()):
                assert time.monotonic() < until
                time.sleep(0.1)
            for node in nodes:
                _, ids = ray.get(read_there.options(**on(node)).remote(store.hash, 7, 20), timeout=PATIENCE_S)
                assert np.array_equal(ids, expected)


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    )


@contextmanager
def node_that_sees(address: str, there: Path, at: Path) -> Iterator[str]:
    """One more node of the cluster, on which the folder `at` is `there`; its id."""
    before = {node["NodeID"] for node in ray.nodes()}
    join = f"{sys.executable} -m ray.scripts.scripts start --address={address} --num-cpus=1 --block"
    words = ["unshare", "-m", "sh", "-c", f'mount --bind "$1" "$2" && exec {join}', "sh", str(there), str(at)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as node:
        try:
            until = time.monotonic() + PATIENCE_S
            while not (new := {each["NodeID"] for each in ray.nodes() if each["Alive"]} - before):
                assert time.monotonic() < until and node.poll() is None, node.communicate()[0]
                time.sleep(0.1)
            yield new.pop()
        finally:
            node.terminate()  # and what it started


@pytest.fixture
def smaller(store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same store, as a sweep over one seed has it: the hash is the same."""
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    shutil.copytree(store.path, tmp_path / "smaller", ignore=shutil.ignore_patterns("seed-[12]"))
    found = TaskStore.open(tmp_path / "smaller")
    assert (found.hash, found.seeds) == (store.hash, [0])
    return found.path


@pytest.mark.skipif(not can_mount(), reason="a node that sees other files than the driver needs unshare, and root")
def test_a_node_whose_store_is_missing_a_seed_fetches_it(
    cluster: Cluster, store: TaskStore, smaller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep over one seed ran on the node before: from its own cache, and from the storage of this very sweep."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    shared = tmp_path / "results" / SHARED_STORES / store.hash
    share(TaskStore.open(smaller), shared)
    copy = localise(shared.as_uri())
    assert TaskStore.open(copy).seeds == [0]
    (tmp_path / "results" / "sweep").mkdir()
    expected = StoreSource(store, [0, 1], Sequential()).read(7, 20).image_ids
    with (
        ray_running(local=False),
        node_that_sees(cluster.address, smaller, store.path) as node,
        StreamActors(store, [0, 1], None, tmp_path / "results" / "sweep", print),
    ):
        path, ids = ray.get(read_there.options(**on(node)).remote(store.hash, 7, 20), timeout=PATIENCE_S)
    assert path == str(copy) and np.array_equal(ids, expected)
    assert TaskStore.open(copy, verify=True).seeds == [0, 1, 2]


def test_a_store_without_a_seed_does_not_count(store: TaskStore, smaller: Path) -> None:
    """What lies at an address may be smaller than what the driver has in its cache: that is noticed before a trial needs the seed."""
    assert StreamActor([str(store.path)], store.hash, [1, 2]).has(str(store.path))
    assert StreamActor([str(store.path)], store.hash, [0]).has(str(smaller))
    actor = StreamActor([smaller.as_uri()], store.hash, [0, 1])
    assert not actor.has(smaller.as_uri())
    with pytest.raises(StoreError) as caught:
        actor.path()
    assert str(caught.value) == f"{smaller.as_uri()}: must have the seeds [0, 1] on every node (got [0])"


def test_resources_that_no_single_node_has_are_refused() -> None:
    sweep = check_sweep(SWEEP | {"resources": {"cpus": 3}})
    with pytest.raises(ConfigError, match=r"resources\.cpus: must be at most the 2 that a node of this cluster has"):
        check_resources(sweep, 2, 1, "a node of this cluster")
