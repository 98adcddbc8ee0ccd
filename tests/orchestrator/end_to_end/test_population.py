"""A population under Ray, compared with one trained by hand with the bare protocol: equal decisions, equal bits."""

import io
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learners import checkpoint
from orchestrator import rerun
from orchestrator.config.load import load_sweep
from orchestrator.errors import OrchestratorError
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import generator
from orchestrator.plan.task_store import open_store
from orchestrator.protocol import online as protocol
from orchestrator.report.lineage import read
from orchestrator.report.schedule_chart import schedule
from orchestrator.search.population import decisions
from orchestrator.storage import chunk_files
from orchestrator.tracking.reader import find_sweep, load_curves
from tests.orchestrator.protocol_sweep import flip
from tests.orchestrator.sweep_command import (
    assert_same,
    command_line,
    curves_of,
    family,
    folder_with,
    run,
    run_here,
    running,
    statuses,
    uri,
    wait_for,
)

# Three members on the two slots of a small machine; generations of 7 batches, not a multiple of the chunk of 4.
POPULATION = """
name: population
stream: {name: rainbow_digits, tasks: 4, train: 50, validation: 12, test: 12}
learners:
  - name: foml
    K: 3
    alpha1: {loguniform: [3.0e-4, 3.0e-2]}
    beta1: {loguniform: [1.0e-3, 1.0]}
    beta2: {loguniform: [1.0e-4, 1.0e-1]}
seeds: 2
chunk: 4
search: {samples: 3, scheduler: {name: pbt, interval: 70}}
"""
GENERATION, TOTAL = 7, 20
FOUR_GENERATIONS = POPULATION.replace("interval: 70", "interval: 50")


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it is read from a file, which shares no tensors with the original."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def by_hand(folder: Path) -> tuple[dict[str, protocol.OnlineProtocol], list[dict[str, Any]]]:
    """The population trained without Ray, chunks or restarts: a member that copies another is a new learner with the
    changed values, into which the parent's state is loaded without the window, whose steps had other values."""
    sweep = load_sweep(folder / "sweep.yaml")
    store = open_store(sweep)
    (population,) = make_plan(sweep, store.hash).populations
    values = {member.key: population.values(member) for member in population.members}

    def assemble(key: str) -> protocol.OnlineProtocol:
        return protocol.assemble(store, "foml", {"K": 3, **values[key]}, [0, 1])

    runs = {key: assemble(key) for key in values}
    generations = []
    for number, stop in enumerate((GENERATION, 2 * GENERATION, TOTAL)):
        for each in runs.values():
            each.advance(stop - each.batches)
        if stop == TOTAL:
            break
        start = number * GENERATION
        fitness = {key: decisions.fitness(each.curves, "cumulative_error", start, stop) for key, each in runs.items()}
        copies = decisions.decide(
            fitness,
            values,
            population.spaces,
            population.options,
            lambda key, number=number: generator(0, ["pbt", population.hash, number, key]),
        )
        states = {key: stored(each.state_dict()) for key, each in runs.items()}
        for copy in copies:
            values[copy.member] = copy.after
            other, state = assemble(copy.member), states[copy.parent]
            learner = state["learner"] | {"window": []}
            other.load_state_dict(state | {"learner": learner}, runs[copy.member].curves)
            runs[copy.member] = other
        generations.append(
            {"at": stop, "fitness": fitness, "copies": [copy.to_json() for copy in copies], "failed": {}}
        )
    return runs, generations


def assert_as_by_hand(folder: Path) -> list[dict[str, Any]]:
    """The sweep's schedule, curves and learners are those by hand, bit for bit. Returns the generations."""
    runs, generations = by_hand(folder)
    root = folder / "results" / "population"
    (path,) = root.glob("population-*.json")
    assert json.loads(path.read_text())["rounds"] == json.loads(json.dumps(generations))
    curves = curves_of(folder, "population")
    assert curves.keys() == runs.keys()
    for key, bare in runs.items():
        marks = {name: curves[key].by_batch.pop(name) for name in [*curves[key].by_batch] if name.startswith("hyper/")}
        assert_same(curves[key], bare.curves)
        assert np.flatnonzero(np.isfinite(marks["hyper/beta1"][0])).tolist() == [0, GENERATION, 2 * GENERATION]
        assert float(marks["hyper/beta1"][1, 2 * GENERATION]) == bare.learner.options.beta1
        newest = chunk_files.newest(root / key)
        assert newest is not None
        theirs, mine = newest.state["learner"], stored(bare.learner.state_dict())
        assert theirs.keys() == mine.keys()
        for name in ("phi", "theta", "statistics"):
            assert torch.equal(theirs[name], mine[name]), name
        for name in ("moments", "meta_moments"):
            for one, two in zip(theirs[name], mine[name], strict=True):
                assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
        assert theirs["replay"] == mine["replay"]
        assert checkpoint.load(root / key / "learner.pt").options == bare.learner.options
    return generations


