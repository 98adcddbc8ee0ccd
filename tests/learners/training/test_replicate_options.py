"""Hyper-parameters with one value per replicate: each row has the bits that its number alone gives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from learners.training.optim import SGD, Adam, Optimizer
from learners.training.replicate_options import (
    PerReplicate,
    Real,
    add_quotient,
    add_scaled,
    add_scaled_,
    multiply_,
    packed_options,
)

VALUES = (0.1, -0.37, 3.0)


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def tensors(request: pytest.FixtureRequest) -> list[Tensor]:
    """x, y and a positive z, [3, 1003]: not a multiple of the width of vector instructions."""
    generator = torch.Generator().manual_seed(3)
    x, y, z = torch.randn(3, 3, 1003, generator=generator, dtype=request.param)
    return [x, y, z.abs() + 0.1]


OPERATIONS: dict[str, Callable[[Real, Tensor, Tensor, Tensor], Any]] = {
    "product": lambda rate, x, y, z: rate * x,
    "quotient": lambda rate, x, y, z: x / rate,
    "multiply_": lambda rate, x, y, z: multiply_(x.clone(), rate),
    "add_scaled": lambda rate, x, y, z: add_scaled(x, y, rate),
    "add_scaled_": lambda rate, x, y, z: add_scaled_(x.clone(), y, rate),
    "add_quotient": lambda rate, x, y, z: add_quotient(x, y, z, rate),
    "arithmetic": lambda rate, x, y, z: (2 * (-rate) / 0.3 * rate) * x,
    "complement": lambda rate, x, y, z: (1 - rate**2) * x,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_rows_equal_their_number_alone(tensors: list[Tensor], name: str) -> None:
    together = OPERATIONS[name](PerReplicate(VALUES), *tensors)
    for r, value in enumerate(VALUES):
        alone = OPERATIONS[name](value, *(tensor[r : r + 1] for tensor in tensors))
        assert torch.equal(together[r : r + 1], alone)


def test_values() -> None:
    rate = PerReplicate([1, 2])
    assert (2 * rate).values == (2.0, 4.0)
    assert (1 - rate).values == (0.0, -1.0)
    assert torch.equal(rate * torch.ones(2, 3, 2)[:, 0], torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    assert torch.equal(rate * torch.ones(2), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("make", [SGD, Adam, lambda rate: Adam(rate, zero="exact")], ids=["sgd", "adam", "exact"])
def test_a_step_and_its_derivative(tensors: list[Tensor], make: Callable[[Real], Optimizer]) -> None:
    x, y, z = tensors
    rates = (0.1, 0.001, 0.37)

    def three_steps(optimizer: Optimizer, rows: slice) -> list[Tensor]:
        phi, moments, seen = x[rows], optimizer.initial(x[rows]), []
        for _ in range(3):
            phi, moments = optimizer.step(phi, y[rows] - phi, moments)
            seen.append(phi)
        gradient, later = optimizer.pullback(z[rows], None, y[rows], moments)
        before, _ = optimizer.pullback(gradient, later, x[rows], moments)
        return [*seen, gradient, before]

    together = three_steps(make(PerReplicate(rates)), slice(0, 3))
    for r, rate in enumerate(rates):
        alone = three_steps(make(rate), slice(r, r + 1))
        for stacked, single in zip(together, alone, strict=True):
            assert torch.equal(stacked[r : r + 1], single)


def test_autograd_through_a_step_with_rates_of_each_replicate() -> None:
    """d/dg of phi − rate · g is −rate."""
    gradient = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    phi, _ = SGD(PerReplicate([0.5, 2.0])).step(
        torch.zeros(2, 3, dtype=torch.float64), gradient, SGD(1.0).initial(gradient)
    )
    (derivative,) = torch.autograd.grad(phi.sum(), gradient)
    assert torch.equal(derivative, torch.tensor([[-0.5] * 3, [-2.0] * 3], dtype=torch.float64))


def test_derivatives_of_a_quotient_have_the_bits_of_their_number_alone(tensors: list[Tensor]) -> None:
    def derivatives(rate: Real, rows: slice) -> tuple[Tensor, ...]:
        x, numerator, denominator = (tensor[rows].clone().requires_grad_() for tensor in tensors)
        out = add_quotient(x, numerator, denominator, rate)
        return torch.autograd.grad(out.square().sum(), [x, numerator, denominator])

    together = derivatives(PerReplicate(VALUES), slice(0, 3))
    for r, value in enumerate(VALUES):
        one = slice(r, r + 1)
        assert all(torch.equal(a[one], b) for a, b in zip(together, derivatives(value, one), strict=True))


@dataclass(frozen=True)
class Options:
    rate: float = 0.1
    pull: float = 0.0
    steps: int = 5


def test_packed_options() -> None:
    packed = packed_options([Options(), Options(rate=0.3)], 2, ("rate", "pull"))
    assert packed.rate.values == (0.1, 0.1, 0.3, 0.3)
    assert (packed.pull, packed.steps) == (0.0, 5)
    with pytest.raises(ValueError, match=r"^steps must be equal .* \(these may differ: rate, pull\)$"):
        packed_options([Options(), Options(steps=1)], 2, ("rate", "pull"))
