"""The reference of `regret`: for each task a new network, fitted in hindsight to the datapoints of that task.

All learners of a sweep share one reference, which depends only on the stream and the seed.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch

import learners
from learners.training.model import Model
from orchestrator.errors import OrchestratorError
from orchestrator.protocol.batches import batch_of, score
from orchestrator.protocol.online import HELD_OUT_BATCH, image_table
from orchestrator.protocol.source import StackedDatapoints, StoreSource
from streams.recipe import Progress, silent
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
    progress: Progress = silent,
) -> pd.DataFrame:
    """The reference's mean loss on each task's datapoints after it was fitted to them.

    For every seed and task, the initial network of the seed's learners is trained by Adam at 0.001 in `epochs` passes
    over the task's datapoints, in the order of the stream and in batches of N. The loss is their mean cross-entropy,
    predicted as a learner predicts (with running statistics).

    Args:
        network: as returned by `learners.networks.build.build`.
        seeds: fitted together, as a stack.
        schedule: must have sharp boundaries.
        batch_size: N.
        epochs: passes over a task.
        progress: called with a description, the number of tasks done, and of all tasks.

    Returns:
        One row per seed and task: seed, task (its place in the stream), last_batch (index of the batch with the task's
        last datapoint), loss.

    Raises:
        OrchestratorError: the stream has no sharp boundaries.
    """
    source, images = StoreSource(store, seeds, schedule), image_table(store, network.device, network.dtype)
    shape = source.shape()
    if not shape.has_boundaries:
        raise OrchestratorError(f"regret: needs a stream with sharp boundaries, which {schedule.name} does not have")
    ends = [position for position, _ in shape.ends[0]]
    rows = []
    for task, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        points = source.read(start, stop - start)
        model = Model.fresh(network, seeds, "adam", RATE)
        for _ in range(epochs):
            for first in range(0, stop - start, batch_size):
                model.learn(batch_of(images, points, first, first + batch_size))
        loss = _mean_loss(model, images, points)
        last = -(-stop // batch_size) - 1
        rows += [(seed, task, last, float(value)) for seed, value in zip(seeds, loss, strict=True)]
        progress("fitting in hindsight", task + 1, len(ends))
    return pd.DataFrame(rows, columns=COLUMNS)


def _mean_loss(model: Model, images: learners.ImageTable, points: StackedDatapoints) -> np.ndarray:
    """The mean cross-entropy of each seed [R]."""
    seeds, count = points.labels.shape
    total = torch.zeros(seeds, dtype=torch.float64)
    for start in range(0, count, HELD_OUT_BATCH):
        batch = batch_of(images, points, start, start + HELD_OUT_BATCH)
        total += score(model.predict(batch.x), batch.y)[1].sum(1).cpu()
    return np.asarray(total / count)
