"""MOCA: Harrison, Sharma, Finn & Pavone 2020, "Continuous Meta-Learning without Tasks", with its classifier PCOC."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learners.base import Diagnostics, Learner, Setting, StreamFacts, addition, at_least_one, documented, positive
from learners.batch import Batch
from learners.changepoint.belief import Belief
from learners.changepoint.pcoc import Prior
from learners.changepoint.window import Window, normalise, window_gradient
from learners.networks.cuda_graphs import RecordedFunction
from learners.training.optim import Adam

PASS_SIZE = 32  # datapoints predicted in one pass, which limits memory
SMALLEST_UNIT = 1e-6  # smaller root mean squares (pairs of equal images) are not used as a unit


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of MOCA."""

    alpha: float = positive(0.001, "learning rate of features and prior (Adam)")
    hazard: float = documented(0.01, "probability that a task ends after a given datapoint", gt=0, lt=1)
    hypotheses: int = at_least_one(50, "maximum number of hypotheses about the start of the current task")
    window: int = at_least_one(100, "newest datapoints, on which a meta-update trains")
    noise: float = addition(
        positive(
            1.0, "standard deviation of a class before training, in root mean squares of the first batch's features"
        )
    )
    meta_every: int = at_least_one(1, "batches between two meta-updates on the stream; no effect with pretrain_tasks")
    pretrain_tasks: int = documented(
        0, "tasks outside the stream to meta-train on before it; 0: meta-train on the stream", ge=0
    )
    pretrain_passes: int = at_least_one(10, "passes over the tasks of pretrain_tasks")


