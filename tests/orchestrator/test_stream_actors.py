"""Stream actors on a cluster of several nodes inside one process tree; tests/cluster has one of several hosts."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator import config
from orchestrator.actors import ActorSource
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.launch import check_resources, prepare_environment, ray_running
from orchestrator.source import StoreSource
from orchestrator.stream_actors import StreamActors, own_stream_actor
from streams.schedule import Sequential
from streams.store import TaskStore

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
    actor = own_stream_actor(store_hash)
    stack = ActorSource(actor, [0, 1], Sequential()).read(start, count)
    return ray.get(actor.path.remote()), stack.image_ids


def on(node: str) -> dict[str, object]:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def look_until_gone(store_hash: str) -> None:
    """Ray forgets an actor's name a moment after the actor is gone."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        own_stream_actor(store_hash, wait_s=0.5)
        time.sleep(0.1)


def test_every_node_has_one_also_those_that_join_later(
    cluster: Cluster, store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    expected = StoreSource(store, [0, 1], Sequential()).read(7, 20).image_ids
    told: list[str] = []
    with ray_running(local=False) as found:
        assert (found.cpus, found.gpus, found.node_cpus, found.node_gpus, found.local) == (3, 1, 2, 1, False)
        before = [node["NodeID"] for node in ray.nodes()]
        with StreamActors(store, None, tmp_path, told.append):
            for node in before:
                path, ids = ray.get(read_there.options(**on(node)).remote(store.hash, 7, 20))
                assert path == str(store.path)
                assert np.array_equal(ids, expected)
            cluster.add_node(num_cpus=1)
            (new,) = {node["NodeID"] for node in ray.nodes()} - set(before)
            _, ids = ray.get(read_there.options(**on(new)).remote(store.hash, 7, 20), timeout=60)
            assert np.array_equal(ids, expected)
            until = time.monotonic() + 20
            while not told and time.monotonic() < until:
                time.sleep(0.1)
            assert [line.split(":")[0] for line in told] == ["joined"]
        with pytest.raises(OrchestratorError, match=r"no stream actor came within 0\.5 s"):
            look_until_gone(store.hash)
    assert list(tmp_path.glob(".seen-*")) == []


def test_what_no_single_node_has_is_refused() -> None:
    asked = config.check(SWEEP | {"resources": {"cpus": 3}})
    with pytest.raises(ConfigError, match=r"resources\.cpus: must be at most the 2 that a node of this cluster has"):
        check_resources(asked, 2, 1, "a node of this cluster")
