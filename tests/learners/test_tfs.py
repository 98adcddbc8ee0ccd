"""Train from scratch: new weights, a new optimiser, and only datapoints of the current task."""

import pytest
import torch

from learners.networks.network import Network
from learners.training.optim import Adam


def test_a_boundary_creates_new_weights_and_a_new_optimiser(smooth) -> None:
    learner = smooth.learner("tfs", (4, 5), updates_per_task=4)
    starts = []
    for task in range(3):
        learner.begin_task()
        starts.append(learner.model.phi)
        assert learner.model.moments.steps == 0
        assert float(learner.model.moments.m.abs().max()) == 0
        assert float(learner.model.moments.s.abs().max()) == 0
        for step in range(4):
            learner.update(smooth.batch(4 * task + step, (4, 5)))
        assert learner.model.moments.steps == 4
        learner.end_task()
    network = Network(smooth.make, dtype=torch.float64)
    assert torch.equal(starts[0], network.initial([4, 5])[0])  # the initial weights of all learners
    for task in (1, 2):
        assert torch.equal(starts[task], network.initial([4, 5], f"network of task {task}")[0])
    each = [starts[task][r] for task in range(3) for r in range(2)]
    for i, one in enumerate(each):
        for other in each[:i]:
            assert float((one - other).norm()) > 0.5


def test_a_task_starts_without_the_rest_of_an_update(smooth) -> None:
    """Five updates per four batches: three batches leave three quarters of one, which would make the next two."""
    learner = smooth.learner("tfs", updates_per_task=5)
    for length in (3, 1):
        learner.begin_task()
        for step in range(length):
            learner.update(smooth.batch(step))
        assert learner.model.moments.steps == length
        learner.end_task()


def test_datapoints_of_old_tasks_are_never_drawn(smooth, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = smooth.learner("tfs", (0,), updates_per_task=8, update_batch=50)
    draws = []
    real = learner.replay.take
    monkeypatch.setattr(learner.replay, "take", lambda positions: (draws.append(positions), real(positions))[1])
    smooth.drive(learner, 0, 4)
    draws.clear()
    learner.begin_task()
    for step in range(4, 8):
        learner.update(smooth.batch(step))
        newest = 5 * (step + 1)
        assert len(draws) == 2
        assert set(torch.cat(draws, 1).flatten().tolist()) == set(range(20, newest))
        draws.clear()


def test_one_update_is_one_adam_step_on_the_sampled_datapoints(smooth) -> None:
    learner = smooth.learner("tfs", (6,), alpha=0.02, updates_per_task=4, update_batch=7)
    learner.begin_task()
    phi = learner.model.phi
    generators = learner.replay.state_dict()
    diagnostics = learner.update(smooth.batch(0, (6,)))
    after = learner.model.phi
    learner.replay.load_state_dict(generators)
    sample = learner.replay.sample(7)
    at = phi.clone().requires_grad_()
    logits = learner.setting.network.logits(at, learner.model.statistics, sample.x)
    loss = torch.nn.functional.cross_entropy(logits[0], sample.y[0])
    (gradient,) = torch.autograd.grad(loss, at)
    adam = Adam(0.02)
    assert torch.allclose(after, adam.step(phi, gradient, adam.initial(phi))[0], rtol=1e-12, atol=1e-12)
    assert float(diagnostics["loss"]) == pytest.approx(float(loss.detach()), rel=1e-12)


def test_a_batch_without_an_update_has_no_loss(smooth) -> None:
    learner = smooth.learner("tfs", updates_per_task=2)
    diagnostics = smooth.drive(learner, 0, 4)
    assert [set(each) for each in diagnostics] == [set(), {"loss"}, set(), {"loss"}]
