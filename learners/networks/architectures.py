"""The two networks of the paper as PyTorch modules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


class EmbeddingNet(nn.Module):
    """A network in two parts: `embed` computes features [B, F], `head` computes logits [B, C] from them.

    A subclass sets `features` (F) and `head`, and defines `embed`.
    """

    features: int
    head: nn.Module

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

    def embed(self, x: Tensor) -> Tensor:
        pairs = x.shape[0]
        x = x.flatten(0, 1)
        for depth, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = norm(F.relu(convolution(x)))
            if depth % 2 == 1:
                x = F.max_pool2d(x, 2)
        x = x.mean((-2, -1)).unflatten(0, (pairs, 2))
        return (x[:, 0] - x[:, 1]).square()


NETWORKS: dict[str, type[RainbowNet] | type[SiameseNet]] = {"rainbow": RainbowNet, "siamese": SiameseNet}
