"""Follow the leader (FTL): Finn et al. 2019, section 5 ("TOE" and fine-tuning); paper, section 4 and appendix A.3."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from learners.base import Diagnostics, Learner, Setting, at_least_one, not_negative, positive
from learners.batch import Batch
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer
from learners.training.update_budget import UpdateBudget


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of FTL; the leader and its copies share them."""

    alpha: float = positive(0.001, "learning rate (Adam), of the leader and of the fine-tuning")
    updates_per_task: int = at_least_one(50, "fine-tuning updates per task, and as many of the leader")
    update_batch: int = at_least_one(10, "datapoints per update")
    growth: int = not_negative(10, "updates of the leader per task, added for every growth_every datapoints seen")
    growth_every: int = at_least_one(40_000, "see growth")


class FTL(Learner):
    """Pre-trains a leader on all past tasks; each task fine-tunes a copy of it, which is thrown away afterwards.

    May know: boundaries, and the datapoints seen so far.

    leader: φ_TOE = argmin Σ_{i<t} L_i(φ), by Adam on points drawn uniformly from the tasks that are over → `end_task`
    copy:   φ_FTL = argmin L_t(φ) from φ_TOE, by a fresh Adam on the present task's points so far → `update`

    Where it deviates: both argmins are a budget of updates. The leader's grows as TOE's does; it is earned batch by
    batch and spent when the task is over, so that the leader that a task starts from has learned all tasks before it.
    Batch-norm statistics are copied with the leader, and then follow each one's own updates.
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
        self.task_start = 0

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        return {"growth_every": "growth: 0"} if options.growth == 0 else {}

    def begin_task(self) -> None:
        self.task_start = self.replay.size
        self.budget.restart()
        self.leader_budget.restart()

    def predict(self, x: Tensor) -> Tensor:
        return self.adapted.predict(x)

    def update(self, batch: Batch) -> Diagnostics:
        self.replay.add(batch)
        self.leader_updates_due += self.leader_budget.grant(len(batch))
        loss = self.adapted.learn_often(
            self.budget.grant(len(batch)), lambda: self.replay.sample(self.options.update_batch, start=self.task_start)
        )
        return {} if loss is None else {"loss": loss}

    def end_task(self) -> None:
        self.leader.learn_often(self.leader_updates_due, lambda: self.replay.sample(self.options.update_batch))
        self.leader_updates_due = 0
        self.adapted = self.leader.copy()

    def skip(self, datapoints: int) -> None:
        self.leader_budget.skip(datapoints)

    def restore_seen(self, seen: Batch) -> None:
        self.replay.add(seen)
