"""The course of a sweep: checks, journal, MLflow's writer, Ray and the open trials, and the end, however it ends."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from orchestrator.config.schema import Sweep
from orchestrator.console.output import Output
from orchestrator.console.progress import Progress
from orchestrator.errors import DiskFullError, ExitCode, OrchestratorError, disk_full_line, is_disk_full
from orchestrator.execution.context import SweepContext
from orchestrator.execution.outcome import Outcome
from orchestrator.execution.ray_health import output_to
from orchestrator.execution.ray_session import (
    Cluster,
    check_resources,
    cluster_address,
    local_gpus,
    prepare_environment,
    ray_running,
    without_token,
)
from orchestrator.plan import fate
from orchestrator.plan.expand import make_plan
from orchestrator.plan.fate import Ending
from orchestrator.plan.task_store import open_store
from orchestrator.protocol.source import StoreSource
from orchestrator.search.ledger import Ledger, open_ledger
from orchestrator.search.population.generations import failed_members, quarantine_if_damaged, write_missing_files
from orchestrator.search.trial_queue import TrialQueue, finished_trials, stopped_before
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from orchestrator.storage.mirror import open_folder
from orchestrator.sweep import result_cache
from orchestrator.sweep.result import SweepResult, report_on, resumable, resume_command
from orchestrator.sweep.starts import keep_starts
from orchestrator.system.processes import kill_descendants
from orchestrator.system.signals import StopRequest
from orchestrator.tracking import ownership, provenance
from orchestrator.tracking import writer as tracking
from orchestrator.tracking.database import await_server, first_line
from streams.errors import masked
from streams.store.task_store import TaskStore

RAY_LOG = "ray.log"
"""The file in the sweep's folder with what Ray prints, if anything."""


def execute(
    sweep: Sweep, local: bool, rerun: bool, output: Output, on_ray_lost: Callable[[SweepResult], None] | None = None
) -> SweepResult:
    """Run a checked sweep to its end; for the arguments and the errors see `orchestrator.sweep.api.run_sweep`."""
    started_ms, stop_request = time.time_ns() // 1_000_000, StopRequest()
    with stop_request.signals():
        local = local or cluster_address() is None
        journal, store = _checked(sweep, local, rerun, output)
        with journal.locked(output.say, partial(stop_request.request, interrupted=True)):
            journal = _taken(sweep, journal, store, rerun, output)
            with resumable(sweep, journal.root):
                writer = _writer(sweep, journal, store, started_ms)
                outcome = _earlier_outcome(sweep, journal, output)
                context = SweepContext(sweep, journal, store, writer, outcome, stop_request, output)
                with _runs_closed(writer):
                    with _until_stopped(context):
                        ledger = open_ledger(sweep, journal.root)
                        if (queue := _open_trials(context, ledger)) is not None:
                            # Ray is imported after `prepare_environment`, and only where trials are left.
                            from orchestrator.execution.run_trials import run_trials

                            with _ray(context, local, on_ray_lost) as (cluster, progress):
                                run_trials(context, queue, cluster, progress)
                        _note_budget(outcome, ledger)
                        if not stop_request.requested:
                            await_server(sweep.document.tracking.uri, output.say)
                    result = _end(context)
                if result.exit_code == ExitCode.SUCCESS and journal.mirror is None:
                    result_cache.keep(sweep, journal.root, store.path, _headline(context), result)
                return result


def _checked(sweep: Sweep, local: bool, rerun: bool, output: Output) -> tuple[Journal, TaskStore]:
    """Everything that can refuse the sweep before its folder is locked."""
    prepare_environment(local)
    if local:  # a cluster is checked once it is connected
        # Ray counts the GPUs, and takes a second to import.
        gpus = local_gpus() if sweep.document.resources.gpus else 0
        check_resources(sweep, os.cpu_count() or 1, gpus, "this machine")
    store = open_store(sweep, output.build_progress())
    root, mirror = open_folder(sweep.document.storage, sweep.name)
    journal = Journal.look(root, make_plan(sweep, store.hash), mirror, rerun)
    with output.step("opening MLflow"):
        tracking.prepare(sweep.document.tracking.uri)
        ownership.check_tracked(sweep.document.tracking.uri, sweep.experiment, journal.plan)
    return journal, store


