"""The online protocol: what is scored when, what a learner receives, and that a resumed run equals an uninterrupted one."""

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import learners
from learners import registry
from learners.networks import build
from orchestrator.errors import OrchestratorError
from orchestrator.protocol import metrics, packs
from orchestrator.protocol import online as protocol
from orchestrator.protocol.source import StoreSource
from orchestrator.storage import chunk_files
from orchestrator.tracking.points import seed_points
from streams.schedule import HeldBack, Markov, Sequential
from streams.store.task_store import TaskStore
from streams.stream import Stream

SEEDS = [0, 1, 2]


def test_past_tasks_are_evaluated_again_and_nothing_else_changes(store: TaskStore) -> None:
    plain = protocol.assemble(store, "online", {}, SEEDS)
    plain.advance(1_000)
    assert plain.curves.past == {}
    run = protocol.assemble(store, "online", {}, SEEDS, evaluate_past=1)
    while not run.finished:
        run.advance(3)
    for name, curve in plain.curves.by_batch.items():
        assert np.array_equal(run.curves.by_batch[name], curve, equal_nan=True)
    matrix = metrics.accuracies(run.curves)
    assert np.isfinite(matrix[:, *np.tril_indices(3)]).all() and np.isnan(matrix[:, *np.triu_indices(3, 1)]).all()
    # The learner at the end of the stream, on the first two tasks.
    source, images = StoreSource(store, SEEDS, Sequential()), protocol.image_table(store, "cpu", torch.float32)
    for task in (0, 1):
        numbers = [of_seed[task][1] for of_seed in source.shape().ends]
        points = source.held_out(numbers, "validation")
        ids, labels = (np.stack([getattr(each, name) for each in points]) for name in ("image_ids", "labels"))
        predictions = plain.learner.predict(images.gather(torch.from_numpy(ids))).argmax(-1).numpy()
        np.testing.assert_allclose(matrix[:, 2, task], (predictions == labels).mean(1), atol=1e-12)


@pytest.mark.parametrize(("every", "after"), [("end", [2, 2]), (2, [1, 2, 2]), (3, [2, 2]), (1, [1, 2, 2])])
def test_past_tasks_are_evaluated_every_n_tasks_and_at_the_end(
    store: TaskStore, every: int | str, after: list[int]
) -> None:
    run = protocol.assemble(store, "online", {}, [0], evaluate_past=every)
    run.advance(1_000)
    assert run.curves.past["after"].tolist() == after
    assert run.curves.past["task"].tolist() == [0, 0, 1][-len(after) :]


def test_seeds_that_leave_their_tasks_at_different_batches_evaluate_their_own_past(store: TaskStore) -> None:
    """Each seed has the rows that it has alone."""
    schedule = Markov(hazard=0.05)
    together = protocol.assemble(store, "online", {}, SEEDS, schedule=schedule, evaluate_past=2)
    together.advance(1_000)
    for row, seed in enumerate(SEEDS):
        alone = protocol.assemble(store, "online", {}, [seed], schedule=schedule, evaluate_past=2)
        alone.advance(1_000)
        mine = together.curves.past["seed"] == row
        assert len(alone.curves.past["after"]) == mine.sum() > 0
        for name in ("after", "task", "batch", "error"):
            np.testing.assert_allclose(together.curves.past[name][mine], alone.curves.past[name])


def test_the_updates_of_a_seed_do_not_depend_on_the_other_seeds(store: TaskStore) -> None:
    """Seeds visit unequally many tasks on a Markov stream; the updates per batch follow from the expected number."""
    schedule = Markov(hazard=0.1)
    assert len({len(ends) for ends in StoreSource(store, SEEDS, schedule).shape().ends}) > 1
    runs = [
        protocol.assemble(store, "toe", {"updates_per_task": 7}, seeds, batch_size=2, schedule=schedule)
        for seeds in (SEEDS, *([seed] for seed in SEEDS))
    ]
    assert {run.learner.setting.batches_per_task for run in runs} == {5}  # 75 datapoints, 1 + round(7.4) visits
    together, *each = [run.advance(1_000) for run in runs]
    for row, alone in enumerate(each):
        for name in ("online_error", "online_loss"):
            np.testing.assert_array_equal(together.by_batch[name][row], alone.by_batch[name][0])


