"""The contract that every learner keeps, and what all of them are made from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from learners.batch import Batch
from learners.images import ImageTable
from learners.networks.network import Network
from learners.state import Stateful

Diagnostics = dict[str, Tensor]
"""Name → one number per replicate, [R]. A value that is not finite marks its replicate as diverged."""


def positive(default: float, doc: str) -> Any:
    """A number above 0."""
    return field(default=default, metadata={"gt": 0, "description": doc})


def not_negative(default: float, doc: str) -> Any:
    """A number of at least 0."""
    return field(default=default, metadata={"ge": 0, "description": doc})


def at_least_one(default: int, doc: str) -> Any:
    """A whole number of at least 1."""
    return field(default=default, metadata={"ge": 1, "description": doc})


def documented(default: Any, doc: str) -> Any:
    """A value that its type alone restricts."""
    return field(default=default, metadata={"description": doc})


@dataclass(frozen=True)
class Setting:
    """What a learner is given besides its hyper-parameters; the same for every learner of a comparison.

    `images` may be None for a learner that only predicts. `batches_per_task` is the stream's nominal task length in
    batches: a budget, not a boundary.
    """

    network: Network
    seeds: Sequence[int]
    batch_size: int
    batches_per_task: int
    classes: int
    images: ImageTable | None = None

    @property
    def replicates(self) -> int:
        return len(self.seeds)

    def require_images(self) -> ImageTable:
        if self.images is None:
            raise ValueError("this learner was loaded to predict only: give it images to let it learn")
        return self.images


@dataclass(frozen=True)
class StreamFacts:
    """What is known of a stream before anything is learned from it; `classes` is None until its task store is there.

    `held_back`: tasks that are outside the stream, for `pretrain`.
    """

    batch_size: int
    held_back: int
    classes: int | None = None


class Learner(Stateful, ABC):
    """R replicates of one method, trained side by side; replicates share nothing but time.

    The platform calls, for every batch of the stream, `predict` and then `update`, and for a class that says
    `needs_boundaries` also `begin_task` before a task's first batch and `end_task` after its held-out evaluation.
    """

    needs_boundaries: ClassVar[bool] = False
    changeable: ClassVar[tuple[str, ...]] = ()
    """Options that may have another value from some batch on: real numbers that no stored state's shape follows."""
    options_class: ClassVar[type]
    state_fields: ClassVar[tuple[str, ...]]
    """Attributes that determine all later results, generators included; all else follows from options and setting.

    The datapoints seen are left out: they follow from the position in the stream (`restore_seen`).
    """

    def __init__(self, options: Any, setting: Setting) -> None:
        self.options = options
        self.setting = setting

    @classmethod
    def check(cls, options: Any, stream: StreamFacts) -> Iterable[tuple[str, str]]:
        """(option, rule) for each option that cannot have its value beside the others, or on this stream.

        For what no bound of one option can express; read out before anything is started: ("memory", "must be at least
        the stream's 10 classes").
        """
        return ()

    @classmethod
    def without_effect(cls, options: Any) -> dict[str, str]:
        """Options that change nothing beside the others, and what makes it so: {"K": "meta_updates: false"}.

        To search one of them is refused, if it has no effect in any of the trials.
        """
        return {}

    @property
    def pretrain_tasks(self) -> int:
        """Tasks outside the stream that this learner is to be shown beforehand; 0: it learns on the stream alone."""
        return 0

    def pretrain(self, batches: Sequence[Batch]) -> None:
        """Meta-train on `pretrain_tasks` tasks, task after task. Called once, before the stream, if there are any."""

    @abstractmethod
    def predict(self, x: Tensor) -> Tensor:
        """Logits [R, B, classes] for pictures x [R, B, *image]; changes nothing."""

    @abstractmethod
    def update(self, batch: Batch) -> Diagnostics:
        """Learn from one batch of the stream, just predicted. A short batch is as good as a full one."""

    # Not abstract: a learner that is not told of boundaries has nothing to do at one.
    def begin_task(self) -> None:
        """The next batch is the first of a new task. Called only if `needs_boundaries`."""

    def end_task(self) -> None:
        """The task is over and its held-out points have been predicted. Called only if `needs_boundaries`."""

    def restore_seen(self, seen: Batch) -> None:
        """After `load_state_dict`: the datapoints seen before it was saved (ids and labels; x is empty)."""

    def skip(self, datapoints: int) -> None:
        """Reckon updates from now on as if so many datapoints more had been seen, of which nothing is learned.

        For a forecast of what they cost, after which the learner is of no use. To be defined where the number of
        updates grows with what has been seen.
        """

    def load_with_new_options(self, state: dict[str, Any]) -> None:
        """Go on, with this learner's own options, from what a learner with other `changeable` ones had come to."""
        self.load_state_dict(state)
