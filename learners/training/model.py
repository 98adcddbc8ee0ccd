"""Parameters, batch-norm statistics and an optimiser: what a method without a meta-level learns with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from learners.batch import Batch
from learners.networks.network import Loss, Network, cross_entropy
from learners.state import Stateful
from learners.training.optim import Optimizer, create_optimizer


class Model(Stateful):
    """R copies of a network, each with an optimiser's state of its own."""

    state_fields = ("phi", "statistics", "moments")

    def __init__(self, network: Network, phi: Tensor, statistics: Tensor, optimizer: Optimizer) -> None:
        self.network, self.optimizer = network, optimizer
        self.phi, self.statistics = phi, statistics
        self.moments = optimizer.initial(phi)

    @classmethod
    def fresh(
        cls,
        network: Network,
        seeds: Sequence[int],
        optimizer: Literal["adam", "sgd"],
        rate: float,
        purpose: str = "network",
    ) -> Model:
        """Newly drawn weights; with the default purpose, the ones that every learner of these seeds starts from."""
        return cls(network, *network.initial(seeds, purpose), create_optimizer(optimizer, rate))

    def copy(self, optimizer: Optimizer | None = None) -> Model:
        """The same weights with a fresh optimiser's state."""
        return Model(self.network, self.phi, self.statistics, optimizer or self.optimizer)

    def predict(self, x: Tensor) -> Tensor:
        """Logits [R, B, classes], by the running statistics."""
        with torch.no_grad():
            return self.network.logits(self.phi, self.statistics, x)

    def learn(self, batch: Batch, loss: Loss | None = None) -> Tensor:
        """One optimiser step on the batch, on its cross-entropy if no other loss is given; the losses [R] before it."""
        made = self.network.training_pass(self.phi, self.statistics, batch.x, loss or cross_entropy(batch.y))
        self.phi, self.moments = self.optimizer.step(self.phi, made.gradient, self.moments)
        self.statistics = made.statistics
        return made.loss

    def learn_often(
        self, updates: int, draw: Callable[[], Batch], loss: Callable[[Batch], Loss] | None = None
    ) -> Tensor | None:
        """That many steps, each on a batch of its own; the mean loss [R] over them, None if there were none."""
        losses = []
        for _ in range(updates):
            batch = draw()
            losses.append(self.learn(batch, loss(batch) if loss else None))
        return torch.stack(losses).mean(0) if losses else None
