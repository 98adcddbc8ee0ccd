"""Train from scratch: new weights, a fresh optimiser, and never a point of another task."""

import pytest
import torch

from learners.networks.network import Network
from learners.training.optim import Adam


def test_a_boundary_brings_new_weights_and_a_fresh_optimiser(smooth) -> None:
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
    assert torch.equal(starts[0], network.initial([4, 5])[0])  # where all learners start
    for task in (1, 2):
        assert torch.equal(starts[task], network.initial([4, 5], f"network of task {task}")[0])
    each = [starts[task][r] for task in range(3) for r in range(2)]
    for i, one in enumerate(each):
        for other in each[:i]:
            assert float((one - other).norm()) > 0.5


def test_points_of_old_tasks_are_never_drawn(smooth, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = smooth.learner("tfs", (0,), updates_per_task=8, update_batch=50)
    drawn = []
    real = learner.replay.take
    monkeypatch.setattr(learner.replay, "take", lambda positions: (drawn.append(positions), real(positions))[1])
    smooth.drive(learner, 0, 4)
    drawn.clear()
    learner.begin_task()
    for step in range(4, 8):
        learner.update(smooth.batch(step))
        newest = 5 * (step + 1)
        assert len(drawn) == 2
        assert set(torch.cat(drawn, 1).flatten().tolist()) == set(range(20, newest))
        drawn.clear()


def test_one_update_is_one_adam_step_on_the_drawn_points(smooth) -> None:
    learner = smooth.learner("tfs", (6,), alpha=0.02, updates_per_task=4, update_batch=7)
    learner.begin_task()
    phi = learner.model.phi
    generators = learner.replay.state_dict()
    made = learner.update(smooth.batch(0, (6,)))
    after = learner.model.phi
    learner.replay.load_state_dict(generators)
    drawn = learner.replay.sample(7)
    at = phi.clone().requires_grad_()
    logits = learner.setting.network.logits(at, learner.model.statistics, drawn.x)
    loss = torch.nn.functional.cross_entropy(logits[0], drawn.y[0])
    (gradient,) = torch.autograd.grad(loss, at)
    adam = Adam(0.02)
    assert torch.allclose(after, adam.step(phi, gradient, adam.initial(phi))[0], rtol=1e-12, atol=1e-12)
    assert float(made["loss"]) == pytest.approx(float(loss.detach()), rel=1e-12)


def test_a_batch_without_an_update_has_no_loss(smooth) -> None:
    learner = smooth.learner("tfs", updates_per_task=2)
    made = smooth.drive(learner, 0, 4)
    assert [set(one) for one in made] == [set(), {"loss"}, set(), {"loss"}]
