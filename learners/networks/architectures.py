"""Networks as PyTorch modules: the two of the paper, an MLP and a ResNet-18."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class HiddenLayer(NamedTuple):
    """A layer of hidden units, by the names of the modules around it.

    Attributes:
        incoming: the linear layer or convolution whose outputs, or output channels, are the units.
        outgoing: the linear layer or convolution that reads the units, and the only one. Its input is [B, U, …]; a
            linear layer may also read them flattened, each unit's values side by side.
        norm: the norm between them with parameters or running statistics of each unit; None if there is none.
    """

    incoming: str
    outgoing: str
    norm: str | None = None


class EmbeddingNet(nn.Module):
    """A network in two parts: `embed` computes features [B, F], `head` computes logits [B, C] from them.

    A subclass sets `features` (F) and `head`, and defines `embed`. It may set `hidden_layers`, in the order in which
    they are computed, for learners that replace hidden units.
    """

    features: int
    head: nn.Module
    hidden_layers: tuple[HiddenLayer, ...] = ()

    def embed(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define embed(x)")

    def forward(self, x: Tensor, features_only: bool = False) -> Tensor:
        features = self.embed(x)
        return features if features_only else self.head(features)


class RainbowNet(EmbeddingNet):
    """4 × (3×3 convolution, ReLU, 2×2 max-pool), average pool, linear (paper, appendix A.1)."""

    filters = (32, 32, 64, 64)
    images_per_datapoint = 1

    def __init__(self, image_shape: Sequence[int], classes: int) -> None:
        super().__init__()
        if min(image_shape[-2:]) < 16:
            raise ValueError(f"images must be at least 16x16 pixels for this network, got {list(image_shape[-2:])}")
        widths = (image_shape[-3], *self.filters)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.features = self.filters[-1]
        self.head = nn.Linear(self.features, classes)
        self.hidden_layers = _chain("convolutions", len(self.filters))

    def embed(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = F.max_pool2d(F.relu(convolution(x)), 2)
        return x.mean((-2, -1))


class SiameseNet(EmbeddingNet):
    """7 × (3×3 convolution, ReLU, batch norm), max-pool after every second; squared difference, linear (appendix A.2).

    Its input are pairs [B, 2, C, H, W]. Both branches are computed as one batch of 2B, so that they share batch
    statistics.
    """

    filters = (32, 32, 32, 64, 64, 64, 128)
    images_per_datapoint = 2

    def __init__(self, image_shape: Sequence[int], classes: int) -> None:
        super().__init__()
        if min(image_shape[-2:]) < 8:
            raise ValueError(f"images must be at least 8x8 pixels for this network, got {list(image_shape[-2:])}")
        widths = (image_shape[-3], *self.filters)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in self.filters)
        self.features = self.filters[-1]
        self.head = nn.Linear(self.features, classes)
        self.hidden_layers = _chain("convolutions", len(self.filters), "norms")

    def embed(self, x: Tensor) -> Tensor:
        pairs = x.shape[0]
        x = x.flatten(0, 1)
        for depth, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = norm(F.relu(convolution(x)))
            if depth % 2 == 1:
                x = F.max_pool2d(x, 2)
        x = x.mean((-2, -1)).unflatten(0, (pairs, 2))
        return (x[:, 0] - x[:, 1]).square()


class ImageNet(EmbeddingNet):
    """A network for single images [B, C, H, W], and for pairs [B, 2, C, H, W] by the squared difference of embeddings.

    A subclass defines `embed_images`. Both images of a pair are embedded as one batch of 2B.
    """

    def embed_images(self, x: Tensor) -> Tensor:
        """Features [B, F] of images x [B, C, H, W]."""
        raise TypeError(f"{type(self).__name__} must define embed_images(x)")

    def embed(self, x: Tensor) -> Tensor:
        if x.dim() == 4:
            return self.embed_images(x)
        z: Tensor = self.embed_images(x.flatten(0, 1)).unflatten(0, (-1, 2))
        return (z[:, 0] - z[:, 1]).square()


class MLP(ImageNet):
    """`layers` × (linear, ReLU) on the pixels, with `hidden` units each, and a linear layer."""

    def __init__(self, image_shape: Sequence[int], classes: int, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        widths = [math.prod(image_shape), *[hidden] * layers]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.features = hidden
        self.head = nn.Linear(hidden, classes)
        self.hidden_layers = _chain("linears", layers)

    def embed_images(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for linear in self.linears:
            x = F.relu(linear(x))
        return x


class ResNet18(ImageNet):
    """ResNet-18 for small images: He et al. 2016, with a 3×3 first convolution and without the first max-pool.

    Group norm (Wu & He 2018) by default, with about 16 channels a group, does not depend on the batch; or batch norm.
    Its hidden layers are those inside the blocks; the channels between blocks are read by several layers.
    """

    def __init__(
        self, image_shape: Sequence[int], classes: int, width: int = 64, norm: Literal["group", "batch"] = "group"
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(image_shape[-3], width, 3, padding=1, bias=False)
        self.first_norm = _norm(norm, width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.blocks = nn.ModuleList()
        for stage, (before, after) in enumerate(pairwise(widths)):
            self.blocks.append(ResidualBlock(before, after, 1 if stage == 0 else 2, norm))
            self.blocks.append(ResidualBlock(after, after, 1, norm))
        self.features = widths[-1]
        self.head = nn.Linear(self.features, classes)
        self.hidden_layers = tuple(
            HiddenLayer(f"blocks.{i}.convolution1", f"blocks.{i}.convolution2", f"blocks.{i}.norm1")
            for i in range(len(self.blocks))
        )

    def embed_images(self, x: Tensor) -> Tensor:
        x = F.relu(self.first_norm(self.first(x)))
        for block in self.blocks:
            x = block(x)
        return x.mean((-2, -1))


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with norms, added to the input, whose shape a 1×1 convolution adapts where it differs."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.convolution1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(norm, after)
        self.convolution2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, after)
        self.shortcut = nn.Sequential()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(norm, after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.convolution2(F.relu(self.norm1(self.convolution1(x)))))
        return F.relu(y + self.shortcut(x))


def _chain(layers: str, depth: int, norms: str | None = None) -> tuple[HiddenLayer, ...]:
    """The hidden layers of a list of layers that are computed one after another, and then the head."""
    names = [*(f"{layers}.{i}" for i in range(depth)), "head"]
    return tuple(
        HiddenLayer(incoming, outgoing, norms and f"{norms}.{i}")
        for i, (incoming, outgoing) in enumerate(pairwise(names))
    )


def _norm(name: str, channels: int) -> nn.Module:
    groups = math.gcd(channels, max(1, channels // 16))
    return nn.BatchNorm2d(channels) if name == "batch" else nn.GroupNorm(groups, channels)


Initialisation = Literal["default", "he", "glorot"]


def initialise(module: nn.Module, init: Initialisation) -> None:
    """Draw the weights of all linear layers and convolutions again, and set their biases to 0.

    "he": normal with variance 2 / fan-in (He et al. 2015). "glorot": uniform with variance 2 / (fan-in + fan-out)
    (Glorot & Bengio 2010). "default": PyTorch's, unchanged.
    """
    if init == "default":
        return
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.modules.conv._ConvNd):
            if init == "he":
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            else:
                nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                torch.nn.init.zeros_(part.bias)


NETWORKS: dict[str, type[EmbeddingNet]] = {
    "rainbow": RainbowNet,
    "siamese": SiameseNet,
    "mlp": MLP,
    "resnet18": ResNet18,
}
"""Networks by name."""