class Recorder(learners.Learner):
    """Records its calls; predicts class 3 for every datapoint."""

    def __init__(self, store: TaskStore, seeds: list[int], boundaries: bool) -> None:
        self.needs_boundaries = boundaries  # type: ignore[misc]
        images = learners.ImageTable(
            store.pixels, learners.ViewArrays(store.views.source_index, store.views.geometry, store.views.background)
        )
        network = build.build("rainbow", store.shape, store.classes)
        super().__init__(None, learners.Setting(network, seeds, 10, 3, store.classes, images))
        self.calls: list[tuple[str, Any]] = []
        self.bad_at: tuple[int, int] | None = None
        self.returned: Any = None

    def predict(self, x: Tensor) -> Tensor:
        self.calls.append(("predict", tuple(x.shape)))
        logits = torch.zeros(x.shape[0], x.shape[1], 10)
        logits[..., 3] = 1
        return logits

    def update(self, batch: learners.Batch) -> dict[str, Tensor]:
        assert set(vars(batch)) == {"x", "y", "ids"}  # no task
        done = sum(name == "update" for name, _ in self.calls)
        self.calls.append(("update", batch.ids.clone()))
        if self.returned is not None:
            return self.returned  # type: ignore[no-any-return]
        number = torch.ones(len(self.setting.seeds))
        if self.bad_at is not None and self.bad_at[0] == done:
            number[self.bad_at[1]] = float("inf")
        return {"number": number} if done % 2 == 0 else {}

    def begin_task(self) -> None:
        self.calls.append(("begin_task", None))

    def end_task(self) -> None:
        self.calls.append(("end_task", None))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def run_of_recorder(store: TaskStore, boundaries: bool) -> tuple[Recorder, protocol.OnlineProtocol]:
    learner = Recorder(store, SEEDS, boundaries)
    return learner, protocol.OnlineProtocol(learner, StoreSource(store, SEEDS, Sequential()))


def test_order_of_calls_with_boundaries(store: TaskStore) -> None:
    learner, run = run_of_recorder(store, boundaries=True)
    while not run.finished:
        run.advance(3)
    names = [name for name, _ in learner.calls]
    batch, over = ["predict", "update"], ["predict", "predict", "end_task"]  # validation, test
    # Tasks of 25 in batches of 10: the first ends inside batch 3, which is learned in two parts.
    enter = ["begin_task", "predict"]  # the task's validation set, for forward transfer
    assert names == [*enter, *batch * 3, *over] * 3


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        ({"online_error": torch.zeros(3)}, ": a diagnostic must have another name than what is measured (got online_error)"),
        ({"cumulative_error": torch.zeros(3)}, ": a diagnostic must have another name than what is measured (got cumulative_error)"),
        ({"hyper/K": torch.zeros(3)}, ": a diagnostic must have another name than what is measured (got hyper/K)"),
        ({"loss (mean)": torch.zeros(3)}, ": the name of a diagnostic must have letters, digits, and _ - . : / or spaces between them, at most 200 (got 'loss (mean)')"),
        ({"loss": torch.tensor(0.5)}, ": loss must be a tensor with one number for each of 3 seeds, [3] (got [])"),
        ({"loss": 0.5}, ": loss must be a tensor with one number for each of 3 seeds, [3] (got float)"),
        ("loss", " must return a mapping from names to curves, {} if it has none (got str)"),
    ],
)  # fmt: skip
def test_what_a_learner_returns_must_be_curves_of_its_own(store: TaskStore, returned: object, line: str) -> None:
    """A curve named like a measurement replaced it, and a name that MLflow refuses ended the sweep's tracking."""
    learner, run = run_of_recorder(store, boundaries=False)
    learner.returned = returned
    with pytest.raises(OrchestratorError) as caught:
        run.advance(1)
    assert caught.value.faults == (f"Recorder.update{line}",)


