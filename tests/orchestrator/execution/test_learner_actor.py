"""A learner actor claims its trial in its first step, and no result depends on the length of its chunks.

The tests of whole sweeps cover the rest.
"""

import os
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from learners import checkpoint
from orchestrator.errors import OrchestratorError
from orchestrator.execution import chunk_length, learner_actor
from orchestrator.execution.chunk_length import ChunkLength
from orchestrator.execution.learner_actor import LearnerActor
from orchestrator.execution.messages import ChunkResult, Refusal, TrialSpec, from_tune
from orchestrator.execution.nodes import NodeLeavingError
from orchestrator.plan.plan import Trial
from orchestrator.protocol import metrics, online
from orchestrator.protocol.objectives import ObjectiveMetric
from orchestrator.protocol.source import StoreSource
from orchestrator.search.population.segments import Segment, SegmentPlan
from orchestrator.storage import chunk_files
from orchestrator.tracking.points import Bounds, seed_points
from streams.build import cached
from streams.rainbow import RainbowDigits
from streams.schedule import Sequential
from streams.store.task_store import TaskStore
from tests.orchestrator.synthetic_sweep import configuration

SEEDS = (0, 1)
ACTOR_SOURCE = learner_actor.ActorSource


@pytest.mark.parametrize("address", [None, "file"])
def test_an_actor_without_a_step_claims_no_trial(tmp_path: Path, address: str | None) -> None:
    """Tune may start an actor for a trial and discard it: the actor that runs the trial must not lose its claim."""
    folder = tmp_path / "trial"
    attempt = chunk_files.claim(folder)
    files = sorted(folder.iterdir())
    trial, where = Trial(configuration("online"), (0, 1)), None if address is None else folder.as_uri()
    config = TrialSpec(trial, str(folder), "0" * 64, Sequential(), 4, "last", 1, 0, where).to_tune()
    actor = LearnerActor(config)
    assert actor.reset_config(config)
    actor.stop()
    assert sorted(folder.iterdir()) == files and len(files) == attempt == 1


def started(
    folder: Path,
    store: TaskStore,
    objective: ObjectiveMetric,
    monkeypatch: pytest.MonkeyPatch,
    start: Path | None = None,
) -> LearnerActor:
    """An actor in this process that reads from the store itself, with chunks of 4 batches and past tasks evaluated."""

    def open_stream(actor: LearnerActor) -> None:
        actor._gpu, actor._device, actor._store = False, torch.device("cpu"), store
        actor._source = StoreSource(store, [0, 1], Sequential())

    monkeypatch.setattr(LearnerActor, "_open_stream", open_stream)
    trial = Trial(replace(configuration("online"), evaluate_past=1), (0, 1))
    spec = TrialSpec(
        trial, str(folder), store.hash, Sequential(), 4, "last", 1, 0,
        objective=objective, start=None if start is None else str(start),
    )  # fmt: skip
    return LearnerActor(spec.to_tune())


class OwnError(Exception):
    """An error of a user's, which cannot be copied: its class takes other arguments than its text."""

    def __init__(self, unit: int, value: float) -> None:
        super().__init__(f"unit {unit} has {value}")


