"""Hand-written training passes for the networks of the paper: the gradient and its tangent (Pearlmutter's R-operator).

A Hessian-vector product H v is the derivative of the gradient along v. It takes a forward pass that propagates the
tangents of all activations, and a backward pass that propagates the tangents of all their gradients. Written out layer
by layer, each layer reuses what the gradient computed, only tensors are stored, and no autograd graph is built. A loss
other than cross-entropy is differentiated by autograd, on the logits only. The values equal those of `AutogradPass`.

Source: Pearlmutter 1994, "Fast Exact Multiplication by the Hessian".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from learners.networks.architectures import EmbeddingNet, RainbowNet
from learners.networks.cuda_graphs import Recorder, recently_used
from learners.networks.network import CrossEntropy, EmbeddingPass, Loss, Network, TrainingPass, groups_of
from learners.networks.rainbow import RainbowPass, RainbowStages
from learners.networks.siamese import SiamesePass

_CPU_BATCH = 16
"""Maximum batch of a prediction on a CPU, so that its activations fit into the cache."""
_SHAPES = {"cpu": 24, "cuda": 6}
"""Number of batch shapes whose memory is kept, the most recently used.

A CPU sees more shapes, because it splits class means and held-out sets into batches with a remainder of any size.
"""


class HessianVectorPass(Protocol):
    """A forward pass of some replicates, and the passes that can follow it.

    Attributes:
        features: features [R, B, F].
        logits: logits [R, B, C].
        statistics: running batch-norm statistics after the batch, [R, S].
    """

    features: Tensor
    logits: Tensor
    statistics: Tensor

    def activity(self) -> Tensor:
        """The activity of the hidden units [R, U] (`TrainingPass.activity`). Call before any other forward pass."""

    def backward_embedding(self, by_features: Tensor, gradient: Tensor) -> None:
        """Write the gradient [R, P] from that with respect to the features [R, B, F]; zero for the head."""

    def backward(self, slope: Tensor, gradient: Tensor) -> None:
        """Write the gradient [R, P] from `slope`, that with respect to the logits [R, B, C]."""

    def tangent(self, v: Tensor) -> Tensor:
        """The tangent [R, B, C] of the logits along v [R, P]. Call after `backward`."""

    def tangent_backward(self, slope: Tensor, product: Tensor) -> None:
        """Write H v [R, P] from the tangent of `slope` [R, B, C]. Call immediately after `tangent`."""


class LogitLoss(ABC):
    """A loss and its derivatives at logits [R, B, C].

    Attributes:
        values: losses [R].
        slope: their gradient with respect to the logits, [R, B, C].
    """

    values: Tensor
    slope: Tensor

    @abstractmethod
    def curvature(self, tangent: Tensor, rows: slice) -> Tensor:
        """The tangent of `slope[rows]` for the tangent [rows, B, C] of the logits of these replicates."""


class CrossEntropyAtLogits(LogitLoss):
    """Mean cross-entropy: slope (p − y) / B, and curvature (diag(p) − p pᵀ) / B."""

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


class AutogradLossAtLogits(LogitLoss):
    """Any loss, by an autograd graph that starts at the logits."""

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
        direction = torch.zeros_like(self._graph)
        direction[rows] = tangent
        (product,) = torch.autograd.grad(self._graph, self._logits, direction, retain_graph=True)
        return product[rows].contiguous()


class TangentPass(TrainingPass):
    """A gradient by hand-written passes, with Hessian-vector products if `twice`."""

    def __init__(
        self,
        network: TangentNetwork,
        phi: Tensor,
        statistics: Tensor,
        x: Tensor,
        loss: Loss,
        twice: bool,
        activity: bool = False,
    ) -> None:
        self._network, self._examples = network, x.shape[1]
        with torch.no_grad():
            groups = groups_of(phi)
            passes: list[HessianVectorPass] = []
            means: list[Tensor] = []
            for rows in groups:
                passes.append(network.forward_pass(phi[rows], statistics[rows], x[rows]))
                if activity:
                    means.append(passes[-1].activity())
            self.activity = _join(means) if activity else None
            logits = _join([each.logits for each in passes])
            self.statistics = _join([each.statistics for each in passes])
            at_logits: LogitLoss
            if isinstance(loss, CrossEntropy):
                at_logits = CrossEntropyAtLogits(loss, logits)
            else:
                at_logits = AutogradLossAtLogits(loss, logits, twice)
            self.loss, self.gradient = at_logits.values, torch.empty_like(phi)
            for rows, each in zip(groups, passes, strict=True):
                each.backward(at_logits.slope[rows], self.gradient[rows])
        self._forward = (groups, passes, at_logits) if twice else None
        network.gradient_evaluations += self._examples

    def hessian_vector_product(self, v: Tensor) -> Tensor:
        if self._forward is None:
            raise ValueError("hessian_vector_product needs a training pass with twice=True")
        with torch.no_grad():
            product = torch.empty_like(v)
            groups, passes, at_logits = self._forward
            for rows, each in zip(groups, passes, strict=True):
                curvature = at_logits.curvature(each.tangent(v[rows]), rows)
                each.tangent_backward(curvature, product[rows])
        self._network.gradient_evaluations += 2 * self._examples
        return product


class TangentEmbeddingPass(EmbeddingPass):
    """Features by hand-written passes, and the gradient from one with respect to them."""

    def __init__(self, network: TangentNetwork, phi: Tensor, statistics: Tensor, x: Tensor) -> None:
        self._network, self._phi = network, phi
        self._passes: list[tuple[slice, list[HessianVectorPass]]] = []
        with torch.no_grad():
            for rows in groups_of(phi):
                # With batch norm in training, features depend on the whole batch, which cannot be split.
                parts = network.parts(x[rows]) if statistics.shape[1] == 0 else [x[rows]]
                self._passes.append((rows, [network.forward_pass(phi[rows], statistics[rows], part) for part in parts]))
            self.features = _join([torch.cat([each.features for each in parts], 1) for _, parts in self._passes])
            self.statistics = _join([parts[0].statistics for _, parts in self._passes])

    def backward(self, by_features: Tensor) -> Tensor:
        gradient = torch.zeros_like(self._phi)
        with torch.no_grad():
            for rows, parts in self._passes:
                by_parts = by_features[rows].split([each.features.shape[1] for each in parts], 1)
                part_gradient = torch.empty_like(gradient[rows])
                for each, by_part in zip(parts, by_parts, strict=True):
                    each.backward_embedding(by_part, part_gradient)
                    gradient[rows] += part_gradient
        self._network.gradient_evaluations += by_features.shape[1]
        return gradient


class TangentNetwork(Network):
    """A `Network` with hand-written passes for training and prediction.

    Functions that the caller differentiates by autograd (`training_logits`, `training_features`, and `logits` and
    `embed` for parameters that require a gradient) are those of `Network`.
    """

    module: EmbeddingNet

    def __init__(self, *args: Any, **where: Any) -> None:
        super().__init__(*args, **where)
        self.recorder = Recorder(self) if self.device.type == "cuda" else None

    @abstractmethod
    def forward_pass(self, phi: Tensor, statistics: Tensor, x: Tensor) -> HessianVectorPass:
        """The forward pass of training."""

    def parts(self, x: Tensor) -> Sequence[Tensor]:
        """The batch split into batches for separate passes: one on a GPU, as many as fit into the cache on a CPU."""
        size = _CPU_BATCH if x.device.type == "cpu" else max(1, x.shape[1])
        parts: Sequence[Tensor] = x.split(size, 1)
        return parts

    @abstractmethod
    def prediction_pass(self, phi: Tensor, statistics: Tensor, x: Tensor) -> HessianVectorPass:
        """The forward pass of a prediction, with the running statistics."""

    def training_pass(
        self, phi: Tensor, statistics: Tensor, x: Tensor, loss: Loss, twice: bool = False, activity: bool = False
    ) -> TrainingPass:
        phi, statistics, x = phi.detach(), statistics.detach(), x.detach()
        if self.recorder is not None and isinstance(loss, CrossEntropy):
            recorded = self.recorder.training_pass(
                # twice=True in any case: otherwise the pass would free memory that its recording uses.
                lambda phi, statistics, x, y: TangentPass(
                    self, phi, statistics, x, CrossEntropy(y), twice=True, activity=activity
                ),
                (phi, statistics, x, loss.y),
                twice,
                activity,
            )
            if recorded is not None:
                return recorded
        return TangentPass(self, phi, statistics, x, loss, twice, activity)

    def embedding_pass(self, phi: Tensor, statistics: Tensor, x: Tensor) -> EmbeddingPass:
        return TangentEmbeddingPass(self, phi.detach(), statistics.detach(), x.detach())

    def logits(self, phi: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and (phi.requires_grad or x.requires_grad):
            return super().logits(phi, statistics, x)
        return self._predict(phi, statistics, x, lambda prediction: prediction.logits)

    def embed(self, phi: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and (phi.requires_grad or x.requires_grad):
            return super().embed(phi, statistics, x)
        return self._predict(phi, statistics, x, lambda prediction: prediction.features)

    @torch.no_grad()
    def _predict(
        self, phi: Tensor, statistics: Tensor, x: Tensor, output: Callable[[HessianVectorPass], Tensor]
    ) -> Tensor:
        if self.recorder is not None:
            recorded = self.recorder.prediction(self.prediction_pass, (phi, statistics, x))
            if recorded is not None:
                return output(recorded).clone()
        stack = []
        for rows in groups_of(phi):
            parts = [output(self.prediction_pass(phi[rows], statistics[rows], part)) for part in self.parts(x[rows])]
            stack.append(torch.cat(parts, 1))
        return _join(stack)


class RainbowTangent(TangentNetwork):
    """The Rainbow network with the passes of `learners.networks.rainbow`."""

    module: RainbowNet

    def __init__(self, *args: Any, **where: Any) -> None:
        super().__init__(*args, **where)
        self._stages: dict[torch.Size, RainbowStages] = {}
        self.classes = self._parameters["head.bias"].numel()

    def forward_pass(self, phi: Tensor, statistics: Tensor, x: Tensor) -> RainbowPass:
        stages = recently_used(
            self._stages,
            x.shape,
            lambda: RainbowStages(x.shape, self.module.filters, self.classes, phi),
            _SHAPES.get(phi.device.type, 6),
        )
        return RainbowPass(stages, phi, statistics, x)

    prediction_pass = forward_pass  # without batch norm, training and prediction are the same


class SiameseTangent(TangentNetwork):
    """The Siamese network with the passes of `learners.networks.siamese`."""

    def forward_pass(self, phi: Tensor, statistics: Tensor, x: Tensor) -> SiamesePass:
        return self._pass(phi, statistics.clone(), x, training=True)

    def prediction_pass(self, phi: Tensor, statistics: Tensor, x: Tensor) -> SiamesePass:
        return self._pass(phi, statistics, x, training=False)

    def _pass(self, phi: Tensor, statistics: Tensor, x: Tensor, training: bool) -> SiamesePass:
        return SiamesePass(self.named_parameters, phi, statistics, self.named_statistics(statistics), x, training)


KINDS: dict[str, type[Network]] = {"rainbow": RainbowTangent, "siamese": SiameseTangent}
"""Name of a network → the class with its hand-written passes."""


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
