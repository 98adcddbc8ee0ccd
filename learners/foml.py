"""Fully Online Meta-Learning (FOML): Rajasegaran, Finn & Levine 2021, Algorithm 1 and appendix "Meta updates"."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from learners.base import Diagnostics, Learner, Setting, at_least_one, documented, not_negative, positive
from learners.batch import Batch
from learners.networks.network import cross_entropy
from learners.training.meta_gradient import OnlineStep, adjoint, online_step, unrolled
from learners.training.optim import AdamZero, Moments, create_optimizer
from learners.training.replay_buffer import ReplayBuffer


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
    meta_path: Literal["adjoint", "unrolled"] = documented("adjoint", "unrolled: the slow reference, equal values")
    adam_zero: AdamZero = documented("mask", "derivative of Adam where its second moment is nearly zero")


class FOML(Learner):
    """Trains phi online, regularised towards theta; trains theta so that the regularised phi fits all data seen.

    May use: the datapoints seen so far. No task id, no boundary; phi is never reset.

    Per batch D_j of the stream (Algorithm 1), with 𝓑 all datapoints seen and D_m drawn uniformly from 𝓑:

    - online update → `_online_step`: φ ← Opt₁(φ, ∇L(φ; D_j) + 2 β₁ (φ − θ))
    - meta-update → `_meta_step`: θ ← Opt₂(θ, dJ/dθ),  J = L(φ_j; D_m) + β₂ Σ_{k=0..W} ‖θ − φ_{j−k}‖², where dJ/dθ
      differentiates through the last W = K online updates (fewer at the start of the stream).
    """

    changeable = ("alpha1", "alpha2", "beta1", "beta2")
    options_class = Options
    state_fields = ("phi", "theta", "statistics", "moments", "meta_moments", "steps", "replay")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.network = setting.network
        self.phi, self.statistics = self.network.initial(setting.seeds)
        self.theta = self.phi
        self.online_optimizer = create_optimizer(options.online_optimizer, options.alpha1, options.adam_zero)
        self.meta_optimizer = create_optimizer(options.meta_optimizer, options.alpha2)
        self.moments = self.online_optimizer.initial(self.phi)
        self.meta_moments = self.meta_optimizer.initial(self.theta)
        self.window: deque[OnlineStep] = deque(maxlen=options.K)
        self.steps = 0
        self.replay = ReplayBuffer(setting.images, setting.seeds)

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        if not options.meta_updates:
            meta_options = ("alpha2", "beta2", "K", "meta_optimizer", "meta_every", "meta_gradient", "meta_path")
            return dict.fromkeys((*meta_options, "adam_zero"), "meta_updates: false")
        return {"adam_zero": "online_optimizer: sgd"} if options.online_optimizer == "sgd" else {}

    def predict(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.network.logits(self.phi, self.statistics, x)

    def update(self, batch: Batch) -> Diagnostics:
        o = self.options
        self.replay.add(batch)
        step = self._online_step(batch, self.phi, self.theta, self.statistics, self.moments)
        self.phi, self.moments, self.statistics = step.new_phi, step.after, step.training_pass.statistics
        self.window.append(step)
        self.steps += 1
        diagnostics = {"loss": step.training_pass.loss, "distance": (self.theta - self.phi).norm(dim=1)}
        if o.online_optimizer == "adam":
            diagnostics["masked_share"] = self.online_optimizer.masked(step.after)
        if o.meta_updates and self.steps % o.meta_every == 0:
            diagnostics |= self._meta_step(self.replay.sample(self.setting.batch_size))
        return diagnostics

    def _online_step(
        self, batch: Batch, phi: Tensor, theta: Tensor, statistics: Tensor, moments: Moments
    ) -> OnlineStep:
        """φ ← Opt₁(φ, g),  g = ∇L(φ; D_j) + 2 β₁ (φ − θ)."""
        o = self.options
        # A step's Hessian is used only by the exact adjoint over two or more steps; keeping it costs memory.
        twice = o.meta_updates and o.K > 1 and o.meta_gradient == "exact" and o.meta_path == "adjoint"
        return online_step(self.network, batch, phi, theta, statistics, moments, self.online_optimizer, o.beta1, twice)

    def _meta_step(self, replayed: Batch) -> Diagnostics:
        """θ ← Opt₂(θ, dJ/dθ) with D_m = `replayed`; see `learners.training.meta_gradient`."""
        o = self.options
        first_order = o.meta_gradient == "first_order"
        at_phi = self.network.training_pass(self.phi, self.statistics, replayed.x, cross_entropy(replayed.y))
        arguments = (self.online_optimizer, o.beta1, o.beta2, first_order)
        if o.meta_path == "adjoint":
            gradient = adjoint(self.window, self.theta, at_phi.gradient, *arguments)
        else:
            gradient = unrolled(self.network, self.window, self.theta, replayed, *arguments)
        self.theta, self.meta_moments = self.meta_optimizer.step(self.theta, gradient.total, self.meta_moments)
        return {
            "meta_loss": at_phi.loss,
            "meta_gradient_direct": gradient.direct.norm(dim=1),
            "meta_gradient_rest": (gradient.total - gradient.direct).norm(dim=1),
        }

    def restore_seen(self, seen: Batch) -> None:
        self.replay.add(seen)

    def state_dict(self) -> dict[str, Any]:
        # A step's gradient is not stored: computed again from the same numbers, it is equal bit for bit.
        window = [
            {
                "phi": step.phi,
                "theta": step.theta,
                "statistics": step.statistics,
                "before": tuple(step.before),
                "ids": step.batch.ids,
                "y": step.batch.y,
            }
            for step in self.window
        ]
        return {**super().state_dict(), "window": window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.window.clear()
        for step in state["window"] if self.setting.images is not None else ():  # no images: used for prediction only
            ids = step["ids"].cpu()  # on the CPU, whichever device the state was loaded to
            batch = Batch(self.setting.require_images().gather(ids), step["y"], ids)
            self.window.append(
                self._online_step(batch, step["phi"], step["theta"], step["statistics"], Moments(*step["before"]))
            )

    def load_with_new_options(self, state: dict[str, Any]) -> None:
        # The steps in the window used other learning rates and regularisation. The meta-gradient must not differentiate
        # through them, so the window starts empty, as at the start of a stream.
        self.load_state_dict({**state, "window": []})
