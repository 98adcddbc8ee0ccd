"""The online protocol: predict, score, learn, batch by batch; held-out evaluation whenever a task is over.

No Ray in here. One learner on one store, from a script:

    store = streams.build.cached(streams.recipes()["rainbow_digits"](), seeds=[0, 1, 2])
    run = protocol.assemble(store, "foml", {"K": 5}, seeds=[0, 1, 2])
    while not run.finished:
        run.advance(40)
    metrics.cumulative(metrics.held_out(run.curves))

Batches ignore tasks: they are cut every N points, and only the stream's last can be short. A task is over after the
batch that holds its last point; its held-out points are predicted then, before anything else is learned: those of the
validation set, which sweeps minimise, and those of the test set, whose errors are in the curves for nobody but
`orchestrator.report --test`. (They cannot be had later: the learner of that moment is gone.)
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import learners
from learners.networks import build, determinism
from learners.networks import network as networks
from orchestrator.errors import OrchestratorError
from orchestrator.protocol.batches import batch_of, padded, score, slice_of_curves
from orchestrator.protocol.curves import Curves
from orchestrator.protocol.source import StoreSource, StreamShape, StreamSource
from orchestrator.system import hardware
from streams.schedule import Schedule, Sequential
from streams.store.task_store import TaskStore

HELD_OUT_AT_ONCE = 256
"""Held-out points predicted in one call, for the sake of memory."""


def assemble(
    store: TaskStore,
    learner: str,
    options: dict[str, Any],
    seeds: list[int],
    batch_size: int = 10,
    network: str | None = None,
    schedule: Schedule | None = None,
    source: StreamSource | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> OnlineProtocol:
    """A learner, its network and its stream put together, ready to run.

    `network` is chosen by the store if None. `source` replaces the direct reading of the store. With a GPU for `device`
    the whole process is told to compute so that a run can be repeated (`learners.networks.determinism`).
    """
    determinism.enable(device)
    images = image_table(store, device, dtype)
    name = network or build.default_for(store.images_per_datapoint)
    source = source or StoreSource(store, seeds, schedule or Sequential())
    made = build.build(name, store.shape, store.classes, device=device, dtype=dtype)
    its_setting = learner_setting(source.shape(), made, seeds, batch_size, store.classes, images)
    return OnlineProtocol(learners.create(learner, options, its_setting), source)


def learner_setting(
    shape: StreamShape,
    network: networks.Network,
    seeds: list[int],
    batch_size: int,
    classes: int,
    images: learners.ImageTable,
) -> learners.Setting:
    """What a learner is given on streams of this shape."""
    tasks = max(len(ends) for ends in shape.ends)
    return learners.Setting(
        network=network,
        seeds=seeds,
        batch_size=batch_size,
        batches_per_task=max(1, math.ceil(shape.length / tasks / batch_size)),
        classes=classes,
        images=images,
    )


def image_table(store: TaskStore, device: torch.device | str, dtype: torch.dtype) -> learners.ImageTable:
    """The store's pictures, to be drawn on the device."""
    views = store.views
    arrays = None if views is None else learners.ViewArrays(views.source_index, views.geometry, views.background)
    return learners.ImageTable(store.pixels, arrays, device, dtype)


