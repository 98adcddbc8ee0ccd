"""Runs the trials of a queue under Ray Tune."""

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from orchestrator.config.schema import AUTO_CHUNK
from orchestrator.console.progress import Progress
from orchestrator.execution import nodes
from orchestrator.execution.callbacks import QueueSearcher, ResultCallback, StoppableScheduler, TrialStopper
from orchestrator.execution.context import SweepContext
from orchestrator.execution.learner_actor import LearnerActor
from orchestrator.execution.messages import TrialSpec
from orchestrator.execution.ray_session import Cluster, Slots
from orchestrator.execution.stream_actor import StreamActors
from orchestrator.execution.trial_health import TrialHealth
from orchestrator.plan.plan import Trial
from orchestrator.search.trial_queue import TrialQueue
from orchestrator.storage.journal import SCRATCH

PENDING = 8
"""The trials that wait for nodes of an autoscaler whose limits are not known."""


def run_trials(context: SweepContext, queue: TrialQueue, cluster: Cluster, progress: Progress) -> None:
    """Run the trials of a queue until each has ended or a stop is requested.

    Results go to the context's writer, and how each trial ended into its outcome, where trials that a stop request left
    unfinished have no fate.
    """
    sweep, journal = context.sweep, context.journal
    # Tune logs each death with a traceback, and asks for result files; the callback reports a death in one line.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    if not cluster.local and (missing := nodes.missing(nodes.joined(), nodes.promised())):
        progress.say(f"cluster: {missing}")
    slots = Slots(sweep, cluster, progress.set_slots)
    # Tune requests the resources of this many trials ahead, for which an autoscaler starts nodes at the same time.
    pending = cluster.slots(sweep) if cluster.startable is not None else max(cluster.slots(sweep), PENDING)
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(pending)
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "1e9"  # the journal and the chunk files resume a sweep, not Tune's state
    health = TrialHealth(context, progress.say)
    callback = ResultCallback(context, queue, progress, health)
    resources = {"cpu": sweep.document.resources.cpus, "gpu": sweep.document.resources.gpus}
    streams = StreamActors(context.store, sweep.seeds, sweep.store, journal.root, progress.say, journal.mirror)
    scratch = tempfile.mkdtemp(prefix=SCRATCH, dir=journal.root)  # Tune's own files, which are never read again
    try:
        with context.stop_request.gracefully(progress.say), streams, health:
            tune.Tuner(
                tune.with_resources(LearnerActor, resources),
                tune_config=tune.TuneConfig(
                    search_alg=QueueSearcher(context, queue, lambda trials: pack_spec(context, queue, trials), slots),
                    scheduler=StoppableScheduler(context),
                    num_samples=-1,  # until the queue is empty
                    reuse_actors=True,
                    trial_dirname_creator=_folder_name,
                ),
                run_config=tune.RunConfig(
                    name="trials",
                    storage_path=str(Path(scratch).absolute()),
                    callbacks=[callback],
                    stop=TrialStopper(context, queue, callback),
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # chunk files are the checkpoints
                    failure_config=tune.FailureConfig(max_failures=0),  # the callback counts retries
                    verbose=0,
                ),
            ).fit()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def pack_spec(context: SweepContext, queue: TrialQueue, trials: Sequence[Trial]) -> TrialSpec:
    """What the learner actor of trials that start together must know."""
    first, *others = (trial_spec(context, queue, trial) for trial in trials)
    return replace(first, others=tuple(others))


def trial_spec(context: SweepContext, queue: TrialQueue, trial: Trial) -> TrialSpec:
    """What the learner actor of a trial must know."""
    sweep, mirror, segments = context.sweep, context.journal.mirror, queue.segment_plan(trial)
    parents = [] if mirror is None or segments is None else sorted(segments.parents)
    start = trial.configuration.start_file(context.journal.root)
    return TrialSpec(
        trial=trial,
        folder=str(trial.folder(context.journal.root).absolute()),
        store=context.store.hash,
        schedule=sweep.schedule,
        chunk=sweep.document.chunk,
        keep_checkpoints=sweep.document.keep_checkpoints,
        threads=sweep.threads,
        gpus=sweep.document.resources.gpus,
        address=None if mirror is None else mirror.trial_address(trial.key),
        segments=segments,
        parents={} if mirror is None else {key: mirror.trial_address(key) for key in parents},
        modules=sweep.folder,
        objective=context.objective,
        start=None if start is None else str(start.absolute()),
        rungs=queue.rungs(trial) if sweep.document.chunk == AUTO_CHUNK else (),
    )


def _folder_name(trial: TuneTrial) -> str:
    spec = TrialSpec.from_tune(trial.config)
    return spec.trial.key if spec.segments is None else f"{spec.trial.key}-{spec.segments.stop}"
