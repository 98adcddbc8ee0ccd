"""MOCA: Harrison, Sharma, Finn & Pavone 2020, "Continuous Meta-Learning without Tasks", with its classifier PCOC."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learners.base import Diagnostics, Learner, Setting, StreamFacts, at_least_one, positive
from learners.batch import Batch
from learners.changepoint.belief import Belief
from learners.changepoint.pcoc import Prior
from learners.changepoint.window import Window, window_loss
from learners.training.optim import Adam

AT_ONCE = 32  # datapoints predicted in one pass, for the sake of memory
FARTHEST = 1e6  # bound on a feature: sums of squares stay far inside float32
SMALLEST_UNIT = 1e-6  # features below this (pairs of equal pictures) are no measure of anything


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of MOCA."""

    alpha: float = positive(0.001, "learning rate of features and prior (Adam)")
    hazard: float = field(
        default=0.01, metadata={"gt": 0, "lt": 1, "description": "probability that a task ends with a given point"}
    )
    hypotheses: int = at_least_one(50, "beginnings of the present task that are kept in mind at most")
    window: int = at_least_one(100, "newest points, which a meta-update learns from")
    meta_every: int = at_least_one(1, "batches between two meta-updates on the stream; no effect with pretrain_tasks")
    pretrain_tasks: int = field(
        default=0,
        metadata={
            "ge": 0,
            "description": "tasks outside the stream to meta-train on instead, beforehand; 0: on the stream",
        },
    )
    pretrain_passes: int = at_least_one(10, "passes over the tasks of pretrain_tasks")


