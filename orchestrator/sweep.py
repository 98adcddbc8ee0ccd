"""Run a sweep: `python -m orchestrator.sweep [FILE] [key=value ...]`, or `run_sweep` from Python.

Exit codes: 0 all is well; 1 some configurations failed (they are named); 2 bad input, nothing was started; 3 nothing
usable came out; 4 the budget was reached before all trials had ended; 130 interrupted, and the same command goes on
from there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator import config, provenance
from orchestrator.budget import open_ledger
from orchestrator.disk import DiskFullError, full_line, is_full
from orchestrator.ending import (
    ALL_WELL,
    BAD_INPUT,
    INTERRUPTED,
    SweepResult,
    report_on,
    resume_command,
)
from orchestrator.errors import ConfigError, OrchestratorError, fault
from orchestrator.halt import Halt
from orchestrator.journal import Journal, given_before
from orchestrator.launch import (
    Outcome,
    check_resources,
    local_gpus,
    prepare_environment,
    ray_running,
    run_trials,
    warm_up,
)
from orchestrator.plan import make_plan
from orchestrator.progress import Progress
from orchestrator.ray_health import output_to
from orchestrator.rounds import failed_before, set_aside, write_schedules
from orchestrator.schedulers import RunAll, check_interval
from orchestrator.search import Search
from orchestrator.source import StoreSource
from orchestrator.specification import Sweep
from orchestrator.storage import open_folder
from orchestrator.strict_yaml import overridden
from orchestrator.telling import Telling
from orchestrator.tracking_database import await_server, first_line
from orchestrator.watcher import end_descendants
from streams.build import cached
from streams.errors import StreamsError
from streams.store import TaskStore
from streams.transport import localise

if TYPE_CHECKING:
    from orchestrator.forecast import Forecast
    from orchestrator.tracking import Writer

RAY_LOG = "ray.log"
"""In the sweep's folder: what Ray had to say, if anything."""


def run_sweep(
    sweep: Mapping[str, Any] | Path | str | None = None,
    overrides: Sequence[str] = (),
    local: bool = False,
    rerun: bool = False,
    resume: str | None = None,
    quiet: bool = False,
    at_loss: Callable[[SweepResult], None] | None = None,
) -> SweepResult:
    """Run a sweep to its end, and report on it.

    Args:
        sweep: the configuration as nested mappings or as a YAML file; the quickstart if None.
        overrides: `key=value` words, as on the command line (files only).
        local: start a Ray of our own even if `RAY_ADDRESS` names a cluster.
        rerun: forget what an earlier run of this sweep left, and run everything again.
        resume: the name of a sweep that was begun before; it goes on with the configuration it had.
        quiet: tell nothing on standard error while it runs.
        at_loss: what to do with the result if Ray itself is killed while trials run, after which the process ends with
            exit code 130 (what waits for an answer of Ray does not come back); its text is printed if None.

    Raises:
        OrchestratorError, StreamsError: bad input, one line for each fault; nothing was started.
    """
    if resume is not None:
        checked = _begun_before(resume, overrides)
    else:
        checked = config.check(sweep) if isinstance(sweep, Mapping) else config.load(sweep, overrides)
    return _run(checked, local, rerun, Telling(quiet, at_loss))


def _begun_before(name: str, overrides: Sequence[str]) -> Sweep:
    """The sweep of this name; `storage=…` says where to look, other words change it."""
    changes = overridden({}, [word for word in overrides if word.startswith("storage=")])
    storage = str(changes.get("storage", "results"))
    given = given_before(open_folder(storage, name)[0], name)
    return config.check(overridden(given, overrides), f"{storage}/{name}")


