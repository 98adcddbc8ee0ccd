"""Starts Ray, or connects to it, without losing signals; the resources of the cluster that results."""

import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from orchestrator.config.schema import Sweep
from orchestrator.errors import ConfigError, OrchestratorError, fault
from orchestrator.execution import nodes
from orchestrator.execution.ray_health import garbage_collection_off, guarded
from orchestrator.system.processes import watched
from orchestrator.system.signals import SIGNALS


def cluster_address() -> str | None:
    """The address of the cluster that `RAY_ADDRESS` names; None if Ray must be started on this machine.

    As for Ray, an empty variable is none, and `local` is this machine.

    Raises:
        ConfigError: it is no address.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address or address == "local":
        return None
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and "/" not in host and port.isdecimal() and 0 < int(port) < 2**16):
        rule, remedy = "must be HOST:PORT of the head, auto, local or empty", "the port is usually 6379; or use --local"
        raise ConfigError(fault("RAY_ADDRESS", "", rule, address, remedy))
    return address


def start_ray(address: str | None) -> None:
    """Start a Ray on this machine, or connect to the cluster at `address`; signals are delivered afterwards.

    Raises:
        OrchestratorError: no cluster answers there, a Ray runs in this process already, or Ray does not start on this
            machine, at the second attempt.
        KeyboardInterrupt: from the handler of a signal that came meanwhile; the caller must shut Ray down.
    """
    with signals_deferred(), _ray_handler_disabled():
        _init(address)


def _init(address: str | None) -> None:
    import ray  # after `prepare_environment`, as everywhere in this module
    from ray.exceptions import RayError

    if ray.is_initialized():
        rule, remedy = (
            "a sweep starts Ray, or connects to it",
            "call ray.shutdown() before; RAY_ADDRESS names a cluster",
        )
        raise OrchestratorError(fault("ray", "", rule, "a Ray that runs in this process", remedy))
    quiet = {"namespace": "foml-orchestrator", "logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        _init_here(quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError, RayError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        rule = f"must name a running cluster that lets this process in ({type(error).__name__}: {reason})"
        raise OrchestratorError(fault("RAY_ADDRESS", "", rule, address, "start it, or use --local")) from error


def _init_here(quiet: dict[str, Any]) -> None:
    """Start Ray on this machine, again if its processes miss a deadline of its own, as they do on a busy machine."""
    import ray

    for attempt in (1, 2):
        try:
            ray.init(address="local", include_dashboard=False, **quiet)
            return
        except Exception as error:  # Ray raises it as a plain Exception
            ray.shutdown()
            if attempt == 2:
                reason = " ".join(str(error).split())
                rule = "Ray must start on this machine"
                raise OrchestratorError(f"{rule} (got {reason}); try again when it is less busy") from error


@contextmanager
def signals_deferred() -> Iterator[None]:
    """A signal with a handler that comes inside this block is delivered at its end, a second one immediately.

    The start of Ray does not survive an interruption. Processes started inside inherit a blocked SIGHUP: otherwise
    Ray's processes would end with the terminal, and no chunk could be finished. (Ray itself shields them from Ctrl-C.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    deferred: list[int] = []

    def defer(number: int, frame: Any) -> None:
        deferred.append(number)
        if len(deferred) > 1:
            before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, defer)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
    if deferred:
        before[signal.Signals(deferred[0])](deferred[0], None)


@contextmanager
def _ray_handler_disabled() -> Iterator[None]:
    """Inside this block Ray does not replace an existing SIGTERM handler: Ray's would end the process immediately."""
    from ray._private import utils

    if not callable(signal.getsignal(signal.SIGTERM)):
        yield
        return
    original, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = original


LOOK_S = 5.0
"""Seconds after which `Slots` looks for nodes again."""
# Ray reads these when it is imported and when it starts.
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # results go to MLflow only
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # `StopRequest` finishes the chunk
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000000",  # Tune's state is never read again
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a trial without GPUs sees none
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # `StopRequest` handles SIGTERM, which is no failure
    "RAY_gcs_server_port_wait_time_s": "120",  # not 30: the machine may be busy
    # Not 60: Ray terminates a process that has lost its control service, before this one could end the sweep.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}


@dataclass(frozen=True)
class Cluster:
    """The resources of the Ray that a sweep runs on.

    Attributes:
        cpus: of all nodes together, including those that an autoscaler may start.
        gpus: of all nodes together, including those that an autoscaler may start.
        node_cpus: the most that one node has.
        node_gpus: the most that one node has.
        local: whether this command started Ray, and ends it.
        startable: see `nodes.startable`.
    """

    cpus: float
    gpus: float
    node_cpus: float
    node_gpus: float
    local: bool
    startable: Sequence[tuple[Mapping[str, float], int]] | None = ()

    def slots(self, sweep: Sweep) -> int:
        """The number of learner actors that fit simultaneously.

        If the limits of an autoscaler are not known, one more than fit now: it starts nodes for actors that wait.
        """
        trial = sweep.document.resources
        by_cpu = _fit(self.cpus, trial.cpus)
        fit = max(0, min(by_cpu, _fit(self.gpus, trial.gpus)) if trial.gpus else by_cpu)
        return fit + 1 if self.startable is None else max(1, fit)