class MOCA(Learner):
    """Believes in several beginnings of the present task at once, and classifies by Gaussian clusters of features.

    May know: the newest `window` datapoints, and class statistics of those before. No task id, no boundary. With
    `pretrain_tasks`, also that many labelled tasks outside the stream.

    - Algorithm 1 → `Belief.predict`: weigh the belief by p(x), predict the mixture of p(y | x); → `Belief.learn`: weigh
      it by p(y | x), let every hypothesis learn the point, multiply by 1 − hazard, open a fresh one with the hazard.
    - PCOC, p(x, y) of a hypothesis → `pcoc.log_joint`.
    - Training loss, the mean of −log p(y | x) over a window that begins with a fresh belief → `window_loss`; a step of
      Adam on features and prior per batch → `_meta_step`, on the stream or on other tasks before it (`pretrain`).

    Where it deviates: meta-trained on the stream by default, the original always beforehand. A batch is predicted with
    the belief at its start. A point is weighed once, with the features of its day, but class statistics are made anew
    from the window after each step; points that have left the window keep the features they had. The belief holds
    `hypotheses` at most. Features are measured in units of the first batch's.
    """

    options_class = Options
    state_fields = ("parameters", "statistics", "moments", "origin", "unit", "batches", "pretrained", "seen")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.network, self.optimizer = setting.network, Adam(options.alpha)
        phi, self.statistics = self.network.initial(setting.seeds)
        self._phi_size = phi.shape[1]
        # The prior, at first m = 0 and σ² = κ = α = 1, lies behind phi in one vector with one optimiser.
        prior = phi.new_zeros(len(phi), Prior.size(setting.classes, self.network.features))
        self.parameters = torch.cat([phi, prior], 1)
        self.moments = self.optimizer.initial(self.parameters)
        self.origin, self.unit = phi.new_zeros(len(phi), 1, self.network.features), phi.new_ones(len(phi), 1, 1)
        self.batches, self.pretrained = 0, False
        self._forget()

    @classmethod
    def check(cls, options: Options, stream: StreamFacts) -> Iterable[tuple[str, str]]:
        if options.pretrain_tasks > stream.held_back:
            yield "pretrain_tasks", f"must be at most stream.held_back, {stream.held_back}"

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        if options.pretrain_tasks:
            return {"meta_every": f"pretrain_tasks: {options.pretrain_tasks}"}
        return {"pretrain_passes": "pretrain_tasks: 0"}

    def _forget(self) -> None:
        """Nothing has been seen, and a task begins with the next point."""
        self.seen, self.belief = 0, Belief.fresh(self._prior(self.parameters))
        self.window: Window | None = None

    def _prior(self, parameters: Tensor) -> Prior:
        return Prior.unflatten(parameters[:, self._phi_size :], self.setting.classes)

    @property
    def _phi(self) -> Tensor:
        return self.parameters[:, : self._phi_size]

    def _measured(self, features: Tensor) -> Tensor:
        """z [R, B, F]: features in units of the first batch's."""
        return ((features - self.origin) / self.unit).clamp(-FARTHEST, FARTHEST)

    @torch.no_grad()
    def _features(self, x: Tensor) -> Tensor:
        """z [R, B, F] as predictions see it."""
        return self._measured(self.network.embed(self._phi, self.statistics, x))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """log p(y | x) [R, B, classes]."""
        prior, parts = self._prior(self.parameters), x.split(AT_ONCE, 1)
        return torch.cat([self.belief.predict(prior, self._features(part)) for part in parts], 1)

    def update(self, batch: Batch) -> Diagnostics:
        o = self.options
        if o.pretrain_tasks and not self.pretrained:
            raise ValueError(f"pretrain() must come before update(), but got (pretrain_tasks={o.pretrain_tasks})")
        self._measure(batch)
        diagnostics = self._learn_points(batch)
        if not o.pretrain_tasks:
            self._move_statistics(batch)
            if self.batches % o.meta_every == 0:
                diagnostics["window_loss"], window = self._meta_step()
                self.belief = self.belief.recompute(window.z, window.y, window.first)
        return diagnostics

    @property
    def pretrain_tasks(self) -> int:
        return int(self.options.pretrain_tasks)

    def pretrain(self, batches: Sequence[Batch]) -> None:
        """Meta-train on batches of tasks outside the stream, task after task; then forget all but features and prior.

        The platform calls it once, before the stream, if `pretrain_tasks` is above 0.
        """
        for _ in range(self.options.pretrain_passes):
            for batch in batches:
                self._measure(batch)
                self._move_statistics(batch)
                self._slide(batch, self.origin.expand(-1, len(batch), -1))
                self._meta_step()
        self._forget()
        self.pretrained = True

    @torch.no_grad()
    def _measure(self, batch: Batch) -> None:
        """Count the batch; the very first sets the features' origin and unit."""
        if self.batches == 0:
            z = self.network.training_features(self._phi, self.statistics, batch.x)[0]
            # Not their spread: in a new network it can be so small that one step of Adam moves a feature by all of it.
            rms = z.square().mean((1, 2), keepdim=True).sqrt()
            self.origin, self.unit = z.mean(1, keepdim=True), rms.where(rms > SMALLEST_UNIT, 1)
        self.batches += 1

    @torch.no_grad()
    def _learn_points(self, batch: Batch) -> Diagnostics:
        """Point by point, with the features that the batch was predicted with."""
        o, prior, z = self.options, self._prior(self.parameters), self._features(batch.x)
        log_p = self.belief.predict(prior, z).gather(2, batch.y.unsqueeze(2))
        self.belief = self.belief.learn(prior, z, batch.y, self.seen, o.hazard, o.hypotheses)
        left = self._slide(batch, z)
        self.belief = self.belief.settle(left.z, left.y, left.first)
        self.seen += len(batch)
        return {"loss": -log_p.mean((1, 2)), "run_length": self.belief.run_length(self.seen)}

    def _slide(self, batch: Batch, z: Tensor) -> Window:
        """Take the batch into the window; what has to leave it."""
        newest = Window(batch.x, batch.y, batch.ids, z, self.seen)
        window = newest if self.window is None else self.window.append(newest)
        left, self.window = window.split(max(0, window.y.shape[1] - self.options.window))
        return left

    @torch.no_grad()
    def _move_statistics(self, batch: Batch) -> None:
        """As with every learner, the newest batch alone moves batch norm's running statistics, and once."""
        if self.statistics.shape[1] > 0:
            self.statistics = self.network.embedding_pass(self._phi, self.statistics, batch.x).statistics

    def _meta_step(self) -> tuple[Tensor, Window]:
        """One step of Adam on the window's loss; that loss [R], and the window with its features made anew."""
        window = self.window
        assert window is not None
        embedded = self.network.embedding_pass(self._phi, self.statistics, window.x)
        features = embedded.features.requires_grad_()
        prior = self.parameters[:, self._phi_size :].detach().requires_grad_()
        with torch.enable_grad():
            z = self._measured(features)
            losses = window_loss(Prior.unflatten(prior, self.setting.classes), z, window.y, self.options.hazard)
            by_features, by_prior = torch.autograd.grad(losses.sum(), [features, prior])
        gradient = torch.cat([embedded.backward(by_features), by_prior], 1)
        self.parameters, self.moments = self.optimizer.step(self.parameters, gradient, self.moments)
        if self.statistics.shape[1] > 0:  # then predictions have other features than training
            z = self._features(window.x)
        # Else those of the gradient's pass will do: one step of Adam old, and they spare a third of the time.
        self.window = window._replace(z=z.detach())
        return losses.detach(), self.window

    def state_dict(self) -> dict[str, Any]:
        window = self.window
        return {
            **super().state_dict(),
            "belief": self.belief._asdict(),
            # The pictures follow from their ids.
            "window": {name: part for name, part in window._asdict().items() if name != "x"} if window else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.belief, self.window = Belief(**state["belief"]), None
        if state["window"] is not None and self.setting.images is not None:  # no images: loaded to predict only
            ids = state["window"]["ids"].cpu()  # where a batch has them, whatever the state was read onto
            self.window = Window(**{**state["window"], "x": self.setting.images.gather(ids), "ids": ids})
