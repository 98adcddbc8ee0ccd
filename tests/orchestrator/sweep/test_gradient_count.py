"""The gradients that `--plan` prints, against those of a whole run."""

from pathlib import Path
from typing import Any

import pytest

import learners
from orchestrator.protocol import online
from orchestrator.sweep import gradient_count
from streams import recipes
from streams.build import build
from streams.schedule import Gradual, HeldBack, Schedule, Sequential
from streams.store.task_store import TaskStore

SMALL = {"updates_per_task": 6, "inner_steps": 2, "support": 4, "query": 4, "K": 3, "update_batch": 4, "memory": 30}
BATCH = 5


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    """Eight tasks of 20 digits."""
    recipe = recipes()["rainbow_digits"](tasks=8, train=20, validation=2, test=2)  # type: ignore[call-arg]
    return build(recipe, list(range(8)), Path(tmp_path_factory.mktemp("store")) / "digits")


def options(name: str, **changes: Any) -> dict[str, Any]:
    known = learners.learner_class(name).options_class.__dataclass_fields__
    chosen = SMALL | {"window": 12, "hypotheses": 4} | changes
    return {key: chosen.get(key, field.default) for key, field in known.items()}


def executed(store: TaskStore, name: str, seeds: int, schedule: Schedule, **changes: Any) -> int:
    run = online.assemble(store, name, options(name, **changes), list(range(seeds)), BATCH, schedule=schedule)
    while not run.finished:
        run.advance(10)
    return int(run.curves.chunks["gradient_evaluations"].sum())


def planned(store: TaskStore, name: str, schedule: Schedule, **changes: Any) -> gradient_count.GradientCount:
    return gradient_count.count(store, name, options(name, **changes), 0, BATCH, schedule)


@pytest.fixture
def two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only two tasks are counted; the other six are extrapolated."""
    monkeypatch.setattr(gradient_count, "SECONDS", 0.0)


@pytest.mark.parametrize("name", learners.names())
def test_gradients_from_two_tasks_are_those_of_the_whole_stream(long: TaskStore, name: str, two_tasks: None) -> None:
    """Exactly: in each of these learners a task costs what the one before cost, once its windows are full."""
    result = planned(long, name, Sequential())
    assert result.total == pytest.approx(executed(long, name, 1, Sequential()), rel=1e-12)
    assert (result.ends > 0) == (name in ("ewc", "ftl", "ftml"))


@pytest.mark.parametrize("name", ["ftml", "foml"])
def test_eight_seeds_take_per_datapoint_what_one_takes(long: TaskStore, name: str) -> None:
    assert planned(long, name, Sequential()).total == executed(long, name, 8, Sequential())


@pytest.mark.parametrize("name", ["toe", "ftl"])
def test_updates_that_grow_with_the_stream_are_extrapolated(long: TaskStore, name: str, two_tasks: None) -> None:
    """From 6 updates a task to 6 + 4·7: within 5 % (the rate is measured at five places)."""
    growth = {"growth": 4, "growth_every": 20}
    flat, grown = (planned(long, name, Sequential(), **more).total for more in ({"growth": 0}, growth))
    assert grown > 1.5 * flat
    assert grown == pytest.approx(executed(long, name, 1, Sequential(), **growth), rel=0.05)


@pytest.mark.parametrize("name", ["foml", "toe", "moca"])
def test_without_boundaries_nominal_tasks_are_counted(long: TaskStore, name: str, two_tasks: None) -> None:
    schedule = Gradual(window=10)
    assert planned(long, name, schedule).total == pytest.approx(executed(long, name, 1, schedule), rel=1e-12)


@pytest.mark.parametrize("passes", [1, 4])
def test_pretraining_is_counted_from_a_few_batches(long: TaskStore, passes: int, two_tasks: None) -> None:
    schedule, changes = HeldBack(Sequential(), 6), {"pretrain_tasks": 6, "pretrain_passes": passes}
    result = planned(long, "moca", schedule, **changes)
    # 24 batches a pass; the window of 12 holds 5 and 10 points in the first two.
    assert result.pretraining == 5 + 10 + 12 * (24 * passes - 2)
    assert (result.updates, result.ends) == (0, 0)
    assert result.total == executed(long, "moca", 1, schedule, **changes)


def test_a_task_that_takes_too_long_is_ended_early(long: TaskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of each task is counted: of 6 updates in 4 batches, 1 in the first. So are the meta-updates."""
    monkeypatch.setattr(gradient_count, "SECONDS", 0.0)
    monkeypatch.setattr(gradient_count, "MOST_SECONDS", 0.0)
    result = planned(long, "ftml", Sequential(), updates_per_task=8)  # two each batch
    assert result.total == executed(long, "ftml", 1, Sequential(), updates_per_task=8)


def test_warm_up_is_until_windows_are_full() -> None:
    assert gradient_count.warm_up({}, 10) == 2
    assert gradient_count.warm_up({"K": 5}, 10) == 7
    assert gradient_count.warm_up({"window": 101}, 10) == 13
