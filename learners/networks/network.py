"""R copies of a network as functions of flat parameters [R, P].

A learner holds flat parameters and calls its `Network` for predictions, gradients and Hessian-vector products.
`Network` uses autograd and works with any module; the two networks of the paper have faster subclasses with equal
values in `learners.networks.tangent`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from learners.networks.architectures import EmbeddingNet, HiddenLayer, Initialisation, initialise
from learners.seeding import torch_seed

Loss = Callable[[Tensor], Tensor]
"""A function from logits [R, B, C] to one loss per replicate [R]."""


def cross_entropy(y: Tensor) -> Loss:
    """The mean cross-entropy with labels y [R, B]."""
    return CrossEntropy(y)


def groups_of(stack: Tensor) -> list[slice]:
    """The replicates of [R, …] that are computed together: all on a GPU; one by one on a CPU.

    The cache of a CPU holds only one. Its vectorised functions round the last few numbers of a tensor differently, so
    that one by one a seed's float32 numbers do not depend on the other seeds.
    """
    replicates = stack.shape[0]
    return [slice(r, r + 1) for r in range(replicates)] if stack.device.type == "cpu" else [slice(0, replicates)]


class CrossEntropy:
    """The mean cross-entropy as a function of the logits; a class, so that hand-written passes can recognise it."""

    def __init__(self, y: Tensor) -> None:
        self.y = y

    def __call__(self, logits: Tensor) -> Tensor:
        replicates, count, classes = logits.shape
        losses = F.cross_entropy(logits.reshape(-1, classes), self.y.reshape(-1), reduction="none")
        return losses.reshape(replicates, count).mean(1)


class TrainingPass:
    """The gradient of R losses on a batch.

    Attributes:
        loss: losses [R].
        gradient: their gradient with respect to the parameters, [R, P].
        statistics: running batch-norm statistics after the batch, [R, S].
        activity: mean |h| of each hidden unit over the batch and over pixels, [R, U], where h is what the unit's
            outgoing weights multiply; None if it was not requested.
    """

    loss: Tensor
    gradient: Tensor
    statistics: Tensor
    activity: Tensor | None = None

    def hessian_vector_product(self, v: Tensor) -> Tensor:
        """H v [R, P] for v [R, P], with H the Hessian of the losses at the parameters; costs about two gradients."""
        raise TypeError("this pass has no Hessian-vector products")


class AutogradPass(TrainingPass):
    """A pass that keeps autograd's graph of the gradient; each product is one double backward."""

    def __init__(
        self,
        network: Network,
        phi: Tensor,
        statistics: Tensor,
        x: Tensor,
        loss: Loss,
        twice: bool,
        activity: bool = False,
    ) -> None:
        self._network, self._examples = network, x.shape[1]
        self._phi = phi.detach().requires_grad_()
        means: list[Tensor] = []
        with torch.enable_grad():
            logits, self.statistics = network.training_logits(self._phi, statistics, x, means if activity else None)
            losses = loss(logits)
            (gradient,) = torch.autograd.grad(losses.sum(), self._phi, create_graph=twice)
        self._graph = gradient if twice else None
        self.loss, self.gradient = losses.detach(), gradient.detach()
        self.activity = torch.cat(means) if activity else None
        network.gradient_evaluations += self._examples

    def hessian_vector_product(self, v: Tensor) -> Tensor:
        if self._graph is None:
            raise ValueError("hessian_vector_product needs a training pass with twice=True")
        (product,) = torch.autograd.grad(self._graph, self._phi, v, retain_graph=True)
        self._network.gradient_evaluations += 2 * self._examples
        return product


class EmbeddingPass(ABC):
    """The features of a batch in training, for a loss of the features that the caller differentiates.

    Attributes:
        features: features [R, B, F] with the batch's own statistics.
        statistics: running batch-norm statistics after the batch, [R, S].
    """

    features: Tensor
    statistics: Tensor

    @abstractmethod
    def backward(self, by_features: Tensor) -> Tensor:
        """The gradient [R, P] from that with respect to the features [R, B, F]; zero for the head. Call once."""


