"""Generations of a population: who trains when, and equal decisions after any interruption."""

import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orchestrator.config.load import check_sweep
from orchestrator.config.schema import Sweep
from orchestrator.errors import ConfigError, DiskFullError
from orchestrator.plan import packs
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import Trial
from orchestrator.protocol.curves import Curves
from orchestrator.search.population import generations
from orchestrator.search.population.segments import LostStateError, Segment, SegmentPlan
from orchestrator.search.trial_queue import TrialQueue
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from orchestrator.tracking.names import parameters
from tests.orchestrator.protocol_sweep import flip, halve

TOTAL, GENERATION = 12, 4
SPACES = {"alpha1": {"loguniform": [1e-4, 1e-1]}, "beta1": {"uniform": [0, 1]}}


def sweep(**change: object) -> Sweep:
    document = {
        "name": "s",
        "stream": {"name": "rainbow_digits"},
        "learners": [{"name": "foml", **SPACES}, {"name": "online"}],
        "seeds": 2,
        "objective": {"metric": "online_error"},
        "search": {"samples": 4, "scheduler": {"name": "pbt", "interval": 10 * GENERATION - 3}},
    }
    return check_sweep(document | change)


def queue(root: Path, of: Sweep | None = None, ended: set[str] | None = None) -> TrialQueue:
    of = of or sweep()
    journal = Journal.look(root, make_plan(of, "store"))
    journal.take()
    return TrialQueue(of, journal, ended or set(), TOTAL)


def write_chunk(root: Path, trial: Trial, errors: list[float]) -> None:
    """Write the chunk file of a trial with these errors, one batch per chunk."""
    folder = trial.folder(root)
    online = {"online_error": np.tile(np.array(errors), (2, 1))}
    curves = Curves(list(trial.seeds), 0, online, {}, {"batches": np.arange(1, len(errors) + 1)})
    chunk_files.write(folder, chunk_files.claim(folder), {}, curves, finished=len(errors) == TOTAL)