def _taken(sweep: Sweep, journal: Journal, store: TaskStore, rerun: bool, output: Output) -> Journal:
    """The journal of the locked folder, read again: another command may have finished this sweep since."""
    root, mirror = journal.root, journal.mirror
    if mirror is not None:
        mirror.pull()
    journal = Journal.look(root, make_plan(sweep, store.hash), mirror, rerun)
    if rerun:
        tracking.forget(sweep.document.tracking.uri, sweep.experiment, sweep.name)
    journal.take(output.say)
    keep_starts(sweep, root)
    return journal


def _writer(sweep: Sweep, journal: Journal, store: TaskStore, started_ms: int) -> tracking.Writer:
    facts = provenance.collect(store.hash, store.path, json.dumps(store.manifest, indent=2))
    uri, root = sweep.document.tracking.uri, journal.root
    return tracking.Writer(uri, sweep.experiment, journal.plan, root, facts, started_ms, journal.mirror)


def _earlier_outcome(sweep: Sweep, journal: Journal, output: Output) -> Outcome:
    """How the trials of earlier commands ended."""
    outcome, quarantined = Outcome(journal.plan), list[str]()
    outcome.finish(finished_trials(sweep, journal, quarantined))
    for line in quarantined:
        output.say(line)
    for key, batches in stopped_before(sweep, journal).items():
        outcome.fates.setdefault(key, fate.stopped(batches))
    return outcome


