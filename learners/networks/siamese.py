"""Hand-written passes of the Siamese network: seven layers of convolution, ReLU, batch norm and max-pool.

Batch norm in training, per channel over the m values of a batch: x̂ = ρ (a − mean(a)), ρ = 1 / deviation, y = γ x̂ + β.
Writing that mean as a bar, the derivative of x̂ with respect to a is the symmetric J u = ρ (u − ū − x̂ x̂u‾). With u the
gradient with respect to y,

    tangent               x̂̇ = J ȧ,   ẏ = γ x̂̇ + γ̇ x̂ + β̇
    gradient              with respect to a: γ J u;   γ: Σ x̂ u;   β: Σ u
    tangent of gradient   with respect to a: γ J u̇ + κ J u − γ ρ (x̂u‾ x̂̇ + x̂̇u‾ x̂), κ = γ̇ − γ ρ x̂ȧ‾;
                          γ: Σ (x̂ u̇ + x̂̇ u);   β: Σ u̇

All of these are sums of a few large tensors, each times a number per channel. Means are computed by `torch.sum`:
PyTorch's own batch norm accumulates float32 sequentially if channels are last, and loses four digits.

The backward pass of a convolution is a function of its output's gradient δ, its input x and its weights w. Each of its
results is a product of two of them, so its tangent is the backward pass of (δ̇, x, w) plus that of (δ, ẋ, ẇ).

Tensors are [2·B, R·C, H, W] with channels last in memory: R replicates are R groups of channels.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten
EPSILON, MOMENTUM = 1e-5, 0.1  # nn.BatchNorm2d's defaults
Named = dict[str, Tensor]


class LayerParameters(NamedTuple):
    """The parameters of one layer, their tangents or their gradients.

    Attributes:
        weight: weight of the convolution, [R·K, C, 3, 3].
        bias: bias of the convolution, [R·K].
        gamma: scale of batch norm, [R·K].
        beta: shift of batch norm, [R·K].
    """

    weight: Tensor
    bias: Tensor
    gamma: Tensor
    beta: Tensor


class SiameseLayer:
    """One layer in one forward pass, with the passes that can follow it."""

    def __init__(self, parameters: LayerParameters, groups: int, pooled: bool) -> None:
        self._w, self._groups, self._pooled = parameters, groups, pooled

    def forward(self, x: Tensor, running_mean: Tensor, running_variance: Tensor) -> Tensor:
        """y with the batch's own statistics; updates the running ones in place."""
        w = self._w
        self._x = x
        self._a = self._convolve(x, w.weight, w.bias).relu_()
        self._m = m = self._a.numel() // self._a.shape[1]
        mean = _sum(self._a) / m
        self._normal = self._a - _broadcast(mean)
        variance = _sum(self._normal.square()) / m
        self._rho = (variance + EPSILON).rsqrt()
        self._normal *= _broadcast(self._rho)
        running_mean.lerp_(mean, MOMENTUM)
        running_variance.lerp_(variance * (m / (m - 1)), MOMENTUM)
        y = _weighted_sum(w.beta, (self._normal, w.gamma))
        if not self._pooled:
            return y
        pooled: Tensor
        pooled, self._indices = aten.max_pool2d_with_indices(y, [2, 2])
        return pooled

    def predict(self, x: Tensor, running_mean: Tensor, running_variance: Tensor) -> Tensor:
        """y with the running statistics."""
        w = self._w
        scale = w.gamma / (running_variance + EPSILON).sqrt()
        y = _weighted_sum(w.beta - scale * running_mean, (self._convolve(x, w.weight, w.bias).relu_(), scale))
        return torch.max_pool2d(y, 2) if self._pooled else y

    def input_magnitude(self) -> Tensor:
        """The mean |x| of each channel of the input, [R·C]."""
        return _sum(self._x.abs()) / (self._x.numel() // self._x.shape[1])

    def backward(self, by_y: Tensor, first: bool) -> tuple[Tensor | None, LayerParameters]:
        """The gradients with respect to x (None for the `first` layer) and to the parameters."""
        self._u = self._unpool(by_y)
        self._sum_u, self._sum_nu = _sum(self._u), _sum(self._normal * self._u)
        scale = self._w.gamma * self._rho
        by_a = _weighted_sum(
            -scale * self._sum_u / self._m, (self._u, scale), (self._normal, -scale * self._sum_nu / self._m)
        )
        self._delta = self._mask_relu(by_a)
        by_x, by_weight, by_bias = self._convolve_backward(
            self._delta, self._x, self._w.weight, [not first, True, True]
        )
        return by_x, LayerParameters(by_weight, by_bias, self._sum_nu, self._sum_u)

    def tangent(self, x_dot: Tensor | None, dot: LayerParameters) -> Tensor:
        """The tangent of y; x_dot is None if x is constant."""
        self._x_dot, self._dot = x_dot, dot
        convolved = self._convolve(self._x, dot.weight, dot.bias)
        if x_dot is not None:
            convolved += self._convolve(x_dot, self._w.weight, None)
        self._a_dot = self._mask_relu(convolved)
        self._mean_a_dot, self._mean_na_dot = _sum(self._a_dot) / self._m, _sum(self._normal * self._a_dot) / self._m
        scale = self._w.gamma * self._rho
        self._kappa = dot.gamma - scale * self._mean_na_dot
        y_dot = _weighted_sum(dot.beta - scale * self._mean_a_dot, (self._a_dot, scale), (self._normal, self._kappa))
        return _gather(y_dot, self._indices) if self._pooled else y_dot

    def tangent_backward(self, by_y_dot: Tensor) -> tuple[Tensor | None, LayerParameters]:
        """The tangent of `backward`. Call immediately after `tangent`."""
        m, rho, normal = self._m, self._rho, self._normal
        scale, kappa = self._w.gamma * rho, self._kappa * rho
        u_dot = self._unpool(by_y_dot)
        sum_u_dot, sum_nu_dot = _sum(u_dot), _sum(normal * u_dot)
        # Σ x̂̇ u with x̂̇ = ρ (ȧ − mean(ȧ) − x̂ mean(x̂ ȧ)) substituted, as in `by_a` below: x̂̇ is never computed.
        crossed = rho * (
            _sum(self._a_dot * self._u) - self._mean_a_dot * self._sum_u - self._mean_na_dot * self._sum_nu
        )
        by_normal_dot = -scale * self._sum_nu / m * rho
        by_a = _weighted_sum(
            -(scale * sum_u_dot + kappa * self._sum_u) / m - by_normal_dot * self._mean_a_dot,
            (u_dot, scale),
            (self._u, kappa),
            (self._a_dot, by_normal_dot),
            (
                normal,
                -(scale * (sum_nu_dot + crossed) + kappa * self._sum_nu) / m - by_normal_dot * self._mean_na_dot,
            ),
        )
        delta_dot = self._mask_relu(by_a)
        first = self._x_dot is None
        by_x, by_weight, by_bias = self._convolve_backward(delta_dot, self._x, self._w.weight, [not first, True, True])
        if self._x_dot is not None:
            more_x, more_weight, _ = self._convolve_backward(
                self._delta, self._x_dot, self._dot.weight, [True, True, False]
            )
            by_x += more_x
            by_weight = by_weight + more_weight
        return by_x, LayerParameters(by_weight, by_bias, sum_nu_dot + crossed, sum_u_dot)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.conv2d(x, weight, bias, padding=1, groups=self._groups)

    def _convolve_backward(self, delta: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> tuple[Tensor, ...]:
        biases = [weight.shape[0]]
        by_all: tuple[Tensor, ...] = aten.convolution_backward(
            delta, x, weight, biases, [1, 1], [1, 1], [1, 1], False, [0, 0], self._groups, mask
        )
        return by_all

    def _mask_relu(self, t: Tensor) -> Tensor:
        """Set t to 0 in place where the ReLU blocks it."""
        aten.threshold_backward(t, self._a, 0, grad_input=t)
        return t

    def _unpool(self, by_y: Tensor) -> Tensor:
        if not self._pooled:
            return by_y
        by_values: Tensor = aten.max_pool2d_with_indices_backward(
            by_y, self._a, [2, 2], [2, 2], [0, 0], [1, 1], False, self._indices
        )
        return by_values


class SiamesePass:
    """A forward pass through the layers, and the three passes that can follow it (`HessianVectorPass`).

    `running` holds named views into `statistics`, which training updates in place and prediction reads.
    """

    def __init__(
        self,
        unflatten: Callable[[Tensor], Named],
        phi: Tensor,
        statistics: Tensor,
        running: Named,
        x: Tensor,
        training: bool = True,
    ) -> None:
        self.statistics = statistics
        R, self._pairs = x.shape[:2]
        self._replicates, self._unflatten = R, unflatten
        named = unflatten(phi)
        depth = sum(name.startswith("convolutions") for name in named) // 2
        self._layers = [SiameseLayer(_parameters(named, i), R, i % 2 == 1) for i in range(depth)]
        y = x.permute(1, 2, 0, 3, 4, 5).flatten(2, 3).flatten(0, 1).contiguous(memory_format=torch.channels_last)
        for i, layer in enumerate(self._layers):
            mean, variance = (running[f"norms.{i}.running_{which}"] for which in ("mean", "var"))
            flat = mean.flatten(), variance.flatten()
            y = layer.forward(y, *flat) if training else layer.predict(y, *flat)
            if training:
                mean.copy_(flat[0].view(mean.shape))
                variance.copy_(flat[1].view(mean.shape))
        self._shape = y.shape
        self._difference = self._pair_difference(y)
        self.features = self._difference.square()
        self._head = named["head.weight"]
        self.logits = torch.baddbmm(named["head.bias"].unsqueeze(1), self.features, self._head.transpose(1, 2))

    def activity(self) -> Tensor:
        """The mean magnitude of what each unit passes on, [R, U]; of the last layer, that of the features."""
        means = [layer.input_magnitude().view(self._replicates, -1) for layer in self._layers[1:]]
        return torch.cat([*means, self.features.mean(1)], 1)

    def backward(self, slope: Tensor, gradient: Tensor) -> None:
        self._slope, named = slope, self._unflatten(gradient)
        named["head.weight"].copy_(torch.bmm(slope.transpose(1, 2), self.features))
        named["head.bias"].copy_(slope.sum(1))
        self._by_embedded = torch.bmm(slope, self._head)
        self._backward(named)

    def backward_embedding(self, by_features: Tensor, gradient: Tensor) -> None:
        self._by_embedded, named = by_features, self._unflatten(gradient)
        named["head.weight"].zero_()
        named["head.bias"].zero_()
        self._backward(named)

    def _backward(self, named: Named) -> None:
        by_y: Tensor | None = self._by_activations(2 * self._difference * self._by_embedded)
        for i in reversed(range(len(self._layers))):
            assert by_y is not None
            by_y, by_parameters = self._layers[i].backward(by_y, first=i == 0)
            _write(named, i, by_parameters)

    def tangent(self, v: Tensor) -> Tensor:
        named = self._unflatten(v)
        y: Tensor | None = None
        for i, layer in enumerate(self._layers):
            y = layer.tangent(y, _parameters(named, i))
        assert y is not None
        self._difference_dot = self._pair_difference(y)
        self._embedded_dot = 2 * self._difference * self._difference_dot
        self._head_dot = named["head.weight"]
        logits = torch.baddbmm(named["head.bias"].unsqueeze(1), self.features, self._head_dot.transpose(1, 2))
        return logits.baddbmm_(self._embedded_dot, self._head.transpose(1, 2))

    def tangent_backward(self, slope: Tensor, product: Tensor) -> None:
        named = self._unflatten(product)
        by_head = torch.bmm(slope.transpose(1, 2), self.features)
        named["head.weight"].copy_(by_head.baddbmm_(self._slope.transpose(1, 2), self._embedded_dot))
        named["head.bias"].copy_(slope.sum(1))
        by_embedded = torch.bmm(slope, self._head).baddbmm_(self._slope, self._head_dot)
        by_difference = self._difference_dot * self._by_embedded + self._difference * by_embedded
        by_y: Tensor | None = self._by_activations(2 * by_difference)
        for i in reversed(range(len(self._layers))):
            assert by_y is not None
            by_y, by_parameters = self._layers[i].tangent_backward(by_y)
            _write(named, i, by_parameters)

    def _pair_difference(self, y: Tensor) -> Tensor:
        """The difference of a pair's mean activations [R, B, C], from y [2·B, R·C, h, w]."""
        means = y.mean((2, 3)).view(self._pairs, 2, self._replicates, -1)
        return (means[:, 0] - means[:, 1]).transpose(0, 1).contiguous()

    def _by_activations(self, by_difference: Tensor) -> Tensor:
        """The transpose of `_pair_difference`."""
        _, _, h, w = self._shape
        mean = by_difference.transpose(0, 1) / (h * w)
        pair = torch.stack([mean, -mean], 1).view(self._shape[0], -1, 1, 1)
        return pair.expand(self._shape).contiguous(memory_format=torch.channels_last)


def _parameters(named: Named, i: int) -> LayerParameters:
    weight = named[f"convolutions.{i}.weight"].flatten(0, 1).contiguous(memory_format=torch.channels_last)
    rest = (f"convolutions.{i}.bias", f"norms.{i}.weight", f"norms.{i}.bias")
    return LayerParameters(weight, *(named[name].flatten() for name in rest))


def _write(named: Named, i: int, values: LayerParameters) -> None:
    names = (f"convolutions.{i}.weight", f"convolutions.{i}.bias", f"norms.{i}.weight", f"norms.{i}.bias")
    for name, value in zip(names, values, strict=True):
        named[name].copy_(value.view(named[name].shape))


def _broadcast(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)


def _sum(t: Tensor) -> Tensor:
    return t.sum((0, 2, 3))


def _weighted_sum(constant: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
    """The sum of a number per channel and of large tensors, each times a number per channel."""
    (first, scale), *others = terms
    total = _broadcast(constant).addcmul(first, _broadcast(scale))
    for term, scale in others:
        total.addcmul_(term, _broadcast(scale))
    return total


def _gather(y: Tensor, indices: Tensor) -> Tensor:
    """The entries of y that max-pool selected (`indices`: their position in the image), with channels last."""
    rows, positions = (t.permute(0, 2, 3, 1).flatten(1, 2) for t in (y, indices))
    n, c, h, w = indices.shape
    return rows.gather(1, positions).view(n, h, w, c).permute(0, 3, 1, 2)
