"""Training passes and other functions on a GPU, recorded once as CUDA graphs and replayed.

For networks this small, launching a kernel takes longer than running it. A CUDA graph launches all kernels of a
pass together, always on the same memory. A `Slot` is that memory: input tensors, the pass recorded on them, and its
Hessian-vector product. There are as many slots as passes that exist at the same time (FOML keeps the last K); when a
pass is deleted, its slot is free for the next one. The kernels and their order are the same as without a recording, and
so are the numbers.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from learners.networks.network import Network, TrainingPass

Key = tuple[Any, ...]
Result = TypeVar("Result")
Value = TypeVar("Value")

RECORD_FROM = 3
"""A batch shape is recorded at its third use: a recording costs as much as several dozen passes."""
SHAPES = 4
"""Number of batch shapes whose recordings are kept, the most recently used."""


class Recording(Generic[Result]):
    """A function of tensors as a CUDA graph with its own memory; each call overwrites `result`."""

    def __init__(self, work: Callable[..., Result], inputs: Sequence[Tensor], pool: Any = None) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):  # libraries allocate memory at their first call, which must not be recorded
            work(*self._inputs)
        torch.cuda.current_stream().wait_stream(warm_up)
        self._graph = torch.cuda.CUDAGraph()
        # "thread_local" permits CUDA calls of the trial's other threads during the recording.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.result = work(*self._inputs)

    @property
    def pool(self) -> Any:
        return self._graph.pool()

    def __call__(self, *inputs: Tensor) -> Result:
        for recorded, value in zip(self._inputs, inputs, strict=True):
            recorded.copy_(value)
        self._graph.replay()
        return self.result


class Slot:
    """The recordings of one pass and of its Hessian-vector product.

    `make` computes the pass from phi, statistics, x and labels.
    """

    def __init__(self, make: Callable[..., TrainingPass], inputs: Sequence[Tensor], twice: bool) -> None:
        self.gradient = Recording(make, inputs)
        self.product: Recording[Tensor] | None = None
        if twice:
            training_pass = self.gradient(*inputs)
            # Both share a memory pool: the product reads what the gradient wrote, and they never run simultaneously.
            self.product = Recording(
                training_pass.hessian_vector_product, [torch.zeros_like(inputs[0])], self.gradient.pool
            )


class RecordedPass(TrainingPass):
    """A replayed pass, which occupies its slot until it is deleted."""

    def __init__(self, network: Network, slot: Slot, free: list[Slot], inputs: Sequence[Tensor]) -> None:
        self._network, self._slot, self._free, self._examples = network, slot, free, inputs[2].shape[1]
        result = slot.gradient(*inputs)
        # Copies, because they may be used after the pass is deleted and its slot is overwritten.
        self.loss, self.gradient = result.loss.clone(), result.gradient.clone()
        self.statistics = result.statistics.clone()
        self.activity = None if result.activity is None else result.activity.clone()
        network.gradient_evaluations += self._examples

    def hessian_vector_product(self, v: Tensor) -> Tensor:
        if self._slot.product is None:
            raise ValueError("hessian_vector_product needs a training pass with twice=True")
        self._network.gradient_evaluations += 2 * self._examples
        return self._slot.product(v).clone()

    def __del__(self) -> None:
        self._free.append(self._slot)


class Uses:
    """How often the shapes of the latest inputs were used."""

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}

    def frequent(self, key: Key) -> bool:
        """Count a use; true from the one on at which a recording pays."""
        self._counts[key] = uses = self._counts.pop(key, 0) + 1
        while len(self._counts) > 4 * SHAPES:
            del self._counts[next(iter(self._counts))]
        return uses >= RECORD_FROM


class RecordedFunction(Generic[Result]):
    """A function of tensors on a GPU, recorded by the shapes of its inputs; the next call may overwrite the result.

    The function must be a fixed sequence of kernels: no branch on a value, and nothing but its inputs may change.
    """

    def __init__(self, work: Callable[..., Result]) -> None:
        self._work, self._uses, self._records = work, Uses(), True
        self._recordings: dict[Key, Recording[Result]] = {}

    def __call__(self, *inputs: Tensor) -> Result:
        key = tuple(tensor.shape for tensor in inputs)
        if not self._records or not self._uses.frequent(key):
            return self._work(*inputs)
        try:
            recording = recently_used(self._recordings, key, lambda: Recording(self._work, inputs), SHAPES)
        except RuntimeError as error:  # a recording holds its memory for good, which a small GPU may not have
            warnings.warn(f"not recorded as a CUDA graph, hence slower: {error}", stacklevel=2)
            self._records = False
            return self._work(*inputs)
        return recording(*inputs)


class Recorder:
    """The recordings of one network, by batch shape."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._uses = Uses()
        self._free: dict[Key, list[Slot]] = {}
        self._predictions: dict[Key, Recording[Any]] = {}

    def training_pass(
        self, make: Callable[..., TrainingPass], inputs: Sequence[Tensor], twice: bool, activity: bool = False
    ) -> TrainingPass | None:
        """The pass on inputs phi, statistics, x and labels; None if their shapes were used too rarely to record.

        `make` computes the activity of hidden units if `activity` is True, and only then.
        """
        key = ("pass", twice, activity, *(tensor.shape for tensor in inputs))
        if not self._uses.frequent(key):
            return None
        free = recently_used(self._free, key, list, SHAPES)
        evaluations = self._network.gradient_evaluations
        slot = free.pop() if free else Slot(make, inputs, twice)
        self._network.gradient_evaluations = evaluations  # passes that ran only for the recording do not count
        return RecordedPass(self._network, slot, free, inputs)

    def prediction(self, make: Callable[..., Result], inputs: Sequence[Tensor]) -> Result | None:
        """The result of `make` on inputs phi, statistics and x, overwritten by the next call; None as above."""
        key = ("prediction", *(tensor.shape for tensor in inputs))
        if not self._uses.frequent(key):
            return None
        result: Result = recently_used(self._predictions, key, lambda: Recording(make, inputs), SHAPES)(*inputs)
        return result


def recently_used(cache: dict[Any, Value], key: Any, make: Callable[[], Value], size: int) -> Value:
    """The value of `key`, computed by `make` if it is missing; drops the least recently used beyond `size` entries."""
    value = cache.pop(key) if key in cache else make()
    cache[key] = value
    while len(cache) > size:
        del cache[next(iter(cache))]
    return value