class Slots:
    """The number of learner actors that fit simultaneously, while nodes join and leave.

    Args:
        sweep: the checked configuration.
        cluster: as it was when the sweep started.
        on_change: called with a number that differs from the one before.
    """

    def __init__(self, sweep: Sweep, cluster: Cluster, on_change: Callable[[int], None]) -> None:
        self._sweep, self._cluster, self._on_change = sweep, cluster, on_change
        self._slots, self._looked = cluster.slots(sweep), time.monotonic()

    def __call__(self) -> int:
        """The number of a few seconds ago at most."""
        if not self._cluster.local and time.monotonic() - self._looked >= LOOK_S:
            slots = _cluster(False, self._cluster.startable).slots(self._sweep)
            self._looked = time.monotonic()
            if slots != self._slots:
                self._slots = slots
                self._on_change(slots)
        return self._slots


def _fit(total: float, each: float) -> int:
    return int(total / each + 1e-9)  # 2 / 0.01 must be 200


def prepare_environment(local: bool) -> None:
    """Set what Ray reads from this process's environment, except what the user has set."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    # A token for this Ray only, and on no disk: by default Ray writes one into the home folder, where a token changes
    # how every later Ray starts. Ray reads both variables when it is imported, so later would be too late.
    if local and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def without_token(local: bool) -> str:
    """A line if a local Ray would get no token, as Ray was imported before `prepare_environment`; else empty."""
    if not local or "ray" not in sys.modules or "RAY_AUTH_MODE" in os.environ:
        return ""
    return (
        "Ray was imported before the sweep started, so the Ray of this sweep has no token: other users of this "
        "machine could run code in it; import ray later, or set RAY_AUTH_MODE"
    )


@contextmanager
def ray_running(local: bool, on_ray_lost: Callable[[str], None] | None = None) -> Iterator[Cluster]:
    """Ray for this block: the running cluster if there is one and `local` is false, else a new one on this machine.

    If Ray dies, `on_ray_lost` is called and must terminate the process; see `ray_health.guarded`.

    Raises:
        OrchestratorError: `RAY_ADDRESS` is no address, or names a cluster that does not answer.
    """
    prepare_environment(local)
    import ray

    address = None if local else cluster_address()
    try:
        start_ray(address)
    except KeyboardInterrupt:
        ray.shutdown()
        raise
    is_new = address is None
    with watched() if is_new else nullcontext():
        try:
            with nullcontext() if on_ray_lost is None else guarded(is_new, on_ray_lost):
                yield _cluster(is_new, () if is_new else nodes.startable())
        finally:
            # Outside `guarded`: on a busy machine the shutdown takes seconds after the control service has ended.
            with garbage_collection_off():
                ray.shutdown()


def _cluster(local: bool, startable: Sequence[tuple[Mapping[str, float], int]] | None) -> Cluster:
    alive = nodes.joined()

    def total_and_largest(kind: str, now: list[float]) -> tuple[float, float]:
        if startable is None:
            return sum(now), math.inf
        later = [(resources.get(kind, 0), count) for resources, count in startable if count]
        return max(sum(now), sum(each * count for each, count in later)), max([*now, *(each for each, _ in later)])

    cpus, node_cpus = total_and_largest("CPU", [node.cpus for node in alive])
    gpus, node_gpus = total_and_largest("GPU", [node.gpus for node in alive])
    return Cluster(cpus, gpus, node_cpus, node_gpus, local, startable)


def check_resources(sweep: Sweep, cpus: float, gpus: float, where: str) -> None:
    """Refuse trials that no node could run: Tune would wait forever.

    Args:
        sweep: the checked configuration.
        cpus: the most that one node has.
        gpus: the most that one node has.
        where: the node, as the error names it.

    Raises:
        ConfigError: A trial needs more than a node has.
    """
    trial = sweep.document.resources
    faults = [
        fault(sweep.file, f"resources.{kind}", f"must be at most the {limit:g} that {where} has", value, remedy)
        for kind, value, limit, remedy in (
            ("cpus", trial.cpus, cpus, f"set resources.cpus={max(1, int(cpus))}"),
            ("gpus", trial.gpus, gpus, "set resources.gpus=0, or use a cluster that has GPUs"),
        )
        if value > limit
    ]
    if faults:
        raise ConfigError(*faults)


def local_gpus() -> int:
    """The number of GPUs of this machine as Ray counts them, without starting Ray."""
    prepare_environment(local=True)
    from ray._private.accelerators import NvidiaGPUAcceleratorManager

    visible = NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    count = int(NvidiaGPUAcceleratorManager.get_current_node_num_accelerators())
    return count if visible is None else min(count, len(visible))