def open_store(sweep: Sweep, telling: Telling | None = None) -> TaskStore:
    """The sweep's task store, whole: the one at the folder or address that it names, or the recipe's in the cache.

    Raises:
        StreamsError: the store is damaged or lacks a seed, or the source is not what it must be.
        ConfigError: the store is of another stream.
    """
    building = (telling or Telling()).building()
    if sweep.store is None:
        path = cached(sweep.recipe, sweep.seeds, building).path
        store = TaskStore.open(path, verify=True)
    else:
        store = _named_store(sweep, building)
    shape = StoreSource(store, sweep.seeds, sweep.schedule).shape()  # told here: a schedule that does not fit the tasks
    if faults := check_interval(sweep.scheduler, shape.length, sweep.file):
        raise ConfigError(*faults)
    return store


def _named_store(sweep: Sweep, building: Callable[[str, int, int], None]) -> TaskStore:
    assert sweep.store is not None
    store = TaskStore.open(localise(sweep.store, building), verify=True)
    faults = []
    if store.manifest["recipe"] != sweep.recipe.identity():
        rule = f"must be a store of {json.dumps(sweep.recipe.identity())}"
        faults.append(fault(sweep.file, "stream.store", rule, json.dumps(store.manifest["recipe"])))
    missing = sorted(set(sweep.seeds) - set(store.seeds))
    if missing:
        remedy = (
            f"add them: python -m streams.build {sweep.recipe.name} --out {sweep.store} --seeds {max(sweep.seeds) + 1}"
        )
        faults.append(fault(sweep.file, "seeds", f"must be among the store's seeds {store.seeds}", missing, remedy))
    if faults:
        raise ConfigError(*faults)
    return store


def _run(sweep: Sweep, local: bool, rerun: bool, telling: Telling) -> SweepResult:
    halt = Halt()
    with halt.signals():
        return _run_watched(sweep, local, rerun, halt, telling)


def _run_watched(sweep: Sweep, local: bool, rerun: bool, halt: Halt, telling: Telling) -> SweepResult:
    started_ms = time.time_ns() // 1_000_000
    local = local or "RAY_ADDRESS" not in os.environ
    prepare_environment(local)
    if local:  # a cluster is asked once it is connected
        check_resources(sweep, os.cpu_count() or 1, local_gpus(), "this machine")
    store = open_store(sweep, telling)
    root, mirror = open_folder(sweep.document.storage, sweep.name)
    journal = Journal.look(root, make_plan(sweep, store.hash), mirror)

    from orchestrator import tracking  # MLflow takes its time: not before the rest is known to be good

    uri = sweep.document.tracking.uri
    tracking.prepare(uri)
    with journal.locked():
        # Once more: another command may have run this sweep to its end since.
        journal = Journal.look(root, make_plan(sweep, store.hash), mirror)
        if rerun:
            tracking.forget(uri, sweep.experiment, sweep.name)
        journal.take(rerun, telling.say)
        known = provenance.collect(store.hash, store.path, json.dumps(store.manifest, indent=2))
        writer = tracking.Writer(uri, sweep.experiment, journal.plan, root, known, started_ms, mirror)
        return _track(sweep, journal, store, local, writer, halt, telling)


