"""Train on everything: one model, the whole of 𝓑, more updates as it grows, and no boundary."""

import pytest
import torch


def test_updates_grow_with_the_datapoints_seen(smooth) -> None:
    """4 a task of 4 batches, and 4 more for every 40 points: one, two, three … a batch."""
    learner = smooth.learner("toe", updates_per_task=4, growth=4, growth_every=40)
    counts, before = [], 0
    for step in range(24):
        learner.update(smooth.batch(step))
        counts.append(learner.model.moments.steps - before)
        before = learner.model.moments.steps
    assert counts == [1] * 7 + [2] * 8 + [3] * 8 + [4]


def test_without_growth_the_budget_is_the_same_for_ever(smooth) -> None:
    learner = smooth.learner("toe", updates_per_task=8, growth=0, growth_every=1)
    smooth.drive(learner, 0, 12)
    assert learner.model.moments.steps == 3 * 8


def test_the_default_growth_is_the_papers(smooth) -> None:
    """10 per 100 tasks of 400 datapoints."""
    o = smooth.learner("toe").options
    assert (o.updates_per_task, o.growth, o.growth_every, o.alpha) == (50, 10, 100 * 400, 0.001)


def test_draws_from_all_that_was_seen_the_newest_batch_too(smooth, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = smooth.learner("toe", updates_per_task=4, update_batch=400)
    drawn = []
    real = learner.replay.take
    monkeypatch.setattr(learner.replay, "take", lambda positions: (drawn.append(positions), real(positions))[1])
    for step in range(10):
        learner.update(smooth.batch(step))
        assert set(drawn[-1].flatten().tolist()) == set(range(5 * (step + 1)))


def test_it_is_told_of_no_boundary(smooth) -> None:
    learner = smooth.learner("toe")
    assert learner.needs_boundaries is False
    start = learner.model.phi
    smooth.drive(learner, 0, 9)
    kept = learner.model.phi
    learner.begin_task()
    learner.end_task()
    assert torch.equal(learner.model.phi, kept)
    assert not torch.equal(start, kept)
