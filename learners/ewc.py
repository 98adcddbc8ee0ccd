"""Online EWC: Schwarz et al. 2018, "Progress & Compress", section 3.2; Kirkpatrick et al. 2017 for EWC itself."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from learners.base import Diagnostics, ModelLearner, Setting, at_least_one, documented, not_negative, positive
from learners.batch import Batch
from learners.networks.network import Network, groups_of
from learners.seeding import Generators
from learners.training.model import Model


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of online EWC."""

    alpha: float = positive(0.001, "learning rate (Adam)")
    strength: float = not_negative(100.0, "lambda, weight of the penalty")
    decay: float = documented(0.95, "gamma, factor of the Fisher information of earlier tasks", ge=0, le=1)
    fisher_datapoints: int = at_least_one(100, "newest datapoints of a task from which its Fisher information is taken")


class EWC(ModelLearner):
    """One step per batch on the new data, with a penalty on changes of the weights that earlier tasks determined.

    May use: boundaries, the newest batch, and the newest datapoints of the present task at its end.

    L = cross-entropy + λ/2 Σᵢ Fᵢ (φᵢ − φ*ᵢ)² → `update`, with φ* the weights at the last boundary, and the diagonal
    Fisher information F ← γ F + F_task → `end_task`. F_task is the mean of (∇ log p(y | x, φ))² over datapoints x of
    the task, with a label y sampled from the model → `fisher_information`.

    Deviations: the factor γ of F in the original's penalty is part of λ; one step per batch instead of epochs; all
    tasks share one head. The gradient of one datapoint needs the running batch-norm statistics.
    """

    needs_boundaries = True
    changeable = ("alpha", "strength", "decay")
    presets: ClassVar = {"tuned": {"alpha": 0.001458, "strength": 0.01039}}
    """`tuned` is the best of 24 trials on Rainbow-MNIST (docs/reproduction/budgets.md)."""
    options_class = Options
    state_fields = ("model", "fisher", "anchor", "recent", "labels")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, "adam", options.alpha)
        self.fisher, self.anchor = torch.zeros_like(self.model.phi), self.model.phi
        self.recent: Tensor | None = None
        self.labels = Generators(setting.seeds, "fisher labels")

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        return dict.fromkeys(("decay", "fisher_datapoints"), "strength: 0") if options.strength == 0 else {}

    def begin_task(self) -> None:
        self.recent = None

    def update(self, batch: Batch) -> Diagnostics:
        away = self.model.phi - self.anchor
        pull = self.options.strength * self.fisher * away
        ids = batch.ids if self.recent is None else torch.cat([self.recent, batch.ids], 1)
        self.recent = ids[:, -self.options.fisher_datapoints :]
        return {"loss": self.model.learn(batch, penalty_gradient=pull), "penalty": (pull * away).sum(1) / 2}

    def end_task(self) -> None:
        if self.recent is None:
            return
        x = self.setting.require_images().gather(self.recent)
        uniform = torch.from_numpy(np.stack([rng.random(x.shape[1]) for rng in self.labels])).to(x)
        model = self.model
        of_task = fisher_information(model.network, model.phi, model.statistics, x, uniform)
        self.fisher, self.anchor = self.options.decay * self.fisher + of_task, model.phi

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.recent is not None:
            self.recent = self.recent.cpu()  # joined with a batch's ids, whichever device the state was loaded to


def fisher_information(network: Network, phi: Tensor, statistics: Tensor, x: Tensor, uniform: Tensor) -> Tensor:
    """The diagonal of the Fisher information [R, P] at phi: the mean squared gradient of log p(y | x) over datapoints.

    Args:
        network: of the model.
        phi: parameters [R, P].
        statistics: batch-norm statistics [R, S]; the running ones are used.
        x: images [R, B, *image].
        uniform: numbers in [0, 1), [R, B]; the label of a datapoint is the first one whose cumulative probability is
            above its number.
    """
    total = torch.zeros_like(phi)
    for rows in groups_of(phi):
        # Copies are aligned in memory; the convolutions of a CPU round differently where their operands are not.
        at = phi[rows].detach().clone().requires_grad_()
        for b in range(x.shape[1]):
            with torch.enable_grad():
                log_p = network.logits(at, statistics[rows], x[rows, b : b + 1].clone())[:, 0].log_softmax(-1)
                below = log_p.detach().exp().cumsum(-1) <= uniform[rows, b : b + 1]
                y = below.sum(-1).clamp(max=log_p.shape[-1] - 1)
                (gradient,) = torch.autograd.grad(log_p.gather(1, y[:, None]).sum(), at)
            total[rows] += gradient.square()
    network.gradient_evaluations += x.shape[1]
    return total / x.shape[1]
