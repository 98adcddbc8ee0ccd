"""The online protocol: predict, score and learn each batch; evaluate held-out datapoints at each task's end.

One learner on one store, step by step (`orchestrator.run_one` runs a whole stream):

    store = streams.build.cached(streams.recipes()["rainbow_digits"](), seeds=[0, 1, 2])
    run = online.assemble(store, "foml", {"K": 5}, seeds=[0, 1, 2])
    while not run.finished:
        run.advance(40)
    metrics.cumulative(metrics.held_out(run.curves))

Batches ignore tasks: each has N datapoints, and only the stream's last one can be shorter. A task ends with the batch
that holds its last datapoint. A learner that needs boundaries learns a batch with datapoints of two tasks in two parts,
the end of one task and the start of the next; curves have one value for both. When a task ends, its held-out datapoints
are predicted before anything else is learned, since the learner of that moment is not kept: those of the validation
set, which sweeps minimise, and those of the test set, whose errors only `orchestrator.report --test` reads.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import learners
from learners import checkpoint
from learners.networks import build, determinism
from learners.networks import network as networks
from orchestrator.errors import OrchestratorError
from orchestrator.protocol.batches import batch_of, check_diagnostics, mean_of_parts, padded, score, slice_of_curves
from orchestrator.protocol.curves import Curves
from orchestrator.protocol.source import StoreSource, StreamShape, StreamSource
from orchestrator.system import hardware
from streams.schedule import Schedule, Sequential
from streams.store.task_store import TaskStore

HELD_OUT_BATCH = 256
"""Held-out datapoints predicted in one call, which bounds the memory."""


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
    evaluate_past: int | str | None = None,
    start: Path | str | None = None,
) -> OnlineProtocol:
    """The protocol of a new learner on the streams of a store.

    On a GPU, the whole process computes deterministically from here on (`learners.networks.determinism`).

    Args:
        network: its name; the default for the store's datapoints if None.
        schedule: sequential if None.
        source: read instead of the store itself.
        evaluate_past: see `OnlineProtocol`.
        start: the checkpoint whose weights the learner starts from.

    Raises:
        ValueError, OrchestratorError: the learner refuses its options, its stream or the checkpoint.
    """
    determinism.enable(device)
    source = source or StoreSource(store, seeds, schedule or Sequential())
    name = network or build.default_for(store.images_per_datapoint)
    setting = learner_setting(
        source.shape(),
        build.build(name, store.shape, store.classes, device=device, dtype=dtype),
        seeds,
        batch_size,
        store.classes,
        image_table(store, device, dtype),
    )
    created = learners.create(learner, options, setting)
    if start is not None:
        checkpoint.start(created, start, name, checkpoint.modules_of(learner, name))
    return OnlineProtocol(created, source, evaluate_past)


def learner_setting(
    shape: StreamShape,
    network: networks.Network,
    seeds: list[int],
    batch_size: int,
    classes: int,
    images: learners.ImageTable,
) -> learners.Setting:
    """The setting of a learner on streams of this shape."""
    return learners.Setting(
        network=network,
        seeds=seeds,
        batch_size=batch_size,
        batches_per_task=max(1, math.ceil(shape.length / shape.nominal_tasks / batch_size)),
        classes=classes,
        images=images,
    )


def image_table(store: TaskStore, device: torch.device | str, dtype: torch.dtype) -> learners.ImageTable:
    """The store's images, rendered on the device."""
    views = store.views
    arrays = None if views is None else learners.ViewArrays(views.source_index, views.geometry, views.background)
    return learners.ImageTable(store.pixels, arrays, device, dtype)


