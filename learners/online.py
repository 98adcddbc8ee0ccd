"""Plain online learning: FOML without theta.

Not in the paper; the baseline that FOML must beat.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from learners.base import Diagnostics, ModelLearner, Setting, addition, at_least_one, documented, positive
from learners.batch import Batch
from learners.training.model import Model


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of the online baseline."""

    alpha1: float = positive(0.001, "learning rate")
    online_optimizer: Literal["adam", "sgd"] = documented("adam", "optimiser of phi")
    updates_per_batch: int = addition(at_least_one(1, "steps on each batch"))


class Online(ModelLearner):
    """φ ← Opt(φ, ∇L(φ; D_j)): `updates_per_batch` gradient steps on each batch.

    May use: the newest batch. No task id, no boundary, no replay.
    """

    changeable = ("alpha1",)
    presets: ClassVar = {"tuned": {"alpha1": 0.001732}}
    """`tuned` is the best of 24 trials on Rainbow-MNIST (docs/reproduction/budgets.md)."""
    options_class = Options
    state_fields = ("model",)

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, options.online_optimizer, options.alpha1)

    def update(self, batch: Batch) -> Diagnostics:
        return self.model.fit(self.options.updates_per_batch, lambda: batch)
