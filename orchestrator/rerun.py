"""Compute a run again and compare its curves: `python -m orchestrator.rerun RUN_ID`.

This runs without Ray: the bare protocol must result in the same curves as the sweep. An unfinished run is compared up
to its last point.
"""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from orchestrator.errors import ExitCode, OrchestratorError, fault
from orchestrator.plan import plan
from orchestrator.plan.plan import Configuration
from orchestrator.protocol.curves import Curves
from orchestrator.tracking import provenance
from orchestrator.tracking.database import DEFAULT_URI, first_line, in_one_line, open_existing
from orchestrator.tracking.names import PARENT
from orchestrator.tracking.points import BY_TASK, WHOLE, Bounds, seed_points
from orchestrator.tracking.reader import ArtifactError, artifact_text, curves_of_run, find, whole_curves
from orchestrator.tracking.requests import search
from orchestrator.tracking.runs import CONFIGURATION_FILE
from streams import recipes
from streams.build import cached
from streams.command_line import INTERRUPTED, CommandLine, command
from streams.errors import Faults, OptionError, UserError
from streams.options import from_options, unknown_name
from streams.progress import ProgressLine
from streams.schedule import HeldBack, Schedule, schedules
from streams.store.canonical_json import canonical
from streams.store.task_store import TaskStore

SAME, DIFFERENT = 0, 1
_EXIT_CODES = {
    SAME: "the curves are equal bit for bit",
    DIFFERENT: "the curves differ",
    ExitCode.BAD_INPUT: "bad input, one line per fault",
    INTERRUPTED: "interrupted",
}
_CHUNK = 40
"""Batches between two lines of progress; no result depends on it."""
Points = dict[str, dict[int, float]]
"""Metric → step → value."""


@dataclass(frozen=True)
class RecordedRun:
    """What MLflow holds of the run.

    Attributes:
        description: of the configuration, as in its `configuration.json`.
        seeds: requested seed → its points.
        tags: of the run.
        finished: the requested seeds at the end of their streams.
        bounds: of the points: those of MLflow, or none where the configuration has a table of all points; None if an
            earlier version wrote the run, which left out diagnostics.
    """

    description: dict[str, Any]
    seeds: dict[int, Points]
    tags: dict[str, str]
    finished: set[int]
    bounds: Bounds | None

    @property
    def configuration(self) -> Configuration:
        """The configuration."""
        return Configuration(**self.description["configuration"])

    @property
    def stacks(self) -> list[list[int]]:
        """The stacks with a requested seed: a stack is always run as a whole."""
        return [stack for stack in self.description["stacks"] if set(stack) & set(self.seeds)]


@dataclass(frozen=True)
class CurveDifference:
    """The comparison of one seed.

    Attributes:
        seed: the seed.
        points: the number of points compared.
        lines: one line for each difference of a metric; empty if all are equal.
    """

    seed: int
    points: int
    lines: tuple[str, ...]


def rerun(
    run: str, tracking_uri: str = DEFAULT_URI, report: Callable[[str], None] = lambda line: None
) -> list[CurveDifference]:
    """Compute a configuration's or a seed's run again, and compare.

    Args:
        run: the run's id in MLflow.
        tracking_uri: where it was tracked.
        report: called with a line for each change since the run: code, packages, device.

    Raises:
        UserError: the run does not exist or cannot be computed again, or its task store is missing.
    """
    recorded = _recorded(run, tracking_uri)
    store = _store(recorded, run)
    for line in _changes(recorded):
        report(line)
    differences = []
    for stack in recorded.stacks:
        curves = _run(run, recorded, store, stack, report)
        for row, seed in enumerate(stack):
            if seed in recorded.seeds:
                differences.append(_compare(seed, recorded, curves, row))
    return differences


