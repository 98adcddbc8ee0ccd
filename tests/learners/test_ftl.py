"""Follow the leader: the data and the time of the leader's updates, which a task's copy never affects."""

import pytest
import torch

from learners import Learner
from learners.networks.network import cross_entropy
from learners.training.optim import Adam


def record_draws(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """A list to which every later draw appends the positions in 𝓑 of its batch."""
    draws: list[torch.Tensor] = []
    real = learner.replay.take
    monkeypatch.setattr(learner.replay, "take", lambda positions: (draws.append(positions), real(positions))[1])
    return draws


def test_adapting_does_not_change_the_leader(smooth) -> None:
    learner = smooth.learner("ftl", (0, 1), updates_per_task=8)
    smooth.drive(learner, 0, 4)
    leader = learner.leader.state_dict()
    before = leader["phi"].clone()
    smooth.drive(learner, 4, 7)
    after = learner.leader.state_dict()
    assert torch.equal(after["phi"], before)
    assert after["moments"] == leader["moments"]
    assert not torch.equal(learner.adapted.phi, before)


def test_a_task_starts_from_the_leader_with_a_new_optimiser(smooth) -> None:
    learner = smooth.learner("ftl", (0, 1), updates_per_task=8)
    for task in range(3):
        learner.begin_task()
        assert torch.equal(learner.adapted.phi, learner.leader.phi)
        assert learner.adapted.moments.steps == 0
        assert float(learner.adapted.moments.s.abs().max()) == 0
        assert learner.leader.moments.steps == 8 * task  # the leader's optimiser keeps its state
        for step in range(4 * task, 4 * task + 4):
            learner.update(smooth.batch(step, (0, 1)))
        assert learner.adapted.moments.steps == 8
        learner.end_task()


def test_the_copy_learns_the_current_task_and_the_leader_the_past_ones(smooth, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = smooth.learner("ftl", updates_per_task=4, update_batch=400)
    smooth.drive(learner, 0, 4)
    draws = record_draws(learner, monkeypatch)
    learner.begin_task()
    for step in range(4, 8):
        learner.update(smooth.batch(step))
        assert set(draws.pop().flatten().tolist()) == set(range(20, 5 * (step + 1)))
        assert draws == []
    learner.end_task()
    assert [set(positions.flatten().tolist()) for positions in draws] == [set(range(40))] * 4


def test_the_leader_is_toe_on_past_tasks(smooth) -> None:
    """Its updates equal Adam on datapoints drawn from all seen, after the draws of the copy."""
    learner = smooth.learner("ftl", (2,), alpha=0.02, updates_per_task=4, update_batch=6)
    learner.begin_task()
    for step in range(4):
        learner.update(smooth.batch(step, (2,)))
    phi, moments, statistics = learner.leader.phi, learner.leader.moments, learner.leader.statistics
    generators = learner.replay.state_dict()
    learner.end_task()
    after = learner.leader.phi
    learner.replay.load_state_dict(generators)
    network = learner.setting.network
    for _ in range(4):
        points = learner.replay.sample(6)
        gradient = network.training_pass(phi, statistics, points.x, cross_entropy(points.y)).gradient
        phi, moments = Adam(0.02).step(phi, gradient, moments)
    assert torch.equal(after, phi)


def test_the_number_of_updates_grows_for_the_leader_only(smooth) -> None:
    learner = smooth.learner("ftl", updates_per_task=4, growth=4, growth_every=20)
    leader, before = [], 0
    for task in range(3):
        smooth.drive(learner, 4 * task, 4 * task + 3)
        learner.update(smooth.batch(4 * task + 3))
        assert learner.adapted.moments.steps == 4
        learner.end_task()
        leader.append(learner.leader.moments.steps - before)
        before = learner.leader.moments.steps
    # In task t, three batches grant 1 + t updates each, and the last one, after twenty more datapoints, 2 + t.
    assert leader == [5, 9, 13]


def test_a_task_starts_without_the_rest_of_an_update(smooth) -> None:
    """Five updates per four batches: three batches leave three quarters of one, which would make the next two."""
    learner = smooth.learner("ftl", updates_per_task=5, growth=0)
    learner.begin_task()
    for step in range(3):
        learner.update(smooth.batch(step))
    assert (learner.adapted.moments.steps, learner.leader_updates_due) == (3, 3)
    learner.end_task()
    learner.begin_task()
    learner.update(smooth.batch(3))
    assert (learner.adapted.moments.steps, learner.leader_updates_due) == (1, 1)


def test_after_a_task_the_leader_predicts(smooth) -> None:
    learner = smooth.learner("ftl", updates_per_task=4)
    smooth.drive(learner, 0, 4)
    x = smooth.batch(70).x
    assert torch.equal(learner.predict(x), learner.leader.predict(x))


def test_batch_norm_statistics_of_the_leader_do_not_follow_the_copy(siamese) -> None:
    learner = siamese.learner("ftl", updates_per_task=4, update_batch=4)
    siamese.drive(learner, 0, 4, predict=False)
    before = learner.leader.statistics.clone()
    siamese.drive(learner, 4, 7, predict=False)
    assert torch.equal(learner.leader.statistics, before)
    assert float((learner.adapted.statistics - before).norm()) > 1e-3