def packs_of(folder: Path) -> list[int]:
    """The sizes of the packs that trials were trained in, the first one first."""
    logs = [path.read_text() for path in folder.glob("results/population/*/trial.log")]
    return [*dict.fromkeys(int(size) for log in logs for size in re.findall(r"in a pack of (\d+) trials", log))]


def test_a_population_in_packs_is_as_it_would_be_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path, POPULATION)
    done = run(folder, "sweep.yaml", f"tracking.uri={uri(folder)}", "resources.pack=6", slots=2)
    assert done.returncode == 0, done.stderr
    generations = assert_as_by_hand(folder)
    assert packs_of(folder) == [3, 2]  # a member that has copied another trains in a pack of its own
    copies = [copy for generation in generations for copy in generation["copies"]]
    assert copies  # else the test would prove nothing
    # MLflow: every member's values by batch, the lineages with the sweep's run, and the initial values as parameters.
    frame = load_curves("population", uri(folder))
    sweep = find_sweep("population", uri(folder))
    for copy, at in [(copy, generation["at"]) for generation in generations for copy in generation["copies"]]:
        of = next(of for of in sweep.configurations if copy["member"].startswith(of.hash))
        for name, value in copy["after"].items():
            rows = frame[(frame.configuration == of.hash) & (frame.metric == f"hyper/{name}") & (frame.step == at)]
            assert rows.value.tolist() == [value, value]
        rows = frame[(frame.configuration == of.hash) & (frame.metric == "hyper/copied_from")]
        assert at in rows.step.tolist()
        assert "beta1" not in of.parameters
        if at == GENERATION:
            assert of.parameters["beta1_at_first"] == copy["before"]["beta1"]
    (path,) = folder.glob("results/population/population-*.json")
    copy_in_mlflow = Path(sweep.client.download_artifacts(sweep.run_id, path.name, str(tmp_path)))
    assert copy_in_mlflow.read_text() == path.read_text()
    assert "Traceback" not in done.stderr
    with pytest.raises(OrchestratorError, match="is a member of a population"):
        rerun.rerun(sweep.configurations[0].run_id, uri(folder))
    # The report draws the lineages.
    chart = schedule("population", [], frame, read(sweep))
    assert chart is not None and [panel.title for panel in chart.panels] == ["alpha1", "beta1", "beta2"]
    for panel in chart.panels:
        lines = [series for series in panel.series if series.kind == "line"]
        assert [line.x[-1] for line in lines] == [TOTAL] * 3
        for line, of in zip(lines, sorted(sweep.configurations, key=lambda of: of.label), strict=True):
            values = frame[
                (frame.configuration == of.hash) & (frame.metric == f"hyper/{panel.title}") & (frame.seed == 0)
            ]
            assert values.step.tolist() == [0, GENERATION, 2 * GENERATION]
            assert [line.y[np.flatnonzero(line.x <= at)[-1]] for at in values.step] == values.value.tolist()
        marks = [(mark.x[0], mark.y[0]) for mark in panel.series if mark.kind == "points"]
        assert sorted(marks) == sorted(
            (generation["at"], copy["after"][panel.title])
            for generation in generations
            for copy in generation["copies"]
        )
    report = folder / "results/population/report"
    assert (report / "schedule.png").stat().st_size > 10_000 and (report / "schedule.svg").exists()
    text = path.read_text()
    path.write_text(text[:300])
    again = run_here(folder, "--resume", "population")
    assert again.returncode == 0
    damaged, last = again.stderr.splitlines()
    assert (
        damaged.startswith(f"results/population/{path.name}: damaged (")
        and "are recomputed from the chunk files; quarantined as" in damaged
    )
    assert last == "population: 3 trials, 3 of them ended before"
    assert again.stdout == done.stdout
    assert path.read_text() == text


