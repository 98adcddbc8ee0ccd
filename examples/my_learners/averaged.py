"""Online learning that predicts with a running average of its weights."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from learners.base import Diagnostics, Learner, Setting, positive
from learners.batch import Batch
from learners.training.model import Model


@dataclass(frozen=True)
class Options:
    """The learner's options: every field is a key in YAML, checked by its type and bounds, and may be swept."""

    alpha: float = positive(0.001, "learning rate (Adam)")
    decay: float = field(default=0.9, metadata={"ge": 0, "lt": 1, "description": "0 averages nothing"})


class Averaged(Learner):
    """A learner that makes one step of Adam per batch and predicts with averaged weights."""

    options_class = Options
    state_fields = ("model", "average")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, "adam", options.alpha)
        self.average = self.model.phi  # [R, P]: one row of weights per seed

    def predict(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.setting.network.logits(self.average, self.model.statistics, x)

    def update(self, batch: Batch) -> Diagnostics:
        loss = self.model.learn(batch)
        self.average = self.options.decay * self.average + (1 - self.options.decay) * self.model.phi
        return {"loss": loss}
