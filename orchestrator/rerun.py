"""Run a run again, and say whether the curves are the same: `python -m orchestrator.rerun RUN_ID`.

No Ray in here: the bare protocol has to give what the sweep gave. A run that was cut off is run again as far as it got.
Exit codes: 0 the curves are the same; 1 they differ; 2 bad input, nothing was run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ExitCode, OrchestratorError, fault
from orchestrator.plan import plan
from orchestrator.plan.plan import Configuration
from orchestrator.protocol.curves import Curves
from orchestrator.tracking import provenance
from orchestrator.tracking.database import DEFAULT_URI, first_line, open_existing
from orchestrator.tracking.points import BY_TASK, seed_points
from orchestrator.tracking.reader import find
from orchestrator.tracking.runs import CONFIGURATION_FILE, PARENT, search
from streams import recipes
from streams.build import cached
from streams.errors import UserError
from streams.progress import ProgressLine
from streams.schedule import HeldBack, Schedule, schedules
from streams.store.task_store import TaskStore

SAME, DIFFERENT = 0, 1
Points = dict[str, dict[int, float]]


@dataclass(frozen=True)
class Recorded:
    """What is to be run again: a configuration's description, and what MLflow has of the seeds that were asked for.

    ``seeds``: seed → metric → step → value. ``tags``: of the run. ``whole``: seeds whose runs are FINISHED.
    """

    described: dict[str, Any]
    seeds: dict[int, Points]
    tags: dict[str, str]
    whole: set[int]

    @property
    def configuration(self) -> Configuration:
        return Configuration(**self.described["configuration"])

    @property
    def stacks(self) -> list[list[int]]:
        """Those that a seed is in which was asked for: a stack is run as it was."""
        return [stack for stack in self.described["stacks"] if set(stack) & set(self.seeds)]


@dataclass(frozen=True)
class Difference:
    """One seed against what was recorded: points compared, and for each metric that differs one line."""

    seed: int
    points: int
    lines: tuple[str, ...]


def rerun(
    run: str, tracking_uri: str = DEFAULT_URI, tell: Callable[[str], None] = lambda line: None
) -> list[Difference]:
    """Run a configuration's run or a seed's again, and compare.

    Args:
        run: the run's id in MLflow.
        tracking_uri: where it was tracked.
        tell: is given a line for whatever is not as it was then: code, packages, device.

    Raises:
        UserError: one line: there is no such run, it cannot be run again, or its store is lost.
    """
    recorded = _recorded(run, tracking_uri)
    store = _store(recorded, run)
    for line in _changed(recorded):
        tell(line)
    differences = []
    for stack in recorded.stacks:
        curves = _run(recorded, store, stack, tell)
        for row, seed in enumerate(stack):
            if seed in recorded.seeds:
                differences.append(_compare(seed, recorded, curves, row))
    return differences


def _recorded(run: str, uri: str) -> Recorded:
    from mlflow.exceptions import MlflowException

    client = open_existing(uri)
    found = find(client, run, uri)
    tags = found.data.tags
    configuration = tags[PARENT] if "foml.seed" in tags else run
    try:
        described = json.loads(_text(client, configuration))
    except (MlflowException, OSError, ValueError) as error:
        rule = f"its {CONFIGURATION_FILE} cannot be read ({first_line(error)})"
        remedy = "a run of an earlier version has none: run its sweep again"
        raise OrchestratorError(fault("run", "", rule, run, remedy)) from error
    if described["configuration"].get("population"):
        rule = "is a member of a population: its values changed on the way, and what it copied is not in it"
        raise OrchestratorError(fault("run", "", rule, run, "run its sweep again with --rerun, under another name"))
    runs = [found] if "foml.seed" in tags else _seed_runs(client, found)
    seeds = {int(each.data.tags["foml.seed"]): _history(client, each) for each in runs}
    if not any(seeds.values()):
        raise OrchestratorError(fault("run", "", "nothing was recorded of it", f"{run}, {found.info.status}"))
    whole = {int(each.data.tags["foml.seed"]) for each in runs if each.info.status == "FINISHED"}
    return Recorded(described, seeds, tags, whole)


def _text(client: Any, configuration: str) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return Path(client.download_artifacts(configuration, CONFIGURATION_FILE, folder)).read_text(encoding="utf-8")


def _seed_runs(client: Any, configuration: Any) -> list[Any]:
    seeds = search(client, [configuration.info.experiment_id], "tags.`foml.kind` = 'seed'")
    return [run for run in seeds if run.data.tags.get(PARENT) == configuration.info.run_id]


def _history(client: Any, run: Any) -> Points:
    return {
        name: {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
    }


def _store(recorded: Recorded, run: str) -> TaskStore:
    """The store that the run learned from: where it lay, or as its recipe makes it."""
    stream, seeds = recorded.configuration.stream, sorted(seed for stack in recorded.stacks for seed in stack)
    path = Path(recorded.tags.get("foml.store_path", ""))
    if path.name and path.is_dir():
        store = TaskStore.open(path, verify=True)
    elif stream["name"] in recipes():
        path = cached(recipes()[stream["name"]](**stream["options"]), seeds, ProgressLine()).path
        store = TaskStore.open(path, verify=True)
    else:
        raise OrchestratorError(fault("run", "", f"its store is not there, nor the recipe {stream['name']}", str(path)))
    if store.hash != stream["store"]:
        rule = f"run {run} learned from the store {stream['store'][:12]}"
        raise OrchestratorError(fault(str(path), "", rule, store.hash[:12], "bring the store back to this place"))
    if missing := sorted(set(seeds) - set(store.seeds)):
        raise OrchestratorError(fault(str(path), "", f"must have the seeds {seeds}", f"{missing} are missing"))
    return store


def _changed(recorded: Recorded) -> list[str]:
    """A line for each thing that is not as it was and may change numbers."""
    tags, (commit, dirty) = recorded.tags, provenance.git_state()
    then = (tags.get("foml.git_commit", "unknown"), tags.get("foml.git_dirty", "unknown"))
    state = {"true": " with changes", "false": ""}
    now_and_then = [
        (
            "code",
            f"{then[0][:12]}{state.get(then[1], ', not known whether changed')}",
            f"{commit[:12]}{state.get(dirty, ', not known whether changed')}",
        ),
        ("RESULTS_VERSION", str(recorded.described["results_version"]), str(plan.RESULTS_VERSION)),
        ("packages", tags.get("foml.versions", "unknown"), provenance.versions()),
    ]
    return [f"{what}: {then} then, {now} now" for what, then, now in now_and_then if then != now]


def _schedule(described: dict[str, Any]) -> Schedule:
    options = dict(described)
    held_back = options.pop("held_back", 0)
    schedule: Schedule = schedules()[options.pop("name")](**options)
    return HeldBack(schedule, held_back) if held_back else schedule


def _run(recorded: Recorded, store: TaskStore, stack: list[int], tell: Callable[[str], None]) -> Curves:
    import torch

    from orchestrator.protocol import online
    from orchestrator.system import hardware

    configuration, how = recorded.configuration, recorded.described["run"]
    resources = how.get("resources", {})
    torch.set_num_threads(max(1, int(resources.get("cpus", 1))))
    device = torch.device("cuda" if resources.get("gpus", 0) and torch.cuda.is_available() else "cpu")
    before, now = recorded.tags.get("foml.device", "unknown"), hardware.device_name(device)
    if before != now:
        tell(f"device: {before} then, {now} now")
    run = online.assemble(
        store,
        configuration.learner,
        configuration.options,
        stack,
        configuration.batch_size,
        configuration.network,
        _schedule(configuration.stream["schedule"]),
        device=device,
    )
    last = max(
        max(steps, default=-1)
        for seed in set(stack) & set(recorded.seeds)
        for name, steps in {"": {}, **recorded.seeds[seed]}.items()
        if name in ("", "online_error")
    )
    stop = run.total_batches if recorded.whole & set(stack) else last + 1
    progress = ProgressLine()
    while not run.finished and run.batches < stop:
        run.advance(min(how.get("chunk", 40), stop - run.batches))
        progress(f"seeds {stack}", run.batches, stop)
    return run.curves


def _points(curves: Curves, row: int, diagnostics_every: int = 1) -> Points:
    found: Points = {}
    for point in seed_points(curves, row, 0, diagnostics_every):
        found.setdefault(point.metric, {})[point.step] = point.value
    return found


def _compare(seed: int, recorded: Recorded, curves_again: Curves, row: int) -> Difference:
    """Every point of every curve; costs, which are never twice the same, are no curves."""
    again = _points(curves_again, row)
    due = _points(curves_again, row, recorded.described.get("diagnostics_every", 1))  # an older version sent all
    there, lines, points = recorded.seeds[seed], [], 0
    curves = [name for name in {**again, **there} if name in again or name in BY_TASK or name.startswith("online_")]
    for name in curves:
        then, now = there.get(name, {}), again.get(name, {})
        points += len(then)
        lost = set(due.get(name, {})) - set(then) if seed in recorded.whole else set()
        lacking = sorted(set(then) - set(now)) + sorted(lost)
        if lacking:
            lines.append(f"{name}: {len(lacking)} points are in one of the two only, the first at step {min(lacking)}")
        apart = {step: abs(now[step] - then[step]) for step in sorted(set(then) & set(now)) if now[step] != then[step]}
        if apart:
            worst = max(apart, key=lambda step: apart[step])
            lines.append(
                f"{name}: differs at {len(apart)} of {len(then)} steps, by at most {apart[worst]:.3g} at step {worst}; "
                f"first at step {min(apart)}"
            )
    return Difference(seed, points, tuple(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.rerun", description="Run a run again, and say whether the curves are the same."
    )
    parser.add_argument("run", metavar="RUN_ID", help="a configuration's or a seed's run in MLflow")
    parser.add_argument("--tracking-uri", default=DEFAULT_URI, metavar="URI", help=f"default: {DEFAULT_URI}")
    arguments = parser.parse_args(argv)
    try:
        found = rerun(arguments.run, arguments.tracking_uri, print)
    except UserError as error:
        print(error, file=sys.stderr)
        return ExitCode.BAD_INPUT
    for one in found:
        print(f"seed {one.seed}: {one.points} points, {'different' if one.lines else 'the same, bit for bit'}")
        for line in one.lines:
            print(f"  {line}")
    return DIFFERENT if any(one.lines for one in found) else SAME


if __name__ == "__main__":
    sys.exit(main())
