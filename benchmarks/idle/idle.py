"""A learner that does next to nothing: what is left of a sweep's time is the sweep's own."""

from dataclasses import dataclass

import torch
from torch import Tensor

from learners.base import Diagnostics, Learner, not_negative
from learners.batch import Batch


@dataclass(frozen=True)
class Options:
    """Nothing that matters; to have many configurations."""

    number: float = not_negative(0.0, "tells configurations apart")


class Idle(Learner):
    """Predicts class 0, and learns nothing."""

    options_class = Options
    state_fields = ()

    def predict(self, x: Tensor) -> Tensor:
        return torch.zeros(x.shape[0], x.shape[1], self.setting.classes)

    def update(self, batch: Batch) -> Diagnostics:
        return {"loss": torch.zeros(batch.y.shape[0])}
