"""Fully Online Meta-Learning (FOML): Rajasegaran, Finn & Levine 2021, Algorithm 1 and appendix "Meta updates"."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learners.base import (
    Diagnostics,
    Learner,
    Setting,
    StreamFacts,
    Weights,
    addition,
    at_least_one,
    documented,
    not_negative,
    positive,
)
from learners.batch import Batch
from learners.networks.network import cross_entropy
from learners.training.meta_gradient import MetaGradient, MetaObjective, OnlineStep
from learners.training.optim import Adam, AdamZero, Moments, create_optimizer
from learners.training.replay_buffer import ReplayBuffer
from learners.training.replicate_options import add_scaled


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of FOML, with the paper's names."""

    alpha1: float = positive(0.001, "online learning rate")
    alpha2: float = positive(0.001, "meta learning rate")
    beta1: float = not_negative(0.01, "pull of phi towards theta in the online update")
    beta2: float = not_negative(0.001, "pull of theta towards the recent phi in the meta-update")
    K: int = at_least_one(5, "online steps that the meta-gradient differentiates through", le=1_000)
    online_optimizer: Literal["adam", "sgd"] = documented("adam", "optimiser of phi")
    meta_optimizer: Literal["adam", "sgd"] = documented("adam", "optimiser of theta")
    meta_updates: bool = documented(True, "False: theta keeps its initial value (the paper's second ablation)")
    meta_every: int = at_least_one(1, "batches between two meta-updates")
    meta_gradient: Literal["exact", "first_order"] = documented("exact", "first_order drops every Hessian")
    meta_path: Literal["adjoint", "unrolled"] = documented(
        "adjoint", "unrolled: the slow reference; equal in float64, up to 7 % apart in float32 (docs/methods.md)"
    )
    adam_zero: AdamZero = documented("mask", "derivative of Adam where its second moment is nearly zero")
    pull: Literal["coupled", "decoupled"] = addition(
        documented(
            "coupled", "decoupled: the pulls do not go through the optimisers; beta1 and beta2 are shares in 0…1"
        )
    )
    meta_batches: int = addition(at_least_one(1, "size of the meta-batch D_m, in batches of the stream", le=1_000))
    online_replay: bool = addition(
        documented(False, "True: the online update learns the batch joined with as many datapoints seen")
    )


