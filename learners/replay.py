"""Plain experience replay: steps on the new batch and equally many old datapoints.

A baseline for FOML.
"""

from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import ClassVar, Literal

from learners.base import Diagnostics, ModelLearner, Setting, addition, at_least_one, documented, positive
from learners.batch import Batch
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of the replay baseline."""

    alpha1: float = positive(0.001, "learning rate")
    online_optimizer: Literal["adam", "sgd"] = documented("adam", "optimiser of phi")
    updates_per_batch: int = addition(at_least_one(1, "updates for each batch, each with other old datapoints"))
    step: Literal["joint", "alternate"] = addition(
        documented("joint", "one step on both batches, or a step on the new batch and then one on the old datapoints")
    )


class OnlineReplay(ModelLearner):
    """φ ← Opt(φ, ∇L(φ; D_j ∪ D_m)), where D_m are |D_j| datapoints drawn uniformly from 𝓑, which includes D_j.

    `step: alternate`: φ ← Opt(φ, ∇L(φ; D_j)), then φ ← Opt(φ, ∇L(φ; D_m)), with one optimiser.

    May use: the datapoints seen so far. No task id, no boundary.

    Source: Robins 1995. Not in the paper; it is in the tables because it uses the same data as FOML. Batch-norm
    statistics are those of the joint batch D_j ∪ D_m, or of each step's batch.
    """

    changeable = ("alpha1",)
    presets: ClassVar = {"tuned": {"step": "alternate", "alpha1": 0.002065}}
    """`tuned` is the best of 24 trials on Rainbow-MNIST (docs/reproduction/budgets.md)."""
    options_class = Options
    state_fields = ("model", "replay")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, options.online_optimizer, options.alpha1)
        self.replay = ReplayBuffer(setting.images, setting.seeds)

    def update(self, batch: Batch) -> Diagnostics:
        self.replay.add(batch)
        draw = partial(self.replay.sample, len(batch))
        if self.options.step == "joint":
            return self.model.fit(self.options.updates_per_batch, lambda: batch.concatenate(draw()))
        is_new = cycle([True, False])
        return self.model.fit(2 * self.options.updates_per_batch, lambda: batch if next(is_new) else draw())
