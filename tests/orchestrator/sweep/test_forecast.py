"""`--plan` in its three forms, on a folder where one trial is finished, one is half way and two have not started."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from orchestrator.config.load import load_sweep
from orchestrator.execution.ray_session import Cluster, local_gpus
from orchestrator.plan.expand import make_plan
from orchestrator.plan.task_store import open_store
from orchestrator.storage.journal import Journal
from orchestrator.sweep import __main__, api, cost, cost_process
from orchestrator.sweep.cost import Cost
from orchestrator.sweep.cost_process import Contention, estimate
from orchestrator.sweep.forecast import OVERHEAD_S, Forecast, wall_seconds
from tests.orchestrator.protocol_sweep import compute
from tests.orchestrator.sweep_command import TINY, folder_with, run_here

PRICED = f"{TINY}price: {{cpu_hour: 36, gpu_hour: 72, currency: EUR}}\n"
SLOTS = os.cpu_count() or 1
ANOTHER = cost_process._process
FAULTY = """
from learners.online import Online

class Learner(Online):
    def update(self, batch):
        raise RuntimeError("a line before\\nnot as planned")
"""


@contextmanager
def idle(*of: object) -> Iterator[Any]:
    """Another process that measures nothing: its start takes longer than a forecast."""
    yield SimpleNamespace(wait=int, start=id, result=lambda: None)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four batches of each kind are measured, in this process, and no more."""
    monkeypatch.setattr(cost, "MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(cost_process, "_process", idle)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    half_done = folder_with(tmp_path_factory.mktemp("started"), PRICED)
    compute(half_done, until=lambda index: (None, 8, 0, 0)[index])
    return half_done


@pytest.fixture(scope="module")
def planned(folder: Path) -> Forecast:
    """The forecast with as many processes as trials run at a time."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(cost, "MEASURED_SECONDS", 0.0)
        changed.setattr(cost_process, "_process", ANOTHER)
        return forecast_of(folder)


def forecast_of(folder: Path, *words: str) -> Forecast:
    return api.forecast(load_sweep(folder / "sweep.yaml", [f"storage={folder / 'results'}", *words]))


def test_notes_name_batches_of_two_tasks_and_too_little_memory(folder: Path, planned: Forecast) -> None:
    measured = planned
    assert all(row.cost.memory > 0 for row in measured.rows if row.to_run)
    assert not any("resources.pack" in note for note in measured.notes)
    packed = replace(measured, sweep=load_sweep(folder / "sweep.yaml", ["resources.pack=4"]))
    line = f"resources.pack is 4: {measured.to_run} trials in {measured.to_run} learner actors"
    assert line in " ".join(packed.notes)
    # What this process holds depends on the tests that it ran before.
    planned = replace(measured, rows=tuple(replace(row, cost=replace(row.cost, memory=10**9)) for row in measured.rows))
    assert planned.notes == ()
    length = planned.shape.ends[0][0][0]
    odd = replace(planned, shape=replace(planned.shape, ends=[[(length + 1, 0), (2 * length, 1)]]))
    (line,) = odd.notes
    assert f"note: {line}" in odd.text.splitlines()
    assert "a batch may hold datapoints of two tasks" in line
    assert json.loads(odd.json)["notes"] == [line]
    first, *others = planned.rows
    assert first.state == "finished"
    rows = [replace(row, cost=replace(row.cost, memory=4 * 10**9)) for row in (first, others[0])]
    assert replace(planned, rows=(*rows, *others[1:])).notes == ("foml K=2: a learner actor holds about 4.0 GB",)
    (line,) = replace(planned, memory=2**50).notes
    assert f"{SLOTS} learner actors of about" in line


def test_the_document_says_what_is_done_and_what_the_rest_costs(folder: Path, planned: Forecast) -> None:
    content = json.loads(planned.json)
    assert (content["format"], content["sweep"], content["exit_code"], content["problems"]) == (1, "tiny", 0, [])
    assert (content["objective"], content["seeds"], content["folder"]) == (
        "cumulative_error",
        [0, 1],
        str(folder / "results/tiny"),
    )
    trials: list[dict[str, Any]] = content["trials"]
    assert [trial["label"] for trial in trials] == ["foml K=1", "foml K=2", "online", "tfs"]
    assert [trial["state"] for trial in trials] == ["finished", "begun", "waiting", "waiting"]
    assert [(trial["batches_done"], trial["batches"]) for trial in trials] == [(15, 15), (8, 15), (0, 15), (0, 15)]
    assert [trial["parameters"].get("K") for trial in trials] == [1, 2, None, None]
    assert all(trial["seeds"] == [0, 1] and trial["count"] == 1 for trial in trials)
    assert all((folder / "results/tiny" / trial["trial"]).is_dir() for trial in trials)
    assert all(trial["trial"].startswith(trial["configuration"]) for trial in trials)
    assert trials[2]["gradient_evaluations_per_datapoint"] == 1.0
    seconds = [trial["seconds"] for trial in trials]
    assert all(each > 0 for each in seconds)
    left = [0, seconds[1] * (1 - 8 / 15), seconds[2], seconds[3]]
    assert [trial["seconds_left"] for trial in trials] == pytest.approx(left)
    assert (content["size"], content["to_run"], content["at_once"]) == (4, 3, SLOTS)
    assert content["seconds"] == pytest.approx(sum(left))
    at_once = wall_seconds(left[1:], SLOTS, planned.contention)
    assert content["seconds_at_once"] == pytest.approx(OVERHEAD_S + at_once)
    assert planned.contention.processes == min(3, SLOTS)  # one trial is finished
    assert content["disk_bytes"] == sum(trial["disk_bytes"] for trial in trials[1:]) > 10_000
    assert 50e6 < content["memory_bytes"] == max(trial["memory_bytes"] for trial in trials[1:]) < 50e9
    assert (content["checkpoints"], content["checkpoint_bytes"]) == (0, 0)
    assert (content["gpu_hours"], content["cpu_hours"]) == (None, pytest.approx(sum(left) / 3600))
    assert (content["money"], content["currency"]) == (pytest.approx(sum(left) / 100), "EUR")
    assert content["budget"] is None and 0 < content["spent"]["money"] < 60


def test_the_table_says_the_same(planned: Forecast) -> None:
    rows = planned.text.splitlines()
    assert rows[1].endswith("  finished") and rows[2].endswith("  at batch 8")
    assert rows[3].rsplit(maxsplit=1)[1].isdigit()
    assert rows[5].startswith(f"4 trials, 3 to run: {planned.seconds:.0f} s of learning, about ")
    assert planned.line.startswith(f"tiny: 4 trials, 3 to run: {planned.seconds:.0f} s of learning, about ")
    assert planned.line.endswith(" EUR") and "\n" not in planned.line


def test_gpus_checkpoints_and_a_budget(folder: Path) -> None:
    words = ("resources.gpus=2", "price.cpu_hour=0", "keep_checkpoints=1", "budget.hours=5")
    planned = forecast_of(folder, *words)
    content = json.loads(planned.json)
    assert (content["gpu_hours"], content["cpu_hours"]) == (pytest.approx(2 * planned.seconds / 3600), None)
    assert content["money"] == pytest.approx(72 * content["gpu_hours"])
    assert content["budget"] == {"hours": 5.0, "money": None}
    assert content["spent"]["hours"] > 0
    assert content["checkpoints"] == 2 * 3 and content["checkpoint_bytes"] > 10_000
    assert "checkpoints: 6 are kept besides the last of each trial" in planned.text
    assert f"budget: {planned.ledger.text()}" in planned.text


def test_fewer_trials_than_slots_take_as_long_as_the_longest(folder: Path) -> None:
    planned = forecast_of(folder, "learners=[{name: online}, {name: tfs}]", "resources.cpus=0.01")
    content = json.loads(planned.json)
    assert content["at_once"] == 100 * SLOTS and content["to_run"] == 2
    shorter, longer = sorted(trial["seconds"] for trial in content["trials"])
    alone = (longer - shorter) / planned.contention.factor(2)  # the rest, after the shorter one
    assert content["seconds_at_once"] == pytest.approx(OVERHEAD_S + shorter + alone)
    assert f"about {content['seconds_at_once']:.0f} s with {100 * SLOTS} at a time" in planned.line


@pytest.mark.parametrize(
    ("trials", "slots", "contention", "expected"),
    [
        ([], 2, Contention(), 0.0),
        ([10, 10, 10], 1, Contention(), 30.0),
        ([10, 10, 10], 2, Contention(2, 1.6), 10 + 10 / 1.6),  # the last one runs alone
        ([10, 4], 2, Contention(2, 1.5), 4 + 6 / 1.5),
        ([10, 4], 8, Contention(2, 1.5), 4 + 6 / 1.5),
        ([12, 12, 12, 12, 6], 4, Contention(2, 1.5), 12 + 6 / 3),  # four take turns on two cores, the fifth is alone
        ([0.0, 5.0], 1, Contention(), 5.0),
    ],
)
def test_seconds_until_the_last_trial_ends(
    trials: list[float], slots: int, contention: Contention, expected: float
) -> None:
    assert wall_seconds(trials, slots, contention) == pytest.approx(expected)


def test_trials_are_measured_side_by_side(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process takes ten seconds, this one six when it is alone."""
    of = load_sweep(folder / "sweep.yaml", ["learners=[{name: online}]"])
    store = open_store(of)
    trials = list(make_plan(of, store.hash).trials)
    times = iter([10.0, 6.0])
    monkeypatch.setattr(cost, "measure", lambda *of: {trials[0].key: Cost(15, next(times), 1.0, 0, 0, 0)})
    started = []

    @contextmanager
    def another(*of: object) -> Iterator[Any]:
        started.append(of)
        yield SimpleNamespace(wait=int, start=id, result=lambda: {trials[0].key: Cost(15, 14.0, 1.0, 0, 0, 0)})

    monkeypatch.setattr(cost_process, "_process", another)
    monkeypatch.setattr(cost_process.os, "cpu_count", lambda: 3)
    costs, contention = estimate(of, trials, store, 6)
    assert len(started) == 2 and contention == Contention(3, (10 + 14 + 14) / 3 / 6)
    assert costs[trials[0].key].seconds == pytest.approx((10 + 14 + 14) / 3 * 2)  # six take turns on three cores


def test_another_process_measures_the_same_trials(folder: Path) -> None:
    of = load_sweep(folder / "sweep.yaml", ["learners=[{name: online}, {name: foml, alpha1: 1.0e+38}]"])
    store = open_store(of)
    trials = list(make_plan(of, store.hash).trials)
    with ANOTHER(of, trials, store) as other:
        counts = cost.count_gradients(of, trials, store)
        other.wait()
        other.start(counts)
        theirs, ours = other.result(), cost.measure(of, trials, store, counts)
    assert theirs is not None and [replace(each, seconds=0, memory=0) for each in theirs.values()] == [
        replace(each, seconds=0, memory=0) for each in ours.values()
    ]
    assert theirs[trials[0].key].memory > 50e6
    assert theirs[trials[0].key].seconds > 0 and "overflow" in theirs[trials[1].key].problem
    with ANOTHER(of, trials, store) as other:
        other.wait()
        other.start("no counts")  # it ends with an error
        assert other.result() is None


def test_gpus_limit_the_slots_as_in_a_run(folder: Path) -> None:
    words = ("resources.cpus=0.5", "resources.gpus=1")
    planned, of = forecast_of(folder, *words), load_sweep(folder / "sweep.yaml", words)
    here = Cluster(SLOTS, local_gpus(), SLOTS, local_gpus(), local=True)
    assert planned.slots == here.slots(of) == max(1, min(2 * SLOTS, local_gpus()))
    assert Cluster(8, 3, 8, 3, local=True).slots(of) == 3


def test_with_rerun_nothing_is_done_and_nothing_spent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = run_here(folder, "sweep.yaml", "--plan", "--rerun", "--json")
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before  # a forecast changes nothing
    content = json.loads(done.stdout)
    assert [(trial["state"], trial["batches_done"]) for trial in content["trials"]] == [("waiting", 0)] * 4
    assert content["to_run"] == 4 and content["spent"] == {"hours": 0.0, "money": 0.0}
    assert content["seconds"] == pytest.approx(sum(trial["seconds"] for trial in content["trials"]))


def test_with_rerun_the_draws_of_a_search_are_still_to_be_drawn(tmp_path: Path) -> None:
    learner, search = "[{name: online, alpha1: {loguniform: [1.0e-4, 1.0e-1]}}]", "{samples: 4, algorithm: optuna}"
    document = yaml.safe_load(TINY) | yaml.safe_load(f"{{learners: {learner}, search: {search}}}")
    of = load_sweep(folder_with(tmp_path, yaml.safe_dump(document)) / "sweep.yaml", [f"storage={tmp_path / 'results'}"])
    journal = Journal.look(tmp_path / "results/tiny", make_plan(of, open_store(of).hash))
    journal.take()
    journal.draw(journal.plan.studies[0].trial({"alpha1": 0.01}))
    assert [(row.state, row.count) for row in api.forecast(of).rows] == [("waiting", 1), ("to be drawn", 3)]
    assert [(row.state, row.count) for row in api.forecast(of, rerun=True).rows] == [("to be drawn", 4)]


def test_a_trial_whose_objective_raised_at_its_end_is_still_to_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only FOML has a distance. The sweep tries the other trial again, which was shown as finished here."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "meta_objective.py").write_text("def of(curves):\n    return curves.by_batch['distance'][:, -1]\n")
    words = "{learners: [{name: foml, K: 1}, {name: online}], objective: {function: meta_objective.of}}"
    folder = folder_with(tmp_path, yaml.safe_dump(yaml.safe_load(TINY) | yaml.safe_load(words)))
    compute(folder)
    assert [(row.batches_done, row.to_run) for row in forecast_of(folder).rows] == [(15, False), (15, True)]


def test_a_learner_that_raises_is_one_line_and_the_others_are_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learning rate too large for float32, one of the same kind that can be measured, and a user's own learner."""
    (tmp_path / "faulty").mkdir()
    (tmp_path / "faulty/learner.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["learners=[{name: online, alpha1: {grid: [1.0e+38, 0.001]}}, {name: faulty.learner}]", "storage=elsewhere"]
    done = run_here(folder, "sweep.yaml", "--plan", "--json", *words)
    content = json.loads(done.stdout)
    assert done.returncode == content["exit_code"] == 1
    huge, usual, own = content["trials"]
    overflow = "value cannot be converted to type float without overflow"
    for trial, reason in ((huge, overflow), (own, "a line before not as planned")):
        assert f"{trial['label']} ({trial['trial']}): cannot be measured: {reason}" in content["problems"]
        assert [trial[key] for key in ("seconds", "seconds_left", "disk_bytes")] == [None] * 3
        assert (trial["batches"], trial["state"]) == (15, "waiting")
    assert len(content["problems"]) == 2 and done.stderr.splitlines() == [
        f"problem: {one}" for one in content["problems"]
    ]
    assert content["seconds"] == usual["seconds"] > 0
    text = run_here(folder, "sweep.yaml", "--plan", *words)
    assert text.returncode == 1 and text.stderr == ""
    assert text.stdout.splitlines()[1].endswith("        ?        ?  cannot be measured")
    assert "3 trials, 3 to run: " in text.stdout and " without 2 that cannot be measured (" in text.stdout
    assert text.stdout.splitlines()[-2:] == [f"problem: {one}" for one in content["problems"]]


def test_trials_to_be_drawn_and_trials_that_were_stopped(tmp_path: Path) -> None:
    learner = "[{name: online, alpha1: {loguniform: [1.0e-4, 1.0e-1]}}]"
    search = "{samples: 4, algorithm: optuna, scheduler: asha}"
    document = yaml.safe_load(TINY) | yaml.safe_load(f"{{learners: {learner}, search: {search}}}")
    folder = folder_with(tmp_path, yaml.safe_dump(document))
    of = load_sweep(folder / "sweep.yaml", [f"storage={folder / 'results'}"])
    journal = Journal.look(folder / "results/tiny", make_plan(of, open_store(of).hash))
    journal.take()
    (study,) = journal.plan.studies
    for alpha in (0.01, 0.02):
        journal.draw(study.trial({"alpha1": alpha}))
    journal.stop(journal.plan.trials[0], 4, 0.9)
    planned = api.forecast(of)
    content = json.loads(planned.json)
    assert [trial["state"] for trial in content["trials"]] == ["stopped", "waiting", "to be drawn"]
    assert [trial["count"] for trial in content["trials"]] == [1, 1, 2]
    assert content["trials"][1]["parameters"]["alpha1"] == 0.02
    drawn = content["trials"][2]
    assert (drawn["trial"], drawn["configuration"], drawn["label"]) == (None, None, "online alpha1=?")
    assert drawn["drawn"] == {"alpha1": {"loguniform": [1e-4, 1e-1]}} and "alpha1" not in drawn["parameters"]
    assert (content["size"], content["to_run"]) == (4, 3)
    assert content["seconds"] == pytest.approx(3 * drawn["seconds"])
    assert "  stopped" in planned.text.splitlines()[1]
    again = api.forecast(load_sweep(folder / "sweep.yaml", [f"storage={folder / 'results'}", "search.scheduler=none"]))
    assert json.loads(again.json)["trials"][0]["state"] == "waiting"  # without a scheduler it continues


def test_the_command_prints_one_document_or_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert __main__.main(["sweep.yaml", "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["to_run"] == 3
    assert __main__.main(["sweep.yaml", "--plan", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("tiny: 4 trials, 3 to run: ") and printed.out.count("\n") == 1
    assert printed.err == ""
    assert __main__.main(["sweep.yaml", "--plan", "--json", "chunk=0"]) == 2
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    assert (content["exit_code"], content["sweep"]) == (2, None)
    assert content["problems"] == printed.err.splitlines() and "chunk: must be" in content["problems"][0]


def test_a_forecast_refuses_what_a_run_refuses(folder: Path) -> None:
    (folder / "a file").write_text("")
    for words, beginning in (
        (["storage=a file"], "storage: must be a folder that can be written or created (got a file); check "),
        (["tracking.uri=foo://x"], "tracking.uri: must begin with one of sqlite, postgresql, mysql, mssql, http, "),
        (["tracking.uri=file:///x"], "tracking.uri: must be a database or a server: "),
    ):
        done = run_here(folder, "sweep.yaml", "--plan", *words)
        (line,) = done.stderr.splitlines()
        assert (done.returncode, line.startswith(beginning), done.stdout) == (2, True, ""), line


def test_a_trial_larger_than_this_machine_is_planned_and_reported(folder: Path, planned: Forecast) -> None:
    assert planned.beyond == ()
    large = forecast_of(folder, f"resources.cpus={SLOTS + 1}", f"resources.gpus={local_gpus() + 1}")
    cpus, gpus = large.beyond
    assert f"resources.cpus: must be at most the {SLOTS} that this machine has (got {SLOTS + 1}.0)" in cpus
    assert f"resources.gpus: must be at most the {local_gpus()} that this machine has" in gpus
    assert f"\nnot on this machine: {cpus}\nnot on this machine: {gpus}" in large.text
    assert json.loads(large.json)["not_on_this_machine"] == [cpus, gpus] and large.exit_code == 0
    assert torch.get_num_threads() <= SLOTS
