"""A population for real, against one trained by hand with the bare protocol: same schedule, same bits."""

import io
import json
import os
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
from orchestrator.storage import trial_files
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

# Three members on the two slots of a small machine; rounds of 7 batches, which chunks of 4 do not fit into.
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
ROUND, TOTAL = 7, 20
FOUR_ROUNDS = POPULATION.replace("interval: 70", "interval: 50")


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a file, so that nobody learns in another's tensors."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def by_hand(folder: Path) -> tuple[dict[str, protocol.OnlineProtocol], list[dict[str, Any]]]:
    """The population trained without Ray, chunks or restarts: a member that copies another is a new learner with the
    changed values, into which the donor's state is loaded. Its window is left out: those steps had other values."""
    sweep = load_sweep(folder / "sweep.yaml")
    store = open_store(sweep)
    (population,) = make_plan(sweep, store.hash).populations
    values = {member.key: population.values(member) for member in population.members}

    def made(key: str) -> protocol.OnlineProtocol:
        return protocol.assemble(store, "foml", {"K": 3, **values[key]}, [0, 1])

    runs = {key: made(key) for key in values}
    rounds = []
    for number, stop in enumerate((ROUND, 2 * ROUND, TOTAL)):
        for each in runs.values():
            each.advance(stop - each.batches)
        if stop == TOTAL:
            break
        start = number * ROUND
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
            other, state = made(copy.member), states[copy.donor]
            learner = state["learner"] | {"window": []}
            other.load_state_dict(state | {"learner": learner}, runs[copy.member].curves)
            runs[copy.member] = other
        rounds.append({"at": stop, "fitness": fitness, "copies": [vars(copy) for copy in copies], "failed": {}})
    return runs, rounds


def assert_as_by_hand(folder: Path) -> list[dict[str, Any]]:
    """The sweep's schedule, curves and learners are those by hand, bit for bit. Returns the rounds."""
    runs, rounds = by_hand(folder)
    root = folder / "results" / "population"
    (path,) = root.glob("population-*.json")
    assert json.loads(path.read_text())["rounds"] == json.loads(json.dumps(rounds))
    curves = curves_of(folder, "population")
    assert curves.keys() == runs.keys()
    for key, bare in runs.items():
        marks = {name: curves[key].by_batch.pop(name) for name in [*curves[key].by_batch] if name.startswith("hyper/")}
        assert_same(curves[key], bare.curves)
        assert np.flatnonzero(np.isfinite(marks["hyper/beta1"][0])).tolist() == [0, ROUND, 2 * ROUND]
        assert float(marks["hyper/beta1"][1, 2 * ROUND]) == bare.learner.options.beta1
        newest = trial_files.newest(root / key)
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
    return rounds


def test_a_population_is_as_it_would_be_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path, POPULATION)
    done = run(folder, "sweep.yaml", f"tracking.uri={uri(folder)}")
    assert done.returncode == 0, done.stderr
    rounds = assert_as_by_hand(folder)
    copies = [copy for round_ in rounds for copy in round_["copies"]]
    assert copies  # or the test would prove nothing
    # MLflow: every member's values by batch, the schedule with the sweep's run, and the values at first as parameters.
    frame = load_curves("population", uri(folder))
    sweep = find_sweep("population", uri(folder))
    for copy, at in [(copy, round_["at"]) for round_ in rounds for copy in round_["copies"]]:
        of = next(of for of in sweep.configurations if copy["member"].startswith(of.hash))
        for name, value in copy["after"].items():
            there = frame[(frame.configuration == of.hash) & (frame.metric == f"hyper/{name}") & (frame.step == at)]
            assert there.value.tolist() == [value, value]
        there = frame[(frame.configuration == of.hash) & (frame.metric == "hyper/copied_from")]
        assert at in there.step.tolist()
        assert "beta1" not in of.parameters
        if at == ROUND:
            assert of.parameters["beta1_at_first"] == copy["before"]["beta1"]
    (path,) = folder.glob("results/population/population-*.json")
    kept = Path(sweep.client.download_artifacts(sweep.run_id, path.name, str(tmp_path)))
    assert kept.read_text() == path.read_text()
    assert "Traceback" not in done.stderr
    with pytest.raises(OrchestratorError, match="is a member of a population"):
        rerun.rerun(sweep.configurations[0].run_id, uri(folder))
    # The report draws the schedule.
    drawn = schedule("population", [], frame, read(sweep))
    assert drawn is not None and [panel.title for panel in drawn.panels] == ["alpha1", "beta1", "beta2"]
    for panel in drawn.panels:
        lines = [series for series in panel.series if series.kind == "line"]
        assert [line.x[-1] for line in lines] == [TOTAL] * 3
        for line, of in zip(lines, sorted(sweep.configurations, key=lambda of: of.label), strict=True):
            own = frame[(frame.configuration == of.hash) & (frame.metric == f"hyper/{panel.title}") & (frame.seed == 0)]
            assert own.step.tolist() == [0, ROUND, 2 * ROUND]
            assert [line.y[np.flatnonzero(line.x <= at)[-1]] for at in own.step] == own.value.tolist()
        marks = [(mark.x[0], mark.y[0]) for mark in panel.series if mark.kind == "points"]
        assert sorted(marks) == sorted(
            (round_["at"], copy["after"][panel.title]) for round_ in rounds for copy in round_["copies"]
        )
    report = folder / "results/population/report"
    assert (report / "schedule.png").stat().st_size > 10_000 and (report / "schedule.svg").exists()
    whole = path.read_text()
    path.write_text(whole[:300])
    again = run_here(folder, "--resume", "population")
    assert again.returncode == 0
    damaged, last = again.stderr.splitlines()
    assert (
        damaged.startswith(f"results/population/{path.name}: damaged (")
        and "are recomputed from the chunk files; quarantined as" in damaged
    )
    assert last == "population: 3 trials, 3 of them ended before"
    assert again.stdout == done.stdout
    assert path.read_text() == whole