class OnlineProtocol:
    """R replicates of one learner on their streams, advanced by batches. `curves` is all that was measured."""

    def __init__(self, learner: learners.Learner, source: StreamSource) -> None:
        self.learner, self._source = learner, source
        self._setting = learner.setting
        self._images = self._setting.require_images()
        self._shape = source.shape()
        if learner.needs_boundaries and not self._shape.has_boundaries:
            raise OrchestratorError(f"{type(learner).__name__}: needs task boundaries, and this stream has none")
        if learner.pretrain_tasks > self._shape.held_back:
            rule = f"pretrain_tasks must be at most the {self._shape.held_back} tasks that the stream holds back"
            raise OrchestratorError(f"{type(learner).__name__}: {rule} (got {learner.pretrain_tasks})")
        self.curves = Curves(list(self._setting.seeds))
        self._position = 0
        self._tasks_over = [0] * self._setting.replicates
        self._in_task = self._pretrained = False
        self._fresh: tuple[Tensor, Tensor] | None = None
        self._lost = list(self.curves.diverged)  # as curves.diverged, but of the state that is learning now
        self._marks: dict[str, float] = {}

    @property
    def finished(self) -> bool:
        return self._position >= self._shape.length

    @property
    def batches(self) -> int:
        """Batches learned so far."""
        return self.curves.batches

    @property
    def total_batches(self) -> int:
        """Batches of the whole stream."""
        return math.ceil(self._shape.length / self._setting.batch_size)

    def advance(self, batches: int) -> Curves:
        """Run that many batches more (fewer at the end), and return what they measured; `curves` has it too."""
        started = time.perf_counter()
        evaluated_before = self._setting.network.gradient_evaluations
        size = self._setting.batch_size
        if self.batches == 0 and self.learner.pretrain_tasks and not self._pretrained:
            self.pretrain()
        stack = self._source.read(self._position, batches * size)
        by_batch: dict[int, dict[str, Tensor]] = {}
        evaluations: dict[str, list[float]] = defaultdict(list)
        for start in range(0, stack.labels.shape[1], size):
            at = self.batches + len(by_batch)
            by_batch[at] = self._one_batch(batch_of(self._images, stack, start, start + size))
            self._position += min(size, stack.labels.shape[1] - start)
            self._evaluate_what_is_over(at, evaluations)
        slice_ = slice_of_curves(self._setting.seeds, self.batches, by_batch, evaluations, self._lost)
        slice_.chunks = {
            "batches": np.array([slice_.batches]),
            "time_ms": np.array([time.time_ns() // 1_000_000]),
            "seconds": np.array([time.perf_counter() - started]),
            "gradient_evaluations": np.array([self._setting.network.gradient_evaluations - evaluated_before]),
            "peak_memory": np.array([hardware.peak_memory()]),
            "peak_gpu_memory": np.array([hardware.peak_gpu_memory(self._images.device)]),
        }
        self.curves.extend(slice_)
        return slice_

    def pretrain(self, batches: int | None = None) -> int:
        """Show the learner its tasks outside the stream, as `advance` does before the stream's first batch if nobody
        has. With `batches`, so many of them alone, from the beginning again where there are fewer: to measure what they
        cost. Returns the gradient evaluations of it.
        """
        before, size = self._setting.network.gradient_evaluations, self._setting.batch_size
        held_back = self._source.first_tasks(self.learner.pretrain_tasks)
        starts = range(0, held_back.labels.shape[1], size)
        chosen = starts if batches is None else [starts[at % len(starts)] for at in range(batches)]
        self.learner.pretrain([batch_of(self._images, held_back, start, start + size) for start in chosen])
        self._pretrained = True
        return self._setting.network.gradient_evaluations - before

    def batch(self, number: int) -> learners.Batch:
        """A batch of the stream, learned or not."""
        size = self._setting.batch_size
        return batch_of(self._images, self._source.read(number * size, size), 0, size)

    def rehearse_evaluation(self) -> None:
        """Predict what is predicted once a task, and keep none of it: to measure what that costs."""
        tasks = [ends[0][1] for ends in self._shape.ends]
        for split in ("validation", "test"):
            self._held_out(tasks, split)
        if self._shape.has_boundaries:  # forward transfer: the learner's own, and that of fresh weights
            for _ in range(2):
                self._held_out(tasks, "validation")

    def mark(self, values: Mapping[str, float]) -> None:
        """Values that the next batch has in its curves, the same for every seed: what has changed just before it."""
        self._marks = dict(values)

    def _one_batch(self, batch: learners.Batch) -> dict[str, Tensor]:
        if self.learner.needs_boundaries and not self._in_task:
            self.learner.begin_task()
            self._in_task = True
        transfer = self._forward_transfer()
        error, loss = score(self.learner.predict(batch.x), batch.y)
        marks = {name: torch.full_like(error[:, 0], value) for name, value in self._marks.items()}
        self._marks = {}
        measured = {"online_error": error.mean(1), "online_loss": loss.mean(1)}
        return {**measured, **transfer, **self.learner.update(batch), **marks}

    def _forward_transfer(self) -> dict[str, Tensor]:
        """`forward_transfer` of the task that begins with this batch, on a stream with sharp boundaries."""
        over, ends = self._tasks_over[0], self._shape.ends
        if not self._shape.has_boundaries or over == len(ends[0]):
            return {}
        start = ends[0][over - 1][0] if over else 0
        if self._position - start >= self._setting.batch_size:
            return {}
        tasks = [of_seed[over][1] for of_seed in ends]
        network = self._setting.network
        weights = self._fresh = self._fresh or network.initial(self._setting.seeds)
        with torch.no_grad():
            fresh, _ = self._held_out(tasks, "validation", lambda x: network.logits(*weights, x))
        own, _ = self._held_out(tasks, "validation")
        return {"forward_transfer": torch.tensor(fresh, dtype=torch.float64) - torch.tensor(own, dtype=torch.float64)}

    def _evaluate_what_is_over(self, batch: int, evaluations: dict[str, list[float]]) -> None:
        """Held-out evaluation, for the seeds that have just left a task (on a sequential stream: all or none)."""
        due = [
            over < len(ends) and ends[over][0] <= self._position
            for over, ends in zip(self._tasks_over, self._shape.ends, strict=True)
        ]
        while any(due):
            # All replicates predict as one stack; what is not due is computed along, and dropped.
            tasks = [
                ends[min(over, len(ends) - 1)][1] for over, ends in zip(self._tasks_over, self._shape.ends, strict=True)
            ]
            error, loss = self._held_out(tasks, "validation")
            test_error, _ = self._held_out(tasks, "test")
            for seed in [seed for seed, is_due in enumerate(due) if is_due]:
                evaluations["seed"].append(seed)
                evaluations["task"].append(self._tasks_over[seed])
                evaluations["batch"].append(batch)
                evaluations["error"].append(error[seed])
                evaluations["loss"].append(loss[seed])
                evaluations["test_error"].append(test_error[seed])
                self._tasks_over[seed] += 1
            if self.learner.needs_boundaries:
                self.learner.end_task()
                self._in_task = False
            due = [
                over < len(ends) and ends[over][0] <= self._position
                for over, ends in zip(self._tasks_over, self._shape.ends, strict=True)
            ]

    def _held_out(
        self, tasks: list[int], split: str, predict: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[list[float], list[float]]:
        """Error and loss per seed on the held-out points of one task each, of the learner or of `predict`."""
        points = self._source.held_out(tasks, split)
        counts = [len(one) for one in points]
        stack = padded(points, max(counts))
        parts = []
        for start in range(0, max(counts), HELD_OUT_AT_ONCE):
            batch = batch_of(self._images, stack, start, start + HELD_OUT_AT_ONCE)
            parts.append(score((predict or self.learner.predict)(batch.x), batch.y))
        error, loss = (torch.cat(column, 1).cpu() for column in zip(*parts, strict=True))
        return (
            [float(error[r, :count].mean()) for r, count in enumerate(counts)],
            [float(loss[r, :count].mean()) for r, count in enumerate(counts)],
        )

    def state_dict(self) -> dict[str, Any]:
        """All that `advance` depends on, but what the stream has shown: that follows from the position."""
        return {
            "position": self._position,
            "tasks_over": list(self._tasks_over),
            "in_task": self._in_task,
            "lost": list(self._lost),
            "gradient_evaluations": self._setting.network.gradient_evaluations,
            "learner": self.learner.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], curves: Curves) -> None:
        """Go on where the protocol that wrote `state` was, with the curves it had by then."""
        self._lost = list(state.get("lost", curves.diverged))  # an older version had only those
        self._load(state, curves, self.learner.load_state_dict)

    def load_with_new_options(self, state: dict[str, Any], curves: Curves) -> None:
        """Go on from another protocol's state, but with the options of this one's learner and with these curves.

        Both must be at the same point of the same streams. A seed that had diverged is well again if it is in `state`.
        """
        lost = state.get("lost", [-1] * len(curves.seeds))
        if state["position"] != min(curves.batches * self._setting.batch_size, self._shape.length):
            raise ValueError(f"a state at {state['position']} datapoints does not go with {curves.batches} batches")
        self._lost = list(lost)
        self._load(state, curves, self.learner.load_with_new_options)

    def _load(self, state: dict[str, Any], curves: Curves, load: Callable[[dict[str, Any]], None]) -> None:
        self._position = state["position"]
        self._tasks_over = list(state["tasks_over"])
        self._in_task = state["in_task"]
        self.curves = curves
        load(state["learner"])
        seen = self._source.read(0, self._position)
        if self._position:
            ids, labels = torch.from_numpy(seen.image_ids), torch.from_numpy(seen.labels)
            self.learner.restore_seen(learners.Batch(torch.empty(0), labels.to(self._images.device), ids))
        # Last: recalling and rebuilding the window take gradients anew, which nobody is to be charged for twice.
        self._setting.network.gradient_evaluations = state["gradient_evaluations"]
