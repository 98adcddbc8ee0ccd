"""La-MAML: Gupta, Yadav & Paull 2020, "Look-ahead Meta Learning for Continual Learning", Algorithm 2."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from learners.base import (
    Diagnostics,
    Learner,
    Setting,
    Weights,
    addition,
    at_least_one,
    documented,
    not_negative,
    positive,
)
from learners.batch import Batch
from learners.networks.network import cross_entropy
from learners.training.replay_buffer import ReplayBuffer


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of La-MAML."""

    alpha0: float = positive(0.1, "initial learning rate of every parameter")
    eta: float = not_negative(0.1, "learning rate of the learning rates")
    clip: float = positive(2.0, "bound on an entry of an inner gradient, and on the norms of the meta-gradients")
    inner_steps: int = at_least_one(5, "parts of a batch, an inner step on each", le=1_000)
    meta_loss: Literal["last", "mean"] = addition(
        documented("last", "the loss after the last inner step, or the mean of the losses after each")
    )


class LaMAML(Learner):
    """Looks ahead by inner steps on a batch, and moves the weights and their learning rates by the loss found there.

    May use: the datapoints seen so far. No task id, no boundary.

    Per batch D_j, divided into k parts b_1 … b_k, with a learning rate α for each parameter:

    - inner steps: φ_i = φ_{i−1} − α ∇L(φ_{i−1}; b_i), from φ_0 = φ
    - meta-loss gradient: g = ∇L(φ_k; D_j ∪ D_m), where D_m are |D_j| datapoints drawn uniformly from 𝓑
    - rates, then weights: α ← α + η g Σ_i ∇L(φ_{i−1}; b_i);  φ ← φ − max(0, α) g

    With `meta_loss: mean`, as in the authors' code, the meta-loss is the mean over the k steps of L(φ_i; D_j ∪ D_m),
    whose gradients are g_i: g is the mean of g_i, and α moves by η times the mean of g_i Σ_{l≤i} ∇L(φ_{l−1}; b_l).

    As in the authors' code, the derivatives are of first order, the entries of inner gradients are at most `clip`, and
    so are the norms of g and of the gradient of the rates.

    Deviations: 𝓑 holds all datapoints seen, as for FOML, and includes D_j; the original has a reservoir. A batch is
    learned once. The batch-norm statistics are those of the last pass of the meta-loss.
    """

    changeable = ("eta",)
    options_class = Options
    can_start = True
    state_fields = ("phi", "rates", "statistics", "replay")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.network = setting.network
        self.phi, self.statistics = self.network.initial(setting.seeds)
        self.rates = torch.full_like(self.phi, options.alpha0)
        self.replay = ReplayBuffer(setting.images, setting.seeds)

    def predict(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.network.logits(self.phi, self.statistics, x)

    def weights(self) -> Weights:
        return Weights(self.phi, self.statistics)

    def start_from(self, weights: Weights) -> None:
        self.phi, self.statistics = weights.phi, weights.statistics

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        return {"meta_loss": "inner_steps: 1"} if options.inner_steps == 1 else {}

    def update(self, batch: Batch) -> Diagnostics:
        o, network, statistics = self.options, self.network, self.statistics
        self.replay.add(batch)
        joint = batch.concatenate(self.replay.sample(len(batch)))
        parts = min(o.inner_steps, len(batch))
        first_measured = parts if o.meta_loss == "last" else 1
        weight = 1 / (parts - first_measured + 1)
        phi, path, losses, meta_losses = self.phi, torch.zeros_like(self.phi), [], []
        by_phi, by_path = torch.zeros_like(self.phi), torch.zeros_like(self.phi)
        pairs = zip(batch.x.tensor_split(parts, 1), batch.y.tensor_split(parts, 1), strict=True)
        for step, (x, y) in enumerate(pairs, 1):
            inner = network.training_pass(phi, statistics, x, cross_entropy(y))
            gradient = inner.gradient.clamp(-o.clip, o.clip)
            path = path + gradient
            phi = phi - self.rates * gradient
            losses.append(inner.loss)
            if step >= first_measured:
                outer = network.training_pass(phi, statistics, joint.x, cross_entropy(joint.y))
                by_phi = by_phi + weight * outer.gradient
                by_path = by_path + weight * outer.gradient * path
                meta_losses.append(outer.loss)
                self.statistics = outer.statistics
        self.rates = self.rates + o.eta * _clipped(by_path, o.clip)
        self.phi = self.phi - self.rates.clamp(min=0) * _clipped(by_phi, o.clip)
        return {
            "loss": torch.stack(losses, 1).mean(1),
            "meta_loss": torch.stack(meta_losses, 1).mean(1),
            "learning_rate": self.rates.clamp(min=0).mean(1),
        }


def _clipped(gradient: Tensor, norm: float) -> Tensor:
    """The gradient [R, P] scaled down to this norm where it is larger."""
    scale: Tensor = (norm / gradient.norm(dim=1, keepdim=True)).clamp(max=1)
    return gradient * scale