@pytest.mark.slow
def test_a_member_that_is_killed_goes_on_in_its_round(tmp_path: Path) -> None:
    """In the second round, and in the third, as soon as it has begun: the same command goes on."""
    folder = folder_with(tmp_path, POPULATION)
    root = folder / "results" / "population"

    def begun(decided: int) -> Path | None:
        """The claim of somebody who has begun a leg since so many rounds were decided."""
        for path in root.glob("population-*.json"):
            if len(json.loads(path.read_text())["rounds"]) == decided:
                since = path.stat().st_mtime_ns
                later = [claim for claim in root.glob("*/attempt-*") if claim.stat().st_mtime_ns > since]
                return next((claim for claim in later if claim.read_text().endswith("\n")), None)
        return None

    with running(folder, "sweep.yaml") as it:
        for decided in (1, 2):
            claim = wait_for(lambda decided=decided: begun(decided), it)
            os.kill(int(claim.read_text().split()[1]), signal.SIGKILL)
        _, errors = it.communicate(timeout=240)
        assert it.returncode == 0, errors
    assert errors.count(": its actor died, another goes on from its last chunk: ") == 2 and "Traceback" not in errors
    assert_as_by_hand(folder)
    assert statuses(folder) == ["FINISHED"] * (1 + 3 + 6)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_population_that_was_cut_off_goes_on_to_the_same_end(tmp_path: Path, number: int) -> None:
    """The command is killed, or interrupted, while members are in the second round and in the third."""
    folder = folder_with(tmp_path, POPULATION)
    root = folder / "results" / "population"
    for reached in (ROUND + 4, 2 * ROUND + 4):
        with running(folder, *(["--resume", "population"] if (root / "sweep.json").exists() else ["sweep.yaml"])) as it:
            there = lambda reached=reached: any(root.glob(f"*/chunk-{reached:08d}-*.pt")) or None  # noqa: E731
            wait_for(there, it)
            it.send_signal(number)
            it.communicate(timeout=120)
            assert it.returncode == (130 if number == signal.SIGINT else -9)
    if number == signal.SIGKILL:  # and chunks are damaged: one member's of all but the first round, the others' newest
        for place, folder_of in enumerate(sorted(path for path in root.iterdir() if list(path.glob("chunk-*")))):
            newest = sorted(folder_of.glob("chunk-*"), reverse=True)
            for path in [each for each in newest if int(each.name[6:14]) > ROUND] if place == 0 else newest[:1]:
                flip(path)
    done = run(folder, "--resume", "population")
    assert done.returncode == 0, done.stderr
    assert_as_by_hand(folder)
    assert statuses(folder) == ["FINISHED"] * (1 + 3 + 6)
    frame = load_curves("population", uri(folder))
    online = frame[frame.metric == "online_error"]
    assert len(online) == 3 * 2 * TOTAL
    assert not online.duplicated(["configuration", "seed", "step"]).any()


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["its own", "the donor's too", "its own, at an address"])
def test_a_member_without_a_chunk_begins_anew(tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that copied in the first of four rounds has lost all its chunks in the last one; its donor keeps the state
    that was copied no more. The curves are those of a population in which nothing was lost."""
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    folder = folder_with(tmp_path / "cut", FOUR_ROUNDS)
    root = folder / "results" / "population"
    at_address = lost == "its own, at an address"
    words = [f"storage={(folder / 'results').as_uri()}"] if at_address else []
    with running(folder, "sweep.yaml", *words) as it:
        path = wait_for(lambda: next(root.glob("population-*.json"), None), it)
        copy = json.loads(path.read_text())["rounds"][0]["copies"][0]
        member, donor = copy["member"], copy["donor"]
        wait_for(lambda: next((root / donor).glob("chunk-00000019-*.pt"), None), it)
        ours = family(it.pid)
        it.send_signal(signal.SIGKILL)
        it.communicate(timeout=120)
    # Nobody writes any more.
    wait_for(lambda: None if any(command_line(pid) == words for pid, words in ours.items()) else True, None, timeout=90)
    assert not list((root / donor).glob("chunk-00000005-*.pt"))
    for key in (member, donor) if lost == "the donor's too" else (member,):
        for chunk in (root / key).glob("chunk-*"):
            flip(chunk)
    done = run(folder, "--resume", "population", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the trial goes on at the beginning") >= (2 if lost == "the donor's too" else 1)
    if lost != "the donor's too":  # that one may have come to batch 5 again before the member asks
        told = (
            f"{member}: the state of {donor} at batch 5 is on disk no more: learned again from the beginning of {donor}"
        )
        assert told in done.stderr
        assert told in (root / member / "trial.log").read_text()
    assert "Traceback" not in done.stderr + done.stdout
    whole = folder_with(tmp_path / "whole", FOUR_ROUNDS)
    assert run(whole, "sweep.yaml").returncode == 0
    theirs = curves_of(whole, "population")
    for key, curves in curves_of(folder, "population").items():
        assert_same(curves, theirs.pop(key))
    assert not theirs
    assert path.read_text() == (whole / "results" / "population" / path.name).read_text()
    assert statuses(folder) == ["FINISHED"] * (1 + 3 + 6)
