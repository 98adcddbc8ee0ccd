"""Networks by name and by class."""

import pytest
import torch
from torch import Tensor, nn

from learners.networks.build import build, default_for, images_per_datapoint, names_for, read, write


class Plain(nn.Module):
    """A module without features, with a constant buffer that is not a number of a batch."""

    def __init__(self, image_shape: tuple[int, int, int], classes: int, width: int = 4) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(image_shape[-1]).flip(0))
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(6, width), nn.Tanh())
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x[..., self.order]))


def test_default_network_per_kind_of_datapoint() -> None:
    assert default_for(images_per_datapoint=1) == "rainbow"
    assert default_for(images_per_datapoint=2) == "siamese"


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(ValueError, match=r"network must be one of mlp, rainbow, resnet18, siamese \(got resnet\)"):
        build("resnet", (3, 32, 32), 10)


def test_descriptions_are_written_and_read() -> None:
    assert (write({"name": "mlp"}), read("mlp")) == ("mlp", {"name": "mlp"})
    described = {"name": "mlp", "hidden": 32}
    assert read(write(described)) == described
    assert write(dict(reversed(described.items()))) == write(described)
    assert [images_per_datapoint(write(each)) for each in ({"name": "siamese", "init": "he"}, described)] == [2, None]
    assert (names_for(1), names_for(2)) == (["rainbow", "mlp", "resnet18"], ["siamese", "mlp", "resnet18"])


def test_a_class_is_built_with_its_options() -> None:
    network = build(write({"class": f"{__name__}.Plain", "width": 5}), (1, 2, 3), 4, dtype=torch.float64)
    phi, statistics = network.initial([0, 1])
    x = torch.rand(2, 3, 1, 2, 3, dtype=torch.float64)
    assert (phi.shape, statistics.shape) == ((2, 6 * 5 + 5 + 5 * 4 + 4), (2, 0))
    w1, b1, w2, b2 = phi[1].split([30, 5, 20, 4])
    by_hand = torch.tanh(x[1].flip(-1).flatten(1) @ w1.view(5, 6).T + b1) @ w2.view(4, 5).T + b2
    assert torch.allclose(network.logits(phi, statistics, x)[1], by_hand, rtol=1e-12)
    with pytest.raises(TypeError, match="Plain has no features"):
        network.embed(phi, statistics, x)


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("nowhere.Net", "nowhere.Net must be a class that can be imported .ModuleNotFoundError"),
        ("Net", "Net must be a class that can be imported"),
        ("math.pi", "math.pi must be a subclass of torch.nn.Module"),
    ],
)
def test_a_class_that_is_no_module_is_refused(path: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        build(write({"class": path}), (1, 2, 3), 4)
