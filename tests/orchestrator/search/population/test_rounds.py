"""Rounds of a population: who goes on when, and the same schedule after whatever interruption."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orchestrator.config.load import check_sweep
from orchestrator.config.schema import Sweep
from orchestrator.errors import ConfigError
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import Trial
from orchestrator.protocol.curves import Curves
from orchestrator.search.population import rounds
from orchestrator.search.population.segments import Leg, Stage
from orchestrator.search.trial_queue import Search
from orchestrator.storage import trial_files
from orchestrator.storage.journal import Journal
from orchestrator.tracking.names import parameters
from tests.orchestrator.protocol_sweep import flip, halve

TOTAL, ROUND = 12, 4
SPACES = {"alpha1": {"loguniform": [1e-4, 1e-1]}, "beta1": {"uniform": [0, 1]}}


def sweep(**change: object) -> Sweep:
    document = {
        "name": "s",
        "stream": {"name": "rainbow_digits"},
        "learners": [{"name": "foml", **SPACES}, {"name": "online"}],
        "seeds": 2,
        "objective": {"metric": "online_error"},
        "search": {"samples": 4, "scheduler": {"name": "pbt", "interval": 10 * ROUND - 3}},
    }
    return check_sweep(document | change)


def search(root: Path, of: Sweep | None = None, ended: set[str] | None = None) -> Search:
    of = of or sweep()
    journal = Journal.look(root, make_plan(of, "store"))
    journal.take()
    return Search(of, journal, ended or set(), TOTAL)


def write_chunk(root: Path, trial: Trial, errors: list[float]) -> None:
    """A trial of one batch a chunk that has these errors."""
    folder = trial.folder(root)
    online = {"online_error": np.tile(np.array(errors), (2, 1))}
    curves = Curves(list(trial.seeds), 0, online, {}, {"batches": np.arange(1, len(errors) + 1)})
    trial_files.write(folder, trial_files.claim(folder), {}, curves, finished=len(errors) == TOTAL)


def errors(number: int, batches: int) -> list[float]:
    """Of member `number`, from 0 on: another one is the best in every round."""
    return [((number + batch // ROUND) % 4 + 1) / 10 for batch in range(batches)]


def one_round(root: Path, of: Search, stop: int) -> list[str]:
    """All members go to batch `stop`. Returns their keys in the order in which they were started."""
    members = []
    while (trial := of.next()) is not None:
        if trial.configuration.population:
            members.append(trial)
    assert of.waits
    for trial in reversed(members):  # they come to the end in another order than they began
        leg = of.leg(trial)
        assert leg is not None and leg.until == stop
        own = errors(int(trial.configuration.label[-1]) - 1, stop)
        write_chunk(root, trial, own)
        assert of.paused(trial, own[-1]) == (trial is members[0])
    return [trial.key for trial in members]


def schedule(root: Path) -> str:
    (path,) = root.glob("population-*.json")
    return path.read_text()


def test_all_come_to_the_end_of_a_round_before_anybody_goes_on(tmp_path: Path) -> None:
    of = search(tmp_path)
    online = of.next()
    assert online is not None and online.configuration.learner == "online" and of.leg(online) is None
    keys = one_round(tmp_path, of, ROUND)
    assert len(keys) == 4
    assert one_round(tmp_path, of, 2 * ROUND) == keys
    content = json.loads(schedule(tmp_path))
    assert content["interval_batches"] == ROUND
    first, second = content["rounds"]
    assert (first["at"], second["at"]) == (ROUND, 2 * ROUND)
    assert list(first["fitness"].values()) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert list(second["fitness"].values()) == pytest.approx([0.2, 0.3, 0.4, 0.1])
    assert [(copy["member"], copy["donor"]) for copy in first["copies"]] == [(keys[3], keys[0])]
    assert [(copy["member"], copy["donor"]) for copy in second["copies"]] == [(keys[2], keys[3])]
    assert second["copies"][0]["before"] == content["members"][2]["values"]
    last = [of.next() for _ in range(4)]
    assert [trial.key for trial in last if trial is not None] == keys
    assert of.next() is None
    assert not of.waits  # nobody waits for anybody in the last round


def test_a_member_is_told_its_whole_way(tmp_path: Path) -> None:
    of = search(tmp_path)
    keys = one_round(tmp_path, of, ROUND)
    one_round(tmp_path, of, 2 * ROUND)
    decided = json.loads(schedule(tmp_path))["rounds"]
    journal = Journal.look(tmp_path, make_plan(sweep(), "store"))
    leg = of.leg(journal.plan.trial(keys[3]))
    assert leg is not None and leg.until == TOTAL and leg.start == 2 * ROUND and leg.kept == (ROUND, 2 * ROUND)
    at_first = journal.plan.populations[0].values(journal.plan.trial(keys[3]))
    after = decided[0]["copies"][0]["after"]
    assert after != at_first
    assert [(stage.at, stage.values, stage.donor) for stage in leg.stages] == [
        (0, at_first, ""),
        (ROUND, after, keys[0]),
        (2 * ROUND, after, ""),
    ]
    marks = {"hyper/alpha1": after["alpha1"], "hyper/beta1": after["beta1"]}
    assert leg.stages[1].marks == {**marks, "hyper/copied_from": 1.0}
    assert leg.stages[2].marks == marks
    # Of whoever is copied, the way is told, and of whom that one had copied.
    assert dict(leg.ways) == {keys[0]: (Stage(0, journal.plan.populations[0].values(journal.plan.trial(keys[0]))),)}
    later = of.leg(journal.plan.trial(keys[2]))
    assert later is not None and later.stages[2].donor == keys[3]
    assert dict(later.ways) == {**leg.ways, keys[3]: (Stage(0, at_first), Stage(ROUND, after, keys[0]))}


@pytest.mark.parametrize("loss", ["nothing", "the file", "half of the file", "a number"])
@pytest.mark.parametrize("reached", [ROUND + 2, 2 * ROUND, 2 * ROUND + 1])
def test_taken_up_again_it_decides_the_same(tmp_path: Path, reached: int, loss: str) -> None:
    """Interrupted when two members had gone on to `reached` and two had not begun their leg."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    of = search(whole)
    keys = one_round(whole, of, ROUND)
    one_round(whole, of, 2 * ROUND)
    of = search(cut)
    one_round(cut, of, ROUND)
    if reached > 2 * ROUND:
        one_round(cut, of, 2 * ROUND)
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
    again = search(cut)
    waiting = []
    while (trial := again.next()) is not None:
        waiting.append(trial)
    members = [trial for trial in waiting if trial.configuration.population]
    if reached == 2 * ROUND:
        assert [trial.key for trial in members] == keys[2:]  # the other two are at the end of the round
    else:
        assert [trial.key for trial in members] == keys
    if reached <= 2 * ROUND:
        assert again.waits
        for trial in members:
            number = int(trial.configuration.label[-1]) - 1
            write_chunk(cut, trial, errors(number, 2 * ROUND))
            again.paused(trial, errors(number, 2 * ROUND)[-1])
    assert schedule(cut) == schedule(whole)