def test_an_error_that_cannot_be_copied_is_replaced_by_one_that_can(
    tmp_path: Path, store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial was reported as failed with "__init__() missing 1 required positional argument"."""
    actor = started(tmp_path / "trial", store, ObjectiveMetric(), monkeypatch)
    actor.step()

    def fail(batches: int) -> None:
        raise OwnError(3, 0.5)

    monkeypatch.setattr(actor._pack, "advance", fail)
    with pytest.raises(RuntimeError, match=r"^OwnError: unit 3 has 0\.5$") as caught:
        actor.train()  # as Tune calls it
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    actor.stop()


def test_an_actor_starts_from_a_checkpoint_and_refuses_one_that_does_not_fit(
    tmp_path: Path, store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seeds in (("fits", [0, 1]), ("other", [1, 2])):
        run = online.assemble(store, "online", {}, seeds)
        run.advance(2)
        checkpoint.save(tmp_path / f"{name}.pt", "online", run.learner, "rainbow", store.shape)
    expected = online.assemble(store, "online", {"alpha1": 0.001}, [0, 1], start=tmp_path / "fits.pt")
    expected.advance(4)
    actor = started(tmp_path / "trial", store, ObjectiveMetric(), monkeypatch, tmp_path / "fits.pt")
    result = from_tune(actor.step())[0]
    assert isinstance(result, ChunkResult)
    assert np.array_equal(result.curves.by_batch["online_loss"], expected.curves.by_batch["online_loss"])
    actor.stop()
    actor = started(tmp_path / "another", store, ObjectiveMetric(), monkeypatch, tmp_path / "other.pt")
    assert from_tune(actor.step())[0] == Refusal(
        "must have one seed, or every seed of the sweep: [0] are not among [1, 2]"
    )
    actor.stop()


def test_an_actor_ends_after_its_chunk_once_the_cloud_takes_its_node(
    tmp_path: Path, store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunk is kept, and an actor that starts there claims no trial."""
    monkeypatch.setenv("HOME", str(tmp_path))
    actor = started(tmp_path / "trial", store, ObjectiveMetric(), monkeypatch)
    assert isinstance(from_tune(actor.step())[0], ChunkResult)
    (tmp_path / "foml-leaving").touch()
    for one in (actor, started(tmp_path / "trial", store, ObjectiveMetric(), monkeypatch)):
        with pytest.raises(NodeLeavingError):
            one.step()
        one.stop()
    chunk = chunk_files.newest(tmp_path / "trial")
    assert chunk is not None and chunk.batches == 4
    assert len(list((tmp_path / "trial").glob("attempt-*"))) == 1


def test_an_actor_reports_the_objective_of_the_sweep_with_the_standard_ones(
    tmp_path: Path, store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = started(tmp_path / "trial", store, ObjectiveMetric("average_accuracy", "max"), monkeypatch)
    first, second = (from_tune(actor.step())[0] for _ in range(2))
    assert isinstance(first, ChunkResult) and isinstance(second, ChunkResult) and second.finished
    assert set(first.objectives) == {"online_error", "validation_error", "cumulative_error"}, "one task has ended"
    chunk = chunk_files.newest(tmp_path / "trial")
    assert chunk is not None
    expected = metrics.past_curves(chunk.curves)["average_accuracy"][:, 2]
    assert np.array_equal(second.objectives["average_accuracy"], expected)
    assert second.objective("average_accuracy") == expected.mean()
    actor.stop()


def test_a_trial_whose_objective_fails_is_refused_and_not_tried_again(
    tmp_path: Path, store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_score.py").write_text("def score(curves): return curves.by_batch['theta']")
    monkeypatch.syspath_prepend(str(tmp_path))
    objective = ObjectiveMetric(None, function="bad_score.score")
    actor = started(tmp_path / "trial", store, objective, monkeypatch)
    assert from_tune(actor.step())[0] == Refusal("objective.function: bad_score.score raised KeyError: 'theta'")
    actor.stop()


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrialSpec:
    """A trial whose actor reads the store itself, without Ray."""
    store = TaskStore.open(cached(RainbowDigits(tasks=3, train=100, validation=12, test=12), list(SEEDS)).path)
    actor = SimpleNamespace(path=SimpleNamespace(remote=lambda: str(store.path)))
    monkeypatch.setattr(learner_actor, "node_stream_actor", lambda _: actor)
    monkeypatch.setattr(learner_actor, "ray", SimpleNamespace(get=lambda value: value))
    monkeypatch.setattr(learner_actor, "ActorSource", lambda _, seeds, order: StoreSource(store, seeds, order))
    of = replace(configuration("foml"), options={"K": 2})
    return TrialSpec(Trial(of, SEEDS), str(tmp_path / "trial"), store.hash, Sequential(), "auto", "last", 1, 0)


def steps(spec: TrialSpec, most: int = 1_000) -> list[int]:
    """Run an actor; returns the batches of each chunk."""
    actor, lengths = LearnerActor(spec.to_tune()), []
    for _ in range(most):
        result = actor.step()
        chunk: Any = from_tune(result)[0]
        lengths.append(chunk.curves.batches - chunk.curves.first_batch)
        if result["done"]:
            break
    return lengths


def outcome(spec: TrialSpec) -> chunk_files.Chunk:
    chunk = chunk_files.newest(Path(spec.folder))
    assert chunk is not None and chunk.finished
    return chunk


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for key in value for part in (key, *flat(value[key]))]
    return [part for each in value for part in flat(each)] if isinstance(value, list | tuple) else [value]


def assert_same(one: chunk_files.Chunk, other: chunk_files.Chunk) -> None:
    """States, curves and points in MLflow are equal, bit for bit."""
    for mine, others in zip(flat(one.state), flat(other.state), strict=True):
        np.testing.assert_equal(*(part.numpy() if isinstance(part, torch.Tensor) else part for part in (mine, others)))
    assert one.curves.by_batch.keys() == other.curves.by_batch.keys()
    for section in ("by_batch", "evaluations"):
        for name, array in getattr(one.curves, section).items():
            np.testing.assert_array_equal(array, getattr(other.curves, section)[name])
    for row in range(len(SEEDS)):
        mine, others = (
            sorted(point[:3] for point in seed_points(chunk.curves, 0, Bounds(7, 2))[row]) for chunk in (one, other)
        )
        np.testing.assert_equal(mine, others)


def test_results_do_not_depend_on_the_chunks(spec: TrialSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_length, "SECONDS", 0.05)
    of = {chunk: replace(spec, chunk=chunk, folder=str(tmp_path / str(chunk))) for chunk in (1, 7, "auto")}
    lengths = {chunk: steps(each) for chunk, each in of.items()}
    assert lengths[1] == [1] * 30 and lengths[7] == [7, 7, 7, 7, 2]
    assert lengths["auto"][0] == 1 and sum(lengths["auto"]) == 30
    first = outcome(of[1])
    for chunk in (7, "auto"):
        assert_same(first, outcome(of[chunk]))


@pytest.mark.parametrize("damage", ["none", "torn", "record"])
def test_an_actor_that_takes_over_continues_bit_for_bit(spec: TrialSpec, tmp_path: Path, damage: str) -> None:
    """Also where the log has lost its end, and with chunks of another length."""
    whole = replace(spec, chunk=9, folder=str(tmp_path / "whole"))
    steps(whole)
    assert steps(replace(spec, chunk=4), most=3) == [4, 4, 4]
    log = Path(spec.folder) / "curves-0001-0000.log"
    if damage == "torn":
        os.truncate(log, log.stat().st_size - 10)
    if damage == "record":  # killed after the log, and before the chunk file
        (Path(spec.folder) / "chunk-00000012-0001.pt").unlink()
    lost = 0 if damage == "none" else 4
    assert sum(steps(replace(spec, chunk=5))) == 30 - 12 + lost
    assert_same(outcome(whole), outcome(spec))
    assert [name for name, *_ in outcome(spec).extents] == ["curves-0001-0000.log", "curves-0002-0000.log"]


def test_a_chunk_ends_where_the_scheduler_judges(spec: TrialSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_length, "SECONDS", 1e6)
    assert steps(replace(spec, rungs=(3, 9))) == [1, 2, 6, 21]


def test_a_chunk_lasts_about_ten_seconds() -> None:
    length, at, done = ChunkLength("auto"), 0.0, []
    for pace in [0.5, *[0.01] * 5, *[0.02] * 3, *[50.0] * 2]:  # seconds of a batch
        done.append(length.batches)
        at = pace * length.batches
        length.measured(length.batches, at)
    assert done == [1, 8, 64, 512, 1000, 1000, 1000, 500, 500, 500, 1]
    assert length.batches == 1, "a batch that takes longer than a chunk"
    fixed = ChunkLength(40)
    fixed.measured(40, 100.0)
    assert fixed.batches == 40


def test_what_was_fetched_ahead_is_read_in_chunks_of_any_length(spec: TrialSpec) -> None:
    store = TaskStore.open(cached(RainbowDigits(tasks=3, train=100, validation=12, test=12), list(SEEDS)).path)
    stream, reads = StoreSource(store, list(SEEDS), Sequential()), []

    def read(seeds: list[int], order: Any, start: int, count: int) -> Any:
        reads.append((start, count))
        return stream.read(start, count)

    remote = {"read": read, "shape": lambda *_: stream.shape(), "held_out": lambda _, __, *of: stream.held_out(*of)}
    actor = SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in remote.items()})
    source = ACTOR_SOURCE(actor, list(SEEDS), Sequential())
    at = 0
    for count in (10, 10, 80, 80, 50, 50, 50):
        expected, got = stream.read(at, count), source.read(at, count)
        np.testing.assert_array_equal(got.image_ids, expected.image_ids)
        np.testing.assert_array_equal(got.labels, expected.labels)
        at += got.labels.shape[1]
    assert at == 300
    assert reads == [
        (0, 10), (10, 10), (20, 10), (20, 80), (100, 80), (180, 80), (230, 50), (280, 50)
    ]  # fmt: skip


