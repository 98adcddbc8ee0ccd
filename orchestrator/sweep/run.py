"""A sweep's course: store, journal, MLflow's writer, Ray and the open trials, and its end, however it ends."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.config.schedulers import RunAll
from orchestrator.config.schema import Sweep
from orchestrator.console.progress import Progress
from orchestrator.errors import DiskFullError, ExitCode, OrchestratorError, disk_full_line, is_disk_full
from orchestrator.execution.outcome import Outcome
from orchestrator.execution.ray_health import output_to
from orchestrator.execution.ray_session import check_resources, local_gpus, prepare_environment, ray_running
from orchestrator.execution.run_trials import run_trials
from orchestrator.plan.expand import make_plan
from orchestrator.plan.task_store import open_store
from orchestrator.protocol.source import StoreSource
from orchestrator.search.ledger import open_ledger
from orchestrator.search.population.generations import failed_members, quarantine_if_damaged, write_missing_files
from orchestrator.search.trial_queue import TrialQueue
from orchestrator.storage.journal import Journal
from orchestrator.storage.mirror import open_folder
from orchestrator.sweep.arguments import Telling
from orchestrator.sweep.result import SweepResult, begun, report_on, resume_command
from orchestrator.system.processes import kill_descendants
from orchestrator.system.signals import StopRequest
from orchestrator.tracking import provenance, runs
from orchestrator.tracking.database import await_server, first_line
from streams.store.task_store import TaskStore

if TYPE_CHECKING:
    from orchestrator.tracking.writer import Writer

RAY_LOG = "ray.log"
"""In the sweep's folder: what Ray had to say, if anything."""


def execute(sweep: Sweep, local: bool, rerun: bool, telling: Telling) -> SweepResult:
    """Run a checked sweep to its end; for the arguments and the errors see `orchestrator.sweep.api.run_sweep`."""
    stop_request = StopRequest()
    with stop_request.signals():
        return _execute(sweep, local, rerun, stop_request, telling)


def _execute(sweep: Sweep, local: bool, rerun: bool, stop_request: StopRequest, telling: Telling) -> SweepResult:
    started_ms = time.time_ns() // 1_000_000
    local = local or "RAY_ADDRESS" not in os.environ
    prepare_environment(local)
    if local:  # a cluster is asked once it is connected
        check_resources(sweep, os.cpu_count() or 1, local_gpus(), "this machine")
    store = open_store(sweep, telling.building())
    root, mirror = open_folder(sweep.document.storage, sweep.name)
    journal = Journal.look(root, make_plan(sweep, store.hash), mirror)

    from orchestrator.tracking import (
        writer as tracking,  # MLflow takes its time: not before the rest is known to be good
    )

    uri = sweep.document.tracking.uri
    tracking.prepare(uri)
    runs.check_tracked(uri, sweep.experiment, journal.plan)
    with journal.locked(telling.say):
        # Once more: another command may have run this sweep to its end since.
        if mirror is not None:
            mirror.pull()
        journal = Journal.look(root, make_plan(sweep, store.hash), mirror)
        if rerun:
            tracking.forget(uri, sweep.experiment, sweep.name)
        journal.take(rerun, telling.say)
        with begun(sweep, root):
            known = provenance.collect(store.hash, store.path, json.dumps(store.manifest, indent=2))
            writer = tracking.Writer(uri, sweep.experiment, journal.plan, root, known, started_ms, mirror)
            return _track(sweep, journal, store, local, writer, stop_request, telling)


