"""The shutdown of Ray at the end of a sweep is not taken for its death; `test_interruptions.py` kills Ray."""

import gc
import threading
import time
import weakref
from pathlib import Path

import pytest
import ray

from orchestrator.errors import OrchestratorError
from orchestrator.execution.ray_health import CLUSTER_S, LOCAL_S, LOOK_S, _death, output_to
from orchestrator.execution.ray_session import ray_running, start_ray, without_token


class Cycle:
    """A reference cycle, as Tune leaves them."""


def test_a_slow_shutdown_of_ray_is_not_its_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's processes have ended, and its shutdown takes longer than a death takes to be noticed."""
    shutdown, lost, found = ray.shutdown, [], []

    def slow() -> None:
        # Cycles are collected before, and none during the shutdown: a reference that dies then ends the process.
        found.extend([held(), gc.isenabled()])
        shutdown()
        time.sleep(2 * LOCAL_S)

    monkeypatch.setattr(ray, "shutdown", slow)
    with ray_running(local=True, on_ray_lost=lost.append):
        assert ray.is_initialized()
        cycle = Cycle()
        cycle.itself, cycle.reference = cycle, ray.put(1)
        held = weakref.ref(cycle)
        del cycle
    assert found == [None, False] and gc.isenabled()
    assert not ray.is_initialized()
    assert lost == []


def test_a_ray_without_a_token_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As this module imports Ray, and a notebook may have."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert without_token(local=True) == (
        "Ray was imported before the sweep started, so the Ray of this sweep has no token: other users of this machine "
        "could run code in it; import ray later, or set RAY_AUTH_MODE"
    )
    assert without_token(local=False) == ""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert without_token(local=True) == ""


def test_a_process_in_which_a_ray_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray is started"))
    for address in (None, "127.0.0.1:6379"):
        with pytest.raises(OrchestratorError) as caught:
            start_ray(address)
        assert caught.value.faults == (
            "ray: a sweep starts Ray, or connects to it (got a Ray that runs in this process); call ray.shutdown() "
            "before; RAY_ADDRESS names a cluster",
        )


def test_what_ray_prints_is_kept_without_secrets(tmp_path: Path) -> None:
    with output_to(tmp_path / "ray.log"):
        print("(raylet) cannot read s3://key:secret@bucket/store?token=abc")
    assert (tmp_path / "ray.log").read_text() == "(raylet) cannot read s3://***@bucket/store?token=***\n"


@pytest.mark.parametrize(
    ("limit", "look", "answers", "expected"),
    [
        (LOCAL_S, 0.0, set(), 2.5),  # refused immediately
        (LOCAL_S, 5.0, set(), 22.0),  # a busy machine: four looks
        (CLUSTER_S, 0.0, set(), 40.5),
        (CLUSTER_S, 5.0, set(), 44.0),  # a host that drops packets: not eighty looks
        (CLUSTER_S, 5.0, {3}, 60.5),  # an answer: counted from the look after it
    ],
)
def test_the_time_until_ray_is_dead(
    limit: float, look: float, answers: set[int], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = [0.0], [0]

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0.0
            return False

    def failure() -> str:
        looks[0] += 1
        now[0] += look
        return "" if looks[0] in answers else "gone"

    monkeypatch.setattr("orchestrator.execution.ray_health.time.monotonic", lambda: now[0])
    assert _death(failure, Ended(), limit) == "gone"
    assert now[0] == pytest.approx(expected, abs=LOOK_S / 10)
