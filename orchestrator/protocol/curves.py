"""The measurements of one stack of seeds."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

MEASURED = frozenset(
    {
        *("online_error", "online_loss", "validation_error", "cumulative_error", "adaptation", "forward_transfer"),
        *("regret", "objective", "average_accuracy", "backward_transfer", "forgetting"),
        *("gradient_evaluations_per_datapoint", "seconds", "peak_memory_mb", "peak_gpu_memory_mb"),
    }
)
"""The curves and numbers of every learner, whose names no diagnostic of a learner may have."""


@dataclass
class Curves:
    """The measurements of one stack of R seeds over J batches.

    Attributes:
        seeds: one for each replicate.
        first_batch: index of the first batch measured.
        by_batch: name → float64 [R, J]: `online_error` and `online_loss` (both before the batch is learned), every
            diagnostic of the learner, and `forward_transfer`, which has a value at a task's first batch only.
        evaluations: one row per held-out evaluation, as columns of equal length: `seed` (index into seeds), `task`
            (number of tasks evaluated before for this seed), `batch` (index of the last batch learned), `error` and
            `loss` on the validation set, `test_error`.
        chunks: one row per chunk, as columns of equal length: `batches` (index of the batch after it), `time_ms` (since
            the epoch), `seconds` (in a pack, the configuration's share), `gradient_evaluations` (of one seed, summed
            over its datapoints), `peak_memory` and `peak_gpu_memory` (bytes of the process since it took up the trial;
            NaN without a GPU).
        diverged: for each seed the batch at which a loss or a diagnostic was first not finite, −1 if none was; the
            seed's values are NaN from there on.
        past: one row per past task that was evaluated again, as columns of equal length: `seed`, `after` (the task that
            was learned last), `task` (an earlier one), `batch` (index of the last batch learned), `error` on the
            validation set; empty without `evaluate_past`.
        total_batches: batches of the whole stream; 0 in curves that an earlier version wrote.
        total_tasks: tasks of the whole stream, of the seed with the most; 0 as above.
    """

    seeds: list[int]
    first_batch: int = 0
    by_batch: dict[str, np.ndarray] = field(default_factory=dict)
    evaluations: dict[str, np.ndarray] = field(default_factory=dict)
    chunks: dict[str, np.ndarray] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)
    past: dict[str, np.ndarray] = field(default_factory=dict)
    total_batches: int = 0
    total_tasks: int = 0

    def __repr__(self) -> str:
        """Short, since Tune writes every result into messages, and formatting whole arrays takes time."""
        return f"Curves(seeds={self.seeds}, batches {self.first_batch} to {self.batches})"

    def __post_init__(self) -> None:
        self.diverged = self.diverged or [-1] * len(self.seeds)

    @property
    def batches(self) -> int:
        """Index of the batch after the last one measured."""
        return self.first_batch + max((a.shape[1] for a in self.by_batch.values()), default=0)

    def extend(self, later: Curves) -> None:
        """Append curves.

        Raises:
            ValueError: they do not start where these curves end, or are of other seeds.
        """
        vars(self).update(vars(joined([self, later])))

    def until(self, batches: int) -> Curves:
        """The part up to this number of batches, with the chunks that have ended by then."""
        return self._between(0, batches)

    def since(self, batch: int) -> Curves:
        """The part from this batch on, with a chunk that contains the batch."""
        return self._between(batch, sys.maxsize)

    def _between(self, start: int, stop: int) -> Curves:
        """The part of the batches start … stop−1."""
        cut = max(0, start - self.first_batch)

        def within(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            rows = (columns["batch"] >= start) & (columns["batch"] < stop) if columns else None
            return {name: column[rows] for name, column in columns.items()}

        ended = (self.chunks["batches"] > start) & (self.chunks["batches"] <= stop) if self.chunks else None
        return replace(
            self,
            first_batch=self.first_batch + cut,
            by_batch={name: c[:, cut : max(0, stop - self.first_batch)] for name, c in self.by_batch.items()},
            evaluations=within(self.evaluations),
            chunks={name: column[ended] for name, column in self.chunks.items()},
            diverged=[batch if batch < stop else -1 for batch in self.diverged],
            past=within(self.past),
        )

    def replicates(self, rows: slice) -> Curves:
        """The part of successive replicates, with their share of the seconds; memory is that of the whole process."""
        seeds = self.seeds[rows]

        def share(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            if not columns:
                return {}
            mine = (columns["seed"] >= rows.start) & (columns["seed"] < rows.stop)
            selected = {name: column[mine] for name, column in columns.items()}
            return {**selected, "seed": selected["seed"] - rows.start} if mine.any() else {}

        chunks = dict(self.chunks)
        if "seconds" in chunks:
            chunks["seconds"] = chunks["seconds"] * (len(seeds) / len(self.seeds))
        return replace(
            self,
            seeds=seeds,
            by_batch={name: curve[rows] for name, curve in self.by_batch.items()},
            evaluations=share(self.evaluations),
            chunks=chunks,
            diverged=self.diverged[rows],
            past=share(self.past),
        )


def joined(parts: Sequence[Curves]) -> Curves:
    """The curves of parts that follow each other; missing names are NaN in the parts without them.

    Raises:
        ValueError: a part does not start where the one before ends, or is of other seeds; or there is no part.
    """
    if not parts:
        raise ValueError("no curves")
    first = parts[0]
    counts = [part.batches - part.first_batch for part in parts]
    start = first.first_batch
    for part, count in zip(parts, counts, strict=True):
        if part.first_batch != start or part.seeds != first.seeds:
            raise ValueError(
                f"a slice must begin at batch {start} with seeds {first.seeds}, "
                f"but got batch {part.first_batch} with seeds {part.seeds}"
            )
        start += count
    rows = len(first.seeds)
    by_batch = {
        name: np.concatenate(
            [
                part.by_batch.get(name, np.full((rows, count), math.nan))
                for part, count in zip(parts, counts, strict=True)
            ],
            axis=1,
        )
        for name in dict.fromkeys(name for part in parts for name in part.by_batch)
    }
    out = Curves(list(first.seeds), first.first_batch, by_batch)
    out.evaluations = _joined_columns([part.evaluations for part in parts])
    out.past = _joined_columns([part.past for part in parts])
    out.chunks = _joined_columns([part.chunks for part in parts])
    for part in parts:
        pairs = zip(out.diverged, part.diverged, strict=True)
        out.diverged = [earlier if earlier >= 0 else new for earlier, new in pairs]
        out.total_batches = out.total_batches or part.total_batches
        out.total_tasks = out.total_tasks or part.total_tasks
    return out


def _joined_columns(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Columns one below the other, with NaN where a part, written by an earlier version, has no such column."""
    lengths = [max(map(len, columns.values()), default=0) for columns in parts]
    out = {}
    for name in dict.fromkeys(name for columns in parts for name in columns):
        arrays = [columns.get(name, np.full(length, math.nan)) for columns, length in zip(parts, lengths, strict=True)]
        out[name] = np.concatenate([array for array in arrays if len(array)] or arrays)
    return out