def _track(
    sweep: Sweep,
    journal: Journal,
    store: TaskStore,
    local: bool,
    writer: Writer,
    stop_request: StopRequest,
    telling: Telling,
) -> SweepResult:
    """Run what is open, with the writer at work; whatever happens, no run of ours stays RUNNING."""
    damaged: list[str] = []
    outcome = Outcome(journal.plan, journal.finished(damaged))
    for line in damaged:
        telling.say(line)
    if not isinstance(sweep.scheduler, RunAll):  # without one, what it had stopped goes on
        outcome.stopped = {key: at for key, at in journal.stopped().items() if key not in outcome.finished}
    try:
        writer.start()
        try:
            _run_open_trials(sweep, journal, store, local, writer, stop_request, outcome, telling)
            if not stop_request.requested.is_set():
                await_server(sweep.document.tracking.uri, telling.say)
        except KeyboardInterrupt:  # the second Ctrl-C, or the first while Ray starts: now
            outcome.finished |= journal.finished()
        except Exception as error:
            if not is_disk_full(error):
                raise
            stop_request.request(
                str(error) if isinstance(error, DiskFullError) else disk_full_line(journal.root), interrupted=True
            )
            outcome.finished |= journal.finished()
        return _end(sweep, journal, writer, stop_request, outcome)
    except BaseException as error:
        writer.close("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
        raise


def _end(sweep: Sweep, journal: Journal, writer: Writer, stop_request: StopRequest, outcome: Outcome) -> SweepResult:
    """Write what is left to MLflow, end all runs, and report."""
    from orchestrator.tracking.writer import TrackingProblem

    failed, untracked = _close_trials(outcome, writer), writer.drain()
    try:
        writer.close("KILLED" if stop_request.interrupted else "FAILED" if outcome.failed else "FINISHED")
    except OrchestratorError as error:
        untracked += map(TrackingProblem, error.faults)
    return report_on(sweep, journal, outcome, failed, untracked, stop_request)


def _end_without_ray(
    reason: str,
    sweep: Sweep,
    journal: Journal,
    writer: Writer,
    stop_request: StopRequest,
    outcome: Outcome,
    telling: Telling,
) -> None:
    """Ray is gone, and the main thread may be inside of it for good: end the command from here, as interrupted."""
    try:
        stop_request.request(reason, interrupted=True)
        telling.say(f"{reason}: the sweep ends here")
        kill_descendants()
        outcome.finished |= journal.finished()
        result = _end(sweep, journal, writer, stop_request, outcome)
        if telling.at_loss is None:
            print(result.text, file=sys.__stdout__)
        else:
            telling.at_loss(result)
    except Exception as error:  # whatever it is, the command ends
        line = f"{reason}: go on with: {resume_command(sweep)} ({type(error).__name__}: {first_line(error)})"
        print(line, file=sys.stderr)
    finally:
        for stream in (sys.__stdout__, sys.stderr):
            if stream is not None:
                with suppress(OSError):  # a terminal that is gone
                    stream.flush()
        os._exit(ExitCode.INTERRUPTED)


def _run_open_trials(
    sweep: Sweep,
    journal: Journal,
    store: TaskStore,
    local: bool,
    writer: Writer,
    stop_request: StopRequest,
    outcome: Outcome,
    telling: Telling,
) -> None:
    """Run the trials that have not ended, and write into `outcome` how they ended."""
    plan = journal.plan
    for key in outcome.finished:
        writer.finished(key)  # no-op where MLflow has it all; after a crash, what it lacks is sent
    known = f", {len(outcome.ended)} of them ended before" if outcome.ended else ""
    for population in plan.populations:
        if line := quarantine_if_damaged(journal.root, population):
            telling.say(line)
        outcome.failed |= failed_members(journal.root, population)
    total = -(-StoreSource(store, sweep.seeds, sweep.schedule).shape().length // sweep.document.batch_size)
    if plan.size == len(outcome.ended) + len(outcome.failed):
        telling.say(f"{sweep.name}: {plan.size} trials{known}")
        write_missing_files(journal, total, sweep.document.objective.metric, outcome.ended)
        return
    ledger = open_ledger(sweep, journal.root)
    if ledger.exhausted:
        telling.say(f"{sweep.name}: {plan.size} trials{known}; budget reached, none is started")
        outcome.spent, outcome.over_budget = ledger.text(), ledger.overrides()
        return
    queue = TrialQueue(sweep, journal, outcome.ended, total, ledger)

    def lost(reason: str) -> None:
        _end_without_ray(reason, sweep, journal, writer, stop_request, outcome, telling)

    with output_to(journal.root / RAY_LOG), ray_running(local, lost) as cluster:
        check_resources(sweep, cluster.node_cpus, cluster.node_gpus, "a node of this cluster")
        slots = cluster.slots(sweep)
        progress = Progress(plan, slots)
        for key in outcome.ended:
            progress.already(key, "done" if key in outcome.finished else "stopped")
        for key in outcome.failed:
            progress.already(key, "failed")
        telling.say(
            f"{sweep.name}: {plan.size} trials{known}, {slots} at a time; seeds {sweep.seeds}; "
            f"{store.manifest['name']} ({store.hash[:12]})"
        )
        metric = sweep.document.objective.metric
        with telling.following(progress, metric, partial(_tell_of_ended, progress, journal, outcome.ended, metric)):
            run_trials(
                sweep, queue, journal.root, store, cluster, progress, writer, stop_request, outcome, journal.mirror
            )
    if ledger.is_reported:
        outcome.spent = ledger.text()
    if ledger.exhausted and plan.size > len(outcome.ended) + len(outcome.failed):
        outcome.over_budget = ledger.overrides()


def _tell_of_ended(progress: Progress, journal: Journal, keys: set[str], metric: str) -> None:
    """What trials came to that had ended before, for a screen's leaders."""
    from orchestrator.protocol import metrics
    from orchestrator.storage import trial_files

    for trial in journal.plan.trials:
        if trial.key in keys and (chunk := trial_files.newest(trial.folder(journal.root))) is not None:
            values = metrics.objective(chunk.curves, metric)
            progress.measured(trial.key, () if values is None else values.tolist())


def _close_trials(outcome: Outcome, writer: Writer) -> list[str]:
    plan = outcome.plan
    for trial in plan.trials:
        if trial.key in outcome.finished:
            writer.finished(trial.key)
        elif trial.key in outcome.stopped:
            writer.stopped(trial.key, outcome.stopped[trial.key])
        elif trial.key in outcome.failed:
            writer.failed(trial.key, outcome.failed[trial.key])
        else:
            writer.interrupted(trial.key)
    return [
        f"{plan.trial(key).configuration.label} ({key}): failed: {reason}" for key, reason in outcome.failed.items()
    ]
