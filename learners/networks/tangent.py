"""Training passes by hand for the networks of the paper: the gradient, and its tangent (Pearlmutter's R-operator).

A Hessian-vector product H v is the derivative of the gradient along v: a sweep forward that carries the tangents of all
activations along, and a sweep backward that carries those of all gradients. Written out layer by layer, each layer
reuses what the gradient left behind, nothing is kept but tensors, and no autograd graph is made: only a loss other
than cross-entropy is differentiated by autograd, on the logits alone. Values equal those of `AutogradPass`.

Source: Pearlmutter 1994, "Fast Exact Multiplication by the Hessian".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from learners.networks.architectures import EmbeddingNet, RainbowNet
from learners.networks.cuda_graphs import Recorder
from learners.networks.network import CrossEntropy, EmbeddingPass, Loss, Network, TrainingPass, _unflatten
from learners.networks.rainbow import RainbowPass, RainbowStages
from learners.networks.siamese import SiamesePass

_PICTURES_AT_ONCE = 16
"""Predictions on a CPU go through in batches of at most this size, so that activations stay in the cache."""


_SHAPES = {"cpu": 24, "cuda": 6}
"""Shapes of batch that memory is kept for, the latest; a class mean or a held-out set may have any. (A GPU sweeps whole
batches, and has one shape for each size of them.)"""


class HessianVectorPass(Protocol):
    """A forward sweep for some replicates that has been made, and those that may follow."""

    features: Tensor
    logits: Tensor
    statistics: Tensor

    def backward_embedding(self, by_features: Tensor, gradient: Tensor) -> None:
        """Write the gradient [R, P], given that by the features [R, B, F]; zero for the head."""

    def backward(self, slope: Tensor, gradient: Tensor) -> None:
        """Write the gradient [R, P], given that by the logits, `slope` [R, B, C]."""

    def tangent(self, v: Tensor) -> Tensor:
        """The tangent [R, B, C] of the logits along v [R, P]. Only after `backward`."""

    def tangent_backward(self, slope: Tensor, product: Tensor) -> None:
        """Write the tangent of the gradient [R, P], given that by the logits. Only straight after `tangent`."""


class LogitLoss(ABC):
    """Losses [R] of logits [R, B, C]: values, `slope` (gradient by the logits) and the slope's tangent."""

    values: Tensor
    slope: Tensor

    @abstractmethod
    def curvature(self, tangent: Tensor, rows: slice) -> Tensor:
        """The tangent of `slope[rows]` when the logits of these replicates move along `tangent` [rows, B, C]."""


class CrossEntropyByHand(LogitLoss):
    """p − y, divided by B, and (diag(p) − p pᵀ) / B."""

    def __init__(self, loss: CrossEntropy, logits: Tensor) -> None:
        labels, count = loss.y.unsqueeze(2), logits.shape[1]
        log_p = torch.log_softmax(logits, 2)
        self.values = log_p.gather(2, labels).sum((1, 2)).div_(-count)
        self._p = p = log_p.exp_()
        self._share = p / count
        self.slope = self._share.scatter(2, labels, (p.gather(2, labels) - 1).div_(count))

    def curvature(self, tangent: Tensor, rows: slice) -> Tensor:
        weighted = self._share[rows] * tangent
        return weighted.addcmul_(self._p[rows], weighted.sum(2, keepdim=True), value=-1)


class AnyLoss(LogitLoss):
    """By autograd, on a graph that begins at the logits."""

    def __init__(self, loss: Loss, logits: Tensor, twice: bool) -> None:
        with torch.enable_grad():
            self._logits = logits.requires_grad_()
            values = loss(self._logits)
            (slope,) = torch.autograd.grad(values.sum(), self._logits, create_graph=twice)
        self._graph = slope if slope.requires_grad else None  # None: a loss linear in the logits has no curvature
        self.values, self.slope = values.detach(), slope.detach().contiguous()

    def curvature(self, tangent: Tensor, rows: slice) -> Tensor:
        if self._graph is None:
            return torch.zeros_like(tangent)
        others = torch.zeros_like(self._graph)
        others[rows] = tangent
        (product,) = torch.autograd.grad(self._graph, self._logits, others, retain_graph=True)
        return product[rows].contiguous()