def test_a_pack_writes_the_files_of_its_trials_which_resume_alone(spec: TrialSpec, tmp_path: Path) -> None:
    """States, curves and checkpoints of each; one diverges, one is refused, and the pack's actor is replaced."""
    options = [{"K": 2, "alpha1": rate} for rate in (0.001, 1e30, 0.003)]
    configurations = [replace(configuration("foml"), options=each) for each in options]

    def specs(root: str, chunk: int) -> list[TrialSpec]:
        trials = [Trial(each, SEEDS) for each in configurations]
        return [replace(spec, trial=each, folder=str(tmp_path / root / each.key), chunk=chunk) for each in trials]

    alone, packed = specs("alone", 9), specs("packed", 4)
    for each in alone:
        assert steps(each) == [9, 9, 9, 3]
    assert steps(replace(packed[0], others=tuple(packed[1:])), most=2) == [4, 4]  # killed here
    assert steps(replace(packed[2], chunk=30)) == [22]
    actor = LearnerActor(replace(packed[1], others=(packed[0],)).to_tune())  # packed in another way
    first = from_tune(actor.step())
    assert [chunk.batches for chunk in first if isinstance(chunk, ChunkResult)] == [12, 12]
    assert steps(replace(packed[1], others=(packed[0],))) == [4, 4, 4, 4, 2]
    for mine, others in zip(packed, alone, strict=True):
        assert_same(outcome(mine), outcome(others))
        learner, other = (checkpoint.load(Path(each.folder) / "learner.pt") for each in (mine, others))
        assert learner.options == other.options and list(learner.setting.seeds) == list(SEEDS)
        tensors = [
            [part for part in flat(each.state_dict()) if isinstance(part, torch.Tensor)] for each in (learner, other)
        ]
        for one, two in zip(*tensors, strict=True):
            np.testing.assert_array_equal(one.numpy(), two.numpy())
    assert [max(outcome(each).curves.diverged) >= 0 for each in packed] == [False, True, False]
    with pytest.raises(OrchestratorError, match="a trial of the pack has no chunk file"):
        LearnerActor(replace(packed[0], others=(replace(packed[1], folder=str(tmp_path / "new")),)).to_tune()).step()


