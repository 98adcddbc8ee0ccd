"""Running a plan's trials under Ray Tune, with one callback that takes the results out."""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import nodes
from orchestrator.errors import ConfigError, fault
from orchestrator.halt import Halt
from orchestrator.plan import Plan, Trial
from orchestrator.progress import Progress
from orchestrator.ray_health import guarded, uncollected
from orchestrator.ray_start import start_ray
from orchestrator.search import Search
from orchestrator.specification import Sweep
from orchestrator.storage import Mirror
from orchestrator.watcher import watched
from streams.store import TaskStore

if TYPE_CHECKING:
    from orchestrator.tracking import Writer

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
def ray_running(local: bool, lost: Callable[[str], None] | None = None) -> Iterator[Cluster]:
    """Ray for this block: the running cluster if there is one and `local` is false, else one of our own.

    If it is gone of a sudden, `lost` is told, and has to end the process; see `ray_health.guarded`.

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
            with nullcontext() if lost is None else guarded(own, lost):
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


@dataclass
class Outcome:
    """How the trials of a plan ended: keys of the finished ones, key → reason of the failed ones, and key → batches of
    those that the scheduler stopped.

    ``spent``: in words, where there is a price or a budget. ``over_budget``: the words that raise the budget, if trials
    were left for want of it.
    """

    plan: Plan
    finished: set[str]
    failed: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, int] = field(default_factory=dict)
    spent: str = ""
    over_budget: str = ""

    @property
    def ended(self) -> set[str]:
        """Keys of the trials that are not to be run again."""
        return self.finished | set(self.stopped)


def run_trials(
    sweep: Sweep,
    search: Search,
    root: Path,
    store: TaskStore,
    cluster: Cluster,
    progress: Progress,
    writer: Writer,
    halt: Halt,
    outcome: Outcome,
    mirror: Mirror | None = None,
) -> None:
    """Run the trials of a search to their ends, and write into `outcome` how each ended.

    Each result's curves go to the writer. With a `mirror`, trials keep their files at its address. Trials that a halt
    left unfinished are in no part of the outcome.
    """
    from ray import tune

    from orchestrator import actors
    from orchestrator.stream_actors import StreamActors
    from orchestrator.tune_callback import NextTrial, Stop, TakeResults

    # Tune tells of every death with a traceback, and at length of result files that its own loggers would have written.
    # The callback tells of deaths in one line.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    if not cluster.local and (lacking := nodes.missing(nodes.joined(), nodes.promised())):
        progress.say(f"cluster: {lacking}")
    wanted, metric = sweep.document.resources, sweep.document.objective.metric
    slots = cluster.slots(sweep)
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(slots)
    limits = sweep.document.max_failures, sweep.document.retries
    callback = TakeResults(writer, progress, outcome, search, metric, halt, *limits)
    scratch = Path(tempfile.mkdtemp(prefix="tune-", dir=root))  # what Tune writes there is never read again

    def specification(trial: Trial) -> dict[str, Any]:
        leg = search.leg(trial)
        donors = [] if leg is None or mirror is None else list(leg.ways)
        return {
            "key": trial.key,
            "folder": str(trial.folder(root).absolute()),
            "address": None if mirror is None else mirror.trial_address(trial.key),
            "store": store.hash,
            "learner": trial.configuration.learner,
            "options": trial.configuration.options,
            "network": trial.configuration.network,
            "batch_size": trial.configuration.batch_size,
            "seeds": list(trial.seeds),
            "schedule": sweep.schedule,
            "chunk": sweep.document.chunk,
            "keep_checkpoints": sweep.document.keep_checkpoints,
            "threads": sweep.threads,
            "gpus": wanted.gpus,
            "leg": leg,
            "donors": {key: mirror.trial_address(key) for key in donors} if mirror is not None else {},
        }

    def dirname(trial: Any) -> str:
        key, leg = trial.config["trial"]["key"], trial.config["trial"]["leg"]
        return f"{key}" if leg is None else f"{key}-{leg.until}"

    try:
        with halt.gently(progress.say), StreamActors(store, sweep.seeds, sweep.store, root, progress.say, mirror):
            tune.Tuner(
                tune.with_resources(actors.LearnerActor, {"cpu": wanted.cpus, "gpu": wanted.gpus}),
                tune_config=tune.TuneConfig(
                    search_alg=NextTrial(search, specification, slots),
                    num_samples=-1,  # until the search has no more
                    reuse_actors=True,
                    trial_dirname_creator=dirname,
                ),
                run_config=tune.RunConfig(
                    name="trials",
                    storage_path=str(scratch.absolute()),
                    callbacks=[callback],
                    stop=Stop(halt, callback, search, outcome, metric),
                    failure_config=tune.FailureConfig(max_failures=0),  # the callback counts, and hands out anew
                    verbose=0,
                ),
            ).fit()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
