"""Which trial is next, drawn from the results of earlier ones, and equally after the search is resumed."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.config.load import check_sweep
from orchestrator.config.schema import Sweep
from orchestrator.config.search_space import Space
from orchestrator.errors import ConfigError
from orchestrator.plan import packs
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import Trial
from orchestrator.protocol.curves import Curves
from orchestrator.search.optuna_sampler import Studies
from orchestrator.search.trial_queue import TrialQueue, stopped_before
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from orchestrator.storage.mirror import Mirror
from orchestrator.storage.trial_files import TrialFiles

ALPHA = {"loguniform": [1e-4, 1e-1]}


def sweep(**change: object) -> Sweep:
    document = {
        "name": "s",
        "stream": {"name": "rainbow_digits"},
        "learners": [{"name": "online", "alpha1": ALPHA}],
        "seeds": 2,
        "search": {"algorithm": "optuna", "samples": 20},
    }
    return check_sweep(document | change)


def written(root: Path, of: Sweep) -> Journal:
    journal = Journal.look(root, make_plan(of, "store"))
    journal.take()
    return journal


def badness(trial: Trial) -> float:
    """Lowest, 0, at a rate of 0.003."""
    return float(abs(math.log(trial.configuration.options["alpha1"] / 0.003)))


def should_stop(queue: TrialQueue, trial: Trial, batches: int, value: float) -> bool:
    """Whether the scheduler stops a trial that is in no pack."""
    return queue.stopped(batches, [(trial, value)]) == [trial]


def write_chunk(root: Path, trial: Trial, errors: list[float], first_task: int = 1) -> None:
    """Write the chunk file of a trial with these errors: one batch per chunk, one task per batch from `first_task` on."""
    count = len(errors)
    tasks = count - first_task + 1
    curves = Curves(
        list(trial.seeds),
        0,
        {"online_error": np.tile(errors, (2, 1))},
        {
            "seed": np.tile([0, 1], tasks),
            "task": np.repeat(np.arange(tasks), 2),
            "batch": np.repeat(np.arange(first_task - 1, count), 2),
            "error": np.repeat(errors[first_task - 1 :], 2),
        },
        {"batches": np.arange(1, count + 1)},
    )
    folder = trial.folder(root)
    chunk_files.write(folder, chunk_files.claim(folder), {}, curves, finished=count == 8)


def test_a_maximised_objective_is_searched_for_its_highest_value(tmp_path: Path) -> None:
    """The same results under `mode: max` with the sign changed give the same draws and the same stops."""
    values: dict[str, dict[str, object]] = {}
    for mode, sign in (("min", 1), ("max", -1)):
        root = tmp_path / mode
        search = {"algorithm": "optuna", "samples": 20, "scheduler": {"name": "asha", "grace": 0.25, "reduction": 2}}
        of = sweep(objective={"function": "mine.of", "mode": mode}, search=search)
        queue = TrialQueue(of, written(root, of), set(), 8)
        draws, stops = [], []
        for _ in range(12):
            trial = queue.next()
            assert trial is not None
            draws.append(trial.configuration.options["alpha1"])
            stops.append(should_stop(queue, trial, 2, sign * badness(trial)))
            if not stops[-1]:
                queue.finish(trial, sign * badness(trial))
        values[mode] = {"draws": draws, "stops": stops}
    assert values["min"] == values["max"]
    assert any(values["min"]["stops"]) and not all(values["min"]["stops"])


@pytest.mark.parametrize("algorithm", ["optuna", "random"])
def test_a_trial_whose_objective_raises_does_not_keep_a_search_from_being_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raising_objective.py").write_text(
        "def of(curves):\n"
        "    errors = curves.by_batch['online_error']\n"
        "    return errors[:, -1] / (1 if errors[0, 0] < 0.5 else [])\n"
    )
    search = {"algorithm": algorithm, "samples": 3, "scheduler": {"name": "asha", "grace": 0.25, "reduction": 2}}
    of = sweep(objective={"function": "raising_objective.of"}, search=search)
    queue = TrialQueue(of, written(tmp_path / "r", of), set(), 8)
    fair, failed = queue.next(), queue.next()
    assert fair is not None and failed is not None
    write_chunk(tmp_path / "r", fair, [0.1] * 2)
    write_chunk(tmp_path / "r", failed, [0.9] * 2)
    again = TrialQueue(of, written(tmp_path / "r", of), set(), 8)
    started = [again.next() for _ in range(3)]
    assert started[:2] == [fair, failed] and started[2] is not None
    assert should_stop(again, started[2], 2, 0.2)  # the rung has the other one


def test_draws_approach_the_best_value() -> None:
    distances = np.empty((5, 40))
    for seed in range(5):
        studies = Studies(make_plan(sweep(search={"algorithm": "optuna", "samples": 40, "seed": seed}), "store"))
        for number in range(40):
            trial = studies.next()
            assert trial is not None
            distances[seed, number] = badness(trial)
            studies.record(trial, distances[seed, number])
        assert studies.next() is None
    # The mean distance of a uniform draw is 1.8.
    assert 1.4 < distances[:, :10].mean() < 2.2
    assert distances[:, 20:].mean() < 0.6 * distances[:, :10].mean()
    assert distances.min(axis=1).max() < 0.1


def test_equal_results_give_equal_draws(tmp_path: Path) -> None:
    """A search resumed after 12 trials, of which one is not finished, draws as an uninterrupted one."""
    of = sweep()
    keys, journal = [], written(tmp_path, of)
    queue = TrialQueue(of, journal, set(), 8)
    for number in range(15):
        trial = queue.next()
        assert trial is not None
        keys.append(trial.key)
        if number == 11:
            write_chunk(tmp_path, trial, [0.5] * 3)  # and then the driver dies
        elif number < 11:
            write_chunk(tmp_path, trial, [badness(trial)] * 8)
            queue.finish(trial, badness(trial))
    content = json.loads((tmp_path / "sweep.json").read_text())
    del content["trials"][12:], content["digest"]
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    (tmp_path / "sweep-copy.json").unlink()
    again = written(tmp_path, of)
    assert again.finished() == set()  # no learner.pt: the test wrote none
    ended = set(keys[:11])
    queue = TrialQueue(of, again, ended, 8)
    assert [trial.key for trial in again.plan.trials] == keys[:12]
    first = queue.next()
    assert first is not None and first.key == keys[11]  # the interrupted trial resumes before any is drawn
    following = [queue.next(), queue.next(), queue.next()]
    assert [trial.key for trial in following if trial is not None] == keys[12:15]


def test_failed_trials_are_not_examples() -> None:
    """Draws are random until ten trials have completed; failed trials do not count."""
    plan = make_plan(sweep(), "store")
    failed, waiting, informed = Studies(plan), Studies(plan), Studies(plan)
    draws: list[list[str]] = [[], [], []]
    for _ in range(14):
        for studies, keys in zip((failed, waiting, informed), draws, strict=True):
            trial = studies.next()
            assert trial is not None
            keys.append(trial.key)
            if studies is not waiting:
                studies.record(trial, math.nan if studies is failed else badness(trial))
    assert draws[0] == draws[1]
    assert draws[0][:10] == draws[2][:10]
    assert draws[0][13] != draws[2][13]


@pytest.mark.parametrize(
    ("spaces", "count"),
    [
        ({"K": {"randint": [1, 3]}}, 3),
        ({"beta1": {"randint": [1, 3]}}, 3),
        ({"K": {"choice": [1, 5, 1]}, "meta_every": {"randint": [2, 3]}}, 4),
        ({"K": {"randint": [1, 50]}}, 20),
        ({"K": {"randint": [1, 3]}, "alpha1": ALPHA}, 20),
    ],
)
def test_a_study_ends_when_its_choices_are_exhausted(spaces: dict[str, object], count: int) -> None:
    plan = make_plan(sweep(learners=[{"name": "foml", **spaces}]), "store")
    assert plan.size == count
    studies = Studies(plan)
    draws = []
    while (trial := studies.next()) is not None:
        plan.add(trial)
        draws.append(trial.key)
        studies.record(trial, 0.1)
    assert len(set(draws)) == len(draws) == count
    assert plan.size == count  # so a command that finds all of them ended starts none


def drain(queue: TrialQueue, slots: int = 1) -> list[Trial]:
    trials = []
    while pack := queue.next_pack(slots):
        for trial in pack:
            queue.finish(trial, 0.5)
        trials += pack
    return trials


def choice(*values: int, **more: object) -> dict[str, object]:
    return {"name": "foml", "K": {"choice": [*values]}, **more}


@pytest.mark.parametrize(
    ("learners", "first", "values"),
    [
        ([{"name": "foml", "K": 5}, choice(1, 5, 10)], 3, [1, 5, 10]),
        ([choice(1, 5, 10), {"name": "foml", "K": {"grid": [5, 10]}}], 3, [1, 5, 10]),
        ([{"name": "foml", "K": {"grid": [1, 5, 10, 20]}}, choice(1, 5, 10)], 4, [1, 5, 10, 20]),
        ([{"name": "foml", "K": 5}, {"name": "foml", "K": {"randint": [4, 6]}}], 3, [4, 5, 6]),
        ([choice(1, 5), choice(5, 10)], 4, [1, 5, 10]),  # the first size does not know which study draws 5
        ([{"name": "foml", "K": 5, "beta1": 0.3}, choice(1, 5)], 3, [1, 5, 5]),  # another configuration
        ([{"name": "foml", "K": 5}, choice(1, 5), choice(5, 10)], 3, [1, 5, 10]),
    ],
)
@pytest.mark.parametrize("pack", [1, 8])
def test_a_configuration_is_run_once_although_a_study_might_draw_it(
    tmp_path: Path, learners: list[dict[str, object]], first: int, values: list[int], pack: int
) -> None:
    """It is listed, or another study draws it. The search ends: nothing is left to be drawn."""
    of = sweep(learners=learners, search={"algorithm": "optuna", "samples": 3}, resources={"pack": pack})
    journal = written(tmp_path, of)
    assert journal.plan.size == first
    trials = drain(TrialQueue(of, journal, set(), 8))
    assert sorted(trial.configuration.options["K"] for trial in trials) == values
    assert len({trial.key for trial in trials}) == len(trials) == journal.plan.size
    again = written(tmp_path, of)
    assert [trial.key for trial in again.plan.trials] == [trial.key for trial in journal.plan.trials]
    assert again.plan.size == len(trials)
    assert drain(TrialQueue(of, again, {trial.key for trial in trials}, 8)) == []


def test_a_listed_configuration_changes_no_draw_that_differs_from_it(tmp_path: Path) -> None:
    drawn = {"name": "online", "alpha1": ALPHA}
    of = sweep(search={"algorithm": "optuna", "samples": 14})
    beside = sweep(learners=[{"name": "online", "alpha1": 0.003}, drawn], search={"algorithm": "optuna", "samples": 14})
    keys = []
    for number, each in enumerate((of, beside)):
        queue = TrialQueue(each, written(tmp_path / str(number), each), set(), 8)
        keys.append([])
        while (trial := queue.next()) is not None:
            queue.finish(trial, badness(trial))
            keys[-1].append(trial.key)
    assert len(keys[0]) == 14 and keys[1][1:] == keys[0]


def test_a_draw_that_is_listed_later_counts_as_drawn(tmp_path: Path) -> None:
    search = {"algorithm": "optuna", "samples": 12}
    of = sweep(search=search)
    journal = written(tmp_path, of)
    trials = drain(TrialQueue(of, journal, set(), 8))
    best = min(trials, key=badness).configuration.options["alpha1"]
    entries = [{"name": "online", "alpha1": best}, {"name": "online", "alpha1": ALPHA}]
    for seeds in (2, 3):
        listed = written(tmp_path, sweep(learners=entries, search=search, seeds=seeds)).plan
        assert {trial.configuration.hash for trial in listed.trials} == {t.configuration.hash for t in trials}
        assert listed.size == len(listed.trials) == 12 * (seeds - 1)
    assert {trial.key for trial in written(tmp_path, of).plan.trials} == {trial.key for trial in trials}


def test_an_option_that_a_later_version_added_is_drawn_as_any_other(tmp_path: Path) -> None:
    """A listed configuration does not name it at its default, `coupled`."""
    search = {"algorithm": "optuna", "samples": 2}
    drawn = {"name": "foml", "pull": {"choice": ["coupled", "decoupled"]}}
    beside = sweep(learners=[{"name": "foml"}, drawn], search=search)
    journal = written(tmp_path / "listed", beside)
    assert journal.plan.size == len(drain(TrialQueue(beside, journal, set(), 8))) == 2
    of = sweep(learners=[drawn], search=search)
    trials = drain(TrialQueue(of, written(tmp_path / "drawn", of), set(), 8))
    for _ in range(2):
        later = written(tmp_path / "drawn", beside).plan
        assert {trial.key for trial in later.trials} == {trial.key for trial in trials} and later.size == 2
        assert Studies(later).open_draws == 0 and all(trial.drawn_by for trial in later.trials)


def test_fewer_samples_keep_the_first_draws(tmp_path: Path) -> None:
    def of(samples: int) -> Sweep:
        return sweep(search={"algorithm": "optuna", "samples": samples})

    keys = [trial.key for trial in drain(TrialQueue(of(6), written(tmp_path, of(6)), set(), 8))]
    for samples in (2, 4, 6):
        plan = written(tmp_path, of(samples)).plan
        assert [trial.key for trial in plan.trials] == keys[:samples]
        assert (plan.size, Studies(plan).open_draws) == (samples, 0)
    wider = written(tmp_path, of(7))
    assert [trial.key for trial in wider.plan.trials] == keys
    assert (wider.plan.size, Studies(wider.plan).open_draws) == (7, 1)


def test_the_last_choices_are_drawn_although_the_estimator_avoids_them() -> None:
    learners = [{"name": "foml", "K": {"randint": [1, 20]}}]
    studies = Studies(make_plan(sweep(learners=learners, search={"algorithm": "optuna", "samples": 20}), "store"))
    draws = []
    while (trial := studies.next()) is not None:
        draws.append(trial.configuration.options["K"])
        studies.record(trial, float(abs(draws[-1] - 7)))
    assert sorted(draws) == list(range(1, 21))


def test_each_combination_of_grids_is_a_study(tmp_path: Path) -> None:
    learners = [{"name": "foml", "K": {"grid": [1, 5]}, "alpha1": ALPHA}, {"name": "online"}]
    of = sweep(learners=learners, search={"algorithm": "optuna", "samples": 3})
    journal = written(tmp_path, of)
    assert journal.plan.size == 2 * 3 + 1
    queue = TrialQueue(of, journal, set(), 8)
    labels = []
    while (trial := queue.next()) is not None:
        labels.append(trial.configuration.label)
    assert len(labels) == journal.plan.size == 7
    assert labels[0] == "online"
    assert [label.split()[1] for label in labels[1:]] == ["K=1", "K=5"] * 3


def test_more_samples_and_more_seeds_keep_the_earlier_draws(tmp_path: Path) -> None:
    small = sweep(search={"algorithm": "optuna", "samples": 2})
    queue = TrialQueue(small, written(tmp_path, small), set(), 8)
    draws = [queue.next(), queue.next()]
    assert queue.next() is None
    wider = sweep(search={"algorithm": "optuna", "samples": 3}, seeds=3)
    journal = written(tmp_path, wider)
    assert [(t.configuration.hash, t.seeds) for t in journal.plan.trials] == [
        (t.configuration.hash, seeds) for t in draws if t is not None for seeds in ((0, 1), (2,))
    ]
    assert journal.plan.size == 2 * 2 + 1


def test_a_stopped_trial_is_recorded_and_stays_stopped(tmp_path: Path) -> None:
    of = sweep(
        learners=[{"name": "online", "alpha1": {"grid": [0.1, 0.01, 0.001]}}],
        search={"scheduler": {"name": "asha", "grace": 0.25, "reduction": 2}},
    )
    journal = written(tmp_path, of)
    queue = TrialQueue(of, journal, set(), 8)
    best, worse, worst = (queue.next() for _ in range(3))
    assert best is not None and worse is not None and worst is not None
    write_chunk(tmp_path, best, [0.1] * 2)
    assert not should_stop(queue, best, 2, 0.1)
    write_chunk(tmp_path, worse, [0.2] * 2)
    assert should_stop(queue, worse, 2, 0.2)
    assert written(tmp_path, of).stopped() == {worse.key: 2}
    again = TrialQueue(of, journal, {worse.key}, 8)
    assert should_stop(again, worst, 2, 0.16)  # the rung is restored
    assert should_stop(queue, worst, 2, math.nan)


def test_only_successive_halving_keeps_a_trial_stopped(tmp_path: Path) -> None:
    """A learner without drawn options is in no population, and runs to the end beside one."""
    learners = [{"name": "foml", "alpha1": ALPHA}, {"name": "online"}]
    kept = {}
    for scheduler in ("asha", "pbt", "none"):
        of = sweep(learners=learners, search={"samples": 2, "scheduler": scheduler})
        journal = written(tmp_path, of)
        (online,) = (trial for trial in journal.plan.trials if trial.configuration.learner == "online")
        if scheduler == "asha":
            write_chunk(tmp_path, online, [0.2] * 2)
            journal.stop(online, 2, 0.2)
        kept[scheduler] = stopped_before(of, journal) == {online.key: 2}
    assert kept == {"asha": True, "pbt": False, "none": False}


def test_a_trial_that_was_not_judged_is_judged_by_its_next_result(tmp_path: Path) -> None:
    """The driver is killed between a trial's chunk at a rung and its judgement."""
    of = sweep(
        learners=[{"name": "online", "alpha1": {"grid": [0.1, 0.01, 0.001]}}],
        search={"scheduler": {"name": "asha", "grace": 0.25, "reduction": 2}},
    )
    journal = written(tmp_path, of)
    best, worse, fair = journal.plan.trials
    for trial, error in ((best, 0.1), (worse, 0.2), (fair, 0.1)):
        write_chunk(tmp_path, trial, [error] * 2)
    again = TrialQueue(of, journal, set(), 8)
    assert should_stop(again, worse, 3, 0.2)
    assert journal.stopped() == {worse.key: 3}
    assert not should_stop(again, fair, 3, 0.1)


