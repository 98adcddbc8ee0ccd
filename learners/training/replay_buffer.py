"""The replay buffer 𝓑: ids and labels of all datapoints seen, without pixels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from learners.batch import Batch
from learners.images import ImageTable
from learners.seeding import Generators
from learners.state import Stateful


class ReplayBuffer(Stateful):
    """All datapoints seen so far, per replicate, and one generator per replicate that samples them.

    The contents follow from the position in the stream. A checkpoint therefore holds only the generators; after loading
    it, the datapoints seen are added again.
    """

    state_fields = ("generators",)

    def __init__(self, images: ImageTable | None, seeds: Sequence[int]) -> None:
        self._images = images
        self.generators = Generators(seeds, "replay")
        self._replicates = torch.arange(len(seeds)).unsqueeze(-1)
        self._ids: Tensor | None = None
        self._labels = torch.empty(0)
        self.size = 0

    def add(self, batch: Batch) -> None:
        """Append a batch: ids [R, N, V], labels [R, N]."""
        count = batch.ids.shape[1]
        if self._ids is None or self.size + count > self._ids.shape[1]:
            self._grow(batch, self.size + count)
        assert self._ids is not None
        self._ids[:, self.size : self.size + count] = batch.ids
        self._labels[:, self.size : self.size + count] = batch.y.cpu()
        self.size += count

    def sample(self, count: int, start: int = 0) -> Batch:
        """`count` datapoints per replicate, drawn uniformly with replacement from position `start` on."""
        if not 0 <= start < self.size:
            raise ValueError(f"0 <= start < size must hold, but got start={start}, size={self.size}")
        return self.take(self.generators.integers(start, self.size, count))

    def choose(self, positions: Sequence[Tensor], count: int) -> Batch:
        """`count` datapoints per replicate, drawn uniformly with replacement from positions[r] (int64, any length)."""
        rows = [
            pool[torch.from_numpy(rng.integers(len(pool), size=count))]
            for pool, rng in zip(positions, self.generators, strict=True)
        ]
        return self.take(torch.stack(rows))

    def take(self, positions: Tensor, rows: slice = slice(None)) -> Batch:
        """The datapoints at int64 positions [R, n] of the replicates `rows`, with their images."""
        if self._images is None or self._ids is None:
            raise ValueError("the replay buffer must have images and datapoints before it is sampled")
        replicates = self._replicates[rows]
        ids, labels = self._ids[replicates, positions], self._labels[replicates, positions]
        return Batch(self._images.gather(ids), labels.to(self._images.device), ids)

    def labels(self, start: int) -> Tensor:
        """Labels [R, size − start] of the datapoints from position `start` on, on the CPU."""
        return self._labels[:, start : self.size]

    def _grow(self, batch: Batch, needed: int) -> None:
        replicates, _, images = batch.ids.shape
        capacity = max(1024, 2 * needed)
        ids = torch.zeros(replicates, capacity, images, dtype=torch.int32)
        labels = torch.zeros(replicates, capacity, dtype=torch.int64)
        if self._ids is not None:
            ids[:, : self.size] = self._ids[:, : self.size]
            labels[:, : self.size] = self._labels[:, : self.size]
        self._ids, self._labels = ids, labels
