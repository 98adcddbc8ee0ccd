"""The measurements of one stack of seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np


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
            the epoch), `seconds`, `gradient_evaluations` (of one seed, summed over its datapoints), `peak_memory` and
            `peak_gpu_memory` (bytes of the process since it took up the trial; NaN without a GPU).
        diverged: for each seed the batch at which a loss or a diagnostic was first not finite, −1 if none was; the
            seed's values are NaN from there on.
    """

    seeds: list[int]
    first_batch: int = 0
    by_batch: dict[str, np.ndarray] = field(default_factory=dict)
    evaluations: dict[str, np.ndarray] = field(default_factory=dict)
    chunks: dict[str, np.ndarray] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)

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
        if later.first_batch != self.batches or later.seeds != self.seeds:
            raise ValueError(
                f"a slice must begin at batch {self.batches} with seeds {self.seeds}, "
                f"but got batch {later.first_batch} with seeds {later.seeds}"
            )
        before, after = self.batches - self.first_batch, later.batches - later.first_batch
        for name in {**self.by_batch, **later.by_batch}:
            parts = [
                part.by_batch.get(name, np.full((len(self.seeds), count), math.nan))
                for part, count in ((self, before), (later, after))
            ]
            self.by_batch[name] = np.concatenate(parts, axis=1)
        for mine, others in ((self.evaluations, later.evaluations), (self.chunks, later.chunks)):
            before, after = (max(map(len, columns.values()), default=0) for columns in (mine, others))
            for name in {**mine, **others}:  # NaN where a part, written by an earlier version, has no such column
                parts = [mine.get(name, np.full(before, math.nan)), others.get(name, np.full(after, math.nan))]
                mine[name] = np.concatenate([part for part in parts if len(part)] or parts)
        self.diverged = [
            earlier if earlier >= 0 else new for earlier, new in zip(self.diverged, later.diverged, strict=True)
        ]

    def since(self, batch: int) -> Curves:
        """The part from this batch on, with a chunk that contains the batch."""
        cut = max(0, batch - self.first_batch)
        evaluated = self.evaluations["batch"] >= batch if self.evaluations else None
        chunked = self.chunks["batches"] > batch if self.chunks else None
        return Curves(
            self.seeds,
            self.first_batch + cut,
            {name: curve[:, cut:] for name, curve in self.by_batch.items()},
            {name: column[evaluated] for name, column in self.evaluations.items()},
            {name: column[chunked] for name, column in self.chunks.items()},
            list(self.diverged),
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "first_batch": self.first_batch,
            "by_batch": self.by_batch,
            "evaluations": self.evaluations,
            "chunks": self.chunks,
            "diverged": self.diverged,
        }