def test_a_learner_without_boundaries_is_not_informed_of_tasks(store: TaskStore) -> None:
    learner, run = run_of_recorder(store, boundaries=False)
    run.advance(100)
    assert {name for name, _ in learner.calls} == {"predict", "update"}


def test_every_datapoint_is_learned_once_in_order_also_those_of_the_short_batch(store: TaskStore) -> None:
    learner, run = run_of_recorder(store, boundaries=False)
    for count in (1, 2, 5):
        run.advance(count)
    ids = torch.cat([ids for name, ids in learner.calls if name == "update"], 1)
    assert ids.shape == (3, 75, 1)
    for row, seed in enumerate(SEEDS):
        assert np.array_equal(ids[row].numpy(), Stream(store, seed).read(0, 75).image_ids)
    assert run.batches == run.total_batches == 8
    assert [ids.shape[1] for name, ids in learner.calls if name == "update"] == [10] * 7 + [5]


def test_errors_and_losses_by_hand(store: TaskStore) -> None:
    _, run = run_of_recorder(store, boundaries=False)
    run.advance(100)
    labels = np.stack([Stream(store, seed).read(0, 75).labels for seed in SEEDS])
    online = [(labels[:, start : start + 10] != 3).mean(1) for start in range(0, 75, 10)]
    np.testing.assert_allclose(run.curves.by_batch["online_error"], np.stack(online, 1), atol=1e-12)
    held = np.array([[(Stream(store, s).held_out(t).labels != 3).mean() for t in range(3)] for s in SEEDS])
    np.testing.assert_allclose(metrics.held_out(run.curves), held, atol=1e-12)
    assert run.curves.evaluations["batch"].tolist() == [2, 2, 2, 4, 4, 4, 7, 7, 7]
    loss = np.log(np.e + 9) - (labels[0, :10] == 3)
    np.testing.assert_allclose(run.curves.by_batch["online_loss"][0, 0], loss.mean(), atol=1e-6)


def test_forward_transfer_is_the_error_of_the_initial_network_minus_the_learners(store: TaskStore) -> None:
    learner, run = run_of_recorder(store, boundaries=False)
    run.advance(100)
    held = [[Stream(store, seed).held_out(task) for task in range(3)] for seed in SEEDS]
    weights = learner.setting.network.initial(SEEDS)
    images = learner.setting.require_images()
    expected = np.full((3, 8), np.nan)
    for task, batch in enumerate((0, 3, 5)):  # the first batch of each task
        x = torch.stack([images.gather(torch.from_numpy(of[task].image_ids)[None])[0] for of in held])
        guess = learner.setting.network.logits(*weights, x).argmax(-1).numpy()
        for row, of in enumerate(held):
            y = of[task].labels
            expected[row, batch] = (guess[row] != y).mean() - (y != 3).mean()
    np.testing.assert_allclose(run.curves.by_batch["forward_transfer"], expected, atol=1e-12)
    points = [point for point in seed_points(run.curves)[1] if point.metric == "forward_transfer"]
    assert [point.step for point in points] == [0, 1, 2]
    np.testing.assert_allclose([point.value for point in points], expected[1, [0, 3, 5]], atol=1e-12)
    late = [point.step for point in seed_points(run.curves, since=4)[1] if point.metric == "forward_transfer"]
    assert late == [2]


def test_forward_transfer_is_zero_on_the_first_task_and_equal_after_resuming(store: TaskStore) -> None:
    run = protocol.assemble(store, "online", {}, SEEDS)
    run.advance(4)
    again = protocol.assemble(store, "online", {}, SEEDS)
    again.load_state_dict(run.state_dict(), run.curves.since(0))
    run.advance(100)
    again.advance(100)
    transfer = run.curves.by_batch["forward_transfer"]
    assert (transfer[:, 0] == 0).all()  # every learner starts from the initial network
    assert np.isfinite(transfer).sum(axis=1).tolist() == [3, 3, 3]
    np.testing.assert_array_equal(transfer, again.curves.by_batch["forward_transfer"])


