"""Packs: the curves and states of several configurations in one stack are those of each alone, bit for bit."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import learners
from learners import checkpoint, registry
from orchestrator.protocol import online, packs
from orchestrator.protocol.curves import Curves
from streams.schedule import HeldBack, Markov, Sequential
from streams.store.task_store import TaskStore

SEEDS = [0, 2]
FEW = {"updates_per_task": 4, "K": 2}


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for key in value for part in (key, *flat(value[key]))]
    return [part for each in value for part in flat(each)] if isinstance(value, list | tuple) else [value]


def assert_same_state(one: Any, other: Any) -> None:
    for mine, others in zip(flat(one), flat(other), strict=True):
        if isinstance(mine, torch.Tensor):
            np.testing.assert_array_equal(mine.numpy(), others.numpy())
        else:
            assert mine == others


def assert_same_curves(one: Curves, other: Curves) -> None:
    """All but the time and the memory of chunks."""
    assert (one.seeds, one.diverged, one.first_batch) == (other.seeds, other.diverged, other.first_batch)
    assert (one.total_batches, one.total_tasks) == (other.total_batches, other.total_tasks)
    for section in ("by_batch", "evaluations", "past"):
        mine, others = getattr(one, section), getattr(other, section)
        assert mine.keys() == others.keys()
        for name, array in mine.items():
            np.testing.assert_array_equal(array, others[name], err_msg=name)
    assert sum(one.chunks["gradient_evaluations"]) == sum(other.chunks["gradient_evaluations"])


@pytest.mark.parametrize("name", [name for name in learners.names() if registry.learner_class(name).changeable])
def test_a_pack_equals_each_configuration_alone_before_and_after_it_is_packed_again(
    store: TaskStore, name: str, tmp_path: Path
) -> None:
    kind = registry.learner_class(name)
    base = {field.name: FEW[field.name] for field in dataclasses.fields(kind.options_class) if field.name in FEW}
    default = kind.options_class()
    options = [base | {key: factor * getattr(default, key) for key in kind.changeable} for factor in (0.5, 1)]
    alone = [online.assemble(store, name, each, SEEDS, evaluate_past=2) for each in options]
    first = packs.assemble(store, name, options, SEEDS, evaluate_past=2)
    halves = [first.advance(3), first.advance(1)]
    states, curves = [], []
    for member, run in enumerate(alone):
        run.advance(4)
        assert_same_state(first.state_dict(member), run.state_dict())
        assert_same_curves(first.curves[member], run.curves)
        assert [part[member].batches for part in halves] == [3, 4]
        states.append(run.state_dict())
        curves.append(dataclasses.replace(run.curves))
    again = packs.assemble(store, name, options[::-1], SEEDS, evaluate_past=2)
    again.load_state_dicts(states[::-1], curves[::-1])
    while not again.finished:
        again.advance(3)
    for member, run in enumerate(alone[::-1]):
        run.advance(1_000)
        assert run.finished
        assert_same_state(again.state_dict(member), run.state_dict())
        assert_same_curves(again.curves[member], run.curves)
    files = [tmp_path / "packed.pt", tmp_path / "alone.pt"]
    for path, learner in zip(files, (again.learner(1), alone[0].learner), strict=True):
        checkpoint.save(path, name, learner, "rainbow", store.shape)
    contents = [torch.load(path, weights_only=True) for path in files]
    assert_same_state(*contents)
    assert files[0].stat().st_size == pytest.approx(files[1].stat().st_size, rel=0.01)


def test_a_configuration_that_diverges_harms_no_other(store: TaskStore) -> None:
    options = [{"alpha1": 0.001}, {"alpha1": 1e30}, {"alpha1": 0.002}]
    pack = packs.assemble(store, "online", options, SEEDS)
    seconds = sum(float(part.chunks["seconds"].sum()) for part in pack.advance(1_000))
    assert seconds == pytest.approx(3 * float(pack.curves[0].chunks["seconds"][0]))
    for member, each in enumerate(options):
        run = online.assemble(store, "online", each, SEEDS)
        run.advance(1_000)
        assert_same_curves(pack.curves[member], run.curves)
        assert (max(run.curves.diverged) >= 0) == (member == 1)
    assert math.isnan(pack.curves[1].by_batch["online_loss"][0, -1])
    assert np.isfinite(pack.curves[2].by_batch["online_loss"]).all()


def test_each_configuration_of_a_pack_pretrains_with_its_own_rate(store: TaskStore) -> None:
    schedule = HeldBack(Sequential(), 1)
    options = [{"alpha": rate, "pretrain_tasks": 1, "pretrain_passes": 1} for rate in (0.001, 0.01)]
    pack = packs.assemble(store, "moca", options, SEEDS, schedule=schedule)
    pack.advance(2)
    states = []
    for member, each in enumerate(options):
        run = online.assemble(store, "moca", each, SEEDS, schedule=schedule)
        run.advance(2)
        assert_same_state(pack.state_dict(member), run.state_dict())
        assert_same_curves(pack.curves[member], run.curves)
        states.append(run.state_dict()["learner"]["parameters"])
    assert not torch.equal(*states)


def test_seeds_that_leave_their_tasks_at_different_batches_have_their_own_rows(store: TaskStore) -> None:
    schedule, options = Markov(hazard=0.05), [{"alpha1": 0.001}, {"alpha1": 0.01}]
    pack = packs.assemble(store, "online", options, [0, 1, 2], schedule=schedule, evaluate_past=2)
    pack.advance(1_000)
    for member, each in enumerate(options):
        run = online.assemble(store, "online", each, [0, 1, 2], schedule=schedule, evaluate_past=2)
        run.advance(1_000)
        assert_same_curves(pack.curves[member], run.curves)


def test_what_is_no_pack_is_refused_in_one_line(store: TaskStore) -> None:
    with pytest.raises(ValueError, match=r"^K must be equal in all configurations of a stack \(these may differ: al"):
        packs.assemble(store, "foml", [{"K": 1}, {"K": 2}], SEEDS)
    runs = [online.assemble(store, "online", {}, SEEDS) for _ in range(2)]
    runs[0].advance(1)
    pack = packs.assemble(store, "online", [{}, {}], SEEDS)
    with pytest.raises(ValueError, match=r"^the trials of a pack must be at the same datapoint .* \(got \[10, 0\]\)$"):
        pack.load_state_dicts([run.state_dict() for run in runs], [run.curves for run in runs])
