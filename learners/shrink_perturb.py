"""Shrink and perturb: Ash & Adams 2020, "On Warm-Starting Neural Network Training", section 4."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from learners.base import Diagnostics, ModelLearner, Setting, at_least_one, documented, not_negative, positive
from learners.batch import Batch
from learners.seeding import Generators
from learners.training.model import Model


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of shrink and perturb."""

    alpha1: float = positive(0.001, "learning rate")
    shrink: float = documented(0.9999, "lambda, factor of the weights", gt=0, le=1)
    noise: float = not_negative(0.0001, "sigma, standard deviation of the noise")
    every: int = at_least_one(1, "batches between two perturbations")
    online_optimizer: Literal["adam", "sgd"] = documented("adam", "optimiser of phi")


class ShrinkPerturb(ModelLearner):
    """φ ← Opt(φ, ∇L(φ; D_j)), and after every `every`-th batch φ ← λ φ + p, p ~ N(0, σ²) for each weight.

    May use: the newest batch. No task id, no boundary, no replay.

    Deviations: the original perturbs once, before it trains on all data again when new data arrive; here the data
    arrive in batches and each is learned in one step, so that λ is near 1 and σ small, as where it is used on streams
    (Dohare et al. 2024). The optimiser keeps its moments. All parameters are perturbed, those of batch norm included.
    """

    changeable = ("alpha1", "shrink", "noise")
    options_class = Options
    state_fields = ("model", "noise", "batches")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, options.online_optimizer, options.alpha1)
        self.noise = Generators(setting.seeds, "perturbation")
        self.batches = 0

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        return {"every": "shrink: 1 and noise: 0"} if options.shrink == 1 and options.noise == 0 else {}

    def update(self, batch: Batch) -> Diagnostics:
        loss = self.model.learn(batch)
        self.batches += 1
        if self.batches % self.options.every == 0:
            size = self.model.phi.shape[1]
            noise = torch.from_numpy(np.stack([rng.standard_normal(size) for rng in self.noise]))
            perturbation = self.options.noise * noise.to(self.model.phi)
            self.model.phi = self.options.shrink * self.model.phi + perturbation
        return {"loss": loss, "norm": self.model.phi.norm(dim=1)}