@contextmanager
def _runs_closed(writer: tracking.Writer) -> Iterator[None]:
    """The writer works inside this block; whatever error ends the block, no run of the sweep stays RUNNING."""
    try:
        writer.start()
        yield
    except BaseException as error:
        writer.close("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
        raise


@contextmanager
def _until_stopped(context: SweepContext) -> Iterator[None]:
    """A full disk, the second Ctrl-C, or the first one while Ray starts, ends this block but not the command."""
    journal, outcome = context.journal, context.outcome
    try:
        yield
    except KeyboardInterrupt:
        outcome.finish(finished_trials(context.sweep, journal))
    except Exception as error:
        if not is_disk_full(error):
            raise
        line = str(error) if isinstance(error, DiskFullError) else disk_full_line(journal.root)
        context.stop_request.request(line, interrupted=True)
        outcome.finish(finished_trials(context.sweep, journal))


def _open_trials(context: SweepContext, ledger: Ledger) -> TrialQueue | None:
    """The queue of the trials that have not ended; None if none is left, or no budget for one."""
    sweep, journal, outcome, say = context.sweep, context.journal, context.outcome, context.output.say
    for key in outcome.finished:
        context.writer.finished(key)  # after a crash MLflow may miss some of its points
    for population in journal.plan.populations:
        if line := quarantine_if_damaged(journal.root, population):
            say(line)
        for key, reason in failed_members(journal.root, population).items():
            outcome.fates.setdefault(key, fate.failed(reason))
    total = -(-StoreSource(context.store, sweep.seeds, sweep.schedule).shape().length // sweep.document.batch_size)
    if outcome.open == 0:
        say(_headline(context))
        write_missing_files(journal, total, context.objective.name, outcome.ended)
        return None
    if ledger.exhausted:
        say(f"{_headline(context)}; budget reached, none is started")
        return None
    return TrialQueue(sweep, journal, outcome.ended, total, ledger)


@contextmanager
def _ray(
    context: SweepContext, local: bool, on_ray_lost: Callable[[SweepResult], None] | None
) -> Iterator[tuple[Cluster, Progress]]:
    """Ray and the progress that the user sees; if Ray dies inside this block, the command ends."""
    root, sweep, output = context.journal.root, context.sweep, context.output
    if line := without_token(local):
        output.say(line)
    end_without_ray = partial(_end_without_ray, context, on_ray_lost)
    with output_to(root / RAY_LOG), ExitStack() as stack:
        with output.step("starting Ray" if local else "connecting to Ray"):
            cluster = stack.enter_context(ray_running(local, end_without_ray))
        check_resources(sweep, cluster.node_cpus, cluster.node_gpus, "a node of this cluster")
        progress = _progress(context, cluster.slots(sweep))
        with output.showing(progress, context.objective, partial(_show_earlier_objectives, context, progress)):
            yield cluster, progress
        with output.step("ending Ray" if local else "disconnecting from Ray"):
            stack.close()


def _headline(context: SweepContext) -> str:
    ended = len(context.outcome.ended)
    before = f", {ended} of them ended before" if ended else ""
    return f"{context.sweep.name}: {context.journal.plan.size} trials{before}"


def _progress(context: SweepContext, slots: int) -> Progress:
    """The progress with the trials of earlier commands; says what is going to run."""
    progress, store = Progress(context.journal.plan, slots), context.store
    for key, end in context.outcome.fates.items():
        progress.ended_before(key, end.ending)
    context.output.say(
        f"{_headline(context)}, {slots} at a time; seeds {context.sweep.seeds}; "
        f"{store.manifest['name']} ({store.hash[:12]})"
    )
    return progress


def _show_earlier_objectives(context: SweepContext, progress: Progress) -> None:
    """Report the objectives of trials that ended before, for the leaders on a screen."""
    ended = context.outcome.ended
    for trial in context.journal.plan.trials:
        if trial.key in ended and (chunk := chunk_files.newest(trial.folder(context.journal.root))) is not None:
            values = context.objective(chunk.curves)
            progress.measured(trial.key, () if values is None else values.tolist())


def _note_budget(outcome: Outcome, ledger: Ledger) -> None:
    if ledger.is_reported:
        outcome.spent = ledger.text()
    if ledger.exhausted and outcome.open:
        outcome.budget_arguments = ledger.overrides()


def _end(context: SweepContext) -> SweepResult:
    """Write what is left to MLflow, close all runs, and report."""
    writer, outcome, stop_request = context.writer, context.outcome, context.stop_request
    for trial in outcome.plan.trials:
        end = outcome.of(trial.key)
        if end.ending is Ending.FINISHED:
            writer.finished(trial.key)
        elif end.ending is Ending.STOPPED and end.batch is not None:
            writer.stopped(trial.key, end.batch)
        elif end.ending is Ending.FAILED:
            writer.failed(trial.key, end.reason)
        else:
            writer.interrupted(trial.key)
    with context.output.step("writing the last results to MLflow"):
        untracked = writer.drain()
        try:
            writer.close("KILLED" if stop_request.interrupted else "FAILED" if outcome.failed else "FINISHED")
        except OrchestratorError as error:
            untracked += map(tracking.TrackingProblem, error.faults)
    last = "writing the report" if context.sweep.document.report else "comparing the configurations"
    with context.output.step(last):
        return report_on(context.sweep, context.journal, outcome, untracked, stop_request)


def _end_without_ray(context: SweepContext, on_ray_lost: Callable[[SweepResult], None] | None, reason: str) -> None:
    """End the command as interrupted, from the thread that noticed: the main thread may wait for Ray forever."""
    try:
        context.stop_request.request(reason, interrupted=True)
        context.output.say(f"{reason}: the sweep ends here")
        kill_descendants()
        context.outcome.finish(finished_trials(context.sweep, context.journal))
        result = _end(context)
        if on_ray_lost is None:
            print(result.text, file=sys.__stdout__)
        else:
            on_ray_lost(result)
    except Exception as error:  # the command must end, whatever the error
        resume = f"resume with: {resume_command(context.sweep)}"
        print(masked(f"{reason}: {resume} ({type(error).__name__}: {first_line(error)})"), file=sys.stderr)
    finally:
        for stream in (sys.__stdout__, sys.stderr):
            if stream is not None:
                with suppress(OSError):  # a terminal that is closed
                    stream.flush()
        os._exit(ExitCode.INTERRUPTED)