@pytest.mark.slow
def test_a_killed_member_resumes_in_its_generation(tmp_path: Path) -> None:
    """A member is killed at the start of the second and of the third generation, while the command runs."""
    folder = folder_with(tmp_path, POPULATION)
    root = folder / "results" / "population"

    def started(completed: int) -> Path | None:
        """The claim of a member that started after `completed` generations were completed."""
        for path in root.glob("population-*.json"):
            if len(json.loads(path.read_text())["rounds"]) == completed:
                since = path.stat().st_mtime_ns
                later = [claim for claim in root.glob("*/attempt-*") if claim.stat().st_mtime_ns > since]
                return next((claim for claim in later if claim.read_text().endswith("\n")), None)
        return None

    with running(folder, "sweep.yaml", slots=2) as it:
        for completed in (1, 2):
            claim = wait_for(lambda completed=completed: started(completed), it)
            os.kill(int(claim.read_text().split()[1]), signal.SIGKILL)
        _, errors = it.communicate(timeout=240)
        assert it.returncode == 0, errors
    assert errors.count(": its actor died, another resumes from its last chunk: ") == 2 and "Traceback" not in errors
    assert_as_by_hand(folder)
    assert statuses(folder) == ["FINISHED"] * (1 + 3 + 6)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_population_that_was_interrupted_resumes_to_the_same_end(tmp_path: Path, number: int) -> None:
    """The command is killed, or interrupted, in the first, second and third generation, each time with other packs."""
    folder = folder_with(tmp_path, POPULATION)
    root = folder / "results" / "population"
    for reached, pack in ((4, 6), (GENERATION + 4, 1), (2 * GENERATION + 4, 4)):
        command = ["--resume", "population"] if (root / "sweep.json").exists() else ["sweep.yaml"]
        with running(folder, *command, f"resources.pack={pack}", slots=2) as it:
            stored_chunk = lambda reached=reached: any(root.glob(f"*/chunk-{reached:08d}-*.pt")) or None  # noqa: E731
            wait_for(stored_chunk, it)
            it.send_signal(number)
            it.communicate(timeout=120)
            assert it.returncode == (130 if number == signal.SIGINT else -9)
    if (
        number == signal.SIGKILL
    ):  # and chunks are damaged: of one member all after the first generation, of the others the newest
        for place, folder_of in enumerate(sorted(path for path in root.iterdir() if list(path.glob("chunk-*")))):
            newest = sorted(folder_of.glob("chunk-*"), reverse=True)
            for path in [each for each in newest if int(each.name[6:14]) > GENERATION] if place == 0 else newest[:1]:
                flip(path)
    done = run(folder, "--resume", "population", "resources.pack=6")
    assert done.returncode == 0, done.stderr
    assert_as_by_hand(folder)
    assert packs_of(folder)[0] == 3
    assert statuses(folder) == ["FINISHED"] * (1 + 3 + 6)
    frame = load_curves("population", uri(folder))
    online = frame[frame.metric == "online_error"]
    assert len(online) == 3 * 2 * TOTAL
    assert not online.duplicated(["configuration", "seed", "step"]).any()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["on this machine", "at an address"])
def test_a_member_without_chunk_files_leaves_the_population(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is killed in the second of four generations, and all chunk files of a member are damaged."""
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    folder = folder_with(tmp_path, FOUR_GENERATIONS)
    root = folder / "results" / "population"
    options = [f"storage={(folder / 'results').as_uri()}"] if place == "at an address" else []
    with running(folder, "sweep.yaml", *options, slots=2) as it:
        path = wait_for(lambda: next(root.glob("population-*.json"), None), it)
        processes = family(it.pid)
        it.send_signal(signal.SIGKILL)
        it.communicate(timeout=120)
    # Wait until no process of the sweep writes chunk files.
    wait_for(
        lambda: None if any(command_line(pid) == line for pid, line in processes.items()) else True, None, timeout=90
    )
    before = json.loads(path.read_text())["rounds"]
    assert 1 <= len(before) <= 2
    member = before[0]["copies"][0]["member"]
    for chunk in (root / member).glob("chunk-*"):
        flip(chunk)
    done = run(folder, "--resume", "population", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    reason = "all its chunk files are missing or damaged: it leaves the population"
    assert "has no older intact chunk; quarantined as damaged-chunk-" in done.stderr
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if line.endswith(reason)]
    assert f"({member}): failed: " in line
    after = json.loads(path.read_text())["rounds"]
    assert after[: len(before)] == before and len(after) == 3
    assert [generation["failed"] for generation in after[len(before) :]] == [{member: reason}] + [{}] * (
        2 - len(before)
    )
    curves = curves_of(folder, "population")
    others = {path.name for path in root.iterdir() if list(path.glob("learner.pt"))}
    assert len(others) == 2 and member not in others
    for key in others:
        assert curves[key].batches == TOTAL and np.isfinite(curves[key].by_batch["online_error"]).all()
    # The sweep, the member and its seeds have failed; the other members and their seeds are finished.
    assert sorted(statuses(folder)) == ["FAILED"] * (1 + 1 + 2) + ["FINISHED"] * (2 + 4)
