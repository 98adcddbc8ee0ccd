"""iCaRL: Rebuffi, Kolesnikov, Sperl & Lampert 2017, Algorithms 1–5, for tasks with recurring classes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from learners.base import Diagnostics, Learner, Setting, StreamFacts, at_least_one, positive
from learners.batch import Batch
from learners.networks.network import Loss, groups_of
from learners.training.exemplars import ByClass, append_points, evenly_spaced, no_exemplars, select_exemplars
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer
from learners.training.update_budget import UpdateBudget

PASS_SIZE = 256  # datapoints embedded in one pass, which limits memory
FARTHEST = -5.0  # logit of a class without a mean: below −4 = −‖u − (−u)‖², the smallest logit of any other class


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of iCaRL."""

    alpha: float = positive(0.001, "learning rate (Adam)")
    updates_per_task: int = at_least_one(50, "gradient updates per task, spread over its batches")
    update_batch: int = at_least_one(10, "datapoints per update")
    memory: int = at_least_one(2000, "M, total number of exemplars of all classes", le=1_000_000_000)
    mean_points: int = at_least_one(50, "maximum number of datapoints in a class mean, evenly spaced", le=1_000_000_000)


class ICaRL(Learner):
    """Learns features from the new datapoints and a few exemplars per class; predicts the class with the nearest mean.

    May use: boundaries, the current task's datapoints and at most M exemplars. 𝓑 stores their positions; no other
    datapoint is read from it.

    - Loss → `_loss`: sigmoid cross-entropy. The target is the label for the classes of the current task, and for a
      known class absent from it the sigmoid of the model at the last boundary (distillation).
    - Exemplars → `end_task`: ⌊M / known classes⌋ each, by herding on L2-normalised features
      (`learners.training.exemplars`).
    - Prediction → `predict`: the nearest of the renormalised class means (Algorithm 1), as −‖z − μ‖². For pairs the
      classes are *same* and *different*, over the pair feature.

    Deviations: a recurring class selects its exemplars again, from the old ones and the new datapoints. The means of
    the current task use its datapoints, because its exemplars are selected at its end; before the first boundary the
    linear head predicts. The means are recomputed after every update, because the features change, each from
    `mean_points` evenly spaced datapoints. A fixed number of updates with one Adam instead of epochs. If every class is
    in every task, nothing is distilled.
    """

    needs_boundaries = True
    needs_features = True
    changeable = ("alpha",)
    options_class = Options
    state_fields = ("model", "teacher", "replay", "budget", "task_start", "known", "current", "exemplars", "means")
    replicate_lists = ("exemplars",)

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
        self.task_start = 0  # position in 𝓑 of the task's first datapoint
        none = torch.zeros(setting.replicates, setting.classes, dtype=torch.bool, device=setting.network.device)
        self.known, self.current = none, none  # classes seen so far, and in this task: bool [R, C]
        self.exemplars: list[ByClass] = [no_exemplars(setting.classes) for _ in setting.seeds]
        self.means: tuple[Tensor, Tensor] | None = None  # None until the first boundary

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
        diagnostics = self.model.fit(
            self.budget.grant(len(batch)), lambda: self.replay.choose(points, self.options.update_batch), self._loss
        )
        if not diagnostics:  # no update, so that features and means are unchanged
            return {}
        if self.means is not None:
            self.means = self._class_means()
        absent = self.known & ~self.current
        return {**diagnostics, "distilled": absent.sum(1).to(diagnostics["loss"].dtype) / self.known.sum(1)}

    def _loss(self, batch: Batch) -> Loss:
        seen, absent = self.known.unsqueeze(1), (self.known & ~self.current).unsqueeze(1)
        labels = F.one_hot(batch.y, self.setting.classes).to(batch.x.dtype)
        groups, targets = groups_of(labels), labels
        if absent.any():
            logits = self.teacher.predict(batch.x)
            targets = torch.cat([logits[rows].sigmoid() for rows in groups]).where(absent, labels)

        def loss(logits: Tensor) -> Tensor:
            entropy = F.binary_cross_entropy_with_logits
            losses = torch.cat([entropy(logits[rows], targets[rows], reduction="none") for rows in groups])
            return losses.where(seen, 0).sum(-1).mean(1)

        return loss

    def end_task(self) -> None:
        candidates = [
            [points.sort().values if current else points[:0] for points, current in zip(by_class, row, strict=True)]
            for by_class, row in zip(self._points(), self.current.tolist(), strict=True)
        ]
        for r, features in enumerate(self._features(candidates)):
            per_class = self.options.memory // int(self.known[r].sum())
            self.exemplars[r] = select_exemplars(self.exemplars[r], candidates[r], features, per_class)
        self.task_start = self.replay.size
        self.means = self._class_means()

    def _points(self) -> list[ByClass]:
        """Positions per replicate and class: the exemplars, then the datapoints of the current task."""
        labels = self.replay.labels(self.task_start)
        return [append_points(old, new, self.task_start) for old, new in zip(self.exemplars, labels, strict=True)]

    def _class_means(self) -> tuple[Tensor, Tensor]:
        """Unit vectors [R, C, F], and a mask [R, C] of the classes that have one."""
        positions = [[evenly_spaced(p, self.options.mean_points) for p in by_class] for by_class in self._points()]
        sums = torch.stack([torch.stack([z.sum(0) for z in by_class]) for by_class in self._features(positions)])
        exist = torch.tensor([[len(p) > 0 for p in by_class] for by_class in positions])
        return F.normalize(sums, dim=-1), exist.to(self.known.device)

    def _features(self, positions: list[ByClass]) -> list[tuple[Tensor, ...]]:
        """Per replicate and class, the L2-normalised features [n_c, F] of the datapoints at these positions."""
        joined, features = [torch.cat(by_class) for by_class in positions], list[Tensor]()
        for rows in groups_of(self.model.phi):
            stack = pad_sequence(joined[rows], batch_first=True)  # padded with position 0: any datapoint will do
            parts = [self._embed(self.replay.take(part, rows).x, rows) for part in stack.split(PASS_SIZE, dim=1)]
            features += torch.cat(parts, 1)
        return [
            z[: sum(counts)].split(counts)
            for z, counts in zip(features, [[*map(len, by_class)] for by_class in positions], strict=True)
        ]

    @torch.no_grad()
    def _embed(self, x: Tensor, rows: slice = slice(None)) -> Tensor:
        """L2-normalised features [R, B, F] of images x of the replicates `rows`."""
        return F.normalize(self.model.network.embed(self.model.phi[rows], self.model.statistics[rows], x), dim=-1)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        # The positions are used on the CPU, whichever device the state was loaded to.
        self.exemplars = [[points.cpu() for points in by_class] for by_class in self.exemplars]
