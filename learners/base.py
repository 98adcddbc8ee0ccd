"""The contract of every learner: `Learner`, its `Setting`, and the bounds of its options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from learners.batch import Batch
from learners.images import ImageTable
from learners.networks.network import Network
from learners.state import Stateful
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer

Diagnostics = dict[str, Tensor]
"""Name → one number per replicate, [R]. A value that is not finite marks its replicate as diverged."""


def documented(default: Any, doc: str, **bounds: float) -> Any:
    """An option with a description and any of the bounds `gt`, `ge`, `lt` and `le`."""
    return field(default=default, metadata={**bounds, "description": doc})


def positive(default: float, doc: str) -> Any:
    """An option above 0."""
    return documented(default, doc, gt=0)


def not_negative(default: float, doc: str) -> Any:
    """An option of at least 0."""
    return documented(default, doc, ge=0)


def at_least_one(default: int, doc: str, le: int = 100_000) -> Any:
    """An integer option of at least 1, and at most `le`."""
    return documented(default, doc, ge=1, le=le)


def addition(option: Any) -> Any:
    """An option that a later version added: with its default it is not recorded, so that older hashes stay."""
    return field(default=option.default, metadata={**option.metadata, "addition": True})


@dataclass(frozen=True)
class Setting:
    """The inputs of a learner besides its options; equal for all learners of a comparison.

    Attributes:
        network: the network that all replicates share; their parameters are the learner's.
        seeds: one seed per replicate, R in all.
        batch_size: datapoints per batch of the stream.
        batches_per_task: the stream's mean task length, rounded up to batches, whatever the seeds. It sets the number
            of updates, and reveals no boundary.
        classes: number of classes.
        images: the images by id; None for a learner that only predicts.
    """

    network: Network
    seeds: Sequence[int]
    batch_size: int
    batches_per_task: int
    classes: int
    images: ImageTable | None = None

    @property
    def replicates(self) -> int:
        """The number of replicates R."""
        return len(self.seeds)

    def require_images(self) -> ImageTable:
        """The images.

        Raises:
            ValueError: the learner was loaded without images.
        """
        if self.images is None:
            raise ValueError("this learner was loaded for prediction only; pass images to train it")
        return self.images


@dataclass(frozen=True)
class Weights:
    """The weights of a trained learner, from which another one may start.

    Attributes:
        phi: parameters of the network that predicts [R, P].
        statistics: its batch-norm statistics [R, S].
        theta: meta-parameters [R, P]; None if the learner has none.
    """

    phi: Tensor
    statistics: Tensor
    theta: Tensor | None = None

    def replicates(self, rows: Sequence[int], dtype: torch.dtype) -> Weights:
        """Those of these replicates, which may repeat."""
        theta = None if self.theta is None else self.theta[list(rows)].to(dtype)
        return Weights(self.phi[list(rows)].to(dtype), self.statistics[list(rows)].to(dtype), theta)


@dataclass(frozen=True)
class StreamFacts:
    """The properties of a stream that `Learner.check` can use before training.

    Attributes:
        batch_size: datapoints per batch.
        held_back: tasks outside the stream, available to `pretrain`.
        classes: number of classes; None until the task store is built.
    """

    batch_size: int
    held_back: int
    classes: int | None = None


class Learner(Stateful, ABC):
    """R replicates of one method, trained simultaneously.

    Replicates are independent of each other. For every batch of the stream the platform calls `predict`, then `update`.
    If `needs_boundaries` is True it also calls `begin_task` before the first batch of a task and `end_task` after the
    held-out evaluation of the task.
    """

    needs_boundaries: ClassVar[bool] = False
    needs_features: ClassVar[bool] = False
    """Whether it uses the network's features, so that the module must be an `EmbeddingNet`."""
    needs_hidden_layers: ClassVar[bool] = False
    """Whether it changes hidden units, so that the module must name its `hidden_layers`."""
    changeable: ClassVar[tuple[str, ...]] = ()
    """Float options that may change during a run, because no shape in the state depends on them, and that may differ
    between the configurations of a stack: then they are a `learners.training.replicate_options.PerReplicate`."""
    can_start: ClassVar[bool] = False
    """Whether it implements `weights` and `start_from`."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of option values, for `preset` in a sweep: name → option → value."""
    options_class: ClassVar[type]
    state_fields: ClassVar[tuple[str, ...]]
    """Attributes that determine all later results, generators included.

    The datapoints seen are not among them: they follow from the position in the stream (`restore_seen`).
    """
    replay: Any = None
    """The replay buffer, in a learner that has one; `restore_seen` fills it again."""

    def __init__(self, options: Any, setting: Setting) -> None:
        self.options = options
        self.setting = setting

    @classmethod
    def check(cls, options: Any, stream: StreamFacts) -> Iterable[tuple[str, str]]:
        """(option, rule) for each option that is invalid given the other options or the stream.

        For rules that the bounds of one option cannot express, such as ("memory", "must be at least the stream's 10
        classes"). All of them are reported before a run starts.
        """
        return ()

    @classmethod
    def without_effect(cls, options: Any) -> dict[str, str]:
        """Options without effect, each with the option value that causes it, such as {"K": "meta_updates: false"}.

        A search over an option that has no effect in any trial is refused.
        """
        return {}

    @property
    def pretrain_tasks(self) -> int:
        """Number of tasks outside the stream that `pretrain` needs; 0 if the learner trains on the stream only."""
        return 0

    def pretrain(self, batches: Sequence[Batch]) -> None:
        """Meta-train on the batches of `pretrain_tasks` tasks, in order. Called once before the stream."""

    @abstractmethod
    def predict(self, x: Tensor) -> Tensor:
        """Logits [R, B, classes] of images x [R, B, *image]. Must not change the learner."""

    @abstractmethod
    def update(self, batch: Batch) -> Diagnostics:
        """Learn from the batch of the stream that was just predicted. The last batch may be shorter than the others."""

    # Not abstract: a learner without boundaries does nothing in either.
    def begin_task(self) -> None:
        """Prepare for the first batch of a new task. Called only if `needs_boundaries`."""

    def end_task(self) -> None:
        """Complete the task after its held-out evaluation. Called only if `needs_boundaries`."""

    def weights(self) -> Weights:
        """The weights that another learner may start from.

        Raises:
            ValueError: there are none.
        """
        raise ValueError(f"{type(self).__name__} has no weights that a learner can start from")

    def start_from(self, weights: Weights) -> None:
        """Take over weights before the first batch; optimisers, buffers and generators stay new."""
        raise ValueError(f"{type(self).__name__} cannot start from the weights of a learner")

    def restore_seen(self, seen: Batch) -> None:
        """Receive, after `load_state_dict`, the datapoints seen before the save: ids and labels, with an empty x."""
        if isinstance(self.replay, ReplayBuffer):
            self.replay.add(seen)

    def skip(self, datapoints: int) -> None:
        """Advance the update count by this many datapoints without learning.

        For cost forecasts, which discard the learner afterwards. Override it where the number of updates grows with the
        number of datapoints seen.
        """

    def state_for_new_options(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state, of a learner whose `changeable` options differ, from which this one continues with its own."""
        return state

    @classmethod
    def window_length(cls, options: Any) -> int:
        """The number of newest batches that `state_for_new_options` removes from a state.

        After that a state holds fewer of them than others, and cannot be joined with those in a stack.
        """
        return 0


class ModelLearner(Learner):
    """A learner that predicts with a single model."""

    can_start = True
    model: Model

    def predict(self, x: Tensor) -> Tensor:
        return self.model.predict(x)

    def weights(self) -> Weights:
        return Weights(self.model.phi, self.model.statistics)

    def start_from(self, weights: Weights) -> None:
        self.model.phi, self.model.statistics = weights.phi, weights.statistics


class LeaderLearner(Learner):
    """A learner that trains a leader, and predicts with a copy of it that is adapted to the task."""

    can_start = True
    leader: Model
    adapted: Model

    def predict(self, x: Tensor) -> Tensor:
        return self.adapted.predict(x)

    def weights(self) -> Weights:
        return Weights(self.leader.phi, self.leader.statistics)

    def start_from(self, weights: Weights) -> None:
        self.leader.phi, self.leader.statistics = weights.phi, weights.statistics
        self.adapted = self.leader.copy(self.adapted.optimizer)
