"""iCaRL: Rebuffi, Kolesnikov, Sperl & Lampert 2017, Algorithms 1–5, for tasks whose classes may come back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from learners.base import Diagnostics, Learner, Setting, StreamFacts, at_least_one, positive
from learners.batch import Batch
from learners.networks.network import Loss
from learners.training.exemplars import ByClass, append_points, evenly_spaced, no_exemplars, select_exemplars
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer
from learners.training.update_budget import UpdateBudget

AT_ONCE = 256  # datapoints embedded in one pass, for the sake of memory
FARTHEST = -5.0  # logit of a class without a mean: below −4, the squared distance of two opposite unit vectors


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of iCaRL."""

    alpha: float = positive(0.001, "learning rate (Adam)")
    updates_per_task: int = at_least_one(50, "gradient updates per task, spread over its batches")
    update_batch: int = at_least_one(10, "datapoints per update")
    memory: int = at_least_one(2000, "M, exemplars of all classes together")
    mean_points: int = at_least_one(50, "datapoints that a class mean is taken over at most, evenly chosen")


class ICaRL(Learner):
    """Learns features from the new points and a few exemplars per class, and predicts the class with the nearest mean.

    May know: boundaries, the present task's datapoints and the exemplars (at most M). 𝓑 serves to address them; no
    other point is ever taken from it.

    - Loss → `_loss`: sigmoid cross-entropy. The target is the label for every class of the present task, and for a
      known class absent from it the sigmoid of the model as it was at the boundary.
    - Exemplars → `end_task`: ⌊M / known classes⌋ each, by herding on L2-normalised features
      (`learners.training.exemplars`).
    - Prediction → `predict`: the nearest of the renormalised class means (Algorithm 1), as −‖z − μ‖². For pairs the
      classes are *same* and *different*, over the pair feature.

    Where it deviates: a class that comes back chooses its exemplars anew from the old ones and the new points. The task
    in progress has no exemplars yet: its points stand in for them in the means; before the first boundary the linear
    head predicts. The features change with every update, and the means are made anew with them, each from
    `mean_points` evenly chosen of all. A budget of updates and one Adam instead of epochs. Where every class is in
    every task, nothing is distilled.
    """

    needs_boundaries = True
    changeable = ("alpha",)
    options_class = Options
    state_fields = (
        "model",
        "teacher",
        "replay",
        "budget",
        "task_start",
        "known",
        "current",
        "exemplars",
        "means",
    )

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        if options.memory < setting.classes:
            raise ValueError(
                f"memory >= classes must hold, but got (memory={options.memory}, classes={setting.classes})"
            )
        self.model = Model.fresh(setting.network, setting.seeds, "adam", options.alpha)
        self.teacher = self.model.copy()
        self.replay = ReplayBuffer(setting.images, setting.seeds)
        self.budget = UpdateBudget(options.updates_per_task, setting.batches_per_task)
        self.task_start = 0
        none = torch.zeros(setting.replicates, setting.classes, dtype=torch.bool, device=setting.network.device)
        self.known, self.current = none, none  # classes [R, C] ever seen; seen in the present task
        self.exemplars: list[ByClass] = [no_exemplars(setting.classes) for _ in setting.seeds]
        self.means: tuple[Tensor, Tensor] | None = None  # until the first boundary

    @classmethod
    def check(cls, options: Options, stream: StreamFacts) -> Iterable[tuple[str, str]]:
        if stream.classes is not None and options.memory < stream.classes:
            yield "memory", f"must be at least the stream's {stream.classes} classes"

    def begin_task(self) -> None:
        self.teacher = self.model.copy()
        self.task_start = self.replay.size
        self.current = torch.zeros_like(self.current)
        self.budget.restart()

    def predict(self, x: Tensor) -> Tensor:
        if self.means is None:
            return self.model.predict(x)
        means, exist = self.means
        distance = (self._embed(x).unsqueeze(2) - means.unsqueeze(1)).square().sum(-1)
        return (-distance).where(exist.unsqueeze(1), FARTHEST)

    def update(self, batch: Batch) -> Diagnostics:
        self.replay.add(batch)
        self.current = self.current.scatter(1, batch.y, True)
        self.known = self.known | self.current
        present = torch.arange(self.task_start, self.replay.size)
        points = [torch.cat([*exemplars, present]) for exemplars in self.exemplars]
        loss = self.model.learn_often(
            self.budget.grant(len(batch)), lambda: self.replay.choose(points, self.options.update_batch), self._loss
        )
        if loss is None:  # the features are what they were
            return {}
        if self.means is not None:
            self.means = self._class_means()
        absent = self.known & ~self.current
        return {"loss": loss, "distilled": absent.sum(1).to(loss.dtype) / self.known.sum(1)}

    def _loss(self, batch: Batch) -> Loss:
        known, absent = self.known.unsqueeze(1), (self.known & ~self.current).unsqueeze(1)
        labels = F.one_hot(batch.y, self.setting.classes).to(batch.x.dtype)
        targets = self.teacher.predict(batch.x).sigmoid().where(absent, labels) if absent.any() else labels

        def loss(logits: Tensor) -> Tensor:
            each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
            return each.where(known, 0).sum(-1).mean(1)

        return loss

    def end_task(self) -> None:
        candidates = [
            [points.sort().values if here else points[:0] for points, here in zip(by_class, current, strict=True)]
            for by_class, current in zip(self._points(), self.current.tolist(), strict=True)
        ]
        for r, features in enumerate(self._features(candidates)):
            most = self.options.memory // int(self.known[r].sum())
            self.exemplars[r] = select_exemplars(self.exemplars[r], candidates[r], features, most)
        self.task_start = self.replay.size
        self.means = self._class_means()

    def _points(self) -> list[ByClass]:
        """Per replicate and class, the exemplars and then the points of the task in progress."""
        labels = self.replay.labels(self.task_start)
        return [append_points(old, own, self.task_start) for old, own in zip(self.exemplars, labels, strict=True)]

    def _class_means(self) -> tuple[Tensor, Tensor]:
        """Unit vectors [R, C, F], and which classes [R, C] have one."""
        points = [[evenly_spaced(one, self.options.mean_points) for one in by_class] for by_class in self._points()]
        sums = torch.stack([torch.stack([z.sum(0) for z in by_class]) for by_class in self._features(points)])
        exist = torch.tensor([[len(one) > 0 for one in by_class] for by_class in points])
        return F.normalize(sums, dim=-1), exist.to(self.known.device)

    def _features(self, positions: list[ByClass]) -> list[tuple[Tensor, ...]]:
        """Per replicate and class, the L2-normalised features [n_c, F] of these points."""
        rows = [torch.cat(by_class) for by_class in positions]
        stack = pad_sequence(rows, batch_first=True)  # with position 0: any datapoint fills the stack
        made = torch.cat([self._embed(self.replay.take(part).x) for part in stack.split(AT_ONCE, dim=1)], 1)
        return [
            own[: len(row)].split([len(points) for points in by_class])
            for own, row, by_class in zip(made, rows, positions, strict=True)
        ]

    def _embed(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return F.normalize(self.model.network.embed(self.model.phi, self.model.statistics, x), dim=-1)

    def restore_seen(self, seen: Batch) -> None:
        self.replay.add(seen)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        # Positions are on the CPU, on any device that the state is loaded to.
        self.exemplars = [[points.cpu() for points in by_class] for by_class in self.exemplars]
