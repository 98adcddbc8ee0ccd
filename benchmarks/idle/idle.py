"""A learner with almost no work, which leaves only the sweep's overhead to measure."""

from dataclasses import dataclass

import torch
from torch import Tensor

from learners.base import Diagnostics, Learner, not_negative
from learners.batch import Batch


@dataclass(frozen=True)
class Options:
    """One option without effect, which makes many configurations."""

    number: float = not_negative(0.0, "distinguishes configurations")


class Idle(Learner):
    """A learner that predicts class 0 and learns nothing."""

    options_class = Options
    state_fields = ()

    def predict(self, x: Tensor) -> Tensor:
        return torch.zeros(x.shape[0], x.shape[1], self.setting.classes)

    def update(self, batch: Batch) -> Diagnostics:
        return {"loss": torch.zeros(batch.y.shape[0])}
