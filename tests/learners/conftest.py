"""Synthetic data for learners: images, a stream divided into tasks, narrow networks, and the platform's order of calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learners import Batch, ImageTable, Learner, Setting, create, learner_class
from learners.networks import cuda_graphs
from learners.networks.architectures import EmbeddingNet, HiddenLayer, RainbowNet, SiameseNet
from learners.networks.build import build
from learners.networks.network import Network
from learners.seeding import generator

BATCH = 5
BATCHES_PER_TASK = 4
PICTURES = 60


class NarrowRainbowNet(RainbowNet):
    """The Rainbow network with few filters: the same code, fast."""

    filters = (3, 3, 4, 4)


class NarrowSiameseNet(SiameseNet):
    """The Siamese network with few filters."""

    filters = (2, 2, 2, 3, 3, 3, 4)


class TanhNet(EmbeddingNet):
    """A smooth network with 43 parameters for 1x2x3 images: without dead units, so that finite differences converge."""

    hidden_layers = (HiddenLayer("first", "head"),)

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.features = 4
        self.first = nn.Linear(6, self.features)
        self.head = nn.Linear(self.features, classes)

    def embed(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x.flatten(1)))


@dataclass(frozen=True)
class World:
    """One network, its images, and a stream per seed that is the same in every call.

    `name`: the name of the network in its full width, for tests with `full=True`.
    """

    name: str
    make: Callable[[], EmbeddingNet]
    image_shape: tuple[int, int, int]
    classes: int
    views: int = 1
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    batch_size: int = BATCH
    batches_per_task: int = BATCHES_PER_TASK
    pictures: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        pixels = generator(99, "pictures").integers(0, 256, size=(PICTURES, *self.image_shape), dtype=np.uint8)
        object.__setattr__(self, "pictures", pixels)

    def table(self) -> ImageTable:
        return ImageTable(self.pictures, device=self.device, dtype=self.dtype)

    def network(self, full: bool = False) -> Network:
        if full:
            return build(self.name, self.image_shape, self.classes, device=self.device, dtype=self.dtype)
        return Network(self.make, device=self.device, dtype=self.dtype)

    def setting(self, seeds: Sequence[int] = (0,), full: bool = False) -> Setting:
        return Setting(
            network=self.network(full),
            seeds=list(seeds),
            batch_size=self.batch_size,
            batches_per_task=self.batches_per_task,
            classes=self.classes,
            images=self.table(),
        )

    def learner(self, name: str, seeds: Sequence[int] = (0,), full: bool = False, **options: Any) -> Learner:
        return create(name, options, self.setting(seeds, full))

    def quick(self, name: str, seeds: Sequence[int] = (0,), full: bool = False, **options: Any) -> Learner:
        """A learner with small size options, and with those of `options` that its `Options` class has."""
        small = {"updates_per_task": 3, "inner_steps": 2, "K": 3, "memory": 8 * self.classes, "update_batch": 4}
        small |= {"window": 15, "hypotheses": 10, "fisher_datapoints": 6}
        small |= {"maturity": 2, "replacement_rate": 0.05}
        small |= options
        available = {option.name for option in fields(learner_class(name).options_class)}
        return self.learner(name, seeds, full, **{key: value for key, value in small.items() if key in available})

    def ids(self, seed: int, step: int, count: int) -> np.ndarray:
        return generator(seed, f"stream {step}").integers(0, PICTURES, size=(count, self.views))

    def batch(self, step: int, seeds: Sequence[int] = (0,), count: int | None = None) -> Batch:
        """Batch number `step`; an image's label is its id modulo the classes, a pair's is 1 if its ids are equal modulo 3."""
        ids = torch.from_numpy(np.stack([self.ids(seed, step, count or self.batch_size) for seed in seeds]))
        labels = ids[..., 0] % self.classes if self.views == 1 else ((ids[..., 0] - ids[..., 1]) % 3 == 0).long()
        return Batch(self.table().gather(ids), labels.to(self.device), ids)

    def seen(self, steps: int, seeds: Sequence[int] = (0,)) -> Batch:
        """The argument of `restore_seen`: ids and labels of the first `steps` batches, without images."""
        parts = [self.batch(step, seeds) for step in range(steps)]
        ids, y = torch.cat([b.ids for b in parts], 1), torch.cat([b.y for b in parts], 1)
        return Batch(torch.empty(len(seeds), 0, dtype=self.dtype, device=self.device), y, ids)

    def drive(self, learner: Learner, start: int, stop: int, predict: bool = True) -> list[dict[str, Tensor]]:
        """Run batches [start, stop) in the platform's order of calls; returns the diagnostics of each."""
        seeds, diagnostics = learner.setting.seeds, []
        for step in range(start, stop):
            if learner.needs_boundaries and step % self.batches_per_task == 0:
                learner.begin_task()
            batch = self.batch(step, seeds)
            if predict:
                learner.predict(batch.x)
            diagnostics.append(learner.update(batch))
            if learner.needs_boundaries and (step + 1) % self.batches_per_task == 0:
                if predict:
                    learner.predict(self.batch(10_000, seeds).x)  # the held-out points
                learner.end_task()
        return diagnostics


@pytest.fixture(scope="session")
def rainbow() -> World:
    return World("rainbow", lambda: NarrowRainbowNet((3, 16, 16), 10), (3, 16, 16), 10)


@pytest.fixture(scope="session")
def siamese() -> World:
    return World("siamese", lambda: NarrowSiameseNet((3, 9, 12), 2), (3, 9, 12), 2, views=2)


@pytest.fixture(scope="session")
def smooth() -> World:
    return World("", TanhNet, (1, 2, 3), 3)


class Trace:
    """The operations of one call, repeated on later inputs, as a CUDA graph repeats its kernels.

    As in a graph, values that are not inputs are constants, and each call overwrites the result of the one before. A
    value that is read while it is traced is an error.
    """

    made = 0

    def __init__(self, work: Callable[..., Any], inputs: Sequence[Tensor], pool: Any = None) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx  # a second to import

        self._graph = make_fx(work)(*inputs)
        self._result = self._graph(*inputs)
        Trace.made += 1

    def __call__(self, *inputs: Tensor) -> Any:
        result = self._graph(*inputs)
        tensors = [(self._result, result)] if isinstance(result, Tensor) else zip(self._result, result, strict=True)
        for memory, value in tensors:
            memory.copy_(value)
        return self._result


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> type[Trace]:
    """`Trace` in the place of CUDA graphs."""
    monkeypatch.setattr(cuda_graphs, "Recording", Trace)
    monkeypatch.setattr(Trace, "made", 0)
    return Trace
