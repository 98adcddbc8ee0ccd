"""The watch over Ray: that Ray is ended at the end of a sweep is no loss. (Real losses: `test_interruptions.py`.)"""

import gc
import time
import weakref

import pytest
import ray

from orchestrator.execution.ray_health import LOCAL_S
from orchestrator.execution.ray_session import ray_running


class Cycle:
    """As what Tune leaves behind."""


def test_a_slow_end_of_ray_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's processes are gone, and its shutdown has not come back for longer than a loss takes to be noticed."""
    shutdown, lost, found = ray.shutdown, [], []

    def slow() -> None:
        # What is in cycles is gone, and nothing collects until Ray is: a reference that dies meanwhile ends the process.
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
