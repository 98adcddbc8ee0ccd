"""Training passes on a GPU, recorded once and played back: there, starting a kernel takes longer than running it.

A CUDA graph repeats the same kernels on the same memory. A `Slot` is that memory: tensors to put a pass's inputs in,
the pass recorded on them, and its Hessian-vector product. As many slots are made as passes are alive at once (FOML
keeps the last K); a pass that dies leaves its slot to the next. Same kernels, same order: the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from learners.networks.network import Network, TrainingPass

Key = tuple[Any, ...]
Result = TypeVar("Result")
Kept = TypeVar("Kept")

RECORD_FROM = 3
"""A shape of batch is recorded when it comes for this time: recording costs as much as some dozens of passes."""
SHAPES = 4
"""Shapes that recordings are kept for, the latest."""


class Recording(Generic[Result]):
    """A function of tensors, played back on memory of its own: `result` is overwritten by every call."""

    def __init__(self, work: Callable[..., Result], inputs: Sequence[Tensor], pool: Any = None) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries take their memory at a first run, which must not be recorded
            work(*self._inputs)
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        # A trial's other threads may call CUDA meanwhile: their calls are not forbidden.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.result = work(*self._inputs)

    @property
    def pool(self) -> Any:
        return self._graph.pool()

    def __call__(self, *inputs: Tensor) -> Result:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        self._graph.replay()
        return self.result


class Slot:
    """One pass and its Hessian-vector product, recorded.

    `make`: of phi, statistics, x and labels.
    """

    def __init__(self, make: Callable[..., TrainingPass], inputs: Sequence[Tensor], twice: bool) -> None:
        self.first = Recording(make, inputs)
        self.second: Recording[Tensor] | None = None
        if twice:
            made = self.first(*inputs)
            # Its memory lies with the first's: it reads what that leaves, and neither runs while the other does.
            self.second = Recording(made.hessian_vector_product, [torch.zeros_like(inputs[0])], self.first.pool)


class RecordedPass(TrainingPass):
    """A pass that was played back; its slot is its own for as long as it lives."""

    def __init__(self, network: Network, slot: Slot, free: list[Slot], inputs: Sequence[Tensor]) -> None:
        self._network, self._slot, self._free, self._examples = network, slot, free, inputs[2].shape[1]
        made = slot.first(*inputs)
        # Copies, which may outlive the pass.
        self.loss, self.gradient, self.statistics = made.loss.clone(), made.gradient.clone(), made.statistics.clone()
        network.gradient_evaluations += self._examples

    def hessian_vector_product(self, v: Tensor) -> Tensor:
        if self._slot.second is None:
            raise ValueError("hessian_vector_product needs a pass made with twice=True")
        self._network.gradient_evaluations += 2 * self._examples
        return self._slot.second(v).clone()

    def __del__(self) -> None:
        self._free.append(self._slot)


class Recorder:
    """What is recorded of one network, by the shape of the batch; the latest shapes alone are kept."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._seen: dict[Key, int] = {}
        self._free: dict[Key, list[Slot]] = {}
        self._sweeps: dict[Key, Recording[Any]] = {}

    def training_pass(
        self, make: Callable[..., TrainingPass], inputs: Sequence[Tensor], twice: bool
    ) -> TrainingPass | None:
        """The pass on phi, statistics, x and labels; None where its shape has not come often enough."""
        key = ("pass", twice, *(tensor.shape for tensor in inputs))
        if not self._is_frequent(key):
            return None
        free = _of(self._free, key, list)
        counted = self._network.gradient_evaluations
        slot = free.pop() if free else Slot(make, inputs, twice)
        self._network.gradient_evaluations = counted  # recording has run the pass, for nobody
        return RecordedPass(self._network, slot, free, inputs)

    def sweeps(self, make: Callable[..., Result], inputs: Sequence[Tensor]) -> Result | None:
        """What a prediction makes of phi, statistics and x, overwritten by the next; None as above."""
        key = ("sweeps", *(tensor.shape for tensor in inputs))
        if not self._is_frequent(key):
            return None
        found: Result = _of(self._sweeps, key, lambda: Recording(make, inputs))(*inputs)
        return found

    def _is_frequent(self, key: Key) -> bool:
        self._seen[key] = seen = self._seen.pop(key, 0) + 1
        while len(self._seen) > 4 * SHAPES:
            del self._seen[next(iter(self._seen))]
        return seen >= RECORD_FROM


def _of(kept: dict[Key, Kept], key: Key, make: Callable[[], Kept]) -> Kept:
    """What is kept for this key, or made for it, now the latest; the oldest is dropped."""
    found = kept.pop(key) if key in kept else make()
    kept[key] = found
    while len(kept) > SHAPES:
        del kept[next(iter(kept))]
    return found