def _at_logits(loss: Loss, logits: Tensor, twice: bool) -> LogitLoss:
    return CrossEntropyByHand(loss, logits) if isinstance(loss, CrossEntropy) else AnyLoss(loss, logits, twice)


class TangentPass(TrainingPass):
    """A gradient from hand-written sweeps that can follow it with Hessian-vector products."""

    def __init__(
        self, network: TangentNetwork, phi: Tensor, statistics: Tensor, x: Tensor, loss: Loss, twice: bool
    ) -> None:
        self._network, self._examples = network, x.shape[1]
        with torch.no_grad():
            groups = network.groups(phi)
            sweeps = [network.sweeps(phi[rows], statistics[rows], x[rows]) for rows in groups]
            logits = _join([one.logits for one in sweeps])
            self.statistics = _join([one.statistics for one in sweeps])
            at_logits = _at_logits(loss, logits, twice)
            self.loss, self.gradient = at_logits.values, torch.empty_like(phi)
            for rows, one in zip(groups, sweeps, strict=True):
                one.backward(at_logits.slope[rows], self.gradient[rows])
        self._kept = (groups, sweeps, at_logits) if twice else None
        network.gradient_evaluations += self._examples

    def hessian_vector_product(self, v: Tensor) -> Tensor:
        if self._kept is None:
            raise ValueError("hessian_vector_product needs a pass made with twice=True")
        with torch.no_grad():
            product = torch.empty_like(v)
            groups, sweeps, at_logits = self._kept
            for rows, one in zip(groups, sweeps, strict=True):
                curvature = at_logits.curvature(one.tangent(v[rows]), rows)
                one.tangent_backward(curvature, product[rows])
        self._network.gradient_evaluations += 2 * self._examples
        return product


class TangentEmbeddingPass(EmbeddingPass):
    """Features from hand-written sweeps, and the backward sweep from a gradient by them."""

    def __init__(self, network: TangentNetwork, phi: Tensor, statistics: Tensor, x: Tensor) -> None:
        self._network, self._phi = network, phi
        self._sweeps: list[tuple[slice, list[HessianVectorPass]]] = []
        with torch.no_grad():
            for rows in network.groups(phi):
                # With batch norm in training, features depend on all of the batch.
                parts = network.parts(x[rows]) if statistics.shape[1] == 0 else [x[rows]]
                self._sweeps.append((rows, [network.sweeps(phi[rows], statistics[rows], part) for part in parts]))
            self.features = _join([torch.cat([one.features for one in parts], 1) for _, parts in self._sweeps])
            self.statistics = _join([parts[0].statistics for _, parts in self._sweeps])

    def backward(self, by_features: Tensor) -> Tensor:
        gradient = torch.zeros_like(self._phi)
        with torch.no_grad():
            for rows, parts in self._sweeps:
                by_parts = by_features[rows].split([one.features.shape[1] for one in parts], 1)
                of_part = torch.empty_like(gradient[rows])
                for one, by_part in zip(parts, by_parts, strict=True):
                    one.backward_embedding(by_part, of_part)
                    gradient[rows] += of_part
        self._network.gradient_evaluations += by_features.shape[1]
        return gradient