class AutogradEmbeddingPass(EmbeddingPass):
    """An embedding pass that keeps autograd's graph of the features."""

    def __init__(self, network: Network, phi: Tensor, statistics: Tensor, x: Tensor) -> None:
        self._network, self._phi = network, phi.detach().requires_grad_()
        with torch.enable_grad():
            self._graph, self.statistics = network.training_features(self._phi, statistics, x)
        self.features = self._graph.detach()

    def backward(self, by_features: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(self._graph, self._phi, by_features)
        self._network.gradient_evaluations += by_features.shape[1]
        return gradient


_NEW_PROCESS = 67280421310721
"""The seed of PyTorch's generator in a new process."""


class Network:
    """R copies of one module, as functions of flat parameters phi [R, P] and batch-norm statistics [R, S].

    The statistics are all buffers of floats, and parameters that the module does not train (`requires_grad=False`),
    which stay as they are. Other buffers must be constant, and are the same for all seeds.

    Attributes:
        features: number of features F; 0 if the module is not an `EmbeddingNet`.
        hidden_layers: those that the module names.
        gradient_evaluations: per replicate, the number of datapoints whose gradient was computed; a Hessian-vector
            product counts twice.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        init: Initialisation = "default",
    ) -> None:
        self._make, self._init = make, init
        self.device, self.dtype = torch.device(device), dtype
        with torch.random.fork_rng(devices=[]):  # constructing a module draws from the global generator
            torch.manual_seed(_NEW_PROCESS)  # constants that are drawn, such as permutations, are those of any process
            self.module = make().to(self.device, dtype)
        for module in self.module.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.num_batches_tracked = None  # an unused counter that vmap cannot stack
        self._parameters = {name: p.shape for name, p in self.module.named_parameters() if p.requires_grad}
        self._statistics = {name: p.shape for name, p in self.module.named_parameters() if not p.requires_grad}
        self._statistics |= {name: b.shape for name, b in self.module.named_buffers() if b.is_floating_point()}
        self.features = self.module.features if isinstance(self.module, EmbeddingNet) else 0
        self.hidden_layers = self.module.hidden_layers if isinstance(self.module, EmbeddingNet) else ()
        self.gradient_evaluations = 0

    def initial(self, seeds: Sequence[int], purpose: str = "network") -> tuple[Tensor, Tensor]:
        """The initial values of each seed: parameters [R, P] and statistics [R, S]."""
        phi, statistics = [], []
        for seed in seeds:
            # PyTorch's initialisers read the global generator: seed it here, and restore it afterwards.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(torch_seed(seed, purpose))
                module = self._make()
                initialise(module, self._init)
            tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            phi.append(_flatten(tensors, self._parameters))
            statistics.append(_flatten(tensors, self._statistics))
        return torch.stack(phi).to(self.device, self.dtype), torch.stack(statistics).to(self.device, self.dtype)

    def logits(self, phi: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
        """Predictions [R, B, C] with the running statistics; differentiable in phi."""
        return self._forward(phi, statistics, x, training=False, features_only=False)[0]

    def embed(self, phi: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
        """Features [R, B, F] with the running statistics; differentiable in phi."""
        return self._forward(phi, statistics, x, training=False, features_only=True)[0]

    def training_logits(
        self, phi: Tensor, statistics: Tensor, x: Tensor, activity: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits with the batch's own statistics, and the running statistics [R, S] after the batch.

        The activity of the hidden units (`TrainingPass.activity`) is appended to `activity`, in groups of replicates.
        """
        return self._forward(phi, statistics, x, training=True, features_only=False, activity=activity)

    def training_features(self, phi: Tensor, statistics: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features with the batch's own statistics, and the running statistics [R, S] after the batch."""
        return self._forward(phi, statistics, x, training=True, features_only=True)

    def embedding_pass(self, phi: Tensor, statistics: Tensor, x: Tensor) -> EmbeddingPass:
        """The features at phi, and the map from a gradient with respect to them to one with respect to phi."""
        return AutogradEmbeddingPass(self, phi, statistics, x)

    def training_pass(
        self, phi: Tensor, statistics: Tensor, x: Tensor, loss: Loss, twice: bool = False, activity: bool = False
    ) -> TrainingPass:
        """The gradient [R, P] of the R losses at phi.

        Args:
            phi: parameters [R, P].
            statistics: batch-norm statistics before the batch, [R, S].
            x: images [R, B, *image].
            loss: the losses as a function of the logits.
            twice: compute what Hessian-vector products need, too.
            activity: measure the activity of the hidden units, too.
        """
        return AutogradPass(self, phi, statistics, x, loss, twice, activity)

    def head(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer's weight [R, C, F] and bias [R, C], as views into phi."""
        parameters = self.named_parameters(phi)
        return parameters["head.weight"], parameters["head.bias"]

    def named_parameters(self, phi: Tensor) -> dict[str, Tensor]:
        """The module's trained parameters by name, each [R, …], as views into phi [R, P]."""
        return _unflatten(phi, self._parameters)

    def named_statistics(self, statistics: Tensor) -> dict[str, Tensor]:
        """The module's statistics by name, each [R, …], as views into statistics [R, S]."""
        return _unflatten(statistics, self._statistics)

    def _forward(
        self,
        phi: Tensor,
        statistics: Tensor,
        x: Tensor,
        training: bool,
        features_only: bool,
        activity: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        self.module.train(training)
        layers = self.hidden_layers if activity is not None else ()

        def forward(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor
        ) -> tuple[Tensor, list[Tensor]]:
            arguments = (x, True) if features_only else (x,)
            with _activity_of(self.module, layers) as means:
                result: Tensor = functional_call(self.module, {**parameters, **buffers}, arguments)
            return result, [torch.stack(calls).mean(0) for calls in means]

        if features_only and not self.features:
            raise TypeError(f"{type(self.module).__name__} has no features: it must be a subclass of EmbeddingNet")

        outputs, after = [], []
        for rows in groups_of(phi):
            buffers = {name: b.clone() for name, b in _unflatten(statistics[rows].detach(), self._statistics).items()}
            # Copies are aligned in memory; products with one datapoint round differently where their operands are not.
            output, means = torch.vmap(forward)(
                _unflatten(phi[rows].clone(), self._parameters), buffers, x[rows].clone()
            )
            outputs.append(output)
            if activity is not None:
                activity.append(torch.cat(means, 1))
            after.append(torch.cat([statistics[rows, :0], *(b.flatten(1) for b in buffers.values())], 1))
        return torch.cat(outputs), torch.cat(after)


@contextmanager
def _activity_of(module: nn.Module, layers: Sequence[HiddenLayer]) -> Iterator[list[list[Tensor]]]:
    """In this context, each call of a layer that reads hidden units appends their mean magnitudes [U] to its list."""
    means: list[list[Tensor]] = [[] for _ in layers]
    hooks = []
    for layer, calls in zip(layers, means, strict=True):
        units = module.get_parameter(f"{layer.incoming}.weight").shape[0]

        def measure(_: nn.Module, inputs: tuple[Tensor], units: int = units, calls: list[Tensor] = calls) -> None:
            h = inputs[0].detach()
            calls.append(h.abs().reshape(h.shape[0], units, -1).mean((0, 2)))

        hooks.append(module.get_submodule(layer.outgoing).register_forward_pre_hook(measure))
    try:
        yield means
    finally:
        for hook in hooks:
            hook.remove()


def _flatten(tensors: dict[str, Tensor], shapes: dict[str, torch.Size]) -> Tensor:
    return torch.cat([torch.empty(0), *(tensors[name].detach().flatten() for name in shapes)])


def _unflatten(flat: Tensor, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    pieces = flat.split([shape.numel() for shape in shapes.values()], dim=1) if shapes else ()
    return {
        name: piece.reshape(flat.shape[0], *shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }
