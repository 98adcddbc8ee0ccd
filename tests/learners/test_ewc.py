"""Online EWC: the Fisher information against its closed form, and the penalty against a step by hand."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from learners.ewc import EWC, fisher_information
from learners.seeding import generator
from learners.training.replicate_options import packed_options
from tests.learners.test_contract import assert_same_bits


def test_the_fisher_information_of_the_head_is_that_of_softmax_regression(smooth) -> None:
    """With a label y, the gradient of log p with respect to the head is (onehot(y) − p) hᵀ, with h the features."""
    setting = smooth.setting((0, 1))
    network = setting.network
    phi, statistics = network.initial(setting.seeds)
    x = smooth.batch(0, (0, 1), count=7).x
    uniform = torch.from_numpy(generator(5, "uniform").random((2, 7)))
    fisher = fisher_information(network, phi, statistics, x, uniform)
    p, h = network.logits(phi, statistics, x).softmax(-1), network.embed(phi, statistics, x)
    y = torch.searchsorted(p.cumsum(-1), uniform[..., None], right=True).clamp(max=2)
    away = torch.nn.functional.one_hot(y[..., 0], 3) - p
    by_weight = (away[..., :, None] * h[..., None, :]).square().mean(1)
    weight, bias = network.head(fisher)
    torch.testing.assert_close(weight, by_weight, rtol=1e-11, atol=1e-15)
    torch.testing.assert_close(bias, away.square().mean(1), rtol=1e-11, atol=1e-15)
    assert network.gradient_evaluations == 7


def test_its_mean_over_labels_is_the_hessian_of_the_loss_of_a_linear_model(smooth) -> None:
    """For the biases of the head, E[(onehot(y) − p)²] = p (1 − p): many sampled labels come close to it."""
    network = smooth.setting().network
    phi, statistics = network.initial([0])
    x = smooth.batch(0, count=1).x.expand(1, 1000, 1, 2, 3)
    uniform = (torch.arange(1000, dtype=torch.float64) / 1000)[None]
    p = network.logits(phi, statistics, x[:, :1]).softmax(-1)[0, 0]
    _, bias = network.head(fisher_information(network, phi, statistics, x, uniform))
    assert bias[0].tolist() == pytest.approx((p * (1 - p)).tolist(), rel=8e-3)


def test_a_step_has_the_gradient_of_the_penalty_and_fishers_decay(smooth) -> None:
    learner = smooth.learner("ewc", (0, 1), alpha=0.01, strength=3.0, decay=0.5, fisher_datapoints=8)
    labels = [generator(seed, "fisher labels") for seed in (0, 1)]
    plain = smooth.learner("online", (0, 1), alpha1=0.01)
    fisher, anchor = torch.zeros_like(plain.model.phi), plain.model.phi
    recent = []
    for step in range(10):
        if step % 4 == 0:
            learner.begin_task()
            recent = []
        batch = smooth.batch(step, (0, 1))
        recent.append(batch.x)
        away = plain.model.phi - anchor
        plain.model.learn(batch, penalty_gradient=3.0 * fisher * away)
        diagnostics = learner.update(batch)
        assert torch.equal(learner.model.phi, plain.model.phi)
        torch.testing.assert_close(diagnostics["penalty"], 1.5 * (fisher * away**2).sum(1), rtol=1e-12, atol=0)
        if step % 4 == 3:
            learner.end_task()
            x = torch.cat(recent, 1)[:, -8:]
            uniform = torch.stack([torch.from_numpy(rng.random(8)) for rng in labels])
            model, network = plain.model, smooth.network()
            fisher = 0.5 * fisher + fisher_information(network, model.phi, model.statistics, x, uniform)
            anchor = model.phi
    assert float(diagnostics["penalty"].min()) > 0


def test_without_a_penalty_it_is_plain_online_learning_also_in_a_stack_with_one(smooth) -> None:
    learner, plain = smooth.learner("ewc", strength=0.0), smooth.learner("online")
    strengths = packed_options(
        [replace(learner.options, strength=strength) for strength in (0.0, 3.0)], 1, ["strength"]
    )
    stack = EWC(strengths, smooth.setting((0, 0)))
    for each in (learner, plain, stack):
        smooth.drive(each, 0, 9)
    assert torch.equal(learner.model.phi, plain.model.phi)
    assert_same_bits(learner.state_dict(), stack.state_of_replicates([stack.state_dict()], slice(0, 1)))
    assert not torch.equal(stack.model.phi[1], plain.model.phi[0])
    evaluations = [each.setting.network.gradient_evaluations for each in (learner, stack)]
    assert evaluations == [9 * 5 + 2 * 20] * 2  # with the Fisher information of two tasks


def test_the_ids_of_a_state_that_was_loaded_to_a_gpu_are_on_the_cpu(smooth) -> None:
    """Ids of a batch are on the CPU: a learner that resumes within a task joins its own ids with them."""
    learner = smooth.learner("ewc", (0, 1))
    smooth.drive(learner, 0, 2)
    state = learner.state_dict()
    with FakeTensorMode():  # has tensors of a GPU on a machine without one
        ids = torch.zeros(state["recent"].shape, dtype=torch.int64, device="cuda")
        learner.load_state_dict({**state, "recent": ids})
        assert learner.recent.device == torch.device("cpu")
