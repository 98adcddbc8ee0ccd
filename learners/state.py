"""Objects that name the attributes that make up their state, so that it is saved and loaded in one place."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""The types, besides tensors and containers, that `torch.load` accepts with `weights_only`; not their subclasses."""


class StateError(TypeError):
    """A state holds a value that `torch.load` does not accept with `weights_only`."""


class Stateful:
    """An object whose state consists of the attributes named in `state_fields`.

    An attribute is a tensor, a number of Python's, a string, None, a list, dict or (named) tuple of these, or another
    `Stateful`.
    Tensors are stored without a copy: code that changes a state must replace its tensors, not write into them. The
    first axis of every tensor is that of the replicates, except inside `replicate_lists`.
    """

    state_fields: ClassVar[tuple[str, ...]]
    replicate_lists: ClassVar[tuple[str, ...]] = ()
    """Those of `state_fields` that are lists with one entry per replicate."""

    def state_dict(self) -> Any:
        """The state: attribute name → tensors, numbers, strings, lists, tuples and dicts only.

        Raises:
            StateError: an attribute holds a value of another type, such as an array or a number of numpy.
        """
        return {name: plain_state(getattr(self, name), name) for name in self.state_fields}

    def load_state_dict(self, state: Any) -> None:
        """Restore the state written by `state_dict`.

        Raises:
            KeyError: an attribute is missing in `state`.
        """
        for name in self.state_fields:
            value = getattr(self, name)
            if isinstance(value, Stateful):
                value.load_state_dict(state[name])
            elif isinstance(value, tuple) and hasattr(value, "_make"):
                setattr(self, name, value._make(state[name]))
            else:
                setattr(self, name, plain_state(state[name], name))

    def state_of_replicates(
        self, states: Sequence[Any], rows: slice = slice(None), copies: dict[tuple[int, ...], Tensor] | None = None
    ) -> Any:
        """The state that a stack has whose replicates are those of these stacks, one after another.

        Args:
            states: of stacks that have learned equally many batches, as `state_dict` returns them.
            rows: of one stack, the replicates that are selected.
            copies: the tensors that were copied so far: a tensor that occurs twice is stored once.

        Raises:
            ValueError: the states differ in a value that all replicates of a stack share.
        """
        copies = {} if copies is None else copies
        joined = {}
        for name in states[0]:
            value, parts = getattr(self, name, None), [state[name] for state in states]
            if isinstance(value, Stateful):
                joined[name] = value.state_of_replicates(parts, rows, copies)
            elif name in self.replicate_lists:
                joined[name] = entries_of_replicates(parts, rows)
            else:
                joined[name] = _of_replicates(parts, rows, copies, name)
        return joined


def entries_of_replicates(parts: Sequence[list[Any]], rows: slice) -> list[Any]:
    """The entries of lists with one entry per replicate."""
    return [entry for part in parts for entry in part][rows]


def _of_replicates(parts: Sequence[Any], rows: slice, copies: dict[tuple[int, ...], Tensor], name: str) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        key = tuple(map(id, parts))
        if key not in copies:
            # A copy, since a file with a part of a tensor has all of the tensor.
            copies[key] = torch.cat(list(parts)) if len(parts) > 1 else first[rows].clone()
        return copies[key]
    if isinstance(first, dict):
        return {key: _of_replicates([part[key] for part in parts], rows, copies, f"{name}.{key}") for key in first}
    if isinstance(first, list | tuple):
        if any(len(part) != len(first) for part in parts):
            raise ValueError(f"{name} must have equally many entries in all states (got {[*map(len, parts)]})")
        entries = [_of_replicates(each, rows, copies, name) for each in zip(*parts, strict=True)]
        return entries if isinstance(first, list) else tuple(entries)
    if any(part != first for part in parts):
        raise ValueError(f"{name} must be equal in all states (got {parts})")
    return first


def plain_state(value: Any, name: str) -> Any:
    """The value as files hold it, which are read with `weights_only`; lists are copied: learners append to them.

    Args:
        value: an attribute, or a part of it.
        name: of the attribute, for the error.

    Raises:
        StateError: `torch.save` would write it, and `torch.load` would not read it.
    """
    if isinstance(value, Stateful):
        return value.state_dict()
    if isinstance(value, list):
        return [plain_state(part, name) for part in value]
    if isinstance(value, tuple):
        return tuple(plain_state(part, name) for part in value)
    _check_plain(value, name)
    return value


def _check_plain(value: Any, name: str) -> None:
    kind = type(value)
    if kind in (dict, OrderedDict, Counter):
        for key, part in value.items():
            _check_plain(key, f"a key of {name}")
            _check_plain(part, f"{name}[{key!r}]")
    elif kind in (list, tuple, set, torch.Size):
        for part in value:
            _check_plain(part, name)
    elif not isinstance(value, Tensor) and kind not in _PLAIN:
        shown = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        allowed = "tensors, numbers of Python's, strings, lists, tuples, dicts or objects with a state"
        raise StateError(f"{name} must be {allowed} (got {shown})")