def test_a_trial_that_finished_after_it_was_stopped_is_recorded_as_finished(tmp_path: Path) -> None:
    of = sweep(search={"algorithm": "optuna", "samples": 14, "scheduler": {"name": "asha", "grace": 0.25}})
    journal = written(tmp_path, of)
    queue = TrialQueue(of, journal, set(), 8)
    draws = [queue.next() for _ in range(12)]
    for trial in draws[::2]:
        assert trial is not None
        write_chunk(tmp_path, trial, [badness(trial)] * 4)
        journal.stop(trial, 4, badness(trial))
    expected = []
    for at in (None, 4):
        studies = Studies(journal.plan)
        for number, trial in enumerate(draws):
            assert trial is not None
            studies.record(trial, badness(trial), None if number % 2 else at)
        expected.append(studies.next())
    for trial in draws:
        assert trial is not None
        write_chunk(tmp_path, trial, [badness(trial)] * 8)
    again = TrialQueue(of, journal, {trial.key for trial in draws if trial is not None}, 8).next()
    finished, stopped = expected
    assert finished is not None and stopped is not None and again is not None
    assert again.key == finished.key != stopped.key


def test_a_rung_before_the_first_value_is_ignored(tmp_path: Path) -> None:
    """Neither a running search nor a resumed one judges there."""
    of = sweep(
        learners=[{"name": "online", "alpha1": {"grid": [0.1, 0.01]}}],
        search={"scheduler": {"name": "asha", "grace": 0.125, "reduction": 2}},
    )
    journal = written(tmp_path, of)
    first, second = journal.plan.trials
    write_chunk(tmp_path, first, [0.5] * 5, first_task=2)  # its first evaluation is after batch 2, the rung at 1
    live, again = TrialQueue(of, written(tmp_path / "elsewhere", of), set(), 8), TrialQueue(of, journal, set(), 8)
    for batches in (2, 3, 4, 5):
        assert not should_stop(live, first, batches, 0.5)
    for queue in (live, again):
        assert not should_stop(queue, second, 2, 0.4)
        assert should_stop(queue, first, 8, math.nan) is False  # there is no rung at the end
    assert [should_stop(queue, second, 4, 0.6) for queue in (live, again)] == [True, True]


