"""Objects that name the attributes that make up their state, so that it is saved and loaded in one place."""

from __future__ import annotations

from typing import Any, ClassVar


class Stateful:
    """An object whose state consists of the attributes named in `state_fields`.

    An attribute is a tensor, a number, a string, None, a list or (named) tuple of these, or another `Stateful`.
    Tensors are stored without a copy: code that changes a state must replace its tensors, not write into them.
    """

    state_fields: ClassVar[tuple[str, ...]]

    def state_dict(self) -> Any:
        """The state: attribute name → tensors, numbers, strings, lists, tuples and dicts only."""
        return {name: _plain(getattr(self, name)) for name in self.state_fields}

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
                setattr(self, name, _plain(state[name]))


def _plain(value: Any) -> Any:
    """The value as `torch.save` stores it with `weights_only`; lists are copied, because learners append to them."""
    if isinstance(value, Stateful):
        return value.state_dict()
    if isinstance(value, list | tuple):
        return [*map(_plain, value)] if isinstance(value, list) else (*map(_plain, value),)
    return value
