"""Train on everything: one model, all of 𝓑, a growing number of updates, and no boundary."""

import pytest
import torch


def test_updates_grow_with_the_datapoints_seen(smooth) -> None:
    """4 updates per task of 4 batches, and 4 more for every 40 datapoints: one, two, three … per batch."""
    learner = smooth.learner("toe", updates_per_task=4, growth=4, growth_every=40)
    counts, before = [], 0
    for step in range(24):
        learner.update(smooth.batch(step))
        counts.append(learner.model.moments.steps - before)
        before = learner.model.moments.steps
    assert counts == [1] * 7 + [2] * 8 + [3] * 8 + [4]


def test_datapoints_that_are_skipped_count_for_the_growth(smooth) -> None:
    learner = smooth.learner("toe", updates_per_task=4, growth=4, growth_every=40)
    learner.skip(75)
    learner.update(smooth.batch(0))  # the eightieth datapoint is in it
    assert learner.model.moments.steps == 3


def test_without_growth_the_number_of_updates_is_constant(smooth) -> None:
    learner = smooth.learner("toe", updates_per_task=8, growth=0, growth_every=1)
    smooth.drive(learner, 0, 12)
    assert learner.model.moments.steps == 3 * 8


def test_default_growth_is_that_of_the_paper(smooth) -> None:
    """10 per 100 tasks of 400 datapoints."""
    o = smooth.learner("toe").options
    assert (o.updates_per_task, o.growth, o.growth_every, o.alpha) == (50, 10, 100 * 400, 0.001)


def test_draws_from_all_datapoints_including_the_newest_batch(smooth, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = smooth.learner("toe", updates_per_task=4, update_batch=400)
    draws = []
    real = learner.replay.take
    monkeypatch.setattr(learner.replay, "take", lambda positions: (draws.append(positions), real(positions))[1])
    for step in range(10):
        learner.update(smooth.batch(step))
        assert set(draws[-1].flatten().tolist()) == set(range(5 * (step + 1)))


def test_it_has_no_boundaries(smooth) -> None:
    learner = smooth.learner("toe")
    assert learner.needs_boundaries is False
    start = learner.model.phi
    smooth.drive(learner, 0, 9)
    phi = learner.model.phi
    learner.begin_task()
    learner.end_task()
    assert torch.equal(learner.model.phi, phi)
    assert not torch.equal(start, phi)
