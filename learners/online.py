"""Plain online learning: FOML without theta.

Not in the paper; the baseline that FOML must beat.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from learners.base import Diagnostics, Learner, Setting, documented, positive
from learners.batch import Batch
from learners.training.model import Model


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of the online baseline."""

    alpha1: float = positive(0.001, "learning rate")
    online_optimizer: Literal["adam", "sgd"] = documented("adam", "optimiser of phi")


class Online(Learner):
    """φ ← Opt(φ, ∇L(φ; D_j)): one gradient step on each batch.

    May use: the newest batch. No task id, no boundary, no replay.
    """

    changeable = ("alpha1",)
    options_class = Options
    state_fields = ("model",)

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, options.online_optimizer, options.alpha1)

    def predict(self, x: Tensor) -> Tensor:
        return self.model.predict(x)

    def update(self, batch: Batch) -> Diagnostics:
        return {"loss": self.model.learn(batch)}
