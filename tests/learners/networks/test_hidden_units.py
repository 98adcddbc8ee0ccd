"""The parameters of each hidden unit, and what is measured of them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learners.networks.architectures import EmbeddingNet, HiddenLayer
from learners.networks.build import build
from learners.networks.hidden_units import HiddenUnits, spread
from learners.networks.network import Network, cross_entropy

NAMES = ["rainbow", "siamese", '{"name": "mlp", "hidden": 7, "layers": 3}', '{"name": "resnet18", "width": 4}']


class Flattened(EmbeddingNet):
    """Two convolutions, the second of which is called twice and read flattened, with a norm of each kind."""

    def __init__(self, **change: str | None) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3, affine=True)
        self.second, self.features = nn.Conv2d(3, 2, 3), 8
        self.head = nn.Linear(8, 4)
        second = HiddenLayer("second", "head")._replace(**change)
        self.hidden_layers = (HiddenLayer("first", "second", "norm"), second)

    def embed(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        return torch.tanh(self.second(h) + self.second(2 * h)).flatten(1)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_its_units(name: str) -> None:
    """Entry by entry, from the modules that surround a layer."""
    network = build(name, (3, 16, 16), 5, dtype=torch.float64)
    units, named = HiddenUnits(network), dict(network.module.named_modules())
    numbers = {key: network.named_parameters(getattr(units, key).unsqueeze(0)) for key in ("incoming", "outgoing")}
    statistics = network.named_statistics(units.statistics.unsqueeze(0))
    expected: dict[str, dict[str, Any]] = {key: {} for key in ("incoming", "outgoing")}
    start = 0
    for layer, part in zip(network.hidden_layers, units.layers, strict=True):
        size = len(named[layer.incoming].weight)  # type: ignore[arg-type]
        assert (part.start, part.stop) == (start, start + size)
        for unit in range(size):
            for module in filter(None, (layer.incoming, layer.norm)):
                for parameter, _ in named[module].named_parameters():
                    entries = numbers["incoming"][f"{module}.{parameter}"][0]
                    assert set(entries[unit].flatten().tolist()) == {start + unit}
                    expected["incoming"][f"{module}.{parameter}"] = None
            weight = numbers["outgoing"][f"{layer.outgoing}.weight"][0]
            assert set(weight[:, unit].flatten().tolist()) == {start + unit}
        expected["outgoing"][f"{layer.outgoing}.weight"] = None
        if layer.norm and f"{layer.norm}.running_var" in statistics:
            assert statistics[f"{layer.norm}.running_var"][0].tolist() == list(range(start, start + size))
        start += size
    assert start == units.count > 0
    for key, parameters in numbers.items():
        for parameter, entries in parameters.items():
            if parameter not in expected[key]:
                assert set(entries.flatten().tolist()) == {units.count}, parameter
    assert "head.bias" not in expected["incoming"]


@pytest.mark.parametrize("name", NAMES)
def test_outgoing_sums(name: str) -> None:
    network = build(name, (3, 16, 16), 5, dtype=torch.float64)
    units, (phi, _) = HiddenUnits(network), network.initial([0, 1])
    expected = torch.zeros(2, units.count + 1, dtype=torch.float64)
    for r in range(2):
        expected[r].index_add_(0, units.outgoing, phi[r].abs())
    torch.testing.assert_close(units.outgoing_sums(phi), expected[:, :-1], rtol=1e-12, atol=0)


def test_units_that_are_read_flattened_and_called_twice() -> None:
    """The activity is the mean over the calls; a flattened unit has its values side by side."""
    network = Network(Flattened, dtype=torch.float64)
    phi, statistics = network.initial([0, 1])
    x = torch.rand(2, 5, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.zeros(2, 5, dtype=torch.int64)
    activity = network.training_pass(phi, statistics, x, cross_entropy(y), activity=True).activity
    assert activity is not None
    for r in range(2):
        module = Flattened().double()
        torch.nn.utils.vector_to_parameters(phi[r], module.parameters())
        with torch.no_grad():
            h = torch.tanh(module.norm(module.first(x[r])))
            features = module.embed(x[r]).view(5, 2, 4)
        means = torch.cat([1.5 * h.abs().mean((0, 2, 3)), features.abs().mean((0, 2))])
        torch.testing.assert_close(activity[r], means, rtol=1e-12, atol=0)
        assert not any(part._forward_pre_hooks for part in network.module.modules())
    units = HiddenUnits(network)
    head = network.named_parameters(units.outgoing.unsqueeze(0))["head.weight"][0]
    assert head.tolist() == [[3, 3, 3, 3, 4, 4, 4, 4]] * 4


def test_spread() -> None:
    index = torch.tensor([1, 0, 2, 1], dtype=torch.int32)
    assert spread(torch.tensor([[5, 6], [7, 8]]), index, 9).tolist() == [[6, 5, 9, 6], [8, 7, 9, 8]]
    assert spread(torch.tensor([[True, False]]), index, 0).tolist() == [[False, True, False, False]]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"incoming": "secnd"}, "secnd must be a linear layer or a convolution of the network"),
        ({"outgoing": "norm"}, "norm must be a linear layer or a convolution of the network"),
        ({"incoming": "first"}, "head must read the 3 units of first (got 8 inputs)"),
        ({"norm": "nrm"}, "nrm must be a module of the network"),
        ({"norm": "norm"}, "norm must have 2 entries, one for each unit (got 3)"),
    ],
)
def test_modules_that_do_not_fit_are_refused(change: dict[str, str], rule: str) -> None:
    with pytest.raises(ValueError, match=r"^hidden_layers: ") as error:
        HiddenUnits(Network(lambda: Flattened(**change)))
    assert str(error.value) == f"hidden_layers: {rule}"


def test_a_network_without_hidden_layers_has_no_units() -> None:
    class Unnamed(nn.Module):
        def __init__(self, sizes: Sequence[int] = (2, 3)) -> None:
            super().__init__()
            self.layer = nn.Linear(*sizes)

    units = HiddenUnits(Network(Unnamed))
    assert (units.count, units.layers) == (0, [])
    assert units.incoming.tolist() == [0] * 9
