"""Running a plan's trials under Ray Tune, with one callback that takes the results out."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.schema import Sweep
from orchestrator.console.progress import Progress
from orchestrator.execution import nodes
from orchestrator.execution.outcome import Outcome
from orchestrator.execution.ray_session import Cluster
from orchestrator.plan.plan import Trial
from orchestrator.search.trial_queue import TrialQueue
from orchestrator.storage.mirror import Mirror
from orchestrator.system.signals import StopRequest
from streams.store.task_store import TaskStore

if TYPE_CHECKING:
    from orchestrator.tracking.writer import Writer


def run_trials(
    sweep: Sweep,
    queue: TrialQueue,
    root: Path,
    store: TaskStore,
    cluster: Cluster,
    progress: Progress,
    writer: Writer,
    stop_request: StopRequest,
    outcome: Outcome,
    mirror: Mirror | None = None,
) -> None:
    """Run the trials of a queue to their ends, and write into `outcome` how each ended.

    Each result's curves go to the writer. With a `mirror`, trials keep their files at its address. Trials that a stop
    request left unfinished are in no part of the outcome.
    """
    from ray import tune

    from orchestrator.execution import learner_actor
    from orchestrator.execution.callbacks import NextTrial, Stop, TakeResults
    from orchestrator.execution.stream_actor import StreamActors

    # Tune tells of every death with a traceback, and at length of result files that its own loggers would have written.
    # The callback tells of deaths in one line.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    if not cluster.local and (lacking := nodes.missing(nodes.joined(), nodes.promised())):
        progress.say(f"cluster: {lacking}")
    wanted, metric = sweep.document.resources, sweep.document.objective.metric
    slots = cluster.slots(sweep)
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(slots)
    limits = sweep.document.max_failures, sweep.document.retries
    callback = TakeResults(writer, progress, outcome, queue, metric, stop_request, *limits)
    scratch = Path(tempfile.mkdtemp(prefix="tune-", dir=root))  # what Tune writes there is never read again

    def specification(trial: Trial) -> dict[str, Any]:
        plan = queue.segment_plan(trial)
        parents = [] if plan is None or mirror is None else sorted(plan.parents)
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
            "segments": plan,
            "parents": {key: mirror.trial_address(key) for key in parents} if mirror is not None else {},
        }

    def dirname(trial: Any) -> str:
        key, plan = trial.config["trial"]["key"], trial.config["trial"]["segments"]
        return f"{key}" if plan is None else f"{key}-{plan.stop}"

    try:
        with (
            stop_request.gracefully(progress.say),
            StreamActors(store, sweep.seeds, sweep.store, root, progress.say, mirror),
        ):
            tune.Tuner(
                tune.with_resources(learner_actor.LearnerActor, {"cpu": wanted.cpus, "gpu": wanted.gpus}),
                tune_config=tune.TuneConfig(
                    search_alg=NextTrial(queue, specification, slots),
                    num_samples=-1,  # until the queue is empty
                    reuse_actors=True,
                    trial_dirname_creator=dirname,
                ),
                run_config=tune.RunConfig(
                    name="trials",
                    storage_path=str(scratch.absolute()),
                    callbacks=[callback],
                    stop=Stop(stop_request, callback, queue, outcome, metric),
                    failure_config=tune.FailureConfig(max_failures=0),  # the callback counts, and hands out anew
                    verbose=0,
                ),
            ).fit()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
