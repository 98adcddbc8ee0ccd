"""The networks against closed forms, known sizes and finite differences; initial weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from learners.networks.architectures import MLP, RainbowNet, ResNet18, SiameseNet, initialise
from learners.networks.build import build, write
from learners.networks.network import Network, cross_entropy

D = torch.float64


def test_the_rainbow_network_is_that_of_the_paper() -> None:
    """Four convolutions with pools after each; (9 in + 1) out parameters of each, and 65 of each class."""
    torch.manual_seed(0)
    module = RainbowNet((3, 28, 28), classes=10).to(D)
    assert sum(p.numel() for p in module.parameters()) == 896 + 9_248 + 18_496 + 36_928 + 650
    x = torch.rand(2, 3, 28, 28, dtype=D)
    z = x
    for convolution, side in zip(module.convolutions, (14, 7, 3, 1), strict=True):
        z = F.max_pool2d(F.conv2d(z, convolution.weight, convolution.bias, padding=1).clamp(0), 2)
        assert z.shape[2:] == (side, side)
    assert torch.allclose(module.embed(x), z[:, :, 0, 0], rtol=1e-12)
    larger = torch.rand(1, 3, 33, 35, dtype=D)  # of which 2x2 pixels are left, whose mean are the features
    maps: list[Tensor] = []
    module.convolutions[-1].register_forward_hook(lambda _, __, out: maps.append(F.max_pool2d(out.clamp(0), 2)))
    assert torch.allclose(module.embed(larger), maps[0].flatten(2).mean(2), rtol=1e-12)
    assert maps[0].shape == (1, 64, 2, 2)
    assert torch.allclose(module(x), z[:, :, 0, 0] @ module.head.weight.T + module.head.bias, rtol=1e-12)


def test_the_siamese_network_is_that_of_the_paper() -> None:
    """Seven convolutions, each with batch norm, and pools after the second, fourth and sixth."""
    torch.manual_seed(0)
    module = SiameseNet((3, 32, 32), classes=2).to(D).eval()
    convolutions, norms = 896 + 2 * 9_248 + 18_496 + 2 * 36_928 + 73_856, 2 * (3 * 32 + 3 * 64 + 128)
    assert sum(p.numel() for p in module.parameters()) == convolutions + norms + 258
    pairs = torch.rand(3, 2, 3, 32, 32, dtype=D)

    def embed(z: Tensor) -> Tensor:
        for place, (convolution, norm) in enumerate(zip(module.convolutions, module.norms, strict=True), 1):
            z = F.conv2d(z, convolution.weight, convolution.bias, padding=1).clamp(0)
            z = (z - norm.running_mean[:, None, None]) / (norm.running_var[:, None, None] + 1e-5).sqrt()
            z = F.max_pool2d(z, 2) if place in (2, 4, 6) else z
        assert z.shape[1:] == (128, 4, 4)
        return z.flatten(2).mean(2)

    difference = (embed(pairs[:, 0]) - embed(pairs[:, 1])).square()
    assert torch.allclose(module.embed(pairs), difference, rtol=1e-10)
    assert torch.allclose(module(pairs), difference @ module.head.weight.T + module.head.bias, rtol=1e-10)


@pytest.mark.parametrize(("kind", "least"), [(RainbowNet, 16), (SiameseNet, 8)])
def test_images_that_the_pools_would_reduce_to_nothing_are_refused(kind: Any, least: int) -> None:
    assert kind((1, least, 40), 2).features in (64, 128)
    for shape in ((1, least - 1, 40), (1, 40, least - 1)):
        with pytest.raises(ValueError, match=f"images must be at least {least}x{least} pixels"):
            kind(shape, 2)


def test_the_mlp_is_its_formula() -> None:
    """W₃ relu(W₂ relu(W₁ x + b₁) + b₂) + b₃; for pairs, of the squared difference of the embeddings."""
    torch.manual_seed(0)
    module = MLP((2, 3, 4), classes=5, hidden=7, layers=2).to(D)
    x = torch.rand(6, 2, 3, 4, dtype=D)
    first, second = module.linears

    def embed(x: Tensor) -> Tensor:
        return (((x.flatten(1) @ first.weight.T + first.bias).clamp(0)) @ second.weight.T + second.bias).clamp(0)

    expected = embed(x) @ module.head.weight.T + module.head.bias
    assert torch.allclose(module(x), expected, rtol=1e-12)
    pairs = torch.rand(6, 2, 2, 3, 4, dtype=D)
    difference = (embed(pairs[:, 0]) - embed(pairs[:, 1])).square()
    assert torch.allclose(module(pairs), difference @ module.head.weight.T + module.head.bias, rtol=1e-12)
    assert module.features == 7


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet18_has_its_known_size_and_shapes(norm: Any) -> None:
    """11,173,962 parameters for CIFAR-10, with either norm; 32x32 pixels become 4x4 before the mean."""
    module = ResNet18((3, 32, 32), classes=10, norm=norm)
    assert sum(p.numel() for p in module.parameters()) == 11_173_962
    assert len(module.blocks) == 8
    norms = [part.num_groups for part in module.modules() if isinstance(part, nn.GroupNorm)]
    assert norms == ([] if norm == "batch" else [4] * 5 + [8] * 5 + [16] * 5 + [32] * 5)
    sizes = []
    module.blocks[-1].register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape)))
    assert module(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert sizes == [(2, 512, 4, 4)]
    assert module.features == 512


def test_a_residual_block_is_its_formula() -> None:
    torch.manual_seed(0)
    block = ResNet18((1, 8, 8), classes=2, width=2).to(D).blocks[2]
    x = torch.rand(3, 2, 8, 8, dtype=D)

    def norm(x: Tensor) -> Tensor:  # one group of all four channels
        group = x.flatten(1)
        mean, variance = group.mean(1, keepdim=True), group.var(1, unbiased=False, keepdim=True)
        return ((group - mean) / (variance + 1e-5).sqrt()).reshape(x.shape)

    y = norm(F.conv2d(x, block.convolution1.weight, stride=2, padding=1)).clamp(0)
    y = norm(F.conv2d(y, block.convolution2.weight, padding=1))
    shortcut = norm(F.conv2d(x, block.shortcut[0].weight, stride=2))
    assert torch.allclose(block(x), (y + shortcut).clamp(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "description",
    [{"name": "mlp", "hidden": 6}, {"name": "resnet18", "width": 2}, {"name": "resnet18", "width": 2, "norm": "batch"}],
)
@pytest.mark.parametrize("images", [1, 2])
def test_gradient_and_hessian_equal_finite_differences(description: dict[str, Any], images: int) -> None:
    network = build(write(description), (2, 8, 8), 3, dtype=D)
    phi, statistics = network.initial([0, 1])
    g = torch.Generator().manual_seed(1)
    x = torch.rand(2, 4, *([2] if images == 2 else []), 2, 8, 8, generator=g, dtype=D)
    loss, v = cross_entropy(torch.randint(3, (2, 4), generator=g)), torch.randn(phi.shape, generator=g, dtype=D)
    v = v / v.norm(dim=1, keepdim=True)

    def at(step: float) -> Any:
        return network.training_pass(phi + step * v, statistics, x, loss, twice=True)

    h = 1e-6  # so small that no ReLU changes its side
    middle = at(0.0)
    slope = (at(h).loss - at(-h).loss) / (2 * h)
    assert torch.allclose((middle.gradient * v).sum(1), slope, rtol=1e-6, atol=1e-9)
    product = (at(h).gradient - at(-h).gradient) / (2 * h)
    assert float((middle.hessian_vector_product(v) - product).norm()) <= 1e-5 * float(product.norm())


def test_initial_weights() -> None:
    """He: variance 2 / fan-in; Glorot: 2 / (fan-in + fan-out), within √(6 / (fan-in + fan-out)); biases are 0."""
    module = nn.Sequential(nn.Conv2d(50, 40, 3), nn.Linear(300, 200), nn.BatchNorm2d(3))
    for init, variances in (("he", (2 / 450, 2 / 300)), ("glorot", (2 / (450 + 360), 2 / 500))):
        torch.manual_seed(0)
        initialise(module, init)
        for part, variance in zip(module, variances, strict=False):
            assert part.weight.var().item() == pytest.approx(variance, rel=0.03)
            assert abs(part.weight.mean().item()) < 0.01
            assert not part.bias.any()
            assert init == "he" or float(part.weight.detach().abs().max()) <= (3 * variance) ** 0.5
        assert module[2].weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["rainbow", "siamese"])
def test_init_is_an_option_of_every_network(name: str) -> None:
    plain, he = (build(write({"name": name, **options}), (3, 16, 16), 4) for options in ({}, {"init": "he"}))
    assert type(plain) is type(he) is not Network
    weights = he.initial([3])[0]
    assert not torch.equal(weights, plain.initial([3])[0])
    assert torch.equal(weights, he.initial([3])[0])
    assert not he.head(weights)[1].any()