class MOCA(Learner):
    """Keeps a belief over several starts of the current task, and classifies by Gaussian clusters of features.

    May use: the newest `window` datapoints, and class statistics of earlier ones. No task id, no boundary. With
    `pretrain_tasks`, also that many labelled tasks outside the stream.

    - Algorithm 1 → `Belief.predict`: weight the belief by p(x) and predict the mixture of p(y | x); → `Belief.learn`:
      weight it by p(y | x), update every hypothesis with the datapoint, multiply by 1 − hazard, add a new hypothesis
      with the hazard.
    - PCOC, p(x, y) of a hypothesis → `pcoc.log_joint`.
    - Training loss, the mean of −log p(y | x) over a window that starts with a new belief → `window_loss`; one step of
      Adam on features and prior per batch → `_meta_step`, on the stream or on other tasks before it (`pretrain`).

    Deviations: meta-trained on the stream by default, the original always before it. A batch is predicted with the
    belief at its start. A datapoint is weighted once, with the features of that time, but class statistics are
    recomputed from the window after each step; datapoints that left the window keep their last features. The belief
    holds at most `hypotheses` hypotheses. Features are in units of `noise` root mean squares of the first batch's.
    """

    needs_features = True
    changeable = ("alpha",)
    options_class = Options
    state_fields = ("parameters", "statistics", "moments", "origin", "unit", "batches", "pretrained", "seen")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.network, self.optimizer = setting.network, Adam(options.alpha)
        gradient = partial(window_gradient, classes=setting.classes, hazard=options.hazard)
        # Its recursion has over a thousand small kernels, which take longer to launch than to run.
        self._window_gradient = RecordedFunction(gradient) if self.network.device.type == "cuda" else gradient
        phi, self.statistics = self.network.initial(setting.seeds)
        self._phi_size = phi.shape[1]
        # phi and the prior are one vector with one optimiser. All zeros is the prior m = 0, σ² = κ = α = 1.
        prior = phi.new_zeros(len(phi), Prior.size(setting.classes, self.network.features))
        self.parameters = torch.cat([phi, prior], 1)
        self.moments = self.optimizer.initial(self.parameters)
        self.origin, self.unit = phi.new_zeros(len(phi), 1, self.network.features), phi.new_ones(len(phi), 1, 1)
        self.batches, self.pretrained = 0, False
        self._reset_stream()

    @classmethod
    def check(cls, options: Options, stream: StreamFacts) -> Iterable[tuple[str, str]]:
        if options.pretrain_tasks > stream.held_back:
            yield "pretrain_tasks", f"must be at most stream.held_back, {stream.held_back}"

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        if options.pretrain_tasks:
            return {"meta_every": f"pretrain_tasks: {options.pretrain_tasks}"}
        return {"pretrain_passes": "pretrain_tasks: 0"}

    def _reset_stream(self) -> None:
        """Start a stream: no datapoint seen, and a task starts with the next one."""
        self.seen, self.belief = 0, Belief.fresh(self._prior(self.parameters))
        self.window: Window | None = None

    def _prior(self, parameters: Tensor) -> Prior:
        return Prior.unflatten(parameters[:, self._phi_size :], self.setting.classes)

    @property
    def _phi(self) -> Tensor:
        return self.parameters[:, : self._phi_size]

    @torch.no_grad()
    def _features(self, x: Tensor) -> Tensor:
        """z [R, B, F] with the running batch-norm statistics, as predictions use it."""
        return normalise(self.network.embed(self._phi, self.statistics, x), self.origin, self.unit)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """log p(y | x) [R, B, classes]."""
        prior, parts = self._prior(self.parameters), x.split(PASS_SIZE, 1)
        return torch.cat([self.belief.predict(prior, self._features(part)) for part in parts], 1)

    def update(self, batch: Batch) -> Diagnostics:
        o = self.options
        if o.pretrain_tasks and not self.pretrained:
            raise ValueError(f"pretrain() must come before update(), but got (pretrain_tasks={o.pretrain_tasks})")
        self._measure(batch)
        diagnostics = self._learn_points(batch)
        if not o.pretrain_tasks:
            self._update_statistics(batch)
            if self.batches % o.meta_every == 0:
                diagnostics["window_loss"], window = self._meta_step()
                self.belief = self.belief.recompute(window.z, window.y, window.first)
        return diagnostics

    @property
    def pretrain_tasks(self) -> int:
        return int(self.options.pretrain_tasks)

    def pretrain(self, batches: Sequence[Batch]) -> None:
        """Meta-train on the batches in order; afterwards reset everything but the parameters and the feature units.

        The platform calls it once before the stream, if `pretrain_tasks` is above 0.
        """
        for _ in range(self.options.pretrain_passes):
            for batch in batches:
                self._measure(batch)
                self._update_statistics(batch)
                self._slide(batch, self.origin.expand(-1, len(batch), -1))
                self._meta_step()
        self._reset_stream()
        self.pretrained = True

    @torch.no_grad()
    def _measure(self, batch: Batch) -> None:
        """Count the batch; the first batch sets the origin and the unit of the features."""
        if self.batches == 0:
            z = self.network.embedding_pass(self._phi, self.statistics, batch.x).features
            # Not the standard deviation: in a new network it can be as small as one Adam step's change of a feature.
            rms = z.square().mean((1, 2), keepdim=True).sqrt()
            self.origin, self.unit = z.mean(1, keepdim=True), self.options.noise * rms.where(rms > SMALLEST_UNIT, 1)
        self.batches += 1

    @torch.no_grad()
    def _learn_points(self, batch: Batch) -> Diagnostics:
        """Update the belief datapoint by datapoint, with the features that predicted the batch."""
        o, prior, z = self.options, self._prior(self.parameters), self._features(batch.x)
        log_p = self.belief.predict(prior, z).gather(2, batch.y.unsqueeze(2))
        self.belief = self.belief.learn(prior, z, batch.y, self.seen, o.hazard, o.hypotheses)
        oldest = self._slide(batch, z)
        self.belief = self.belief.settle(oldest.z, oldest.y, oldest.first)
        self.seen += len(batch)
        return {"loss": -log_p.mean((1, 2)), "run_length": self.belief.run_length(self.seen)}

    def _slide(self, batch: Batch, z: Tensor) -> Window:
        """Append the batch to the window; returns the oldest datapoints, which leave it."""
        newest = Window(batch.x, batch.y, batch.ids, z, self.seen)
        window = newest if self.window is None else self.window.append(newest)
        oldest, self.window = window.split(max(0, window.y.shape[1] - self.options.window))
        return oldest

    @torch.no_grad()
    def _update_statistics(self, batch: Batch) -> None:
        """Update the running batch-norm statistics once, with the newest batch only, as every learner does."""
        if self.statistics.shape[1] > 0:
            self.statistics = self.network.embedding_pass(self._phi, self.statistics, batch.x).statistics

    def _meta_step(self) -> tuple[Tensor, Window]:
        """One step of Adam on the window's loss; returns the loss [R] and the window with its features recomputed."""
        window = self.window
        assert window is not None
        forward = self.network.embedding_pass(self._phi, self.statistics, window.x)
        prior = self.parameters[:, self._phi_size :]
        losses, by_features, by_prior = self._window_gradient(forward.features, prior, window.y, self.origin, self.unit)
        gradient = torch.cat([forward.backward(by_features), by_prior], 1)
        self.parameters, self.moments = self.optimizer.step(self.parameters, gradient, self.moments)
        if self.statistics.shape[1] > 0:  # with batch norm, predictions have other features than training
            z = self._features(window.x)
        else:  # the features of the gradient's pass: one Adam step old, but this saves a third of the time
            z = normalise(forward.features, self.origin, self.unit)
        self.window = window._replace(z=z)
        return losses.clone(), self.window

    def state_dict(self) -> dict[str, Any]:
        window = self.window
        return {
            **super().state_dict(),
            "belief": self.belief._asdict(),
            # The images follow from the ids.
            "window": {key: value for key, value in window._asdict().items() if key != "x"} if window else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.belief, self.window = Belief(**state["belief"]), None
        if state["window"] is not None and self.setting.images is not None:  # no images: used for prediction only
            ids = state["window"]["ids"].cpu()  # on the CPU, whichever device the state was loaded to
            self.window = Window(**{**state["window"], "x": self.setting.images.gather(ids), "ids": ids})