def test_the_test_set_is_evaluated_with_the_validation_set(store: TaskStore) -> None:
    _, run = run_of_recorder(store, boundaries=False)
    run.advance(100)
    streams = [Stream(store, seed) for seed in SEEDS]
    for split, column in (("validation", "error"), ("test", "test_error")):
        expected = [[(stream.held_out(task, split).labels != 3).mean() for task in range(3)] for stream in streams]
        np.testing.assert_allclose(metrics.held_out(run.curves, column), expected, atol=1e-12)
    assert (run.curves.evaluations["error"] != run.curves.evaluations["test_error"]).any()


def test_a_diverged_seed_is_marked_and_the_others_continue(store: TaskStore) -> None:
    learner, run = run_of_recorder(store, boundaries=False)
    learner.bad_at = (4, 1)
    run.advance(3)
    assert run.curves.diverged == [-1, -1, -1]
    run.advance(100)
    assert run.curves.diverged == [-1, 4, -1]
    online = run.curves.by_batch["online_error"]
    assert np.isfinite(online[1, :4]).all()
    assert np.isnan(online[1, 4:]).all()
    assert np.isfinite(online[[0, 2]]).all()
    error = metrics.held_out(run.curves)
    assert np.isnan(error).tolist() == [[False] * 3, [False, True, True], [False] * 3]
    # A diagnostic that a learner leaves out of a batch is absent, which is no divergence.
    assert np.isnan(run.curves.by_batch["number"][0]).tolist() == [False, True] * 4


def test_a_copied_state_ends_a_divergence_but_not_its_mark(store: TaskStore) -> None:
    """The values of the divergence stay NaN; later ones are measured again, also after another restart."""
    healthy = protocol.assemble(store, "foml", {"K": 2, "alpha1": 0.01}, SEEDS)
    healthy.advance(5)
    learner, diverged = run_of_recorder(store, boundaries=False)
    learner.bad_at = (2, 1)
    diverged.advance(5)
    assert diverged.curves.diverged == [-1, 2, -1]
    run = packs.assemble(store, "foml", [{"K": 2, "alpha1": 0.02}], SEEDS)
    run.load_state_dicts([run.protocol.state_for_new_options(healthy.state_dict())], [diverged.curves])
    run.mark(0, {"hyper/alpha1": 0.02})
    run.advance(1)
    again = protocol.assemble(store, "foml", {"K": 2, "alpha1": 0.02}, SEEDS)
    again.load_state_dict(run.state_dict(0), run.curves[0])
    again.advance(100)
    online = again.curves.by_batch["online_error"]
    assert np.isnan(online[1]).tolist() == [False] * 2 + [True] * 3 + [False] * 3
    assert np.isfinite(online[[0, 2]]).all()
    assert again.curves.diverged == [-1, 2, -1]
    marks = again.curves.by_batch["hyper/alpha1"]
    assert np.isnan(marks[:, [0, 1, 2, 3, 4, 6, 7]]).all() and (marks[:, 5] == 0.02).all()
    # From the copy on it equals the parent's learner with the other rate.
    bare = protocol.assemble(store, "foml", {"K": 2, "alpha1": 0.02}, SEEDS)
    state = healthy.state_dict()
    bare.load_state_dict(state | {"learner": state["learner"] | {"window": []}}, healthy.curves)
    bare.advance(100)
    assert np.array_equal(online[:, 5:], bare.curves.by_batch["online_error"][:, 5:])
    assert torch.equal(again.learner.phi, bare.learner.phi)  # type: ignore[attr-defined]


