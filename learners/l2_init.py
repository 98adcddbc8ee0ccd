"""L2 Init: Kumar, Marklund & Van Roy 2023, "Maintaining Plasticity … via Regenerative Regularization"."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from learners.base import Diagnostics, ModelLearner, Setting, Weights, documented, not_negative, positive
from learners.batch import Batch
from learners.training.model import Model


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of L2 Init."""

    alpha1: float = positive(0.001, "learning rate")
    strength: float = not_negative(0.001, "lambda, pull of phi towards its initial value")
    online_optimizer: Literal["adam", "sgd"] = documented("adam", "optimiser of phi")


class L2Init(ModelLearner):
    """φ ← Opt(φ, ∇L(φ; D_j) + 2 λ (φ − φ₀)): plain online learning, regularised towards the initial weights φ₀.

    May use: the newest batch. No task id, no boundary, no replay.

    Section 4: L_reg(φ) = L(φ) + λ ‖φ − φ₀‖² → `update`. It is FOML whose θ never moves (`meta_updates: false`) with
    β₁ = λ.
    """

    changeable = ("alpha1", "strength")
    presets: ClassVar = {"tuned": {"alpha1": 0.001448, "strength": 0.002372}}
    """`tuned` is the best of 24 trials on Rainbow-MNIST (docs/reproduction/budgets.md)."""
    options_class = Options
    state_fields = ("model", "initial")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, options.online_optimizer, options.alpha1)
        self.initial = self.model.phi

    def start_from(self, weights: Weights) -> None:
        super().start_from(weights)
        self.initial = weights.phi

    def update(self, batch: Batch) -> Diagnostics:
        away = self.model.phi - self.initial
        loss = self.model.learn(batch, penalty_gradient=2 * self.options.strength * away)
        return {"loss": loss, "distance": (self.model.phi - self.initial).norm(dim=1)}
