"""Starting Ray so that signals stay with whoever handles them."""

from __future__ import annotations

import math
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from orchestrator.config.schema import Sweep
from orchestrator.errors import ConfigError, OrchestratorError, fault
from orchestrator.execution import nodes
from orchestrator.execution.ray_health import guarded, uncollected
from orchestrator.system.processes import watched
from orchestrator.system.signals import SIGNALS


def start_ray(address: str | None) -> None:
    """Start a Ray on this machine, or connect to the cluster at `address`; signals that come meanwhile wait for it.

    Raises:
        OrchestratorError: no cluster answers there.
        KeyboardInterrupt: by whoever handles the signal that came; Ray is to be shut down.
    """
    with held_back(), _no_handler_of_rays():
        _init(address)


def _init(address: str | None) -> None:
    import ray

    quiet = {"namespace": "foml-orchestrator", "logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        rule = "must name a running cluster"
        raise OrchestratorError(f"RAY_ADDRESS: {rule} (got {address}); start it, or use --local") from error


@contextmanager
def held_back() -> Iterator[None]:
    """Around the start of Ray, which does not survive being interrupted: a signal that comes inside is delivered at the
    end, a second one at once. Only those that somebody handles.

    What is started inside never hears of a SIGHUP, as it inherits that; else Ray's processes would end with the
    terminal, and no chunk could be finished. (Ray sees to it itself that they hear of no Ctrl-C.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    came: list[int] = []

    def later(number: int, frame: Any) -> None:
        came.append(number)
        if len(came) > 1:
            before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, later)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        before[signal.Signals(came[0])](came[0], None)


@contextmanager
def _no_handler_of_rays() -> Iterator[None]:
    """Inside this block Ray puts no handler of SIGTERM in place if there is one: it would end the process at once."""
    from ray._private import utils

    if not callable(signal.getsignal(signal.SIGTERM)):
        yield
        return
    own, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = own


# Read by Ray when it is imported or started; set before either.
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # one writer: ours
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours finishes the chunk
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000000",  # Tune's own state is never read again
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a trial without GPUs sees none
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # a SIGTERM is ours to handle, and no failure
    "RAY_gcs_server_port_wait_time_s": "120",  # not 30: a machine may be busy
    # Not 60: Ray ends a process from which its control service has gone, and ours has a sweep to end in order.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}


@dataclass(frozen=True)
class Cluster:
    """The Ray that a sweep runs on. `local`: started by this command, and gone with it.

    `cpus` and `gpus`: of all nodes together, those included that its autoscaler may start. `node_cpus`, `node_gpus`:
    the most that one node has.
    """

    cpus: float
    gpus: float
    node_cpus: float
    node_gpus: float
    local: bool

    def slots(self, sweep: Sweep) -> int:
        """How many learner actors fit at once."""
        wanted = sweep.document.resources
        by_cpu = _fit(self.cpus, wanted.cpus)
        return max(1, min(by_cpu, _fit(self.gpus, wanted.gpus)) if wanted.gpus else by_cpu)


def _fit(there: float, each: float) -> int:
    return int(there / each + 1e-9)  # 200 times 0.01 are 2


def prepare_environment(local: bool) -> None:
    """Settings that Ray reads from the environment, for this process; what the user has set is left alone."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    # A token for our own Ray alone, and on no disk: left to itself, Ray writes one into the home folder, and a token
    # found there changes how every later Ray starts. Ray reads both when it is imported, so not after that.
    if local and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def ray_running(local: bool, on_ray_lost: Callable[[str], None] | None = None) -> Iterator[Cluster]:
    """Ray for this block: the running cluster if there is one and `local` is false, else a new one on this machine.

    If Ray dies, `on_ray_lost` is called and must terminate the process; see `ray_health.guarded`.

    Raises:
        OrchestratorError: `RAY_ADDRESS` names a cluster that does not answer.
    """
    prepare_environment(local)
    import ray

    address = None if local else os.environ.get("RAY_ADDRESS")
    try:
        start_ray(address)
    except KeyboardInterrupt:
        ray.shutdown()
        raise
    own = address is None
    with watched() if own else nullcontext():
        try:
            with nullcontext() if on_ray_lost is None else guarded(own, on_ray_lost):
                yield _found(local=own)
        finally:
            # No longer guarded: on a busy machine it takes seconds after the control service has gone.
            with uncollected():
                ray.shutdown()


def _found(local: bool) -> Cluster:
    there = nodes.joined()
    more = [] if local else nodes.startable()

    def both(kind: str, now: list[float]) -> tuple[float, float]:
        if more is None:  # whatever is asked for may come
            return sum(now), math.inf
        later = [(resources.get(kind, 0), count) for resources, count in more if count]
        return max(sum(now), sum(each * count for each, count in later)), max([*now, *(each for each, _ in later)])

    cpus, node_cpus = both("CPU", [node.cpus for node in there])
    gpus, node_gpus = both("GPU", [node.gpus for node in there])
    return Cluster(cpus, gpus, node_cpus, node_gpus, local)


def check_resources(sweep: Sweep, cpus: float, gpus: float, where: str) -> None:
    """Refuse what could never start: Tune would wait for it for ever.

    Raises:
        ConfigError: naming what is short.
    """
    wanted = sweep.document.resources
    faults = [
        fault(sweep.file, f"resources.{kind}", f"must be at most the {there:g} that {where} has", asked, remedy)
        for kind, asked, there, remedy in (
            ("cpus", wanted.cpus, cpus, f"set resources.cpus={max(1, int(cpus))}"),
            ("gpus", wanted.gpus, gpus, "set resources.gpus=0, or use a cluster that has GPUs"),
        )
        if asked > there
    ]
    if faults:
        raise ConfigError(*faults)


def local_gpus() -> int:
    """GPUs of this machine as Ray would count them, without starting Ray."""
    prepare_environment(local=True)
    from ray._private.accelerators import NvidiaGPUAcceleratorManager

    visible = NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    here = int(NvidiaGPUAcceleratorManager.get_current_node_num_accelerators())
    return here if visible is None else min(here, len(visible))
