"""A network with strided convolutions and instance norm."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from learners.networks.architectures import EmbeddingNet, HiddenLayer


class StridedNet(EmbeddingNet):
    """Two strided 3×3 convolutions with instance norm, the mean over pixels, and a linear layer."""

    hidden_layers = (HiddenLayer("first", "second", norm="norm"), HiddenLayer("second", "head"))

    def __init__(self, image_shape: Sequence[int], classes: int, width: int = 16) -> None:
        super().__init__()
        channels, _, _ = image_shape  # (C, H, W)
        self.first = nn.Conv2d(channels, width, 3, stride=2, padding=1)
        self.second = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm = nn.InstanceNorm2d(width, affine=True)
        self.features = 2 * width
        self.head = nn.Linear(self.features, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Features [B, F] of images x [B, C, H, W] in 0…1, for a single seed."""
        x = F.relu(self.norm(self.first(x)))
        return F.relu(self.second(x)).mean((-2, -1))
