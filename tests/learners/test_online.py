"""Plain online learning: steps on the newest batch."""

import torch


def test_updates_per_batch_are_steps_on_the_same_batch(smooth) -> None:
    learner, by_hand = (smooth.learner("online", (0, 1), alpha1=0.02, **o) for o in ({"updates_per_batch": 3}, {}))
    for step in range(2):
        batch = smooth.batch(step, (0, 1))
        diagnostics = learner.update(batch)
        losses = [by_hand.update(batch)["loss"] for _ in range(3)]
        assert torch.equal(learner.model.phi, by_hand.model.phi)
        assert torch.equal(diagnostics["loss"], torch.stack(losses, 1).mean(1))
    assert learner.setting.network.gradient_evaluations == 2 * 3 * 5
