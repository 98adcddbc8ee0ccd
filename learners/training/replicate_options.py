"""Hyper-parameters with one value per replicate, so that configurations of a learner can share a stack.

On the CPU every operation here gives, for each replicate, the same bits as with its value as a plain float; on other
devices the same up to rounding.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, overload

import torch
from torch import Tensor


class PerReplicate:
    """R real numbers, one for each replicate of a stack, with the arithmetic of a float.

    With floats and with each other the arithmetic is Python's, in double precision, as for a float option. With a
    tensor [R, …], which must be the second operand of `*` or the first of `/`, each replicate's part meets its own
    number.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self.values = tuple(float(value) for value in values)

    def __repr__(self) -> str:
        return f"PerReplicate({list(self.values)})"

    def column(self, like: Tensor) -> Tensor:
        """The numbers as a tensor [R, 1, …] with the dimensions, type and device of `like` [R, …]."""
        column = torch.tensor(self.values, dtype=like.dtype, device=like.device)
        return column.view(-1, *[1] * (like.dim() - 1))

    def _each(self, function: Callable[[float, float], float], other: Real) -> PerReplicate:
        others = other.values if isinstance(other, PerReplicate) else [other] * len(self.values)
        return PerReplicate([function(*both) for both in zip(self.values, others, strict=True)])

    def __neg__(self) -> PerReplicate:
        return self * -1.0

    @overload
    def __mul__(self, other: Tensor) -> Tensor: ...
    @overload
    def __mul__(self, other: Real) -> PerReplicate: ...
    def __mul__(self, other: Real | Tensor) -> PerReplicate | Tensor:
        return self.column(other) * other if isinstance(other, Tensor) else self._each(operator.mul, other)

    def __rmul__(self, other: float) -> PerReplicate:
        return self * other

    def __truediv__(self, other: float) -> PerReplicate:
        return self._each(operator.truediv, other)

    def __rtruediv__(self, other: Tensor) -> Tensor:
        return other / self.column(other)

    def __pow__(self, other: int) -> PerReplicate:
        return self._each(operator.pow, other)

    def __rsub__(self, other: float) -> PerReplicate:
        return self._each(lambda value, one: one - value, other)


Real = float | PerReplicate
"""A real hyper-parameter: one number for all replicates, or one for each."""


def multiply_(x: Tensor, factor: Real) -> Tensor:
    """x ← factor · x, in place."""
    return x.mul_(factor.column(x) if isinstance(factor, PerReplicate) else factor)


def add_scaled(x: Tensor, y: Tensor, factor: Real) -> Tensor:
    """x + factor · y of two tensors [R, P]."""
    return add_scaled_(x.clone(), y, factor) if isinstance(factor, PerReplicate) else torch.add(x, y, alpha=factor)


def add_scaled_(x: Tensor, y: Tensor, factor: Real) -> Tensor:
    """x ← x + factor · y, in place."""
    if not isinstance(factor, PerReplicate):
        return x.add_(y, alpha=factor)
    if x.device.type != "cpu":
        return x.addcmul_(y, factor.column(x))
    # The CPU's `add` with a factor rounds once, a product and a sum round twice.
    for r, value in enumerate(factor.values):
        x[r].add_(y[r], alpha=value)
    return x


def add_quotient(x: Tensor, numerator: Tensor, denominator: Tensor, factor: Real) -> Tensor:
    """x + factor · numerator / denominator of tensors [R, P]."""
    if isinstance(factor, PerReplicate):
        if numerator.requires_grad and x.device.type == "cpu":  # the two forms have derivatives that round differently
            rows = zip(x, numerator, denominator, factor.values, strict=True)
            return torch.stack([torch.addcdiv(a, b, c, value=value) for a, b, c, value in rows])
        return x + (factor * numerator) / denominator
    return torch.addcdiv(x, numerator, denominator, value=factor)


def packed_options(options: Sequence[Any], replicates: int, changeable: Sequence[str]) -> Any:
    """The options of a stack of several configurations, each with the same number of consecutive replicates.

    Args:
        options: the configurations' options, of one class.
        replicates: replicates per configuration, such as its seeds.
        changeable: the options in which the configurations may differ (`Learner.changeable`).

    Raises:
        ValueError: one line; the configurations differ in another option.
    """
    packed: dict[str, Any] = {}
    for option in fields(options[0]):
        values = [getattr(one, option.name) for one in options]
        if all(value == values[0] for value in values):
            continue
        if option.name not in changeable:
            able = ", ".join(changeable) or "none"
            raise ValueError(f"{option.name} must be equal in all configurations of a stack (these may differ: {able})")
        packed[option.name] = PerReplicate([value for value in values for _ in range(replicates)])
    return replace(options[0], **packed)