def test_a_state_at_another_position_is_refused(store: TaskStore) -> None:
    one, two = (protocol.assemble(store, "online", {}, SEEDS) for _ in range(2))
    one.advance(3)
    two.advance(4)
    with pytest.raises(ValueError, match="a state at 30 datapoints does not go with 4 batches"):
        two.load_state_dict(one.state_dict(), two.curves)


def test_a_learner_that_needs_boundaries_is_refused_on_a_stream_without(store: TaskStore) -> None:
    learner = Recorder(store, SEEDS, boundaries=True)

    class Blurred(Sequential):
        has_boundaries = False

    with pytest.raises(OrchestratorError, match="needs task boundaries"):
        protocol.OnlineProtocol(learner, StoreSource(store, SEEDS, Blurred()))


def test_boundaries_that_seeds_do_not_share_are_none(store: TaskStore) -> None:
    """A recipe may give the tasks of each seed their own sizes; `end_task` is called for all seeds together."""

    class Uneven(Sequential):
        def ends(self, sizes: Any, seed: int) -> Any:
            return [(20 + 5 * seed, 0), (50, 1), (75, 2)]

    assert StoreSource(store, [1], Uneven()).shape().has_boundaries
    source = StoreSource(store, SEEDS, Uneven())
    assert source.shape().has_boundaries is False
    with pytest.raises(OrchestratorError, match="needs task boundaries that all seeds share, and this stream has none"):
        protocol.OnlineProtocol(Recorder(store, SEEDS, boundaries=True), source)
    run = protocol.OnlineProtocol(Recorder(store, SEEDS, boundaries=False), source)
    run.advance(100)
    assert run.curves.evaluations["batch"].reshape(3, 3).tolist() == [[1, 2, 2], [4, 4, 4], [7, 7, 7]]
    assert "forward_transfer" not in run.curves.by_batch


GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", learners.names())
def test_resumed_is_uninterrupted_bit_for_bit(store: TaskStore, name: str, device: str, tmp_path: Any) -> None:
    """Interrupted in the middle of a task, resumed from a chunk file, in steps of another size."""
    options = {field.name for field in dataclasses.fields(registry.learner_class(name).options_class)}
    few = {"updates_per_task": 4} if "updates_per_task" in options else {}  # FTML's 50 a task take half a minute
    uninterrupted = protocol.assemble(store, name, few, SEEDS, device=device)
    while not uninterrupted.finished:
        uninterrupted.advance(3)
    first = protocol.assemble(store, name, few, SEEDS, device=device)
    first.advance(4)
    chunk_files.write(tmp_path, chunk_files.claim(tmp_path), first.state_dict(), first.curves, first.finished)
    stored = chunk_files.newest(tmp_path, device)
    assert stored is not None
    second = protocol.assemble(store, name, few, SEEDS, device=device)
    second.load_state_dict(stored.state, stored.curves)
    while not second.finished:
        second.advance(1)
    assert second.curves.by_batch.keys() == uninterrupted.curves.by_batch.keys()
    for curve in uninterrupted.curves.by_batch:
        assert np.array_equal(second.curves.by_batch[curve], uninterrupted.curves.by_batch[curve], equal_nan=True), (
            curve
        )
    for column in uninterrupted.curves.evaluations:
        assert np.array_equal(
            second.curves.evaluations[column], uninterrupted.curves.evaluations[column], equal_nan=True
        ), column
    assert (
        second.curves.chunks["gradient_evaluations"].sum() == uninterrupted.curves.chunks["gradient_evaluations"].sum()
    )


def test_two_threads_on_a_busy_machine_give_the_same_bits_each_time(store: TaskStore) -> None:
    """Delayed threads add up in another order unless torch is set to a fixed one."""

    def measured() -> dict[str, np.ndarray]:
        run = protocol.assemble(store, "moca", {}, SEEDS)
        run.advance(1_000)
        return run.curves.by_batch

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    torch.set_num_threads(2)
    try:
        first = measured()
        for _ in range(6):
            again = measured()
            assert all(np.array_equal(again[name], first[name], equal_nan=True) for name in first)
    finally:
        torch.set_num_threads(1)
        for process in busy:
            process.kill()
            process.wait()