def _recorded(run: str, uri: str) -> RecordedRun:
    client = open_existing(uri)
    mlflow_run = find(client, run, uri)
    tags = mlflow_run.data.tags
    is_seed = "foml.seed" in tags
    try:
        description = json.loads(artifact_text(client, tags[PARENT] if is_seed else run, CONFIGURATION_FILE))
        Configuration(**description["configuration"])
    except (ArtifactError, ValueError, TypeError) as error:
        rule = f"its {CONFIGURATION_FILE} cannot be read ({first_line(error)})"
        remedy = "it is of another version: use that one, or run its sweep again"
        raise OrchestratorError(fault("run", "", rule, run, remedy)) from error
    if description["configuration"].get("population"):
        rule = "is a member of a population: its values changed during training, and it continued copied states"
        raise OrchestratorError(fault("run", "", rule, run, "run its sweep again with --rerun, under another name"))
    if description["configuration"].get("start"):
        rule = "started from a checkpoint, which it does not hold"
        raise OrchestratorError(fault("run", "", rule, run, "run its sweep again with --rerun, under another name"))
    seeds = search(client, [mlflow_run.info.experiment_id], "tags.`foml.kind` = 'seed'")
    runs = [mlflow_run] if is_seed else [each for each in seeds if each.data.tags.get(PARENT) == run]
    by_seed = {int(each.data.tags["foml.seed"]): each for each in runs}
    table = whole_curves(client, tags[PARENT] if is_seed else run)
    bounds: Bounds | None = WHOLE
    if table is None:
        with in_one_line(uri):
            points = {
                seed: curves_of_run(client, each.info.run_id, each.data.metrics) for seed, each in by_seed.items()
            }
        bounds = Bounds(**description["bounds"]) if "bounds" in description else None
    else:
        points = {seed: Points() for seed in by_seed or table.seed.unique().tolist()}
        for (seed, name), curve in table.groupby(["seed", "metric"]):
            if seed in points:
                points[seed][str(name)] = dict(zip(curve.step.tolist(), curve.value.tolist(), strict=True))
    if not any(points.values()):
        raise OrchestratorError(fault("run", "", "has no points", f"{run}, {mlflow_run.info.status}"))
    finished = {seed for seed, each in by_seed.items() if each.info.status == "FINISHED"}
    if not by_seed and mlflow_run.info.status == "FINISHED":
        finished = set(points)
    return RecordedRun(description, points, tags, finished, bounds)


def _store(recorded: RecordedRun, run: str) -> TaskStore:
    """The task store of the run: at its path, or built again from its recipe."""
    stream, seeds = recorded.configuration.stream, sorted(seed for stack in recorded.stacks for seed in stack)
    path = Path(recorded.tags.get("foml.store_path", ""))
    if not (path.name and path.is_dir()):
        path = _built_again(run, stream, seeds, path)
    store = TaskStore.open(path, verify=True)
    if store.hash != stream["store"]:
        rule = f"run {run} learned from the store {stream['store'][:12]}"
        raise OrchestratorError(fault(str(path), "", rule, store.hash[:12], "restore that store at this path"))
    if missing := sorted(set(seeds) - set(store.seeds)):
        raise OrchestratorError(fault(str(path), "", f"must have the seeds {seeds}", f"{missing} are missing"))
    return store


def _built_again(run: str, stream: dict[str, Any], seeds: Sequence[int], path: Path) -> Path:
    """The folder in the cache of a store that no longer exists at `path`."""
    name, options, kind, faults = stream["name"], stream["options"], recipes().get(stream["name"]), Faults()
    try:
        if kind is None:
            unknown_name("stream", name, recipes(), faults)
            recipe = None
        else:
            recipe = from_options(kind, options, faults.at(name))
        faults.check(OptionError)
        assert recipe is not None
        return cached(recipe, seeds, ProgressLine()).path
    except UserError as error:
        missing = f"does not exist at {path}" if path.name else "has no recorded path"
        rule = f"its task store {missing} and cannot be built again ({'; '.join(error.faults)})"
        words = [f"{key}={value if isinstance(value, str) else canonical(value)}" for key, value in options.items()]
        if kind is None or "data" in (item.name for item in fields(kind)):
            words.append("data=PLACE")
        command = f"foml build {shlex.join([name, *words])} --out {shlex.quote(str(path))} --seeds {max(seeds) + 1}"
        remedy = f"restore it, or build it there with the version of the run: {command}"
        raise OrchestratorError(fault("run", "", rule, run, remedy if path.name else "run its sweep again")) from error


def _changes(recorded: RecordedRun) -> list[str]:
    """A line for each change since the run that can change results."""

    def code(commit: str, dirty: str) -> str:
        return commit[:12] + {"true": " with changes", "false": ""}.get(dirty, ", not known whether changed")

    tags, configuration = recorded.tags, recorded.description["configuration"]
    version = plan.results_version(configuration["learner"], configuration["stream"])
    versions = {
        "code": (
            code(tags.get("foml.git_commit", "unknown"), tags.get("foml.git_dirty", "unknown")),
            code(*provenance.git_state()),
        ),
        "RESULTS_VERSION": (str(recorded.description["results_version"]), str(version)),
        "packages": (tags.get("foml.versions", "unknown"), provenance.versions()),
    }
    return [f"{name}: {then} then, {now} now" for name, (then, now) in versions.items() if then != now]


def _schedule(description: dict[str, Any]) -> Schedule:
    options = dict(description)
    held_back = options.pop("held_back", 0)
    schedule: Schedule = schedules()[options.pop("name")](**options)
    return HeldBack(schedule, held_back) if held_back else schedule