@pytest.mark.parametrize("K", [1, 2])
def test_a_population_in_packs_equals_its_members_alone(spec: TrialSpec, tmp_path: Path, K: int) -> None:
    """States, curves and fitness; killed in the middle of a generation, packed in other ways; one member diverges."""
    rates = (0.001, 0.0012, 1e30, 0.003)
    configurations = [replace(configuration("foml"), options={"K": K, "alpha1": rate}) for rate in rates]
    keys = [each.key for each in (Trial(each, SEEDS) for each in configurations)]
    copies = {8: {keys[2]: (keys[3], 0.0024)}, 19: {keys[0]: (keys[2], 0.002), keys[3]: (keys[1], 0.0015)}}

    def specs(root: str, stop: int) -> list[TrialSpec]:
        """What the driver sends for the generation that ends at batch `stop`."""
        plans = []
        for key, rate in zip(keys, rates, strict=True):
            segments = [Segment(0, {"alpha1": rate}, "", {"hyper/alpha1": rate})]
            for at in (at for at in copies if at < stop):
                parent, value = copies[at].get(key, ("", segments[-1].values["alpha1"]))
                marks = {"hyper/alpha1": value} | ({"hyper/copied_from": 1.0 + keys.index(parent)} if parent else {})
                segments.append(Segment(at, {"alpha1": value}, parent, marks))
            plans.append(SegmentPlan(tuple(segments), stop, "online_error"))
        return [
            replace(spec, trial=Trial(of, SEEDS), folder=str(tmp_path / root / key), segments=plan, chunk=4)
            for of, key, plan in zip(configurations, keys, plans, strict=True)
        ]

    def train(lots: list[list[TrialSpec]], most: int = 1_000) -> dict[str, float | None]:
        """Train each lot in one actor; returns the fitness of each member that pauses."""
        fitness = {}
        for first, *others in lots:
            actor = LearnerActor(replace(first, others=tuple(others)).to_tune())
            for _ in range(most):
                result = actor.step()
                if result["done"]:
                    break
            for each, part in zip((first, *others), from_tune(result), strict=True):
                assert isinstance(part, ChunkResult)
                fitness[each.trial.key] = part.fitness
        return fitness

    for stop in (8, 19, 30):
        alone, packed = specs("alone", stop), specs("packed", stop)
        expected = train([[each] for each in alone])
        copied = copies.get({19: 8, 30: 19}.get(stop, -1), {})
        # With K > 1 a member that has copied another has an empty window.
        lots = [packed] if K == 1 else [[p for p in packed if (p.trial.key in copied) == it] for it in (True, False)]
        lots = [lot[::-1] for lot in lots if lot]
        train(lots, most=1)  # killed here
        halves = [half for lot in lots for half in (lot[:1], lot[1:]) if half]
        np.testing.assert_equal(train(halves), expected)
        assert (expected[keys[2]] is not None and np.isnan(expected[keys[2]])) == (stop == 8)
    for mine, others in zip(specs("packed", 30), specs("alone", 30), strict=True):
        assert_same(outcome(mine), outcome(others))
        one, two = (checkpoint.load(Path(each.folder) / "learner.pt").options for each in (mine, others))
        assert one == two
    curves = [outcome(each).curves for each in specs("packed", 30)]
    assert ["hyper/copied_from" in each.by_batch for each in curves] == [True, False, True, True]
    assert np.flatnonzero(curves[0].by_batch["hyper/copied_from"][1] == 3).tolist() == [19]
    assert [batch >= 0 for batch in curves[2].diverged] == [True, True] and curves[1].diverged == [-1, -1]
