"""Datapoints of a stack as batches, the scores of predictions, and the curves of a chunk of batches."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

import learners
from orchestrator.errors import OrchestratorError
from orchestrator.protocol.curves import MEASURED, Curves
from orchestrator.protocol.source import StackedDatapoints
from streams.stream import Datapoints

_NAME = re.compile(r"\w[\w.\- :]*(/\w[\w.\- :]*)*")
"""A name that MLflow takes for a metric."""
_OTHER_SECTIONS = ("hyper/", "interval/")


class DiagnosticsError(OrchestratorError):
    """A learner of the user's own returns something else than curves of its own, one number for each replicate."""


def batch_of(images: learners.ImageTable, stack: StackedDatapoints, start: int, stop: int) -> learners.Batch:
    """The datapoints start … stop−1 of each seed, with their images rendered on the table's device."""
    ids = torch.from_numpy(stack.image_ids[:, start:stop])
    return learners.Batch(images.gather(ids), torch.from_numpy(stack.labels[:, start:stop]).to(images.device), ids)


def score(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For each datapoint, whether it is misclassified (0 or 1) and its cross-entropy: float64 [R, B] each."""
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return (logits.argmax(-1) != y).double(), loss.view_as(y).double()


def check_diagnostics(returned: object, learner: learners.Learner) -> None:
    """Check what `Learner.update` returned: it must not replace a measurement, and each curve must be one.

    Raises:
        DiagnosticsError: one line.
    """
    where, replicates = f"{type(learner).__name__}.update", learner.setting.replicates
    if not isinstance(returned, Mapping):
        got = type(returned).__name__
        raise DiagnosticsError(f"{where} must return a mapping from names to curves, {{}} if it has none (got {got})")
    for name, values in returned.items():
        if name in MEASURED or str(name).startswith(_OTHER_SECTIONS):
            raise DiagnosticsError(f"{where}: a diagnostic must have another name than what is measured (got {name})")
        if not isinstance(name, str) or len(name) > 200 or not _NAME.fullmatch(name):
            rule = "the name of a diagnostic must have letters, digits, and _ - . : / or spaces between them"
            raise DiagnosticsError(f"{where}: {rule}, at most 200 (got {name!a})")
        if not isinstance(values, Tensor) or tuple(values.shape) != (replicates,):
            got = str(list(values.shape)) if isinstance(values, Tensor) else type(values).__name__
            rule = f"must be a tensor with one number for each of {replicates} seeds, [{replicates}]"
            raise DiagnosticsError(f"{where}: {name} {rule} (got {got})")


def mean_of_parts(parts: Sequence[tuple[int, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """The values [R] of a batch from those of its parts, (datapoints, name → values); their mean over datapoints.

    A name need not be in every part.
    """
    if len(parts) == 1:
        return dict(parts[0][1])
    values: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for _, of_part in parts for name in of_part):
        having = [(count, of_part[name]) for count, of_part in parts if name in of_part]
        values[name] = sum((count * value for count, value in having), torch.tensor(0.0)) / sum(c for c, _ in having)
    return values


def padded(points: list[Datapoints], count: int) -> StackedDatapoints:
    """A stack of `count` datapoints for each seed, in which the last one of a seed that has fewer is repeated."""
    rows = [np.minimum(np.arange(count), len(of_seed) - 1) for of_seed in points]
    return StackedDatapoints(
        np.stack([of_seed.image_ids[row] for of_seed, row in zip(points, rows, strict=True)]),
        np.stack([of_seed.labels[row] for of_seed, row in zip(points, rows, strict=True)]),
    )


def slice_of_curves(
    seeds: Sequence[int],
    first: int,
    by_batch: Mapping[int, Mapping[str, Tensor]],
    evaluations: Mapping[str, Sequence[float]],
    diverged: list[int],
    past: Mapping[str, Sequence[float]],
) -> Curves:
    """The curves from batch `first` on; a seed's values are NaN from the batch at which it diverged.

    Args:
        seeds: of the stack.
        first: the first batch measured.
        by_batch: batch → name → values [R]; a name need not be in every batch.
        evaluations: the columns of `Curves.evaluations`.
        diverged: for each seed the batch at which it diverged, −1 if it has not; updated in place.
        past: the columns of `Curves.past`.
    """
    names = dict.fromkeys(name for values in by_batch.values() for name in values)
    absent = torch.full((len(seeds),), math.nan)
    curves = {
        name: torch.stack([values.get(name, absent).cpu().double() for values in by_batch.values()], 1).numpy()
        for name in names
    }
    reported = {name: np.array([name in values for values in by_batch.values()], dtype=bool) for name in names}
    for name, curve in curves.items():
        for seed in range(len(diverged)):
            bad = np.flatnonzero(~np.isfinite(curve[seed]) & reported[name])
            if len(bad) and not 0 <= diverged[seed] <= first + bad[0]:
                diverged[seed] = first + int(bad[0])
    columns, again = _columns(evaluations), _columns(past)
    for seed, batch in enumerate(diverged):
        if batch >= 0:
            for curve in curves.values():
                curve[seed, max(0, batch - first) :] = math.nan
            for table in (columns, again):
                for name in {"error", "loss", "test_error"} & table.keys():
                    table[name][(table["seed"] == seed) & (table["batch"] >= batch)] = math.nan
    return Curves(list(seeds), first, curves, columns, {}, list(diverged), again)


def _columns(rows: Mapping[str, Sequence[float]]) -> dict[str, np.ndarray]:
    whole_numbers = ("seed", "task", "after", "batch")
    return {
        name: np.array(column, dtype=np.int64 if name in whole_numbers else np.float64) for name, column in rows.items()
    }
