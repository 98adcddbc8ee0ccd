"""FTML's outer gradient against its definition and finite differences, and the data of each update."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from learners import Batch
from learners.ftml import outer_gradient
from learners.networks.network import Network, cross_entropy
from learners.training.optim import SGD, Adam


@pytest.fixture
def network(smooth) -> Network:
    return smooth.network()


def adapted_loss(
    network: Network, theta: Tensor, statistics: Tensor, support: Batch, query: Batch, steps: int
) -> Tensor:
    """L(φ_n(θ); query) [R] by its definition, differentiable."""
    phi = theta if theta.requires_grad else theta.detach().requires_grad_()
    for _ in range(steps):
        losses = cross_entropy(support.y)(network.training_logits(phi, statistics, support.x)[0])
        phi = phi - 0.3 * torch.autograd.grad(losses.sum(), phi, create_graph=True)[0]
    return cross_entropy(query.y)(network.training_logits(phi, statistics, query.x)[0])


@pytest.mark.parametrize("steps", [1, 5])
def test_outer_gradient_equals_autograd_through_the_inner_steps(smooth, network: Network, steps: int) -> None:
    theta, statistics = network.initial([0, 1])
    support, query = smooth.batch(0, (0, 1)), smooth.batch(1, (0, 1))
    gradient, _ = outer_gradient(network, theta, statistics, support, query, 0.3, steps)
    at = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(adapted_loss(network, at, statistics, support, query, steps).sum(), at)
    assert float((gradient - expected).norm() / expected.norm()) < 1e-12


def test_outer_gradient_equals_finite_differences(smooth, network: Network) -> None:
    """Fourth-order differences in every parameter, with five inner steps."""
    theta, statistics = network.initial([0, 1])
    support, query = smooth.batch(0, (0, 1)), smooth.batch(1, (0, 1))
    gradient, _ = outer_gradient(network, theta, statistics, support, query, 0.3, 5)

    def loss(component: int, size: float) -> Tensor:
        moved = theta.clone()
        moved[:, component] += size
        return adapted_loss(network, moved, statistics, support, query, 5).detach()

    h = 2e-3
    columns = [
        (8 * (loss(p, h) - loss(p, -h)) - (loss(p, 2 * h) - loss(p, -2 * h))) / (12 * h) for p in range(theta.shape[1])
    ]
    expected = torch.stack(columns, 1)
    assert float((gradient - expected).norm() / expected.norm()) < 1e-8


def test_outer_gradient_of_one_step_has_the_dense_hessian(smooth, network: Network) -> None:
    """(I − rate · H) ∇L(φ₁; query), with H from `torch.func.hessian`."""
    theta, statistics = network.initial([4])
    support, query = smooth.batch(0, (4,)), smooth.batch(1, (4,))

    def loss(flat: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(network.training_logits(flat.unsqueeze(0), statistics, batch.x)[0][0], batch.y[0])

    H = torch.autograd.functional.hessian(lambda flat: loss(flat, support), theta[0])
    phi = theta[0] - 0.3 * torch.autograd.functional.jacobian(lambda flat: loss(flat, support), theta[0])
    v = torch.autograd.functional.jacobian(lambda flat: loss(flat, query), phi)
    gradient, _ = outer_gradient(network, theta, statistics, support, query, 0.3, 1)
    assert torch.allclose(gradient[0], v - 0.3 * H @ v, rtol=1e-10, atol=1e-13)


def test_running_statistics_are_those_of_the_first_inner_pass(siamese) -> None:
    network = siamese.network()
    theta, statistics = network.initial([0])
    support, query = siamese.batch(0), siamese.batch(1)
    _, statistics_after = outer_gradient(network, theta, statistics, support, query, 0.1, 3)
    at_theta = network.training_pass(theta, statistics, support.x, cross_entropy(support.y)).statistics
    assert torch.equal(statistics_after, at_theta)
    assert not torch.equal(statistics_after, statistics)


def test_a_meta_update_is_adam_on_the_mean_over_tasks(smooth) -> None:
    learner = smooth.learner(
        "ftml", (0, 1), updates_per_task=1, tasks_per_meta_batch=3, inner_rate=0.3, outer_rate=0.02, support=4, query=6
    )
    smooth.drive(learner, 0, 11)
    learner.update(smooth.batch(11, (0, 1)))
    phi, moments, statistics = learner.leader.phi, learner.leader.moments, learner.leader.statistics
    draws, _ = learner.tasks.state_dict(), learner.end_task()
    after, steps = learner.leader.phi, learner.leader.moments.steps
    learner.tasks.load_state_dict(draws)
    total = torch.zeros_like(phi)
    for _ in range(3):
        support, query = learner._draw([(0, 20), (20, 40), (40, 60)])
        assert (len(support), len(query)) == (4, 6)
        total += outer_gradient(learner.setting.network, phi, statistics, support, query, 0.3, 5)[0]
    assert torch.allclose(after, Adam(0.02).step(phi, total / 3, moments)[0], rtol=1e-12, atol=1e-14)
    assert steps == 3


def positions_of(batch: Batch, learner, r: int) -> list[int]:
    """Positions in 𝓑, for a stream in which every datapoint has a different image."""
    order = {int(i): n for n, i in enumerate(learner.replay._ids[r, : learner.replay.size, 0])}
    return [order[int(i)] for i in batch.ids[r, :, 0]]


@pytest.fixture
def distinct(smooth):
    """FTML in its third task of twenty datapoints, after 60 datapoints with different images."""
    learner = smooth.learner("ftml", (0, 1), support=7, query=5, updates_per_task=2)
    for step in range(12):
        if step % 4 == 0:
            learner.begin_task()
        ids = torch.arange(5 * step, 5 * step + 5).reshape(1, 5, 1).expand(2, 5, 1)
        learner.update(Batch(smooth.table().gather(ids), ids[..., 0] % 3, ids))
        if step in (3, 7):
            learner.end_task()
    return learner


def test_support_and_query_are_disjoint_and_of_one_past_task(distinct) -> None:
    seen = {0: set(), 1: set()}
    for _ in range(60):
        support, query = distinct._draw([(0, 20), (20, 40)])
        for r in range(2):
            s, q = positions_of(support, distinct, r), positions_of(query, distinct, r)
            assert len({*s, *q}) == 7 + 5
            assert len({position // 20 for position in (*s, *q)}) == 1
            seen[r] |= {*s, *q}
    assert seen == {0: set(range(40)), 1: set(range(40))}


@pytest.mark.parametrize(("length", "support", "query"), [(2, 1, 1), (6, 3, 3), (11, 6, 5), (12, 7, 5)])
def test_a_task_with_too_few_points_repeats_them(distinct, length: int, support: int, query: int) -> None:
    batches = distinct._draw([(30, 30 + length)])
    s, q = (set(positions_of(one, distinct, 0)) for one in batches)
    assert [len(one) for one in batches] == [7, 5]
    assert (len(s), len(q)) == (support, query)
    assert not s & q
    assert s | q <= set(range(30, 30 + length))


@pytest.mark.parametrize("include", [False, True])
def test_the_tasks_that_train_the_leader(smooth, monkeypatch: pytest.MonkeyPatch, include: bool) -> None:
    """Past tasks at the end of a task; or also the current one, from its first update on."""
    learner = smooth.learner("ftml", meta_include_current=include, updates_per_task=4)
    calls, real = [], learner._draw
    monkeypatch.setattr(learner, "_draw", lambda tasks: (calls.append(tasks), real(tasks))[1])
    for step in range(8):
        if step % 4 == 0:
            learner.begin_task()
        learner.update(smooth.batch(step))
        if step % 4 == 3:
            learner.end_task()
    past = [[(0, 20)]] * 4 + [[(0, 20), (20, 40)]] * 4
    growing = [[(0, 5 * n)] for n in (1, 2, 3, 4)] + [[(0, 20), (20, 20 + 5 * n)] for n in (1, 2, 3, 4)]
    assert calls == (growing if include else past)
    assert learner.leader.moments.steps == 8


def test_a_copy_is_adapted_by_sgd_at_the_inner_rate_and_discarded(smooth) -> None:
    learner = smooth.learner("ftml", (0, 1), inner_rate=0.1, updates_per_task=4, update_batch=6)
    network = learner.setting.network
    assert torch.equal(learner.adapted.phi, network.initial([0, 1])[0])  # the first task adapts the initial weights
    smooth.drive(learner, 0, 4)
    learner.begin_task()
    leader = learner.leader.phi.clone()
    phi = leader
    for step in range(4, 8):
        assert torch.equal(learner.adapted.phi, phi)
        generators = learner.replay.state_dict()
        learner.update(smooth.batch(step, (0, 1)))
        after_drawing = learner.replay.state_dict()
        learner.replay.load_state_dict(generators)
        points = learner.replay.sample(6, start=20)
        learner.replay.load_state_dict(after_drawing)
        statistics = learner.adapted.statistics
        gradient = network.training_pass(phi, statistics, points.x, cross_entropy(points.y)).gradient
        phi, _ = SGD(0.1).step(phi, gradient, SGD(0.1).initial(phi))
    assert torch.equal(learner.leader.phi, leader)
    learner.end_task()
    assert torch.equal(learner.adapted.phi, learner.leader.phi)
    assert not torch.equal(learner.leader.phi, leader)


def test_a_task_of_one_datapoint_is_not_used(smooth) -> None:
    learner = smooth.learner("ftml", updates_per_task=4)
    learner.begin_task()
    learner.update(smooth.batch(0, count=1))
    before = learner.leader.phi
    learner.end_task()
    assert torch.equal(learner.leader.phi, before)


def test_a_task_of_two_datapoints_is_split_into_one_and_one(smooth) -> None:
    learner = smooth.quick("ftml", inner_steps=1)
    before = learner.leader.phi
    learner.begin_task()
    learner.replay.add(smooth.batch(0, count=2))
    learner._meta_update()
    assert not torch.equal(learner.leader.phi, before)
    support, query = learner._draw([(0, 2)])
    assert {*support.ids.flatten().tolist()} | {*query.ids.flatten().tolist()} == {
        *smooth.batch(0, count=2).ids.flatten().tolist()
    }
    assert len({*support.ids.flatten().tolist()}) == len({*query.ids.flatten().tolist()}) == 1


def test_default_hyper_parameters_are_those_of_the_paper(smooth) -> None:
    o = smooth.learner("ftml").options
    assert (o.inner_rate, o.outer_rate, o.inner_steps, o.updates_per_task) == (0.001, 0.0005, 5, 50)


def test_meta_training_makes_adaptation_faster(smooth) -> None:
    """On tasks with permuted labels, five SGD steps learn a task better after meta-training than before."""

    def batch(task: int, step: int) -> Batch:
        batch = smooth.batch(100 * task + step, count=10)
        return Batch(batch.x, (batch.ids[..., 0] % 2 + task % 2) % 2, batch.ids)

    learner = smooth.learner("ftml", inner_rate=0.5, outer_rate=0.01, updates_per_task=24, support=10, query=10)

    def loss_after_adapting() -> float:
        """On tasks that are used for nothing else."""
        total = 0.0
        for task in (900, 901):
            leader, support, query = learner.leader, batch(task, 0), batch(task, 1)
            at = leader.phi
            for _ in range(5):
                at = (
                    at
                    - 0.5
                    * leader.network.training_pass(at, leader.statistics, support.x, cross_entropy(support.y)).gradient
                )
            total += float(cross_entropy(query.y)(leader.network.logits(at, leader.statistics, query.x)))
        return total

    before = loss_after_adapting()
    for task in range(6):
        learner.begin_task()
        for step in range(4):
            learner.update(batch(task, step))
        learner.end_task()
    assert loss_after_adapting() < before