class OnlineProtocol:
    """R replicates of one learner on their streams, advanced batch by batch.

    Args:
        learner: of all replicates.
        source: their streams.
        evaluate_past: the validation set of each past task is evaluated again after the last task (`end`), or after
            every n tasks and the last one (n); never if None.

    Attributes:
        learner: of all replicates.
        curves: all measurements so far.
    """

    def __init__(self, learner: learners.Learner, source: StreamSource, evaluate_past: int | str | None = None) -> None:
        self.learner, self._source, self._evaluate_past = learner, source, evaluate_past
        self._setting = learner.setting
        self._images = self._setting.require_images()
        self._shape = source.shape()
        if learner.needs_boundaries and not self._shape.has_boundaries:
            rule = "needs task boundaries that all seeds share, and this stream has none"
            raise OrchestratorError(f"{type(learner).__name__}: {rule}")
        if learner.pretrain_tasks > self._shape.held_back:
            rule = f"pretrain_tasks must be at most the {self._shape.held_back} tasks that the stream holds back"
            raise OrchestratorError(f"{type(learner).__name__}: {rule} (got {learner.pretrain_tasks})")
        self.curves = self._with_totals(Curves(list(self._setting.seeds)))
        self._position = 0
        self._tasks_over = [0] * self._setting.replicates
        self._in_task = self._pretrained = False
        self._initial_weights: tuple[Tensor, Tensor] | None = None
        self._diverged = list(self.curves.diverged)  # of the present state, which may be a copy: unlike curves.diverged

    @property
    def finished(self) -> bool:
        return self._position >= self._shape.length

    @property
    def datapoints(self) -> int:
        """Datapoints of each seed learned so far."""
        return self._position

    @property
    def batches(self) -> int:
        """Batches learned so far."""
        return self.curves.batches

    @property
    def total_batches(self) -> int:
        """Batches of the whole stream."""
        return math.ceil(self._shape.length / self._setting.batch_size)

    def _with_totals(self, curves: Curves) -> Curves:
        """The same curves, with the length of the stream in them."""
        curves.total_batches = self.total_batches
        curves.total_tasks = max(len(ends) for ends in self._shape.ends)
        return curves

    def advance(self, batches: int) -> Curves:
        """Predict, score and learn the next batches, fewer at the end of the stream.

        Returns:
            Their curves, which are appended to `curves`.
        """
        start_s, gradients = time.perf_counter(), self._setting.network.gradient_evaluations
        learner, size = self.learner, self._setting.batch_size
        if self.batches == 0 and learner.pretrain_tasks and not self._pretrained:
            self.pretrain()
        begin = self._position
        points = self._source.read(begin, batches * size)
        by_batch: dict[int, dict[str, Tensor]] = {}
        evaluations: dict[str, list[float]] = defaultdict(list)
        past: dict[str, list[float]] = defaultdict(list)
        for number, start in enumerate(range(0, points.labels.shape[1], size), self.batches):
            parts = []
            for first, stop in self.parts(begin + start, min(size, points.labels.shape[1] - start)):
                batch = batch_of(self._images, points, first - begin, stop - begin)
                parts.append((len(batch), self._learn(batch)))
                self._evaluate_ended_tasks(number, evaluations, past)
            by_batch[number] = mean_of_parts(parts)
        curves = slice_of_curves(self._setting.seeds, self.batches, by_batch, evaluations, self._diverged, past)
        self._with_totals(curves)
        curves.chunks = {
            "batches": np.array([curves.batches]),
            "time_ms": np.array([time.time_ns() // 1_000_000]),
            "seconds": np.array([time.perf_counter() - start_s]),
            "gradient_evaluations": np.array([self._setting.network.gradient_evaluations - gradients]),
            "peak_memory": np.array([hardware.peak_memory()]),
            "peak_gpu_memory": np.array([hardware.peak_gpu_memory(self._images.device)]),
        }
        self.curves.extend(curves)
        return curves

    def parts(self, position: int, count: int) -> list[tuple[int, int]]:
        """The (start, stop) in the stream of each part of a batch of `count` datapoints from this position on.

        A learner that needs boundaries learns the datapoints of each task separately; for others it is one part.
        """
        ends = [end for end, _ in self._shape.ends[0]] if self.learner.needs_boundaries else []
        return [*pairwise([position, *(end for end in ends if 0 < end - position < count), position + count])]

    def _learn(self, batch: learners.Batch) -> dict[str, Tensor]:
        """Predict, score and learn datapoints of the stream; returns their curves."""
        if self.learner.needs_boundaries and not self._in_task:
            self.learner.begin_task()
            self._in_task = True
        transfer = self._forward_transfer()
        error, loss = score(self.learner.predict(batch.x), batch.y)
        measured = {"online_error": error.mean(1), "online_loss": loss.mean(1)}
        diagnostics = self.learner.update(batch)
        check_diagnostics(diagnostics, self.learner)
        self._position += len(batch)
        return {**measured, **transfer, **diagnostics}

    def pretrain(self, batches: int | None = None) -> int:
        """Train the learner on the tasks outside the stream, as `advance` does before the first batch of the stream.

        Args:
            batches: only this many, again from the first one if there are fewer, to measure their cost.

        Returns:
            The gradient evaluations.
        """
        before, size = self._setting.network.gradient_evaluations, self._setting.batch_size
        points = self._source.first_tasks(self.learner.pretrain_tasks)
        starts = range(0, points.labels.shape[1], size)
        selected = starts if batches is None else [starts[number % len(starts)] for number in range(batches)]
        self.learner.pretrain([batch_of(self._images, points, start, start + size) for start in selected])
        self._pretrained = True
        return self._setting.network.gradient_evaluations - before

    def batch(self, number: int) -> list[tuple[learners.Batch, int]]:
        """The parts of a batch of the stream, learned or not; each with the number of tasks that end with it."""
        begin, size = number * self._setting.batch_size, self._setting.batch_size
        points = self._source.read(begin, size)
        return [
            (
                batch_of(self._images, points, start - begin, stop - begin),
                sum(start < end <= stop for end, _ in self._shape.ends[0]),
            )
            for start, stop in self.parts(begin, points.labels.shape[1])
        ]

    def rehearse_evaluation(self) -> None:
        """Predict what is predicted once a task, and discard it, to measure the cost."""
        tasks = [ends[0][1] for ends in self._shape.ends]
        for split in ("validation", "test"):
            self._held_out(tasks, split)
        if self._shape.has_boundaries:  # forward transfer: of the learner, and of the initial weights
            for _ in range(2):
                self._held_out(tasks, "validation")

    def _forward_transfer(self) -> dict[str, Tensor]:
        """`forward_transfer` [R] if a task starts with the next batch, on a stream with sharp boundaries."""
        over, ends = self._tasks_over[0], self._shape.ends
        if not self._shape.has_boundaries or over == len(ends[0]):
            return {}
        start = ends[0][over - 1][0] if over else 0
        if self._position - start >= (1 if self.learner.needs_boundaries else self._setting.batch_size):
            return {}
        tasks = [of_seed[over][1] for of_seed in ends]
        network = self._setting.network
        weights = self._initial_weights = self._initial_weights or network.initial(self._setting.seeds)
        with torch.no_grad():
            initial, _ = self._held_out(tasks, "validation", lambda x: network.logits(*weights, x))
        current, _ = self._held_out(tasks, "validation")
        before, now = (torch.tensor(errors, dtype=torch.float64) for errors in (initial, current))
        return {"forward_transfer": before - now}

    def _evaluate_ended_tasks(
        self, batch: int, evaluations: dict[str, list[float]], past: dict[str, list[float]]
    ) -> None:
        """Evaluate each seed whose task ended with this batch; without boundaries, seeds may end tasks separately."""
        while True:
            ended = [
                over < len(ends) and ends[over][0] <= self._position
                for over, ends in zip(self._tasks_over, self._shape.ends, strict=True)
            ]
            if not any(ended):
                return
            # All replicates predict as one stack; the results of the others are discarded.
            tasks = [
                ends[min(over, len(ends) - 1)][1] for over, ends in zip(self._tasks_over, self._shape.ends, strict=True)
            ]
            error, loss = self._held_out(tasks, "validation")
            test_error, _ = self._held_out(tasks, "test")
            for seed in np.flatnonzero(ended).tolist():
                evaluations["seed"].append(seed)
                evaluations["task"].append(self._tasks_over[seed])
                evaluations["batch"].append(batch)
                evaluations["error"].append(error[seed])
                evaluations["loss"].append(loss[seed])
                evaluations["test_error"].append(test_error[seed])
                self._tasks_over[seed] += 1
            self._evaluate_past_tasks(np.flatnonzero(ended).tolist(), batch, past)
            if self.learner.needs_boundaries:
                self.learner.end_task()
                self._in_task = False

    def _evaluate_past_tasks(self, seeds: list[int], batch: int, past: dict[str, list[float]]) -> None:
        """Evaluate the tasks before the one that has just ended, for those of the seeds for which it is due."""
        every, over, ends = self._evaluate_past, self._tasks_over, self._shape.ends
        due = [
            seed
            for seed in seeds
            if every is not None
            and (over[seed] == len(ends[seed]) or (isinstance(every, int) and over[seed] % every == 0))
        ]
        for task in range(max((over[seed] - 1 for seed in due), default=0)):
            error, _ = self._held_out([of_seed[min(task, len(of_seed) - 1)][1] for of_seed in ends], "validation")
            for seed in due:
                if task < over[seed] - 1:
                    values = {"seed": seed, "after": over[seed] - 1, "task": task, "batch": batch, "error": error[seed]}
                    for name, value in values.items():
                        past[name].append(value)

    def _held_out(
        self, tasks: list[int], split: str, predict: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[list[float], list[float]]:
        """Mean error and loss of each seed on the held-out datapoints of one task, of the learner or of `predict`."""
        points = self._source.held_out(tasks, split)
        counts = [len(of_seed) for of_seed in points]
        stack = padded(points, max(counts))
        parts = []
        for start in range(0, max(counts), HELD_OUT_BATCH):
            batch = batch_of(self._images, stack, start, start + HELD_OUT_BATCH)
            parts.append(score((predict or self.learner.predict)(batch.x), batch.y))
        error, loss = (torch.cat(column, 1).cpu() for column in zip(*parts, strict=True))
        return (
            [float(error[r, :count].mean()) for r, count in enumerate(counts)],
            [float(loss[r, :count].mean()) for r, count in enumerate(counts)],
        )

    def state_dict(self) -> dict[str, Any]:
        """All that `advance` depends on, except the datapoints seen, which follow from the position."""
        return {
            "position": self._position,
            "tasks_over": list(self._tasks_over),
            "in_task": self._in_task,
            "lost": list(self._diverged),
            "gradient_evaluations": self._setting.network.gradient_evaluations,
            "learner": self.learner.state_dict(),
        }

    def state_for_new_options(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state, of a protocol with other options, from which this one continues with its own, and other curves.

        A seed that diverged in the curves has not diverged from here on if it has not in `state`.
        """
        divergences = state.get("lost", [-1] * len(state["tasks_over"]))
        return {**state, "lost": divergences, "learner": self.learner.state_for_new_options(state["learner"])}

    def load_state_dict(self, state: dict[str, Any], curves: Curves) -> None:
        """Continue from the state of an interrupted protocol, with the curves it had.

        Raises:
            ValueError: state and curves are not at the same position of the streams.
        """
        if state["position"] != min(curves.batches * self._setting.batch_size, self._shape.length):
            raise ValueError(f"a state at {state['position']} datapoints does not go with {curves.batches} batches")
        self._diverged = list(state.get("lost", curves.diverged))  # states of earlier versions have no "lost"
        self._position = state["position"]
        self._tasks_over = list(state["tasks_over"])
        self._in_task = state["in_task"]
        self.curves = self._with_totals(curves)
        self.learner.load_state_dict(state["learner"])
        points = self._source.read(0, self._position)
        if self._position:
            ids, labels = torch.from_numpy(points.image_ids), torch.from_numpy(points.labels)
            self.learner.restore_seen(learners.Batch(torch.empty(0), labels.to(self._images.device), ids))
        # Restore the counter last: reloading recomputes gradients that were already counted.
        self._setting.network.gradient_evaluations = state["gradient_evaluations"]
