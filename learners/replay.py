"""Plain experience replay: one step on the new batch and equally many old datapoints.

A baseline for FOML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from learners.base import Diagnostics, Learner, Setting, documented, positive
from learners.batch import Batch
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of the replay baseline."""

    alpha1: float = positive(0.001, "learning rate")
    online_optimizer: Literal["adam", "sgd"] = documented("adam", "optimiser of phi")


class OnlineReplay(Learner):
    """φ ← Opt(φ, ∇L(φ; D_j ∪ D_m)), where D_m are |D_j| datapoints drawn uniformly from 𝓑, which includes D_j.

    May use: the datapoints seen so far. No task id, no boundary.

    Source: Robins 1995. Not in the paper; it is in the tables because it uses the same data as FOML. Batch-norm
    statistics are those of the joint batch D_j ∪ D_m.
    """

    changeable = ("alpha1",)
    options_class = Options
    state_fields = ("model", "replay")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, options.online_optimizer, options.alpha1)
        self.replay = ReplayBuffer(setting.images, setting.seeds)

    def predict(self, x: Tensor) -> Tensor:
        return self.model.predict(x)

    def update(self, batch: Batch) -> Diagnostics:
        self.replay.add(batch)
        return {"loss": self.model.learn(batch.concatenate(self.replay.sample(len(batch))))}

    def restore_seen(self, seen: Batch) -> None:
        self.replay.add(seen)
