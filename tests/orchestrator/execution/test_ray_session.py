"""Signals that come while Ray starts, in this process and to a real Ray."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.exceptions import RayError

from orchestrator.config.load import load_sweep
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.execution import ray_session
from orchestrator.execution.nodes import Node
from orchestrator.execution.ray_session import Slots, cluster_address, signals_deferred, start_ray
from orchestrator.sweep.api import run_sweep
from tests.orchestrator.sweep_command import PATIENCE_S

BLOCKED = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"


class Delivered(BaseException):
    """Raised by the handler of a signal."""


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    def deliver(number: int, frame: object) -> None:
        raise Delivered(number)

    before = signal.signal(request.param, deliver)
    yield int(request.param)
    signal.signal(request.param, before)


def test_a_signal_waits_for_the_end_of_the_block(number: int) -> None:
    handler, passed = signal.getsignal(number), []

    def start() -> None:
        with signals_deferred():
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            passed.append("on")
        passed.append("out")

    with pytest.raises(Delivered) as caught:
        start()
    assert passed == ["on"] and caught.value.args == (number,)
    assert signal.getsignal(number) == handler


def test_a_second_signal_does_not_wait() -> None:
    passed = []

    def start() -> None:
        with signals_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            passed.append("first")
            os.kill(os.getpid(), signal.SIGINT)
            passed.append("second")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert passed == ["first"]


def test_processes_started_inside_get_no_hangup() -> None:
    with signals_deferred():
        inside = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=180)
    after = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=180)
    assert "SIGHUP" in inside.stdout and "SIGTERM" not in inside.stdout
    assert after.stdout == "[]\n"


def test_signals_without_a_handler_are_not_touched() -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with signals_deferred():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    thread = threading.Thread(target=lambda: signals_deferred().__enter__())
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_in_the_middle_of_rays_start_is_no_crash(name: str, tmp_path: Path) -> None:
    """While its core worker is made: interrupted there, the process would crash at its end, or immediately by SIGTERM."""
    script = f"""
import os, signal, sys, threading
from orchestrator.system.signals import StopRequest
from orchestrator.execution.ray_session import prepare_environment, ray_running
prepare_environment(local=True)
import ray
from ray import _raylet
original = _raylet.CoreWorker
def interrupted(*args, **options):
    threading.Timer(0.01, os.kill, (os.getpid(), signal.{name})).start()
    return original(*args, **options)
_raylet.CoreWorker = interrupted
stop_request = StopRequest()
with stop_request.signals():
    try:
        with ray_running(local=True):
            print("it runs")
    except KeyboardInterrupt:
        print(stop_request.reason, ray.is_initialized())
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted False\n"), done.stderr


@pytest.mark.parametrize("failures", [1, 2])
def test_a_start_that_fails_is_repeated_once(failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Ray's processes miss its deadline, which it raises as a plain Exception."""
    attempts: list[str] = []

    def init(address: str, **kwargs: object) -> None:
        attempts.append(address)
        if len(attempts) <= failures:
            raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr("ray.init", init)
    if failures == 1:
        start_ray(None)
    else:
        with pytest.raises(
            OrchestratorError, match=r"^Ray must start .* \(got The current node timed out during startup\.\)"
        ):
            start_ray(None)
    assert attempts == ["local", "local"]


@pytest.mark.parametrize(
    ("startable", "expected"),
    [
        (None, [1, 4]),  # an autoscaler starts a worker for the actor that waits
        ([({"CPU": 4.0, "GPU": 1.0}, 8)], [8, 8]),
        ([], [1, 3]),  # one's own hosts
    ],
)
def test_a_node_that_joins_has_slots(
    startable: list[tuple[dict[str, float], int]] | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head without learners at first, and then three workers with a GPU each."""
    sweep = load_sweep("tune_foml", ["resources.gpus=1"])
    alive = [Node("head", "10.0.0.1", 0, 0)]
    now, changes = [0.0], list[int]()
    monkeypatch.setattr(ray_session.nodes, "joined", lambda: list(alive))
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    slots = Slots(sweep, ray_session._cluster(False, startable), changes.append)
    assert slots() == expected[0]
    alive += [Node(f"worker-{number}", f"10.0.0.{number + 2}", 4, 1) for number in range(3)]
    assert slots() == expected[0]  # Ray is not asked at each call
    now[0] += ray_session.LOOK_S
    assert (slots(), slots()) == (expected[1], expected[1])
    assert changes == ([] if expected[0] == expected[1] else [expected[1]])


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (None, None),
        ("", None),
        ("local", None),
        ("auto", "auto"),
        ("head:6379", "head:6379"),
        ("[::1]:6379", "[::1]:6379"),
    ],
)
def test_the_address_of_a_cluster(address: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert cluster_address() == expected


@pytest.mark.parametrize(
    "address", ["headnode", "10.0.0.1", ":6379", "head:", "head:0", "head:70000", "ray://head:10001"]
)
def test_no_address_is_one_line_before_anything_is_created(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run_sweep("quickstart")
    rule, remedy = "must be HOST:PORT of the head, auto, local or empty", "the port is usually 6379; or use --local"
    assert str(caught.value) == f"RAY_ADDRESS: {rule} (got {address}); {remedy}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("nothing answers\nat all"),
        ValueError("nothing answers"),
        RuntimeError("nothing answers"),
        RayError("nothing answers"),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(OrchestratorError) as caught:
        start_ray("head:6379")
    rule = f"must name a running cluster that lets this process in ({type(error).__name__}: nothing answers)"
    assert str(caught.value) == f"RAY_ADDRESS: {rule} (got head:6379); start it, or use --local"