class TangentNetwork(Network):
    """A `Network` whose training passes are `TangentPass`es, and whose predictions take the same road.

    What autograd is asked to differentiate (`training_logits`, `training_features`; `logits` and `embed` with
    parameters that require a gradient) is the general network's.
    """

    module: EmbeddingNet

    def __init__(self, *args: Any, **where: Any) -> None:
        super().__init__(*args, **where)
        self.recorder = Recorder(self) if self.device.type == "cuda" else None

    def groups(self, phi: Tensor) -> list[slice]:
        """Which replicates are swept together: all on a GPU; one by one on a CPU, whose cache holds no more."""
        replicates = phi.shape[0]
        return [slice(r, r + 1) for r in range(replicates)] if phi.device.type == "cpu" else [slice(0, replicates)]

    @abstractmethod
    def sweeps(self, phi: Tensor, statistics: Tensor, x: Tensor) -> HessianVectorPass:
        """The forward sweep of a training pass."""

    def parts(self, x: Tensor) -> Sequence[Tensor]:
        """Pictures that may go through apart; all together on a GPU, so many as the cache holds on a CPU."""
        at_once = _PICTURES_AT_ONCE if x.device.type == "cpu" else max(1, x.shape[1])
        parts: Sequence[Tensor] = x.split(at_once, 1)
        return parts

    @abstractmethod
    def predict(self, phi: Tensor, statistics: Tensor, x: Tensor) -> HessianVectorPass:
        """The forward sweep of a prediction, by the running statistics."""

    def training_pass(
        self, phi: Tensor, statistics: Tensor, x: Tensor, loss: Loss, twice: bool = False
    ) -> TrainingPass:
        phi, statistics, x = phi.detach(), statistics.detach(), x.detach()
        if self.recorder is not None and isinstance(loss, CrossEntropy):
            recorded = self.recorder.training_pass(
                # Always as if for products: a pass that kept nothing would give back the memory it is recorded on.
                lambda phi, statistics, x, y: TangentPass(self, phi, statistics, x, CrossEntropy(y), twice=True),
                (phi, statistics, x, loss.y),
                twice,
            )
            if recorded is not None:
                return recorded
        return TangentPass(self, phi, statistics, x, loss, twice)

    def embedding_pass(self, phi: Tensor, statistics: Tensor, x: Tensor) -> EmbeddingPass:
        return TangentEmbeddingPass(self, phi.detach(), statistics.detach(), x.detach())

    def logits(self, phi: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and (phi.requires_grad or x.requires_grad):
            return super().logits(phi, statistics, x)
        return self._predicted(phi, statistics, x, lambda sweeps: sweeps.logits)

    def embed(self, phi: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and (phi.requires_grad or x.requires_grad):
            return super().embed(phi, statistics, x)
        return self._predicted(phi, statistics, x, lambda sweeps: sweeps.features)

    @torch.no_grad()
    def _predicted(
        self, phi: Tensor, statistics: Tensor, x: Tensor, wanted: Callable[[HessianVectorPass], Tensor]
    ) -> Tensor:
        if self.recorder is not None:
            recorded = self.recorder.sweeps(self.predict, (phi, statistics, x))
            if recorded is not None:
                return wanted(recorded).clone()
        stack = []
        for rows in self.groups(phi):
            parts = [wanted(self.predict(phi[rows], statistics[rows], part)) for part in self.parts(x[rows])]
            stack.append(torch.cat(parts, 1))
        return _join(stack)


class RainbowTangent(TangentNetwork):
    """The Rainbow network by hand: `learners.networks.rainbow`."""

    module: RainbowNet

    def __init__(self, *args: Any, **where: Any) -> None:
        super().__init__(*args, **where)
        self._made: dict[torch.Size, RainbowStages] = {}
        self.classes = self._parameters["head.bias"].numel()

    def sweeps(self, phi: Tensor, statistics: Tensor, x: Tensor) -> RainbowPass:
        return RainbowPass(self._stages(phi, x), phi, statistics, x)

    def predict(self, phi: Tensor, statistics: Tensor, x: Tensor) -> RainbowPass:
        return self.sweeps(phi, statistics, x)

    def _stages(self, phi: Tensor, x: Tensor) -> RainbowStages:
        """Made once for a shape of batch, as long as it is one of the latest."""
        stages = self._made.pop(x.shape, None) or RainbowStages(x.shape, self.module.filters, self.classes, phi)
        self._made[x.shape] = stages
        if len(self._made) > _SHAPES.get(phi.device.type, 6):
            del self._made[next(iter(self._made))]
        return stages


class SiameseTangent(TangentNetwork):
    """The Siamese network by hand: `learners.networks.siamese`."""

    def sweeps(self, phi: Tensor, statistics: Tensor, x: Tensor) -> SiamesePass:
        return self._sweeps(phi, statistics.clone(), x, training=True)

    def predict(self, phi: Tensor, statistics: Tensor, x: Tensor) -> SiamesePass:
        return self._sweeps(phi, statistics, x, training=False)

    def _sweeps(self, phi: Tensor, statistics: Tensor, x: Tensor, training: bool) -> SiamesePass:
        running = _unflatten(statistics, self._statistics)
        return SiamesePass(self._unflatten_parameters, phi, statistics, running, x, training)

    def _unflatten_parameters(self, flat: Tensor) -> dict[str, Tensor]:
        return _unflatten(flat, self._parameters)


KINDS: dict[str, type[Network]] = {"rainbow": RainbowTangent, "siamese": SiameseTangent}
"""What `networks.build` takes for the network of this name."""


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