def _track(
    sweep: Sweep, journal: Journal, store: TaskStore, local: bool, writer: Writer, halt: Halt, telling: Telling
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
            _run_open_trials(sweep, journal, store, local, writer, halt, outcome, telling)
            if not halt.asked.is_set():
                await_server(sweep.document.tracking.uri, telling.say)
        except KeyboardInterrupt:  # the second Ctrl-C, or the first while Ray starts: now
            outcome.finished |= journal.finished()
        except Exception as error:
            if not is_full(error):
                raise
            halt.ask(str(error) if isinstance(error, DiskFullError) else full_line(journal.root), interrupted=True)
            outcome.finished |= journal.finished()
        return _end(sweep, journal, writer, halt, outcome)
    except BaseException as error:
        writer.close("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
        raise


def _end(sweep: Sweep, journal: Journal, writer: Writer, halt: Halt, outcome: Outcome) -> SweepResult:
    """Write what is left to MLflow, end all runs, and report."""
    failed, lacking = _close_trials(outcome, writer), writer.drain()
    try:
        writer.close("KILLED" if halt.interrupted else "FAILED" if outcome.failed else "FINISHED")
    except OrchestratorError as error:
        lacking += error.faults
    return report_on(sweep, journal, outcome, failed, lacking, halt)


def _end_without_ray(
    reason: str, sweep: Sweep, journal: Journal, writer: Writer, halt: Halt, outcome: Outcome, telling: Telling
) -> None:
    """Ray is gone, and the main thread may be inside of it for good: end the command from here, as interrupted."""
    try:
        halt.ask(reason, interrupted=True)
        telling.say(f"{reason}: the sweep ends here")
        end_descendants()
        outcome.finished |= journal.finished()
        result = _end(sweep, journal, writer, halt, outcome)
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
                stream.flush()
        os._exit(INTERRUPTED)


def _run_open_trials(
    sweep: Sweep,
    journal: Journal,
    store: TaskStore,
    local: bool,
    writer: Writer,
    halt: Halt,
    outcome: Outcome,
    telling: Telling,
) -> None:
    """Run the trials that have not ended, and write into `outcome` how they ended."""
    plan = journal.plan
    for key in outcome.finished:
        writer.finished(key)  # no-op where MLflow has it all; after a crash, what it lacks is sent
    known = f", {len(outcome.ended)} of them ended before" if outcome.ended else ""
    for population in plan.populations:
        if line := set_aside(journal.root, population):
            telling.say(line)
        outcome.failed |= failed_before(journal.root, population)
    total = -(-StoreSource(store, sweep.seeds, sweep.schedule).shape().length // sweep.document.batch_size)
    if plan.size == len(outcome.ended) + len(outcome.failed):
        telling.say(f"{sweep.name}: {plan.size} trials{known}")
        write_schedules(journal, total, sweep.document.objective.metric, outcome.ended)
        return
    ledger = open_ledger(sweep, journal.root)
    if ledger.exhausted:
        telling.say(f"{sweep.name}: {plan.size} trials{known}; budget reached, none is started")
        outcome.spent, outcome.over_budget = ledger.text(), ledger.words()
        return
    search = Search(sweep, journal, outcome.ended, total, ledger)

    def lost(reason: str) -> None:
        _end_without_ray(reason, sweep, journal, writer, halt, outcome, telling)

    with output_to(journal.root / RAY_LOG), ray_running(local, lost) as cluster:
        check_resources(sweep, cluster.node_cpus, cluster.node_gpus, "a node of this cluster")
        slots = cluster.slots(sweep)
        if cluster.local:
            warm_up(sweep, min(slots, plan.size - len(outcome.ended)))
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
            run_trials(sweep, search, journal.root, store, cluster, progress, writer, halt, outcome, journal.mirror)
    if ledger.matters:
        outcome.spent = ledger.text()
    if ledger.exhausted and plan.size > len(outcome.ended) + len(outcome.failed):
        outcome.over_budget = ledger.words()


def _tell_of_ended(progress: Progress, journal: Journal, keys: set[str], metric: str) -> None:
    """What trials came to that had ended before, for a screen's leaders."""
    from orchestrator import chunks
    from orchestrator.tracking_points import objective_values

    for trial in journal.plan.trials:
        if trial.key in keys and (chunk := chunks.newest(trial.folder(journal.root))) is not None:
            progress.measured(trial.key, objective_values(chunk.curves, metric).tolist())


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


def forecast(sweep: Sweep, telling: Telling | None = None) -> Forecast:
    """What `--plan` tells: every trial with its hash, what is done of it, and what it will cost."""
    from orchestrator import forecast

    store = open_store(sweep, telling)
    journal = Journal.look(open_folder(sweep.document.storage, sweep.name)[0], make_plan(sweep, store.hash))
    return forecast.forecast(sweep, journal, store)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.sweep", description="Run a sweep; the quickstart if no FILE is given."
    )
    parser.add_argument("words", nargs="*", metavar="FILE or key=value", help="a sweep's YAML, and changes to it")
    parser.add_argument("--plan", action="store_true", help="print the trials and their cost, and start nothing")
    parser.add_argument("--local", action="store_true", help="start a Ray of our own, whatever RAY_ADDRESS says")
    parser.add_argument("--resume", metavar="NAME", help="go on with a sweep that was begun before")
    parser.add_argument("--rerun", action="store_true", help="forget earlier results of this sweep")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="run it on the cluster of this file for `ray up`")
    parser.add_argument("--detach", action="store_true", help="with --cluster: come back once it runs there")
    parser.add_argument("--attach", metavar="NAME", help="with --cluster: follow a sweep that runs there")
    parser.add_argument("--quiet", action="store_true", help="errors and the final line alone")
    parser.add_argument("--json", action="store_true", help="the result as one JSON document on standard output")
    arguments = parser.parse_intermixed_args(argv)  # words may stand before and after options
    files = [word for word in arguments.words if "=" not in word]
    if arguments.resume is not None and (files or arguments.plan or arguments.rerun):
        parser.error("--resume takes the sweep from its folder: no FILE, --plan or --rerun beside it")
    if arguments.cluster is None and (arguments.detach or arguments.attach):
        parser.error("--detach and --attach go with --cluster FILE")
    if arguments.cluster is not None and (arguments.local or arguments.plan or arguments.resume):
        allowed = "FILE, key=value, --rerun, --detach, --attach, --json or --quiet"
        parser.error(f"--cluster goes with {allowed}; it resumes what was begun")
    if arguments.attach and (arguments.words or arguments.detach or arguments.rerun):
        parser.error("--attach takes no other words")
    if len(files) > 1:
        parser.error(f"one sweep at a time (got {', '.join(files)})")
    arguments.file = files[0] if files else None
    arguments.overrides = [word for word in arguments.words if "=" in word]
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    arguments = _arguments(argv)
    show = partial(_show, as_json=arguments.json, quiet=arguments.quiet, out=sys.stdout)
    try:
        if arguments.cluster is not None:
            from orchestrator import remote

            cluster, manner = arguments.cluster, remote.Manner(arguments.quiet, arguments.json)
            if arguments.attach:
                return remote.attach(cluster, arguments.attach, manner)
            file, words = arguments.file, arguments.overrides
            return remote.submit(cluster, file, words, arguments.rerun, arguments.detach, manner)
        if arguments.plan:
            with redirect_stdout(sys.stderr):
                planned = forecast(config.load(arguments.file, arguments.overrides), Telling(arguments.quiet))
            print(planned.json if arguments.json else planned.line if arguments.quiet else planned.text)
            return ALL_WELL
        with redirect_stdout(sys.stderr):  # standard output is for the result
            result = run_sweep(
                arguments.file,
                arguments.overrides,
                arguments.local,
                arguments.rerun,
                arguments.resume,
                arguments.quiet,
                show,
            )
    except (OrchestratorError, StreamsError) as error:
        print(error, file=sys.stderr)
        return _refused(getattr(error, "exit_code", BAD_INPUT), str(error).splitlines(), arguments.json)
    except OSError as error:
        if not is_full(error):
            raise
        line = full_line(Path(error.filename or "."))
        print(line, file=sys.stderr)
        return _refused(INTERRUPTED, [line], arguments.json)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return _refused(INTERRUPTED, ["interrupted"], arguments.json)
    show(result)
    return result.exit_code


def _show(result: SweepResult, as_json: bool, quiet: bool, out: TextIO) -> None:
    """What the command prints at its end."""
    if quiet or as_json:
        for line in result.problems:
            print(f"problem: {line}", file=sys.stderr)
    print(result.json if as_json else result.line if quiet else result.text, file=out, flush=True)


def _refused(code: int, faults: list[str], as_json: bool) -> int:
    """The end of a command that came to nothing; its faults have been told."""
    if as_json:
        from orchestrator.document import document

        print(document(None, code, problems=faults))
    return code


if __name__ == "__main__":
    sys.exit(main())
