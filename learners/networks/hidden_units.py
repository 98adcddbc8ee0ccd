"""Which of a network's flat parameters belong to which hidden unit."""

from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from learners.networks.architectures import HiddenLayer
from learners.networks.network import Network, groups_of


class HiddenUnits:
    """The units of a network's hidden layers, U in all, one layer after another.

    Attributes:
        layers: for each layer, its units as a slice of all U.
        count: U.
        incoming: for each parameter [P], the unit of which it is an incoming weight, the bias, or a norm's parameter;
            U if there is none.
        outgoing: for each parameter [P], the unit of which it is an outgoing weight; U if there is none.
        statistics: for each batch-norm statistic [S], the unit that it describes; U if there is none.
    """

    def __init__(self, network: Network) -> None:
        """Find the units of the hidden layers that the network's module names.

        Raises:
            ValueError: one line; a hidden layer's modules do not have an entry for each unit.
        """
        self._network = network
        sizes = [_units(network.module, layer) for layer in network.hidden_layers]
        self.layers: list[slice[int, int, None]] = [slice(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
        self.count = sum(sizes)
        phi, statistics = network.initial([0])
        into, out_of = (torch.full_like(phi, self.count, dtype=torch.int32) for _ in range(2))
        described = torch.full_like(statistics, self.count, dtype=torch.int32)
        belonging = [*network.named_parameters(into).items(), *network.named_statistics(described).items()]
        read = network.named_parameters(out_of)
        for layer, units in zip(network.hidden_layers, self.layers, strict=True):
            numbers = torch.arange(units.start, units.stop, dtype=torch.int32, device=phi.device)
            for name, entries in belonging:
                if name.rpartition(".")[0] in (layer.incoming, layer.norm):
                    entries.view(len(numbers), -1).copy_(numbers.unsqueeze(1))
            weight = read[f"{layer.outgoing}.weight"]
            weight.view(weight.shape[1], len(numbers), -1).copy_(numbers.view(1, -1, 1))
        self.incoming, self.outgoing, self.statistics = into[0], out_of[0], described[0]

    def outgoing_sums(self, phi: Tensor) -> Tensor:
        """The sum of the magnitudes of each unit's outgoing weights, [R, U]."""
        stack = []
        for rows in groups_of(phi):
            magnitudes = self._network.named_parameters(phi[rows].abs())
            sums = []
            for layer, units in zip(self._network.hidden_layers, self.layers, strict=True):
                weight = magnitudes[f"{layer.outgoing}.weight"]
                sums.append(weight.reshape(*weight.shape[:2], units.stop - units.start, -1).sum((1, 3)))
            stack.append(torch.cat(sums, 1))
        return torch.cat(stack)


def spread(values: Tensor, units: Tensor, otherwise: float) -> Tensor:
    """The values [R, U] of units as values of their parameters [R, P].

    Args:
        values: one for each unit.
        units: the unit of each parameter, such as `HiddenUnits.incoming`.
        otherwise: the value of a parameter that belongs to no unit.
    """
    return torch.cat([values, values.new_full((len(values), 1), otherwise)], 1).index_select(1, units)


def _units(module: nn.Module, layer: HiddenLayer) -> int:
    """The number of units in a hidden layer."""
    parts = dict(module.named_modules())
    kinds = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
    for name in (layer.incoming, layer.outgoing):
        if not isinstance(parts.get(name), kinds):
            raise ValueError(f"hidden_layers: {name} must be a linear layer or a convolution of the network")
        if not module.get_parameter(f"{name}.weight").requires_grad:
            raise ValueError(f"hidden_layers: {name} must have weights that are trained")
    incoming, outgoing = (module.get_parameter(f"{name}.weight") for name in (layer.incoming, layer.outgoing))
    units, inputs = len(incoming), outgoing.shape[1]
    if inputs % units or (outgoing.dim() > 2 and inputs != units):
        raise ValueError(
            f"hidden_layers: {layer.outgoing} must read the {units} units of {layer.incoming} (got {inputs} inputs)"
        )
    if layer.norm is not None:
        if layer.norm not in parts:
            raise ValueError(f"hidden_layers: {layer.norm} must be a module of the network")
        norm = parts[layer.norm]
        sizes = {len(t) for t in (*norm.parameters(), *norm.buffers()) if t.dim() and t.is_floating_point()}
        for size in sizes - {units}:
            raise ValueError(f"hidden_layers: {layer.norm} must have {units} entries, one for each unit (got {size})")
    return units