@pytest.mark.parametrize(
    ("search", "line"),
    [
        ({"scheduler": "ashes"}, "configuration: search.scheduler.name: must be one of asha, none, pbt (got ashes); did you mean asha?"),
        ({"scheduler": 3}, "configuration: search.scheduler: must be a name, or a mapping with a name (got 3)"),
        ({"scheduler": {"name": "asha", "grace": 2}}, "configuration: search.scheduler.grace: must be less than 1 (got 2)"),
        ({"scheduler": {"name": "asha", "grase": 0.1}}, "configuration: search.scheduler.grase: unknown key (got 0.1); did you mean grace?"),
        ({"algoritm": "optuna"}, "configuration: search.algoritm: unknown key (got optuna); did you mean algorithm?"),
    ],
)  # fmt: skip
def test_an_invalid_search_is_refused_in_one_line(search: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep(search=search)
    assert caught.value.faults == (line,)


def test_trials_that_differ_in_rates_start_together(tmp_path: Path) -> None:
    """At the same batch, with the same K, at most `pack` replicates."""
    grid = {"name": "foml", "K": {"grid": [1, 2]}, "alpha1": {"grid": [0.1, 0.2, 0.3, 0.4]}}
    of = sweep(learners=[grid, {"name": "online"}], search={}, resources={"pack": 7})
    journal = written(tmp_path, of)
    ahead = journal.plan.trials[2]  # K=1 at another batch
    write_chunk(tmp_path, ahead, [0.5])
    queue = TrialQueue(of, journal, set(), 8)
    order = [(1, [0.1, 0.2, 0.4]), (1, [0.3]), (2, [0.1, 0.2, 0.3]), (2, [0.4]), (None, [0.001])]
    lots = []
    while lot := queue.next_pack(2):
        lots.append(lot)
    found = [(lot[0].configuration.options.get("K"), [t.configuration.options["alpha1"] for t in lot]) for lot in lots]
    assert found == order and ahead.configuration.options["alpha1"] == 0.3
    assert packs.count(of, [(trial, int(trial == ahead)) for trial in journal.plan.trials], 2) == len(lots)


def test_a_pack_whose_actor_died_is_divided(tmp_path: Path) -> None:
    """One trial of eight ends its process: halves separate it, and the other seven learn in three packs."""
    grid = {"name": "online", "alpha1": {"grid": [0.1 * n for n in range(1, 9)]}}
    of = sweep(learners=[grid], search={}, resources={"pack": 16})
    journal = written(tmp_path, of)
    bad = journal.plan.trials[2].key
    queue = TrialQueue(of, journal, set(), 8)
    sizes, finished = [], []
    while lot := queue.next_pack(2):
        dies = bad in {trial.key for trial in lot} and len(lot) > 1
        sizes.append((len(lot), dies))
        for trial in reversed(lot):
            if dies:
                queue.requeue(trial, len(lot))
            else:
                finished.append(trial.key)
    assert sizes == [(8, True), (4, True), (2, False), (2, True), (1, False), (1, False), (4, False)]
    assert sorted(finished) == sorted(trial.key for trial in journal.plan.trials)


def test_a_trial_that_left_its_node_keeps_its_pack(tmp_path: Path) -> None:
    grid = {"name": "online", "alpha1": {"grid": [0.1, 0.2, 0.3]}}
    of = sweep(learners=[grid], search={}, resources={"pack": 6})
    queue = TrialQueue(of, written(tmp_path, of), set(), 8)
    lot = queue.next_pack(1)
    for trial in reversed(lot):
        queue.proceed(trial)
    assert queue.next_pack(1) == lot and len(lot) == 3


def test_packs_of_the_size_auto_leave_no_slot_empty_and_are_for_gpus(tmp_path: Path) -> None:
    grid = {"name": "online", "alpha1": {"grid": [0.1 * n for n in range(1, 25)]}}
    sizes = {}
    for gpus, pack, slots in ((0, "auto", 2), (1, "auto", 8), (1, "auto", 1), (0.25, "auto", 4), (1, 1, 1), (0, 9, 2)):
        of = sweep(learners=[grid], search={}, resources={"pack": pack, "gpus": gpus})
        queue = TrialQueue(of, written(tmp_path / str(len(sizes)), of), set(), 8)
        sizes[gpus, pack, slots] = [len(queue.next_pack(slots)) for _ in range(2)]
    assert list(sizes.values()) == [[1, 1], [3, 3], [16, 8], [4, 4], [1, 1], [4, 4]]


def test_trials_of_a_pack_are_drawn_together(tmp_path: Path) -> None:
    """They share what may not differ; each is in the journal, and a resumed search packs those that had not started."""
    space = {"name": "foml", "K": {"choice": [1, 2]}, "alpha1": ALPHA, "beta1": {"uniform": [0, 1]}}
    of = sweep(learners=[space], search={"algorithm": "optuna", "samples": 10}, resources={"pack": 8})
    queue = TrialQueue(of, written(tmp_path, of), set(), 8)
    lots = [queue.next_pack(1) for _ in range(4)]
    assert [len(lot) for lot in lots] == [4, 4, 2, 0]
    options = [[trial.configuration.options for trial in lot] for lot in lots]
    assert all(len({each["K"] for each in lot}) == 1 for lot in options if lot)
    rates = [each["alpha1"] for lot in options for each in lot]
    assert len(set(rates)) == 10 and all(1e-4 <= rate <= 1e-1 for rate in rates)
    again = Journal.look(tmp_path, make_plan(of, "store"))
    again.take()
    assert [trial.key for trial in again.plan.trials] == [trial.key for lot in lots for trial in lot]
    resuming = TrialQueue(of, again, {lots[0][0].key}, 8)
    resumed = [resuming.next_pack(1) for _ in range(4)]
    left = Counter(trial.configuration.options["K"] for lot in lots for trial in lot[lot == lots[0] :])
    full = [size for count in left.values() for size in (*[4] * (count // 4), count % 4) if size]
    assert sorted(len(lot) for lot in resumed if lot) == sorted(full)
    assert {trial.key for lot in resumed for trial in lot} == {trial.key for lot in lots for trial in lot} - {
        lots[0][0].key
    }


def test_trials_of_a_pack_are_drawn_apart(tmp_path: Path) -> None:
    """With results that favour one rate, the pack explores: running trials count as bad ones."""
    of = sweep(search={"algorithm": "optuna", "samples": 60}, resources={"pack": 20})
    queue = TrialQueue(of, written(tmp_path, of), set(), 8)
    for _ in range(4):
        for trial in queue.next_pack(1):
            queue.finish(trial, badness(trial))
    lot = [math.log10(trial.configuration.options["alpha1"]) for trial in queue.next_pack(1)]
    assert len(lot) == 10 and max(lot) - min(lot) > 0.5


@pytest.mark.filterwarnings("error")
def test_a_choice_of_lists_is_drawn_without_a_warning() -> None:
    """As of an option of the user's own learner; the draws are those of this version and every earlier one."""
    plan = make_plan(sweep(search={"algorithm": "optuna", "samples": 6}), "0" * 64)
    (study,) = plan.studies
    spaces = {"sizes": Space("choice", ([1, 2], [3], [1, 2, 3])), "alpha1": Space("loguniform", (1e-4, 1.0))}
    study = replace(study, spec=replace(study.spec, spaces=spaces))
    studies = Studies(replace(plan, studies=(study,)))
    draws, trial = [], studies.next()
    while trial is not None:
        draw = study.draws(trial)
        draws.append((draw["sizes"], round(draw["alpha1"], 6)))
        studies.record(trial, draw["alpha1"])
        trial = studies.next_in_pack(trial, ["alpha1"]) if len(draws) % 2 else studies.next()
    assert draws == [
        ([1, 2], 0.000853),
        ([1, 2], 0.017158),
        ([1, 2], 0.672214),
        ([1, 2], 0.039379),
        ([1, 2, 3], 0.015005),
        ([1, 2, 3], 0.027787),
    ]


def test_a_choice_with_few_values_ends_a_pack(tmp_path: Path) -> None:
    space = {"name": "foml", "K": {"choice": [1, 2]}, "alpha1": {"choice": [0.1, 0.2, 0.3]}}
    of = sweep(learners=[space], search={"algorithm": "optuna", "samples": 20}, resources={"pack": 20})
    queue = TrialQueue(of, written(tmp_path, of), set(), 8)
    lots = [queue.next_pack(1) for _ in range(7)]
    assert sum(len(lot) for lot in lots) == 6 and len(lots[0]) > 1
    alone = sweep(learners=[{"name": "foml", "K": {"choice": [1, 2]}}], resources={"pack": 20})
    one = TrialQueue(alone, written(tmp_path / "alone", alone), set(), 8)
    assert [len(one.next_pack(1)) for _ in range(3)] == [1, 1, 0]


def test_trials_of_a_pack_are_judged_together_and_those_that_continue_are_packed_again(tmp_path: Path) -> None:
    grid = {"name": "online", "alpha1": {"grid": [0.003, 0.004, 0.006, 0.01, 0.02]}}
    of = sweep(
        learners=[grid], search={"scheduler": {"name": "asha", "grace": 0.25, "reduction": 2}}, resources={"pack": 8}
    )
    journal = written(tmp_path, of)
    queue = TrialQueue(of, journal, set(), 8)
    lot = queue.next_pack(1)
    assert len(lot) == 4
    stopped = queue.stopped(2, [(trial, badness(trial)) for trial in reversed(lot)])
    assert [trial.configuration.options["alpha1"] for trial in stopped] == [
        0.01,
        0.006,
    ]  # one by one: 0.006 as well as 0.01
    assert journal.stopped() == {trial.key: 2 for trial in stopped}
    for trial in lot[1::-1]:
        write_chunk(tmp_path, trial, [0.5, 0.5])
        queue.proceed(trial)
    assert queue.next_pack(1) == lot[:2]
    assert [len(queue.next_pack(1)) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("end", ["proceed", "requeue"])
def test_trials_at_an_address_are_packed_by_what_they_have_learned(tmp_path: Path, end: str) -> None:
    """Two of four trials learn 10 batches. The driver's copy of their folders has no chunk files."""
    learners = [{"name": "online", "alpha1": {"grid": [0.001, 0.002, 0.003, 0.004]}}]
    of = sweep(learners=learners, search={}, resources={"pack": 8})
    mirror = Mirror((tmp_path / "bucket").as_uri(), "s")
    mirror.pull()
    journal = Journal.look(mirror.local, make_plan(of, "store"), mirror)
    journal.take()
    queue = TrialQueue(of, journal, set(), 100)
    pack = queue.next_pack(1)
    assert len(pack) == 4
    for trial in pack[:2]:
        files = TrialFiles(str(trial.folder(mirror.local)), mirror.trial_address(trial.key))
        files.write({}, Curves([0, 1], 0, {"online_error": np.zeros((2, 10))}), False, ())
        files.push()
        files.close()
        queue.note_batches(trial, 10 if end != "requeue" else 5)  # the last chunk is not reported
    for trial in reversed(pack):
        if end == "requeue":
            queue.requeue(trial, 8)
        else:
            queue.proceed(trial)
    assert [*iter(lambda: queue.next_pack(1), ())] == [pack[:2], pack[2:]]
