"""The cost of a sweep and its budget: sums by hand, then the command on a tiny sweep."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.config.load import check_sweep, load_sweep
from orchestrator.config.schema import Budget, Price
from orchestrator.errors import ConfigError
from orchestrator.plan.expand import make_plan
from orchestrator.plan.task_store import open_store
from orchestrator.protocol.curves import Curves
from orchestrator.search.ledger import Ledger, Rates, seconds_on_disk
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from orchestrator.sweep.forecast import forecast
from tests.orchestrator.sweep_command import folder_with, run, run_here, statuses, trials, uri

SWEEP = """
name: tiny
stream: {name: rainbow_digits, tasks: 2, train: 20, validation: 10, test: 10}
learners: [{name: online, alpha1: {grid: [0.01, 0.02, 0.03, 0.04, 0.05]}}]
seeds: 1
chunk: 2
price: {cpu_hour: 3600}
budget: {money: 0.01}
report: false
"""

DOCUMENT = {"name": "s", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 1}


def test_hours_are_gpu_hours_if_trials_have_gpus() -> None:
    assert Rates(cpus=4, gpus=0.25).hours(7200) == 0.5
    assert Rates(cpus=4, gpus=0).hours(1800) == 2
    assert Rates(cpus=4, gpus=0.25).money(7200) is None
    price = Price(gpu_hour=2, cpu_hour=0.125)
    assert Rates(4, 0.25, price).money(7200) == 2 * (0.25 * 2 + 4 * 0.125)
    assert Rates(4, 0, price).text(1800) == "2 CPU-hours, 0.25 USD"


def test_a_ledger_counts_each_trial_once_and_knows_when_the_budget_is_reached() -> None:
    ledger = Ledger(Rates(1, 0), Budget(hours=0.5), {"before": 600.0})
    assert ledger.record("a", 100.0) is False
    assert ledger.record("a", 1100.0) is False  # the total of the trial, not an increment
    assert (ledger.total, ledger.exhausted) == (1700.0, False)
    assert ledger.record("b", 100.0) is True
    assert ledger.record("b", 150.0) is False  # true once
    assert ledger.exhausted
    assert ledger.text() == "0.514 CPU-hours spent of 0.5 CPU-hours"
    assert ledger.overrides() == "budget.hours=…"


def test_either_limit_exhausts_the_budget() -> None:
    price = Price(gpu_hour=3600, currency="EUR")
    money = Ledger(Rates(1, 1, price), Budget(hours=1, money=10), {"a": 9.0})
    assert not money.exhausted
    assert money.record("a", 10.0)
    assert money.text() == "0.00278 GPU-hours, 10.00 EUR spent of 1 GPU-hours or 10.00 EUR"
    assert not Ledger(Rates(1, 1, price), None, {"a": 1e9}).exhausted


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"budget": {}}, "s: budget: must have hours, money or both"),
        ({"budget": {"money": 5}}, "s: budget.money: needs a price (got 5.0); give price.cpu_hour"),
        (
            {"budget": {"money": 5}, "resources": {"gpus": 1}},
            "s: budget.money: needs a price (got 5.0); give price.gpu_hour",
        ),
        ({"budget": {"hours": 0}}, "s: budget.hours: must be greater than 0 (got 0)"),
        ({"budget": {"hour": 1}}, "s: budget.hour: unknown key (got 1); did you mean hours?"),
        (
            {"price": {"gpu_hour": 1.2}},
            "s: price.cpu_hour: must be given where resources.gpus is 0 (got 0); or set resources.gpus",
        ),
    ],
)
def test_invalid_prices_and_budgets_are_refused(change: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sweep(DOCUMENT | change, "s")
    assert caught.value.faults == (line,)


def test_a_folder_that_is_deleted_during_the_count_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Tune's folder beside the trials is deleted between its listing and the look into it."""
    curves = Curves(
        [0], 0, {"x": np.zeros((1, 4))}, {}, {"batches": np.array([2, 4]), "seconds": np.array([0.5, 0.25])}
    )
    chunk_files.write(tmp_path / "trial", chunk_files.claim(tmp_path / "trial"), {}, curves, finished=True)
    temporary = tmp_path / "tune-x"
    temporary.mkdir()
    scandir = os.scandir

    def after_deletion(path: Any = ".") -> Any:
        if Path(path) == temporary and temporary.exists():
            temporary.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", after_deletion)
    assert seconds_on_disk(tmp_path) == {"trial": 0.75}
    assert not temporary.exists()
    assert seconds_on_disk(tmp_path / "nowhere") == {}


def test_a_sweep_starts_no_more_trials_at_its_budget_and_resumes_with_a_greater_one(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, SWEEP)
    rates = Rates(1, 0, Price(cpu_hour=3600))  # one unit of money per second and CPU
    first = run(folder, "sweep.yaml", f"tracking.uri={uri(folder)}", slots=2)
    assert first.returncode == 4, first.stdout + first.stderr
    started = trials(folder, "tiny")
    assert 1 <= len(started) < 5  # those that ran when the budget was reached
    spent = seconds_on_disk(folder / "results/tiny")
    assert set(spent) == {path.name for path in started}
    text = f"{rates.text(sum(spent.values()))} spent of 0.01 USD"
    assert f"spent: {text}" in first.stdout
    message = f"budget reached, {5 - len(started)} trials? not ended: resume with: python -m orchestrator.sweep"
    assert re.search(rf"{message} --resume tiny budget\.money=…", first.stdout)
    assert "no further trial is started" in first.stderr
    assert set(statuses(folder)) == {"FINISHED"}  # the running trials were completed

    sweep = load_sweep(folder / "sweep.yaml", [f"storage={folder}/results"])
    store = open_store(sweep)
    plan = forecast(sweep, Journal.look(folder / "results/tiny", make_plan(sweep, store.hash)), store).text
    assert f"budget: {text}" in plan
    assert re.search(r"cost: about \S+ CPU-hours, \d+\.\d\d USD", plan)
    again = run_here(folder, "--resume", "tiny")
    assert again.returncode == 4, again.stderr
    assert "budget reached, none is started" in again.stderr
    assert seconds_on_disk(folder / "results/tiny") == spent

    last = run(folder, "--resume", "tiny", "budget.money=1000")
    assert last.returncode == 0, last.stdout + last.stderr
    assert len(trials(folder, "tiny")) == 5
    total = seconds_on_disk(folder / "results/tiny")
    assert {key: total[key] for key in spent} == spent  # nothing was run again
    assert f"{rates.text(sum(total.values()))} spent of 1000.00 USD" in last.stdout