def test_gradient_evaluations_are_counted(store: TaskStore) -> None:
    online = protocol.assemble(store, "online", {}, [0])
    online.advance(100)
    assert online.curves.chunks["gradient_evaluations"].tolist() == [75]
    foml = protocol.assemble(store, "foml", {"K": 3}, [0])
    foml.advance(100)
    # 75 points once online; 8 meta-batches of 10; Hessians of the window's steps but the oldest, 2 each: the step
    # before the newest from batch 2 on, the newest from batch 2 on (W = 2), …: 0 + 1 + 2·6 products, the last on 5 points.
    products = 2 * (10 + 2 * 10 * 5 + (10 + 5))
    assert foml.curves.chunks["gradient_evaluations"].tolist() == [75 + 80 + products]


def test_tasks_held_back_are_for_pretraining_only(store: TaskStore) -> None:
    schedule = HeldBack(Sequential(), 1)
    run = protocol.assemble(store, "moca", {"pretrain_tasks": 1, "pretrain_passes": 1}, [0, 1], schedule=schedule)
    assert run.total_batches == 5
    batches: list[Any] = []
    original = run.learner.pretrain
    run.learner.pretrain = lambda new: (batches.extend(new), original(new))  # type: ignore[method-assign]
    run.advance(2)
    run.advance(100)
    ids = torch.cat([batch.ids for batch in batches], 1)
    for row, seed in enumerate((0, 1)):
        assert np.array_equal(ids[row].numpy(), Stream(store, seed).read(0, 25).image_ids)
    assert metrics.held_out(run.curves).shape == (2, 2)
    assert np.isfinite(metrics.held_out(run.curves)).all()
    with pytest.raises(OrchestratorError, match="at most the 0 tasks that the stream holds back \\(got 1\\)"):
        protocol.assemble(store, "moca", {"pretrain_tasks": 1}, [0])


@pytest.mark.parametrize("boundaries", [True, False])
def test_a_batch_ends_with_its_task_for_a_learner_that_needs_boundaries(store: TaskStore, boundaries: bool) -> None:
    """Tasks of 25 in batches of 10: the third batch holds datapoints of two tasks."""
    learner, run = run_of_recorder(store, boundaries)
    curves = run.advance(5)
    ids = [value for name, value in learner.calls if name == "update"]
    assert [value.shape[1] for value in ids] == ([10, 10, 5, 5, 10, 10] if boundaries else [10] * 5)
    points = run._source.read(0, 50)
    assert torch.equal(torch.cat(ids, 1), torch.from_numpy(points.image_ids))
    # The grid of batches is the same for all learners: one value of every curve for both parts of the third batch.
    wrong = (points.labels != 3).reshape(3, 5, 10).mean(2)
    assert curves.by_batch["online_error"] == pytest.approx(wrong)
    assert curves.evaluations["batch"].tolist() == [2] * 3 + [4] * 3
    transfer = np.isfinite(curves.by_batch["forward_transfer"]).all(0).tolist()
    assert transfer == [True, False, boundaries, not boundaries, False]
    assert (run.batches, run.state_dict()["position"]) == (5, 50)


@pytest.mark.parametrize("boundaries", [True, False])
def test_forward_transfer_belongs_to_the_task_that_starts_with_the_batch_or_in_it(
    store: TaskStore, boundaries: bool
) -> None:
    """As above: of a learner that needs boundaries, the third batch holds the transfer of the second task."""
    _, run = run_of_recorder(store, boundaries)
    for batches, tasks in ((3, 2 if boundaries else 1), (2, 2)):
        run.advance(batches)
        measured = run.curves.by_batch["forward_transfer"][0]
        points = {point.step: point.value for point in seed_points(run.curves)[0] if point.metric == "forward_transfer"}
        assert points == dict(enumerate(measured[np.isfinite(measured)])) and len(points) == tasks