class FOML(Learner):
    """Trains phi online, regularised towards theta; trains theta so that the regularised phi fits all data seen.

    May use: the datapoints seen so far. No task id, no boundary; phi is never reset.

    Per batch D_j of the stream (Algorithm 1), with 𝓑 all datapoints seen and D_m drawn uniformly from 𝓑:

    - online update → `_online_step`: φ ← Opt₁(φ, ∇L(φ; D_j) + 2 β₁ (φ − θ))
    - meta-update → `_meta_step`: θ ← Opt₂(θ, dJ/dθ),  J = L(φ_j; D_m) + β₂ Σ_{k=0..W} ‖θ − φ_{j−k}‖², where dJ/dθ
      differentiates through the last W = K online updates (fewer at the start of the stream).

    With replay (ours, `online_replay`), the online update is on D_j ∪ D_r, where D_r are |D_j| datapoints drawn from 𝓑.
    Decoupled (ours, `pull`): φ ← φ − Opt₁(∇L(φ; D_j)) + β₁ (θ − φ), and θ ← θ − Opt₂(dJ/dθ) + β₂ (φ_j − θ) with
    J = L(φ_j; D_m).
    """

    changeable = ("alpha1", "alpha2", "beta1", "beta2")
    presets: ClassVar = {
        "tuned": {"K": 1, "pull": "decoupled", "alpha1": 0.00133, "alpha2": 0.002708, "beta1": 0.1088, "beta2": 0.5291}
    }
    """`tuned` is the best of 24 trials on Rainbow-MNIST (docs/reproduction/budgets.md) at two gradients a datapoint."""
    options_class = Options
    can_start = True
    state_fields = ("phi", "theta", "statistics", "moments", "meta_moments", "steps", "replay")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.network = setting.network
        self.phi, self.statistics = self.network.initial(setting.seeds)
        self.theta = self.phi
        self.online_optimizer = create_optimizer(options.online_optimizer, options.alpha1, options.adam_zero)
        first_order = options.meta_gradient == "first_order"
        decoupled = options.pull == "decoupled"
        self.objective = MetaObjective(self.online_optimizer, options.beta1, options.beta2, first_order, decoupled)
        self.meta_optimizer = create_optimizer(options.meta_optimizer, options.alpha2)
        self.moments = self.online_optimizer.initial(self.phi)
        self.meta_moments = self.meta_optimizer.initial(self.theta)
        self.window: deque[OnlineStep] = deque(maxlen=options.K)
        self.steps = 0
        self.replay = ReplayBuffer(setting.images, setting.seeds)

    @classmethod
    def check(cls, options: Options, stream: StreamFacts) -> Iterable[tuple[str, str]]:
        for name in ("beta1", "beta2") if options.pull == "decoupled" else ():
            if getattr(options, name) > 1:
                yield name, "must be at most 1 with pull: decoupled"

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        if not options.meta_updates:
            meta_options = ("alpha2", "beta2", "K", "meta_optimizer", "meta_every", "meta_batches", "meta_gradient")
            return dict.fromkeys((*meta_options, "meta_path", "adam_zero"), "meta_updates: false")
        reasons = {"meta_gradient": "K: 1"} if options.K == 1 else {}  # a window of one step has no Hessian
        return reasons | ({"adam_zero": "online_optimizer: sgd"} if options.online_optimizer == "sgd" else {})

    def predict(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.network.logits(self.phi, self.statistics, x)

    def weights(self) -> Weights:
        return Weights(self.phi, self.statistics, self.theta)

    def start_from(self, weights: Weights) -> None:
        self.phi, self.statistics = weights.phi, weights.statistics
        self.theta = weights.phi if weights.theta is None else weights.theta

    def update(self, batch: Batch) -> Diagnostics:
        o = self.options
        self.replay.add(batch)
        if o.online_replay:
            batch = batch.concatenate(self.replay.sample(len(batch)))
        step = self._online_step(batch, self.phi, self.theta, self.statistics, self.moments)
        self.phi, self.moments, self.statistics = step.new_phi, step.after, step.training_pass.statistics
        self.window.append(step)
        self.steps += 1
        diagnostics = {"loss": step.training_pass.loss, "distance": (self.theta - self.phi).norm(dim=1)}
        if isinstance(self.online_optimizer, Adam):
            diagnostics["masked_share"] = self.online_optimizer.dead(step.after).to(self.phi.dtype).mean(1)
        if o.meta_updates and self.steps % o.meta_every == 0:
            diagnostics |= self._meta_step(self.replay.sample(o.meta_batches * self.setting.batch_size))
        return diagnostics

    def _online_step(
        self, batch: Batch, phi: Tensor, theta: Tensor, statistics: Tensor, moments: Moments
    ) -> OnlineStep:
        """φ ← Opt₁(φ, g),  g = ∇L(φ; D_j) + 2 β₁ (φ − θ)."""
        o = self.options
        # A step's Hessian is used only by the exact adjoint over two or more steps; keeping it costs memory.
        twice = o.meta_updates and o.K > 1 and o.meta_gradient == "exact" and o.meta_path == "adjoint"
        return self.objective.online_step(self.network, batch, phi, theta, statistics, moments, twice)

    def _meta_step(self, replayed: Batch) -> Diagnostics:
        """θ ← Opt₂(θ, dJ/dθ) with D_m = `replayed`; see `learners.training.meta_gradient`."""
        at_phi = self.network.training_pass(self.phi, self.statistics, replayed.x, cross_entropy(replayed.y))
        if self.options.meta_path == "adjoint":
            gradient = self.objective.adjoint(self.window, self.theta, at_phi.gradient)
        else:
            gradient = self.objective.unrolled(self.network, self.window, self.theta, replayed)
        theta, self.meta_moments = self.meta_optimizer.step(self.theta, gradient.total, self.meta_moments)
        if self.objective.decoupled:
            self.theta = add_scaled(theta, self.phi - self.theta, self.options.beta2)
            return {"meta_loss": at_phi.loss, "meta_gradient_rest": gradient.total.norm(dim=1)}
        self.theta = theta
        return {
            "meta_loss": at_phi.loss,
            "meta_gradient_direct": gradient.direct.norm(dim=1),
            "meta_gradient_rest": (gradient.total - gradient.direct).norm(dim=1),
            "meta_gradient_same_sign": self._same_sign_share(gradient),
        }

    def _same_sign_share(self, gradient: MetaGradient) -> Tensor:
        """The share [R] of live parameters at which dJ/dθ has the sign of its direct β₂ part."""
        live = gradient.direct != 0
        if isinstance(self.online_optimizer, Adam):
            live &= ~self.online_optimizer.dead(self.window[-1].after)
        same = (gradient.total * gradient.direct > 0) & live
        return same.sum(1).to(self.theta.dtype) / live.sum(1).clamp(min=1)

    def state_dict(self) -> dict[str, Any]:
        # A step's result is the input of the next step, and equal bit for bit when it is computed again: only the
        # oldest step's input is stored.
        window: list[dict[str, Any]] = [
            {"theta": step.theta, "ids": step.batch.ids, "y": step.batch.y} for step in self.window
        ]
        if self.window:
            oldest = self.window[0]
            window[0] |= {"phi": oldest.phi, "statistics": oldest.statistics, "before": tuple(oldest.before)}
        return {**super().state_dict(), "window": window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.window.clear()
        phi, statistics, moments = self.phi, self.statistics, self.moments
        for step in state["window"] if self.setting.images is not None else ():  # no images: used for prediction only
            if "phi" in step:  # of the oldest step; earlier versions stored it of each
                phi, statistics, moments = step["phi"], step["statistics"], Moments(*step["before"])
            ids = step["ids"].cpu()  # on the CPU, whichever device the state was loaded to
            batch = Batch(self.setting.require_images().gather(ids), step["y"], ids)
            again = self._online_step(batch, phi, step["theta"], statistics, moments)
            phi, statistics, moments = again.new_phi, again.training_pass.statistics, again.after
            self.window.append(again)

    def state_for_new_options(self, state: dict[str, Any]) -> dict[str, Any]:
        # The steps in the window used other learning rates and regularisation. The meta-gradient must not differentiate
        # through them, so the window starts empty, as at the start of a stream. The next step replaces a window of one.
        return {**state, "window": []} if self.options.K > 1 else state

    @classmethod
    def window_length(cls, options: Options) -> int:
        return options.K if options.K > 1 else 0