@contextmanager
def _computing(run: str, configuration: Configuration) -> Iterator[None]:
    """In this block, an error of the learner, which may be the user's own, is one line."""
    from learners import checkpoint

    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a module of the user's own, and what has changed since the run, may raise anything
        reason = " ".join((str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}").split())
        modules = sorted(checkpoint.modules_of(configuration.learner, configuration.network))
        remedy = f"{' and '.join(modules)} must be as in the sweep, in its folder or on PYTHONPATH" if modules else ""
        raise OrchestratorError(fault("run", "", f"cannot be computed again ({reason})", run, remedy)) from error


def _run(run: str, recorded: RecordedRun, store: TaskStore, stack: list[int], report: Callable[[str], None]) -> Curves:
    import torch

    from learners import registry
    from orchestrator.protocol import online
    from orchestrator.system import hardware

    configuration, settings = recorded.configuration, recorded.description["run"]
    resources = settings.get("resources", {})
    hardware.set_threads(resources.get("cpus", 1))
    device = torch.device("cuda" if resources.get("gpus", 0) and torch.cuda.is_available() else "cpu")
    then, now = recorded.tags.get("foml.device", "unknown"), hardware.device_name(device)
    if then != now:
        report(f"device: {then} then, {now} now")
    if (folder := recorded.description.get("folder")) is not None:
        registry.search_also(folder)
    with _computing(run, configuration):
        protocol = online.assemble(
            store,
            configuration.learner,
            configuration.options,
            stack,
            configuration.batch_size,
            configuration.network,
            _schedule(configuration.stream["schedule"]),
            device=device,
            evaluate_past=configuration.evaluate_past,
        )
    online_errors = [recorded.seeds[seed].get("online_error", {}) for seed in stack if seed in recorded.seeds]
    block = (recorded.bounds or WHOLE).block(protocol.total_batches)  # a task may have ended after the last whole block
    stop = min(max((max(steps, default=-1) for steps in online_errors), default=-1) + block, protocol.total_batches)
    if recorded.finished & set(stack):
        stop = protocol.total_batches
    progress = ProgressLine()
    while not protocol.finished and protocol.batches < stop:
        with _computing(run, configuration):
            protocol.advance(min(_CHUNK, stop - protocol.batches))
        progress(f"seeds {stack}", protocol.batches, stop)
    return protocol.curves


def _points(curves: Curves, row: int, bounds: Bounds) -> Points:
    points: Points = {}
    for point in seed_points(curves, 0, bounds)[row]:
        points.setdefault(point.metric, {})[point.step] = point.value
    return points


def _compare(seed: int, recorded: RecordedRun, curves: Curves, row: int) -> CurveDifference:
    """Compare every point of every curve; costs, which differ each time, are not curves."""
    before, every_value = recorded.seeds[seed], _points(curves, row, WHOLE)
    rerun_points = _points(curves, row, recorded.bounds or WHOLE)
    lines, points = [], 0
    for name in {**rerun_points, **before}:
        of_every_learner = name in BY_TASK or name.startswith("online_")
        both = name in rerun_points and name in before  # a version may add a diagnostic or remove one
        if not both and not of_every_learner:
            continue
        then, now = before.get(name, {}), rerun_points.get(name, {})
        # A run that a version without bounds began has single values among the means.
        single_values = every_value.get(name, {})
        points += len(then)
        required = seed in recorded.finished and (of_every_learner or recorded.bounds is not None)
        unsent = set(now) - set(then) if required else set()
        if single := sorted((set(then) - set(now) - set(single_values)) | unsent):
            lines.append(f"{name}: {len(single)} points are in one of the two only, the first at step {single[0]}")
        errors = {}
        for step, value in sorted(then.items()):
            results = [values[step] for values in (now, single_values) if step in values]
            if results and value not in results:
                errors[step] = abs(results[0] - value)
        if errors:
            largest = max(errors, key=lambda step: errors[step])
            lines.append(
                f"{name}: differs at {len(errors)} of {len(then)} steps, by at most {errors[largest]:.3g} at step "
                f"{largest}; first at step {min(errors)}"
            )
    return CurveDifference(seed, points, tuple(lines))


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.rerun") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Compute a run again, and report whether its curves are the same.", _EXIT_CODES)
    parser.add_argument("run", metavar="RUN_ID", help="a configuration's or a seed's run in MLflow")
    parser.add_argument("--tracking-uri", default=DEFAULT_URI, metavar="URI", help="where the run was tracked")
    options = parser.parse_args(argv)
    differences = rerun(options.run, options.tracking_uri, print)
    for each in differences:
        print(f"seed {each.seed}: {each.points} points, {'different' if each.lines else 'the same, bit for bit'}")
        for line in each.lines:
            print(f"  {line}")
    return DIFFERENT if any(each.lines for each in differences) else SAME


if __name__ == "__main__":
    sys.exit(main())
