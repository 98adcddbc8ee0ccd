"""Train on everything (TOE): paper, section 4 and appendix A.3."""

from dataclasses import dataclass

from learners.base import Diagnostics, ModelLearner, Setting, at_least_one, documented, positive
from learners.batch import Batch
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer
from learners.training.update_budget import UpdateBudget


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of TOE."""

    alpha: float = positive(0.001, "learning rate (Adam)")
    updates_per_task: int = at_least_one(50, "gradient updates per task, spread over its batches")
    update_batch: int = at_least_one(10, "datapoints per update")
    growth: int = documented(
        10, "updates per task that are added for every growth_every datapoints seen", ge=0, le=100_000
    )
    growth_every: int = at_least_one(40_000, "see growth", le=1_000_000_000)


class TOE(ModelLearner):
    """Trains one model on datapoints drawn uniformly from everything seen, including the current batch.

    May use: the datapoints seen so far. No task id, no boundary. The number of updates grows with the number of
    datapoints seen.
    """

    changeable = ("alpha",)
    options_class = Options
    state_fields = ("model", "replay", "budget")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        o = options
        self.model = Model.fresh(setting.network, setting.seeds, "adam", o.alpha)
        self.replay = ReplayBuffer(setting.images, setting.seeds)
        self.budget = UpdateBudget(o.updates_per_task, setting.batches_per_task, o.growth, o.growth_every)

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        return {"growth_every": "growth: 0"} if options.growth == 0 else {}

    def update(self, batch: Batch) -> Diagnostics:
        self.replay.add(batch)
        return self.model.fit(self.budget.grant(len(batch)), lambda: self.replay.sample(self.options.update_batch))

    def skip(self, datapoints: int) -> None:
        self.budget.skip(datapoints)