def errors(number: int, batches: int) -> list[float]:
    """The errors of member `number` (from 0): another member is the best in every generation."""
    return [((number + batch // GENERATION) % 4 + 1) / 10 for batch in range(batches)]


def train_generation(root: Path, of: TrialQueue, stop: int) -> list[str]:
    """Train all members to batch `stop`, and return their keys in the order in which they were started."""
    members = []
    while (trial := of.next()) is not None:
        if trial.configuration.population:
            members.append(trial)
    assert of.waits
    for trial in reversed(members):  # they pause in another order than they started
        plan = of.segment_plan(trial)
        assert plan is not None and plan.stop == stop
        member_errors = errors(int(trial.configuration.label[-1]) - 1, stop)
        write_chunk(root, trial, member_errors)
        assert of.pause(trial, member_errors[-1]) == (trial is members[0])
    return [trial.key for trial in members]


def schedule(root: Path) -> str:
    (path,) = root.glob("population-*.json")
    return path.read_text()


def test_all_members_pause_before_any_continues(tmp_path: Path) -> None:
    of = queue(tmp_path)
    online = of.next()
    assert online is not None and online.configuration.learner == "online" and of.segment_plan(online) is None
    keys = train_generation(tmp_path, of, GENERATION)
    assert len(keys) == 4
    assert train_generation(tmp_path, of, 2 * GENERATION) == keys
    content = json.loads(schedule(tmp_path))
    assert content["interval_batches"] == GENERATION
    first, second = content["rounds"]
    assert (first["at"], second["at"]) == (GENERATION, 2 * GENERATION)
    assert list(first["fitness"].values()) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert list(second["fitness"].values()) == pytest.approx([0.2, 0.3, 0.4, 0.1])
    assert [(copy["member"], copy["donor"]) for copy in first["copies"]] == [(keys[3], keys[0])]
    assert [(copy["member"], copy["donor"]) for copy in second["copies"]] == [(keys[2], keys[3])]
    assert second["copies"][0]["before"] == content["members"][2]["values"]
    last = [of.next() for _ in range(4)]
    assert [trial.key for trial in last if trial is not None] == keys
    assert of.next() is None
    assert not of.waits  # no member waits for another in the last generation


def test_a_decision_that_cannot_be_written_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The members that would have copied, and all others, still train the next generation."""
    of = queue(tmp_path)
    members = [trial for _ in range(5) if (trial := of.next()) is not None and trial.configuration.population]
    for number, trial in enumerate(members[:3]):
        assert not of.pause(trial, errors(number, GENERATION)[-1])
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", raises_disk_full)
        with pytest.raises(DiskFullError):
            of.pause(members[3], errors(3, GENERATION)[-1])
    plan = of.segment_plan(members[3])
    assert plan is not None and plan.stop == GENERATION and not list(tmp_path.glob("population-*"))
    assert of.pause(members[3], errors(3, GENERATION)[-1])
    assert [of.next() for _ in range(5)] == [*members, None]
    assert train_paused(of, members, 2 * GENERATION) == [False, False, False, True]
    assert list(json.loads(schedule(tmp_path))["rounds"][1]["fitness"].values()) == pytest.approx([0.2, 0.3, 0.4, 0.1])


def raises_disk_full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def train_paused(of: TrialQueue, members: list[Trial], stop: int) -> list[bool]:
    return [of.pause(trial, errors(number, stop)[-1]) for number, trial in enumerate(members)]


def test_a_member_receives_all_its_segments(tmp_path: Path) -> None:
    of = queue(tmp_path)
    keys = train_generation(tmp_path, of, GENERATION)
    train_generation(tmp_path, of, 2 * GENERATION)
    decided = json.loads(schedule(tmp_path))["rounds"]
    journal = Journal.look(tmp_path, make_plan(sweep(), "store"))
    plan = of.segment_plan(journal.plan.trial(keys[3]))
    assert plan is not None and plan.stop == TOTAL and plan.start == 2 * GENERATION
    assert plan.kept_steps == (GENERATION, 2 * GENERATION) and plan.parents == {keys[0]}
    initial = journal.plan.populations[0].values(journal.plan.trial(keys[3]))
    after = decided[0]["copies"][0]["after"]
    assert after != initial
    assert [(segment.start, segment.values, segment.parent) for segment in plan.segments] == [
        (0, initial, ""),
        (GENERATION, after, keys[0]),
        (2 * GENERATION, after, ""),
    ]
    marks = {"hyper/alpha1": after["alpha1"], "hyper/beta1": after["beta1"]}
    assert plan.segments[1].marks == {**marks, "hyper/copied_from": 1.0}
    assert plan.segments[2].marks == marks
    later = of.segment_plan(journal.plan.trial(keys[2]))
    assert later is not None and [segment.parent for segment in later.segments] == ["", "", keys[3]]


@pytest.mark.parametrize("loss", ["nothing", "the file", "half of the file", "a number"])
@pytest.mark.parametrize("reached", [GENERATION + 2, 2 * GENERATION, 2 * GENERATION + 1])
def test_a_resumed_population_decides_the_same(tmp_path: Path, reached: int, loss: str) -> None:
    """Interrupted when two members have trained to `reached` and two have not started their segment."""
    complete, cut = tmp_path / "complete", tmp_path / "cut"
    of = queue(complete)
    keys = train_generation(complete, of, GENERATION)
    train_generation(complete, of, 2 * GENERATION)
    of = queue(cut)
    train_generation(cut, of, GENERATION)
    if reached > 2 * GENERATION:
        train_generation(cut, of, 2 * GENERATION)
    plan = make_plan(sweep(), "store")
    for number in (0, 1):
        write_chunk(cut, plan.trial(keys[number]), errors(number, reached))
    (path,) = cut.glob("population-*.json")
    if loss == "the file":
        path.unlink()
    elif loss == "half of the file":
        path.write_text(path.read_text()[:200])
    elif loss == "a number":
        after = json.loads(path.read_text())["rounds"][0]["copies"][0]["after"]["beta1"]
        path.write_text(path.read_text().replace(f"{after!r}", f"{after / 2!r}"))
    again = queue(cut)
    waiting = []
    while (trial := again.next()) is not None:
        waiting.append(trial)
    members = [trial for trial in waiting if trial.configuration.population]
    if reached == 2 * GENERATION:
        assert [trial.key for trial in members] == keys[2:]  # the other two have paused
    else:
        assert [trial.key for trial in members] == keys
    if reached <= 2 * GENERATION:
        assert again.waits
        for trial in members:
            number = int(trial.configuration.label[-1]) - 1
            write_chunk(cut, trial, errors(number, 2 * GENERATION))
            again.pause(trial, errors(number, 2 * GENERATION)[-1])
    assert schedule(cut) == schedule(complete)


@pytest.mark.parametrize("damage", [halve, flip])
def test_a_damaged_file_is_quarantined_and_recomputed(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Also that of a population whose members have all ended, where no queue is built."""
    of = queue(tmp_path)
    keys = train_generation(tmp_path, of, GENERATION)
    train_generation(tmp_path, of, 2 * GENERATION)
    plan = make_plan(sweep(), "store")
    for number, key in enumerate(keys):
        write_chunk(tmp_path, plan.trial(key), errors(number, TOTAL))
    journal = Journal.look(tmp_path, plan)
    (population,) = plan.populations
    content_before, path = schedule(tmp_path), population.file(tmp_path)
    assert generations.quarantine_if_damaged(tmp_path, population) == ""
    damage(path)
    line = generations.quarantine_if_damaged(tmp_path, population)
    assert line.startswith(f"{path}: damaged (")
    assert line.endswith(f"from the chunk files; quarantined as damaged-{path.name}")
    assert not path.exists() and path.with_name(f"damaged-{path.name}").exists()
    generations.write_missing_files(journal, TOTAL, "online_error", set(keys))
    assert path.read_text() == content_before


def test_a_failed_member_leaves_and_the_others_continue(tmp_path: Path) -> None:
    of = queue(tmp_path)
    trials = [of.next() for _ in range(5)]
    members = [trial for trial in trials if trial is not None and trial.configuration.population]
    for number in (0, 1, 2):
        write_chunk(tmp_path, members[number], errors(number, GENERATION))
        assert not of.pause(members[number], errors(number, GENERATION)[-1])
    assert of.fail(members[3], "no memory")
    (round_,) = json.loads(schedule(tmp_path))["rounds"]
    assert round_["failed"] == {members[3].key: "no memory"}
    assert [(copy["member"], copy["donor"]) for copy in round_["copies"]] == [(members[2].key, members[0].key)]
    assert [of.next() for _ in range(4)] == [*members[:3], None]
    again = queue(tmp_path)
    following = [again.next() for _ in range(5)]
    assert members[3] not in following
    assert [trial for trial in following if trial in members] == members[:3]
    # A member that was copied fails later: its copy still starts from its state.
    for number in (1, 2):
        again.pause(members[number], errors(number, 2 * GENERATION)[-1])
    assert again.fail(members[0], "no memory")
    plan = again.segment_plan(members[2])
    assert plan is not None and plan.segments[1].parent == members[0].key and members[0].key in plan.parents


def test_a_diverged_member_copies_and_its_fitness_is_null(tmp_path: Path) -> None:
    of = queue(tmp_path)
    members = [trial for trial in (of.next() for _ in range(5)) if trial is not None and trial.configuration.population]
    for number, value in enumerate((math.nan, 0.2, 0.3, 0.4)):
        of.pause(members[number], value)
    (round_,) = json.loads(schedule(tmp_path))["rounds"]
    assert round_["fitness"][members[0].key] is None
    assert [(copy["member"], copy["donor"]) for copy in round_["copies"]] == [(members[0].key, members[1].key)]


def test_a_changed_population_shares_no_member() -> None:
    """Members influence one another, so other seeds, samples or intervals change every member."""
    plans = [
        make_plan(sweep(**change), "store")
        for change in (
            {},
            {"seeds": 3},
            {"search": {"samples": 5, "scheduler": "pbt"}},
            {"search": {"samples": 4, "scheduler": {"name": "pbt", "interval": 50}}},
            {"search": {"samples": 4}},
        )
    ]
    hashes = [{t.configuration.hash for t in plan.trials if t.configuration.learner == "foml"} for plan in plans]
    assert [len(each) for each in hashes] == [4, 4, 5, 4, 4]
    assert len(set().union(*hashes)) == 21
    online = [{t.configuration.hash for t in plan.trials if t.configuration.learner == "online"} for plan in plans]
    assert len(set().union(*online)) == 1
    # Members start with the configurations of a random search.
    members, random_search = ([t.configuration.options for t in plan.trials if "beta1" in t.configuration.options] for plan in (plans[0], plans[4]))  # fmt: skip
    assert sorted(map(str, members)) == sorted(map(str, random_search))


def test_each_combination_of_grids_has_a_population_and_only_the_named_options_mutate() -> None:
    scheduler = {"name": "pbt", "mutate": ["beta1"]}
    learners = [{"name": "foml", "K": {"grid": [1, 5]}, **SPACES}]
    plan = make_plan(sweep(learners=learners, search={"samples": 3, "scheduler": scheduler}), "store")
    assert [population.label for population in plan.populations] == ["foml K=1", "foml K=5"]
    assert [len(population.members) for population in plan.populations] == [3, 3]
    assert plan.size == 6
    member = plan.populations[1].members[2]
    assert member.configuration.label == "foml K=5 member 3"
    assert list(plan.populations[1].values(member)) == ["beta1"]
    named = parameters(member.configuration)
    assert "beta1_at_first" in named and "beta1" not in named and "alpha1" in named


@pytest.mark.parametrize(
    ("learner", "resources", "sizes"),
    [
        ({"name": "foml", "K": 4}, {"pack": 9}, [[4], [3, 1], [3, 1]]),
        ({"name": "foml", "K": 5}, {"pack": 9}, [[4], [3, 1], [2, 1, 1]]),  # a generation is shorter than the window
        ({"name": "foml", "K": 1}, {"pack": 9}, [[4], [4], [4]]),
        ({"name": "online"}, {"pack": 9}, [[4], [4], [4]]),
        ({"name": "online"}, {"pack": 6}, [[3, 1], [3, 1], [3, 1]]),
        ({"name": "online"}, {"pack": "auto", "gpus": 1}, [[2, 2], [2, 2], [2, 2]]),
        ({"name": "online"}, {"pack": "auto"}, [[1] * 4] * 3),
        ({"name": "online"}, {}, [[1] * 4] * 3),
    ],
)
def test_members_that_have_copied_equally_long_ago_share_packs(
    tmp_path: Path, learner: dict[str, object], resources: dict[str, object], sizes: list[list[int]]
) -> None:
    """One member copies another after each generation; only a learner with a window then needs another pack for it."""
    of = sweep(learners=[{**learner, "alpha1": SPACES["alpha1"]}], resources=resources)
    trials = queue(tmp_path, of)
    members = make_plan(of, "store").trials
    assert packs.count(of, [(trial, 0) for trial in members], 2) == len(sizes[0])
    for stop, expected in zip((GENERATION, 2 * GENERATION, TOTAL), sizes, strict=True):
        lots = []
        while lot := trials.next_pack(2):
            lots.append(lot)
        assert [len(lot) for lot in lots] == expected
        assert {trial.key for lot in lots for trial in lot} == {trial.key for trial in members}
        for trial in members if stop < TOTAL else ():
            number = members.index(trial)
            write_chunk(tmp_path, trial, errors(number, stop))
            assert trials.pause(trial, errors(number, stop)[-1]) == (trial is members[-1])
    size = len(lots[0])
    for trial in lots[0]:  # the actor has died
        trials.requeue(trial, size)
    halves = [size - size // 2, size // 2] if size > 1 else [1]
    assert [len(trials.next_pack(2)) for _ in range(len(halves) + 1)] == [*halves, 0]


def test_training_stops_at_the_start_of_each_segment() -> None:
    segments = Segment(0, {"a": 1.0}), Segment(4, {"a": 2.0}, "parent"), Segment(8, {"a": 2.0})
    plan = SegmentPlan(segments, 12, "online_error")
    assert [plan.segment(at).start for at in (0, 3, 4, 7, 8, 11)] == [0, 0, 4, 4, 8, 8]
    assert [plan.next_stop(at) for at in (0, 3, 4, 6, 8, 11)] == [4, 1, 4, 2, 4, 1]
    assert [plan.since_copy(at) for at in (0, 3, 4, 7, 8, 11)] == [0, 3, 0, 3, 4, 7]


def test_chunks_that_other_members_copy_are_kept(tmp_path: Path) -> None:
    attempt = chunk_files.claim(tmp_path)
    for batches in range(1, 9):
        curves = Curves([0], 0, {"online_error": np.zeros((1, batches))}, {}, {"batches": np.array([batches])})
        chunk_files.write(tmp_path, attempt, {"at": batches}, curves, False, keep=(2, 4))
    assert sorted(int(path.name[6:14]) for path in tmp_path.glob("chunk-*")) == [2, 4, 7, 8]
    chunks = [chunk_files.load_at_most(tmp_path, at) for at in (9, 7, 6, 4, 3)]
    assert [chunk.state["at"] for chunk in chunks if chunk is not None] == [8, 7, 4, 4, 2]
    for path in tmp_path.glob("chunk-00000002-*"):
        halve(path)
    assert chunk_files.load_at_most(tmp_path, 3) is None
    assert list(tmp_path.glob("damaged-*")) == []  # only the member itself quarantines its files


def test_a_member_whose_chunk_files_are_lost_leaves_the_population(tmp_path: Path) -> None:
    """Its own files, in any generation but the first; or those of a parent that it would copy again."""
    first = SegmentPlan((Segment(0, {"a": 1.0}),), 4, "online_error")
    plan = SegmentPlan((*first.segments, Segment(4, {"a": 2.0}, "parent"), Segment(8, {"a": 2.0})), 12, "online_error")
    attempt = chunk_files.claim(tmp_path / "parent")

    def chunk(batches: int) -> chunk_files.Chunk:
        return chunk_files.Chunk(tmp_path, {}, Curves([0], 0, {"online_error": np.zeros((1, batches))}), False)

    def load(member: str, batches: int) -> chunk_files.Chunk | None:
        return chunk_files.load_at_most(tmp_path / member, batches)

    for batches in (3, 4):
        chunk_files.write(tmp_path / "parent", attempt, {"at": batches}, chunk(batches).curves, False)
    assert first.copied_state(None, load) is None  # it starts as any trial
    assert plan.copied_state(chunk(4), load) == {"at": 4}
    for batches in (2, 5, 8, 9):
        assert plan.copied_state(chunk(batches), load) is None
    with pytest.raises(LostStateError, match="all its chunk files are missing or damaged: it leaves the population"):
        plan.copied_state(None, load)
    for damage in (halve, Path.unlink):
        for path in (tmp_path / "parent").glob("chunk-00000004-*"):
            damage(path)
        with pytest.raises(LostStateError, match="the state of its parent parent at batch 4 is missing or damaged"):
            plan.copied_state(chunk(4), load)


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"learners": [{"name": "foml", "K": {"randint": [1, 5]}, **SPACES}]}, [
            "configuration: learners[0].K: cannot change in the middle of a run of foml, as a copy under pbt would make it (got randint); "
            "give it a value, or {grid: [...]} for a population of each (these can: alpha1, alpha2, beta1, beta2)"]),
        ({"learners": [{"name": "online"}]}, [
            "configuration: search.scheduler: pbt needs an option that is drawn; give a learner a {loguniform: [low, high]}, {uniform: ...} or {choice: ...}"]),
        ({"search": {"scheduler": "pbt"}}, ["configuration: search.samples: must be at least 2, the size of a population (got 1)"]),
        ({"search": {"samples": 4, "algorithm": "optuna", "scheduler": {"name": "pbt", "mutate": ["K"]}}}, [
            "configuration: search.algorithm: must be random where the scheduler is pbt, whose population is drawn before it starts (got optuna)",
            "configuration: search.scheduler.mutate: must be options that a learner draws (got K); drawn are alpha1, beta1"]),
        ({"search": {"samples": 4, "scheduler": {"name": "pbt", "quantile": 0.6, "interval": 0}}}, [
            "configuration: search.scheduler.interval: must be greater than or equal to 1 (got 0)",
            "configuration: search.scheduler.quantile: must be less than or equal to 0.5 (got 0.6)"]),
    ],
)  # fmt: skip
def test_faults_of_a_population_are_reported_in_one_line_each(change: dict[str, object], lines: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep(**change)
    assert list(caught.value.faults) == lines
