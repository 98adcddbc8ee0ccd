"""Follow the leader (FTL): Finn et al. 2019, section 5 ("TOE" and fine-tuning); paper, section 4 and appendix A.3."""

from dataclasses import dataclass

from learners.base import Diagnostics, LeaderLearner, Setting, at_least_one, documented, positive
from learners.batch import Batch
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer
from learners.training.update_budget import UpdateBudget


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of FTL, shared by the leader and its copies."""

    alpha: float = positive(0.001, "learning rate (Adam), of the leader and of the fine-tuning")
    updates_per_task: int = at_least_one(50, "fine-tuning updates per task, and equally many of the leader")
    update_batch: int = at_least_one(10, "datapoints per update")
    growth: int = documented(
        10, "updates of the leader per task, added for every growth_every datapoints seen", ge=0, le=100_000
    )
    growth_every: int = at_least_one(40_000, "see growth", le=1_000_000_000)


class FTL(LeaderLearner):
    """Trains a leader on all past tasks; each task fine-tunes a copy of the leader and discards the copy at its end.

    May use: boundaries, and the datapoints seen so far.

    leader: φ_TOE = argmin Σ_{i<t} L_i(φ), by Adam on datapoints drawn uniformly from the past tasks → `end_task`
    copy:   φ_FTL = argmin L_t(φ) from φ_TOE, by a new Adam on the current task's datapoints so far → `update`

    Deviations: each argmin is approximated by a fixed number of updates. The leader's number grows as in TOE; it
    accumulates with each batch and is used at the end of the task, so that every task starts from a leader trained on
    all tasks before it. Batch-norm statistics are copied with the leader; leader and copy then update their own.
    """

    needs_boundaries = True
    changeable = ("alpha",)
    options_class = Options
    state_fields = ("leader", "adapted", "replay", "budget", "leader_budget", "leader_updates_due", "task_start")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        o = options
        self.leader = Model.fresh(setting.network, setting.seeds, "adam", o.alpha)
        self.adapted = self.leader.copy()
        self.replay = ReplayBuffer(setting.images, setting.seeds)
        self.budget = UpdateBudget(o.updates_per_task, setting.batches_per_task)
        self.leader_budget = UpdateBudget(o.updates_per_task, setting.batches_per_task, o.growth, o.growth_every)
        self.leader_updates_due = 0
        self.task_start = 0  # position in 𝓑 of the task's first datapoint

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        return {"growth_every": "growth: 0"} if options.growth == 0 else {}

    def begin_task(self) -> None:
        self.task_start = self.replay.size
        self.budget.restart()
        self.leader_budget.restart()

    def update(self, batch: Batch) -> Diagnostics:
        self.replay.add(batch)
        self.leader_updates_due += self.leader_budget.grant(len(batch))
        size = self.options.update_batch
        return self.adapted.fit(self.budget.grant(len(batch)), lambda: self.replay.sample(size, start=self.task_start))

    def end_task(self) -> None:
        self.leader.fit(self.leader_updates_due, lambda: self.replay.sample(self.options.update_batch))
        self.leader_updates_due = 0
        self.adapted = self.leader.copy()

    def skip(self, datapoints: int) -> None:
        self.leader_budget.skip(datapoints)
