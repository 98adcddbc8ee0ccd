"""Follow the meta-leader (FTML): Finn, Rajeswaran, Kakade & Levine 2019, Algorithm 1; paper, section 4 and A.3."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from learners.base import Diagnostics, LeaderLearner, Setting, at_least_one, documented, positive
from learners.batch import Batch
from learners.networks.network import Network, cross_entropy
from learners.seeding import Generators
from learners.training.model import Model
from learners.training.optim import SGD
from learners.training.replay_buffer import ReplayBuffer
from learners.training.replicate_options import Real
from learners.training.update_budget import UpdateBudget


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of FTML."""

    inner_rate: float = positive(0.001, "learning rate (SGD) of the inner steps and of each task's copy")
    outer_rate: float = positive(0.0005, "learning rate (Adam) of the meta-leader")
    inner_steps: int = at_least_one(5, "SGD steps that the meta-gradient differentiates through", le=1_000)
    support: int = at_least_one(10, "datapoints of a task for the inner steps")
    query: int = at_least_one(10, "other datapoints of that task for the meta-loss")
    tasks_per_meta_batch: int = at_least_one(1, "tasks per meta-gradient, which is their mean")
    updates_per_task: int = at_least_one(50, "meta-updates per task, and equally many SGD steps of its copy")
    update_batch: int = at_least_one(10, "datapoints per SGD step of the copy")
    meta_include_current: bool = documented(False, "meta-train on the current task too, from its first batch on")


def outer_gradient(
    network: Network, theta: Tensor, statistics: Tensor, support: Batch, query: Batch, rate: Real, steps: int
) -> tuple[Tensor, Tensor]:
    """MAML's exact gradient ∇_θ L(φ_n; query) [R, P], with φ_0 = θ and φ_{k+1} = φ_k − rate · ∇L(φ_k; support).

    Reverse mode, one Hessian-vector product per step: v ← ∇L(φ_n; query), then v ← (I − rate · H_k) v for k = n−1 … 0.
    Also returns the batch-norm statistics [R, S] after the pass at θ.
    """
    phi, path = theta, []
    for _ in range(steps):
        path.append(network.training_pass(phi, statistics, support.x, cross_entropy(support.y), twice=True))
        phi = phi - rate * path[-1].gradient
    v = network.training_pass(phi, statistics, query.x, cross_entropy(query.y)).gradient
    for inner in reversed(path):
        v = v - rate * inner.hessian_vector_product(v)
    return v, path[0].statistics


class FTML(LeaderLearner):
    """Meta-trains a leader on past tasks by MAML; each task adapts a copy by SGD and discards it at its end.

    May use: boundaries, the datapoints seen so far, and the past task of each of them.

    meta-leader: θ ← Adam(θ, ∇_θ L_j(φ_n(θ; support_j); query_j)), j drawn from the past tasks → `_meta_update`
    copy: φ ← φ − inner_rate · ∇L_t(φ), from the meta-leader, on the current task's datapoints so far → `update`

    Deviations: the outer optimiser is Adam (the paper gives a learning rate and no optimiser). Meta-updates accumulate
    with each batch and are made at the end of the task, so that every task starts from a meta-leader trained on all
    tasks before it; with `meta_include_current` they are made after each batch, and the current task is among those
    drawn. Batch norm: every inner and outer pass uses the statistics of its own batch. The leader's running statistics
    are updated by the first inner pass only, because only that pass uses the leader's parameters; a copy starts with
    the leader's statistics and updates its own.
    """

    needs_boundaries = True
    changeable = ("inner_rate", "outer_rate")
    presets: ClassVar = {
        "finn2019": {"inner_rate": 0.1, "outer_rate": 0.001, "support": 10, "query": 10, "tasks_per_meta_batch": 25},
        "tuned": {"inner_rate": 0.02905, "outer_rate": 0.001132},
    }
    """`finn2019` has the rates of the authors' earlier work, `tuned` is the best of 24 trials on Rainbow-MNIST
    (docs/reproduction/budgets.md)."""
    options_class = Options
    state_fields = ("leader", "adapted", "replay", "tasks", "budget", "meta_updates_due", "starts")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.leader = Model.fresh(setting.network, setting.seeds, "adam", options.outer_rate)
        self.adapted = self.leader.copy(SGD(options.inner_rate))
        self.replay = ReplayBuffer(setting.images, setting.seeds)
        self.tasks = Generators(setting.seeds, "tasks")
        self.budget = UpdateBudget(options.updates_per_task, setting.batches_per_task)
        self.meta_updates_due = 0
        self.starts: list[int] = []  # position in 𝓑 of each task's first datapoint

    def begin_task(self) -> None:
        self.starts.append(self.replay.size)
        self.budget.restart()

    def update(self, batch: Batch) -> Diagnostics:
        o = self.options
        self.replay.add(batch)
        updates = self.budget.grant(len(batch))
        self.meta_updates_due += updates
        if o.meta_include_current:
            self._meta_train()
        return self.adapted.fit(updates, lambda: self.replay.sample(o.update_batch, start=self.starts[-1]))

    def end_task(self) -> None:
        self._meta_train()
        self.adapted = self.leader.copy(SGD(self.options.inner_rate))

    def _meta_train(self) -> None:
        for _ in range(self.meta_updates_due):
            self._meta_update()
        self.meta_updates_due = 0

    def _meta_update(self) -> None:
        """θ ← Adam(θ, mean of the outer gradients of the drawn tasks)."""
        o, leader = self.options, self.leader
        tasks = [task for task in pairwise([*self.starts, self.replay.size]) if task[1] - task[0] >= 2]
        if not tasks:  # a single datapoint cannot be split into support and query
            return
        total = torch.zeros_like(leader.phi)
        for _ in range(o.tasks_per_meta_batch):
            support, query = self._draw(tasks)
            gradient, leader.statistics = outer_gradient(
                leader.network, leader.phi, leader.statistics, support, query, o.inner_rate, o.inner_steps
            )
            total = total + gradient / o.tasks_per_meta_batch
        leader.phi, leader.moments = leader.optimizer.step(leader.phi, total, leader.moments)

    def _draw(self, tasks: list[tuple[int, int]]) -> tuple[Batch, Batch]:
        """Disjoint support and query of one task per replicate; a task with too few datapoints repeats some of them."""
        s, q = self.options.support, self.options.query
        supports, queries = [], []
        for rng in self.tasks:
            start, stop = tasks[rng.integers(len(tasks))]
            points = start + rng.permutation(stop - start)
            cut = min(s, max(1, len(points) * s // (s + q)))
            supports.append(np.resize(points[:cut], s))
            queries.append(np.resize(points[cut : cut + q], q))
        take = self.replay.take
        return take(torch.from_numpy(np.stack(supports))), take(torch.from_numpy(np.stack(queries)))
