"""How many gradients a learner takes of a stream, counted where a gradient costs next to nothing.

The number depends on the options and on the stream alone: not on the network, and not on how many seeds learn side by
side. So one seed learns with a network of a few dozen weights; the first tasks are counted, and the rest follows from
them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
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
"""How long is counted; at least up to the end of the second task."""
MOST_SECONDS = 4.0
"""After that long the task that is being counted is taken to end, however long it is."""
PARTS = 5
"""Where the rate grows as the stream goes on: at how many places it is looked at."""


@dataclass(frozen=True)
class Counted:
    """Gradient evaluations of one replicate on a whole stream: before it, in `update`, and in `end_task`."""

    pretraining: float
    updates: float
    ends: float

    @property
    def total(self) -> float:
        return self.pretraining + self.updates + self.ends


class _Tiny(architectures.EmbeddingNet):
    """One layer on the pictures' mean colours."""

    def __init__(self, colours: int, classes: int) -> None:
        super().__init__()
        self.features = 4
        self.first = nn.Linear(colours, self.features)
        self.head = nn.Linear(self.features, classes)

    def embed(self, x: Tensor) -> Tensor:
        features: Tensor = self.first(x.mean((-2, -1)).flatten(1))
        return features


def warm_up(options: dict[str, Any], batch_size: int) -> int:
    """Batches after which an update costs what it will cost from then on: windows have filled."""
    points: int = options.get("window", 0)
    steps: int = options.get("K", 0)
    return 2 + max(steps, math.ceil(points / batch_size))


def pretraining_steps(learner: learners.Learner, source: StoreSource, options: dict[str, Any]) -> int:
    """Batches that a learner is shown before the stream, over all passes."""
    points: int = source.first_tasks(learner.pretrain_tasks).labels.shape[1]
    passes: int = options.get("pretrain_passes", 1)
    return -(-points // learner.setting.batch_size) * passes


def one_pass(options: dict[str, Any]) -> dict[str, Any]:
    """The options with a single pass over the tasks of `pretrain_tasks`."""
    return options | ({"pretrain_passes": 1} if "pretrain_passes" in options else {})


def count(
    store: TaskStore, learner: str, options: dict[str, Any], seed: int, batch_size: int, schedule: Schedule
) -> Counted:
    """Count the gradients of a learner with these options, all that it has, on the seed's stream."""
    source = StoreSource(store, [seed], schedule)
    colours = store.images_per_datapoint * store.shape[0]
    images = online.image_table(store, "cpu", networks.Network(lambda: _Tiny(colours, store.classes)).dtype)

    def fresh() -> online.OnlineProtocol:
        network = networks.Network(lambda: _Tiny(colours, store.classes))
        setting = online.learner_setting(source.shape(), network, [seed], batch_size, store.classes, images)
        return online.OnlineProtocol(learners.create(learner, one_pass(options), setting), source)

    started = fresh()
    pretraining = _pretraining(fresh, started, source, options, batch_size) if started.learner.pretrain_tasks else 0.0
    walk = _Walk(started, source)
    return walk.stream(warm_up(options, batch_size), pretraining)


def _pretraining(
    fresh: Callable[[], online.OnlineProtocol],
    started: online.OnlineProtocol,
    source: StoreSource,
    options: dict[str, Any],
    batch_size: int,
) -> float:
    """Of pretraining with all its passes; `started` is pretrained by that, though on few batches."""
    steps = pretraining_steps(started.learner, source, options)
    first = min(steps, warm_up(options, batch_size))
    begun = started.pretrain(first)
    if first == steps:
        return begun
    more = min(steps, first + 2)
    return begun + (fresh().pretrain(more) - begun) / (more - first) * (steps - first)


class _Walk:
    """A learner on its way through a stream, with the gradients that it has taken so far."""

    def __init__(self, run: online.OnlineProtocol, source: StoreSource) -> None:
        self._run, self._learner, self._source = run, run.learner, source
        self._setting, shape = run.learner.setting, source.shape()
        size = self._setting.batch_size
        self._total = run.total_batches
        self._ends = Counter(math.ceil(end / size) for end, _ in shape.ends[0])  # by batches until then
        self._in_task = False
        self.done = 0
        self.taken = np.zeros(2)  # in updates, in ends of tasks

    def stream(self, warm_up: int, pretraining: float) -> Counted:
        """What the whole stream takes."""
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
        return Counted(pretraining, float(taken[0]), float(taken[1]))

    def _later_rates(self, rest: int) -> list[np.ndarray]:
        """Per batch, of a task in the middle of each part of the rest."""
        rates: list[np.ndarray] = []
        skipped, at = 0, self.done
        for part in range(PARTS):
            begin = (part + 0.5) / PARTS * rest - self._setting.batches_per_task / 2
            ahead = round(begin) - (self.done - at) - skipped
            self._learner.skip(max(0, ahead) * self._setting.batch_size)
            skipped += max(0, ahead)
            first, before = self.done, self.taken.copy()
            self._task(time.monotonic() + MOST_SECONDS / PARTS)
            if self.done == first:  # the stream is over: what is left is shorter than what was looked at
                return rates + [rates[-1]] * (PARTS - part)
            rates.append((self.taken - before) / (self.done - first))
        return rates

    def _task(self, deadline: float) -> None:
        """Go on to the task's end, which is there at the deadline at the latest; without boundaries, a nominal task."""
        first, told = self.done, self._learner.needs_boundaries
        over = False
        while not over and self.done < self._total:
            if told and not self._in_task:
                self._learner.begin_task()
                self._in_task = True
            batch = self._run.batch(self.done)
            self._learner.predict(batch.x)
            self.taken[0] += self._charged(partial(self._learner.update, batch))
            self.done += 1
            late = time.monotonic() > deadline
            ends = self._ends[self.done] or int(late) if told else 0
            for _ in range(ends):
                self.taken[1] += self._charged(self._learner.end_task)
                self._in_task = False
            over = late or (ends > 0 if told else self.done - first == self._setting.batches_per_task)

    def _charged(self, act: Callable[[], object]) -> int:
        before = self._setting.network.gradient_evaluations
        act()
        return self._setting.network.gradient_evaluations - before
