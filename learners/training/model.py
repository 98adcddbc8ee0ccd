"""A trainable network: parameters, batch-norm statistics and an optimiser, for methods without a meta-level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from learners.batch import Batch
from learners.networks.network import Loss, Network, cross_entropy
from learners.state import Stateful
from learners.training.optim import Optimizer, create_optimizer
from learners.training.replicate_options import Real


class Model(Stateful):
    """R copies of a network, each with its own optimiser state.

    Attributes:
        phi: parameters [R, P].
        statistics: batch-norm statistics [R, S].
        moments: optimiser state.
    """

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
        rate: Real,
        purpose: str = "network",
    ) -> Model:
        """A model with new random weights; with the default purpose, the same for every learner of these seeds."""
        return cls(network, *network.initial(seeds, purpose), create_optimizer(optimizer, rate))

    def copy(self, optimizer: Optimizer | None = None) -> Model:
        """A model with the same weights and a new optimiser state."""
        return Model(self.network, self.phi, self.statistics, optimizer or self.optimizer)

    def predict(self, x: Tensor) -> Tensor:
        """Logits [R, B, classes] of images x, with the running statistics."""
        with torch.no_grad():
            return self.network.logits(self.phi, self.statistics, x)

    def learn(self, batch: Batch, loss: Loss | None = None, penalty_gradient: Tensor | None = None) -> Tensor:
        """Take one optimiser step on the batch; returns the losses [R] before it, without a penalty.

        Args:
            batch: the datapoints.
            loss: cross-entropy by default.
            penalty_gradient: [R, P], added to the gradient of the loss.
        """
        gradient_pass = self.network.training_pass(self.phi, self.statistics, batch.x, loss or cross_entropy(batch.y))
        gradient = gradient_pass.gradient
        if penalty_gradient is not None:
            gradient = gradient + penalty_gradient
        self.phi, self.moments = self.optimizer.step(self.phi, gradient, self.moments)
        self.statistics = gradient_pass.statistics
        return gradient_pass.loss

    def fit(
        self, updates: int, draw: Callable[[], Batch], loss: Callable[[Batch], Loss] | None = None
    ) -> dict[str, Tensor]:
        """Take `updates` steps, each on a new batch from `draw`; returns {"loss": mean [R]}, or {} without updates."""
        losses = []
        for _ in range(updates):
            batch = draw()
            losses.append(self.learn(batch, loss(batch) if loss else None))
        # Along the second axis: along the first one, the order of the summands depends on the number of replicates.
        return {"loss": torch.stack(losses, 1).mean(1)} if losses else {}
