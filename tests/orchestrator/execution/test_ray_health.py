"""The shutdown of Ray at the end of a sweep is not taken for its death; `test_interruptions.py` kills Ray."""

import gc
import time
import weakref

import pytest
import ray

from orchestrator.execution.ray_health import LOCAL_S
from orchestrator.execution.ray_session import ray_running


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
