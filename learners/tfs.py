"""Train from scratch (TFS): paper, section 4 and appendix A.3."""

from dataclasses import dataclass

from learners.base import Diagnostics, ModelLearner, Setting, at_least_one, positive
from learners.batch import Batch
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer
from learners.training.update_budget import UpdateBudget


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of TFS."""

    alpha: float = positive(0.001, "learning rate (Adam)")
    updates_per_task: int = at_least_one(50, "gradient updates per task, spread over its batches")
    update_batch: int = at_least_one(10, "datapoints per update")


class TFS(ModelLearner):
    """Starts every task with new random weights and a new optimiser, and trains on the datapoints of this task only.

    May use: boundaries, and the datapoints of the current task seen so far.
    """

    needs_boundaries = True
    can_start = False  # each task starts from random weights
    changeable = ("alpha",)
    options_class = Options
    state_fields = ("model", "replay", "budget", "task", "task_start")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, "adam", options.alpha)
        self.replay = ReplayBuffer(setting.images, setting.seeds)
        self.budget = UpdateBudget(options.updates_per_task, setting.batches_per_task)
        self.task = -1
        self.task_start = 0  # position in 𝓑 of the task's first datapoint

    def begin_task(self) -> None:
        self.task += 1
        self.task_start = self.replay.size
        self.budget.restart()
        if self.task > 0:  # the first task keeps the weights that all methods start from
            purpose = f"network of task {self.task}"
            self.model = Model.fresh(self.setting.network, self.setting.seeds, "adam", self.options.alpha, purpose)

    def update(self, batch: Batch) -> Diagnostics:
        self.replay.add(batch)
        size = self.options.update_batch
        return self.model.fit(self.budget.grant(len(batch)), lambda: self.replay.sample(size, start=self.task_start))