@pytest.mark.parametrize("damage", [halve, flip])
def test_a_damaged_schedule_is_set_aside_and_made_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Of a population that has come to its end, too: nobody searches any more."""
    of = search(tmp_path)
    keys = one_round(tmp_path, of, ROUND)
    one_round(tmp_path, of, 2 * ROUND)
    plan = make_plan(sweep(), "store")
    for number, key in enumerate(keys):
        write_chunk(tmp_path, plan.trial(key), errors(number, TOTAL))
    journal = Journal.look(tmp_path, plan)
    (population,) = plan.populations
    whole, path = schedule(tmp_path), population.file(tmp_path)
    assert rounds.set_aside(tmp_path, population) == ""
    damage(path)
    line = rounds.set_aside(tmp_path, population)
    assert line.startswith(f"{path}: damaged (")
    assert line.endswith(f"from the chunk files; quarantined as damaged-{path.name}")
    assert not path.exists() and path.with_name(f"damaged-{path.name}").exists()
    rounds.write_schedules(journal, TOTAL, "online_error", set(keys))
    assert path.read_text() == whole


def test_a_member_that_fails_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    of = search(tmp_path)
    trials = [of.next() for _ in range(5)]
    members = [trial for trial in trials if trial is not None and trial.configuration.population]
    for number in (0, 1, 2):
        write_chunk(tmp_path, members[number], errors(number, ROUND))
        assert not of.paused(members[number], errors(number, ROUND)[-1])
    assert of.failed(members[3], "no memory")
    (round_,) = json.loads(schedule(tmp_path))["rounds"]
    assert round_["failed"] == {members[3].key: "no memory"}
    assert [(copy["member"], copy["donor"]) for copy in round_["copies"]] == [(members[2].key, members[0].key)]
    assert [of.next() for _ in range(4)] == [*members[:3], None]
    again = search(tmp_path)
    following = [again.next() for _ in range(5)]
    assert members[3] not in following
    assert [trial for trial in following if trial in members] == members[:3]
    # One that was copied and fails later: its way is told all the same.
    for number in (1, 2):
        again.paused(members[number], errors(number, 2 * ROUND)[-1])
    assert again.failed(members[0], "no memory")
    leg = again.leg(members[2])
    assert leg is not None and leg.stages[1].donor == members[0].key and members[0].key in leg.ways


def test_a_lost_member_copies_and_its_fitness_is_null(tmp_path: Path) -> None:
    of = search(tmp_path)
    members = [trial for trial in (of.next() for _ in range(5)) if trial is not None and trial.configuration.population]
    for number, value in enumerate((math.nan, 0.2, 0.3, 0.4)):
        of.paused(members[number], value)
    (round_,) = json.loads(schedule(tmp_path))["rounds"]
    assert round_["fitness"][members[0].key] is None
    assert [(copy["member"], copy["donor"]) for copy in round_["copies"]] == [(members[0].key, members[1].key)]


def test_another_population_is_another_computation() -> None:
    """Members decide for one another, so more seeds, samples or other rounds leave nothing as it was."""
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
    # They begin where a random search would have had them.
    members, drawn = ([t.configuration.options for t in plan.trials if "beta1" in t.configuration.options] for plan in (plans[0], plans[4]))  # fmt: skip
    assert sorted(map(str, members)) == sorted(map(str, drawn))


def test_a_population_for_each_crossing_of_grids_and_only_what_is_named_mutates() -> None:
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


def test_a_leg_stops_where_a_stage_begins() -> None:
    leg = Leg((Stage(0, {"a": 1.0}), Stage(4, {"a": 2.0}, "donor"), Stage(8, {"a": 2.0})), 12, "online_error")
    assert [leg.stage(at).at for at in (0, 3, 4, 7, 8, 11)] == [0, 0, 4, 4, 8, 8]
    assert [leg.next_stop(at) for at in (0, 3, 4, 6, 8, 11)] == [4, 1, 4, 2, 4, 1]


def test_chunks_that_others_copy_from_are_kept(tmp_path: Path) -> None:
    attempt = trial_files.claim(tmp_path)
    for batches in range(1, 9):
        curves = Curves([0], 0, {"online_error": np.zeros((1, batches))}, {}, {"batches": np.array([batches])})
        trial_files.write(tmp_path, attempt, {"at": batches}, curves, False, keep=(2, 4))
    assert sorted(int(path.name[6:14]) for path in tmp_path.glob("chunk-*")) == [2, 4, 7, 8]
    found = [trial_files.load_at_most(tmp_path, at) for at in (9, 7, 6, 4, 3)]
    assert [chunk.state["at"] for chunk in found if chunk is not None] == [8, 7, 4, 4, 2]
    for path in tmp_path.glob("chunk-00000002-*"):
        halve(path)
    assert trial_files.load_at_most(tmp_path, 3) is None
    assert list(tmp_path.glob("damaged-*")) == []  # it is for the member itself to set it aside


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
            "configuration: search.algorithm: must be random where the scheduler is pbt, whose population is drawn at once (got optuna)",
            "configuration: search.scheduler.mutate: must be options that a learner draws (got K); drawn are alpha1, beta1"]),
        ({"search": {"samples": 4, "scheduler": {"name": "pbt", "quantile": 0.6, "interval": 0}}}, [
            "configuration: search.scheduler.interval: must be greater than or equal to 1 (got 0)",
            "configuration: search.scheduler.quantile: must be less than or equal to 0.5 (got 0.6)"]),
    ],
)  # fmt: skip
def test_a_population_that_cannot_be_is_told_in_a_line_each(change: dict[str, object], lines: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep(**change)
    assert list(caught.value.faults) == lines
