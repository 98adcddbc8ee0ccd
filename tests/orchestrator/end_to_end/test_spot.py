"""A spot interruption in a whole sweep: the node is drained as `deploy/node.sh --spot` does after AWS's notice."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from orchestrator.execution.ray_session import prepare_environment
from tests.orchestrator.sweep_command import (
    LONG,
    PATIENCE_S,
    assert_long_is_whole,
    folder_with,
    reached,
    running,
    trials,
    wait_for,
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head without a slot for a learner."""
    prepare_environment(local=False)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    made.shutdown()


def add_node(cluster: Cluster, home: Path) -> str:
    """Add a node with one slot and a home folder of its own; returns its id."""
    home.mkdir()
    node_id: str = cluster.add_node(num_cpus=1, env_vars={"HOME": str(home)}).node_id
    return node_id


@pytest.mark.slow
def test_a_trial_leaves_the_node_after_its_chunk_and_continues_on_another_without_a_retry(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    folder = folder_with(tmp_path / "sweep", LONG.replace("train: 150", "train: 900"))  # longer than the drain takes
    leaving = add_node(cluster, tmp_path / "leaves")
    with running(folder, "sweep.yaml", "retries=0", local=False) as process:
        wait_for(lambda: reached(folder, "long", 8), process)
        add_node(cluster, tmp_path / "stays")
        drain = ["drain-node", "--address", cluster.address, "--node-id", leaving]
        reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot interruption"]
        ray = str(Path(sys.executable).with_name("ray"))
        subprocess.run([ray, *drain, *reason, "--deadline-remaining-seconds", "110"], check=True, capture_output=True)
        (tmp_path / "leaves" / "foml-leaving").touch()
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert "the cloud takes this node: the attempt ends after its chunk" in errors
    assert "problem: " not in out
    (trial,) = trials(folder, "long")
    assert [path.stem for path in sorted(trial.glob("attempt-*"))] == ["attempt-0001", "attempt-0002"]
    assert_long_is_whole(folder, train=900)
