"""The reference of `regret`: for each task a fresh network that is fitted on that task alone, in hindsight.

One reference for every learner of a sweep, since it depends on the stream and the seed and on nothing else. No Ray.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch

import learners
from learners.training.model import Model
from orchestrator.errors import OrchestratorError
from orchestrator.protocol.online import HELD_OUT_AT_ONCE, image_table
from orchestrator.protocol.source import StoreSource
from streams.schedule import Schedule
from streams.store.task_store import TaskStore

EPOCHS = 10
RATE = 0.001
COLUMNS = ["seed", "task", "last_batch", "loss"]


def reference(
    store: TaskStore,
    network: Any,
    seeds: list[int],
    schedule: Schedule,
    batch_size: int,
    epochs: int = EPOCHS,
    tell: Callable[[str, int, int], None] | None = None,
) -> pd.DataFrame:
    """The reference's mean loss on each task's streamed points after it was fitted to them.

    For every seed and task: the network that all learners of this seed start from, Adam at 0.001, `epochs` passes over
    the task's streamed points in their order, in batches of N; then their mean cross-entropy, predicted as a learner
    predicts (running statistics).

    Args:
        store: where the points are.
        network: as `learners.networks.build.build` makes it.
        seeds: fitted side by side.
        schedule: must have sharp boundaries.
        batch_size: N.
        epochs: passes over a task.
        tell: `tell(what, done, total)`.

    Returns:
        One row per seed and task: seed, task (place in the stream), last_batch (index of the batch with the task's last
        point), loss.

    Raises:
        OrchestratorError: the stream has no sharp boundaries.
    """
    source, images = StoreSource(store, seeds, schedule), image_table(store, network.device, network.dtype)
    shape = source.shape()
    if not shape.has_boundaries:
        raise OrchestratorError(f"regret: needs a stream with sharp boundaries, which {schedule.name} has not")
    ends = [position for position, _ in shape.ends[0]]
    rows = []
    for task, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        points = source.read(start, stop - start)
        y = torch.from_numpy(points.labels).to(network.device)
        ids = torch.from_numpy(points.image_ids)
        model = Model.fresh(network, seeds, "adam", RATE)
        for _ in range(epochs):
            for at in range(0, stop - start, batch_size):
                part = slice(at, at + batch_size)
                model.learn(learners.Batch(images.gather(ids[:, part]), y[:, part], ids[:, part]))
        loss = _mean_loss(model, images, ids, y)
        last = -(-stop // batch_size) - 1
        rows += [(seed, task, last, float(value)) for seed, value in zip(seeds, loss, strict=True)]
        if tell is not None:
            tell("fitting in hindsight", task + 1, len(ends))
    return pd.DataFrame(rows, columns=COLUMNS)


def _mean_loss(model: Model, images: learners.ImageTable, ids: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    total = torch.zeros(len(y), dtype=torch.float64)
    for at in range(0, y.shape[1], HELD_OUT_AT_ONCE):
        part = slice(at, at + HELD_OUT_AT_ONCE)
        logits = model.predict(images.gather(ids[:, part]))
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[:, part].flatten(), reduction="none")
        total += each.view_as(y[:, part]).double().sum(1).cpu()
    return np.asarray(total / y.shape[1])
