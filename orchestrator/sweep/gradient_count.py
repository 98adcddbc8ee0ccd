"""The number of gradients that a learner takes on a stream, counted with a tiny network.

The number depends only on the options and on the stream, not on the network, and not on the number of seeds. So one
seed learns with a network of a few dozen weights; the first tasks are counted, and the others extrapolated.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

import learners
from learners.networks import architectures
from learners.networks import network as networks
from orchestrator.protocol import online
from orchestrator.protocol.source import StoreSource
from streams.schedule import Schedule
from streams.store.task_store import TaskStore

SECONDS = 1.0
"""Seconds of counting; at least two tasks are counted."""
MOST_SECONDS = 4.0
"""Seconds after which a task that is being counted is ended early."""
PARTS = 5
"""The number of places at which the rate is measured where it grows along the stream."""


@dataclass(frozen=True)
class GradientCount:
    """Gradient evaluations of one replicate on a whole stream.

    Attributes:
        pretraining: before the stream.
        updates: in `update`.
        ends: in `end_task`.
    """

    pretraining: float
    updates: float
    ends: float

    @property
    def total(self) -> float:
        return self.pretraining + self.updates + self.ends


class _Tiny(architectures.EmbeddingNet):
    """One layer on the mean colours of the images."""

    hidden_layers = (architectures.HiddenLayer("first", "head"),)

    def __init__(self, colours: int, classes: int) -> None:
        super().__init__()
        self.features = 4
        self.first = nn.Linear(colours, self.features)
        self.head = nn.Linear(self.features, classes)

    def embed(self, x: Tensor) -> Tensor:
        features: Tensor = self.first(x.mean((-2, -1)).flatten(1))
        return features


def warm_up(options: dict[str, Any], batch_size: int) -> int:
    """The number of batches after which windows are full, and the cost of an update is constant."""
    points: int = options.get("window", 0)
    steps: int = options.get("K", 0)
    return 2 + max(steps, math.ceil(points / batch_size))


def pretraining_steps(learner: learners.Learner, source: StoreSource, options: dict[str, Any]) -> int:
    """The number of batches of pretraining, over all passes."""
    points: int = source.first_tasks(learner.pretrain_tasks).labels.shape[1]
    passes: int = options.get("pretrain_passes", 1)
    return -(-points // learner.setting.batch_size) * passes


def one_pass(options: dict[str, Any]) -> dict[str, Any]:
    """The options with a single pass over the tasks of `pretrain_tasks`."""
    return options | ({"pretrain_passes": 1} if "pretrain_passes" in options else {})


def count(
    store: TaskStore, learner: str, options: dict[str, Any], seed: int, batch_size: int, schedule: Schedule
) -> GradientCount:
    """The gradients of a learner with these options (all of them) on the seed's stream."""
    source = StoreSource(store, [seed], schedule)
    colours = store.images_per_datapoint * store.shape[0]
    images = online.image_table(store, "cpu", networks.Network(lambda: _Tiny(colours, store.classes)).dtype)

    def fresh() -> online.OnlineProtocol:
        network = networks.Network(lambda: _Tiny(colours, store.classes))
        setting = online.learner_setting(source.shape(), network, [seed], batch_size, store.classes, images)
        return online.OnlineProtocol(learners.create(learner, one_pass(options), setting), source)

    run = fresh()
    pretraining = _pretraining(fresh, run, source, options, batch_size) if run.learner.pretrain_tasks else 0.0
    return _GradientCounter(run).stream(warm_up(options, batch_size), pretraining)


def _pretraining(
    fresh: Callable[[], online.OnlineProtocol],
    run: online.OnlineProtocol,
    source: StoreSource,
    options: dict[str, Any],
    batch_size: int,
) -> float:
    """Gradients of pretraining with all its passes, from a few batches of it, with which `run` is then pretrained."""
    steps = pretraining_steps(run.learner, source, options)
    first = min(steps, warm_up(options, batch_size))
    gradients = run.pretrain(first)
    if first == steps:
        return gradients
    more = min(steps, first + 2)
    return gradients + (fresh().pretrain(more) - gradients) / (more - first) * (steps - first)


class _GradientCounter:
    """Takes a learner through a stream, and counts its gradients."""

    def __init__(self, run: online.OnlineProtocol) -> None:
        self._run, self._learner, self._setting = run, run.learner, run.learner.setting
        self._total = run.total_batches
        self._in_task = False
        self.done = 0
        self.taken = np.zeros(2)  # gradients in updates, in ends of tasks

    def stream(self, warm_up: int, pretraining: float) -> GradientCount:
        """The gradients of the whole stream."""
        started = time.monotonic()
        while self.done < min(warm_up, self._total):
            self._task(started + MOST_SECONDS / 2)
        first, before = self.done, self.taken.copy()
        while self.done < self._total and (self.done == first or time.monotonic() - started < SECONDS):
            self._task(started + MOST_SECONDS)
        taken, rest = self.taken.copy(), self._total - self.done
        if rest and type(self._learner).skip is learners.Learner.skip:
            taken += (self.taken - before) / (self.done - first) * rest
        elif rest:
            for rate in self._later_rates(rest):
                taken += rate * rest / PARTS
        return GradientCount(pretraining, float(taken[0]), float(taken[1]))

    def _later_rates(self, rest: int) -> list[np.ndarray]:
        """The gradients per batch of a task in the middle of each part of the rest."""
        rates: list[np.ndarray] = []
        skipped, at = 0, self.done
        for part in range(PARTS):
            begin = (part + 0.5) / PARTS * rest - self._setting.batches_per_task / 2
            ahead = round(begin) - (self.done - at) - skipped
            self._learner.skip(max(0, ahead) * self._setting.batch_size)
            skipped += max(0, ahead)
            first, before = self.done, self.taken.copy()
            self._task(time.monotonic() + MOST_SECONDS / PARTS)
            if self.done == first:  # the stream is over: less is left than was measured
                return rates + [rates[-1]] * (PARTS - part)
            rates.append((self.taken - before) / (self.done - first))
        return rates

    def _task(self, deadline: float) -> None:
        """Learn to the task's end, or to the deadline if that is earlier; without boundaries, a nominal task."""
        first, with_boundaries = self.done, self._learner.needs_boundaries
        over = False
        while not over and self.done < self._total:
            late, ended = time.monotonic() > deadline, 0
            for batch, ends in self._run.batch(self.done):
                if with_boundaries and not self._in_task:
                    self._learner.begin_task()
                    self._in_task = True
                self._learner.predict(batch.x)
                self.taken[0] += self._gradients_of(partial(self._learner.update, batch))
                for _ in range(ends or int(late) if with_boundaries else 0):
                    self.taken[1] += self._gradients_of(self._learner.end_task)
                    self._in_task = False
                ended += ends
            self.done += 1
            over = late or (ended > 0 if with_boundaries else self.done - first == self._setting.batches_per_task)

    def _gradients_of(self, step: Callable[[], object]) -> int:
        before = self._setting.network.gradient_evaluations
        step()
        return self._setting.network.gradient_evaluations - before
