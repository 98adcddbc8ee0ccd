"""Strict YAML values: those in a file, and those after `key=` on a command line."""

import re
from typing import Any

import yaml

MAX_BYTES = 500_000
"""Bytes of a YAML text."""
MAX_VALUES = 20_000
"""Keys and values of a YAML text, each counted as often as aliases repeat it."""
MAX_DEPTH = 50
"""Lists and mappings inside each other, in YAML or from Python."""

_AMBIGUOUS = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Numbers that YAML 1.1 reads in base 8 or 60: `010` is 8, and `1:30` is 90."""


class StrictLoader(yaml.SafeLoader):
    """YAML of bounded size in which `1e-3` is a number, and a duplicate key or a number like `010` is an error.

    Every error is a `yaml.YAMLError`.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_BYTES:
            raise yaml.YAMLError(f"must have at most {MAX_BYTES:,} characters")
        super().__init__(text)
        self._depth = self._count = 0
        self._sizes: dict[int, int] = {}  # by the id of a complete node

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._count
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH:
            raise _error(f"must have at most {MAX_DEPTH} lists and mappings inside each other", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise _error(f"*{event.anchor} must not stand inside the value that it repeats", event)
            self._count += self._sizes[id(node)]
        else:
            self._sizes[id(node)] = self._count - before
        if self._count > MAX_VALUES:
            raise _error(f"must have at most {MAX_VALUES:,} keys and values, with those that aliases repeat", event)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error("a key must be text; a template such as {{ name }} must be filled in or quoted", key)
            if (key.tag, key.value) in keys:
                raise _error(f"key {key.value} is written twice", key)
            keys.add((key.tag, key.value))
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # PyYAML 6.0.4 compares keys by the identity of their text, and drops the wrong one of two.
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        explicit = {}
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                explicit[key.value] = (key, value)
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode):
                    raise _error("<< must name a mapping, or a list of mappings", value)
                self.flatten_mapping(source)
                merged = {pair[0].value: pair for pair in source.value} | merged
        node.value = [*(merged | explicit).values()]

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        is_number = isinstance(node, yaml.ScalarNode) and node.style is None and node.tag.endswith((":int", ":float"))
        if is_number and _AMBIGUOUS.fullmatch(node.value):
            rule = f"YAML reads {node.value} in base {60 if ':' in node.value else 8}; write a decimal number"
            raise _error(f"{rule}, or '{node.value}' for text", node)
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            text = node.value if isinstance(node, yaml.ScalarNode) else ""
            text = text if len(text) <= 40 else f"{text[:37]}..."
            raise _error(f"must be a valid {kind} (got '{text}')", node) from error


def _error(problem: str, at: Any) -> yaml.YAMLError:
    """An error at the place of a node or an event."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


class _Dumper(yaml.SafeDumper):
    """YAML in which text is quoted that `StrictLoader` would read as a number."""


for _kind in (StrictLoader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def parsed(text: str) -> Any:
    """The value of the text after `key=`.

    Raises:
        yaml.YAMLError: the text is not YAML.
    """
    try:
        return yaml.load(text, Loader=StrictLoader)
    except yaml.YAMLError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:  # an escape such as "\UFFFFFFFF"
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from error


def as_yaml(value: Any, **layout: Any) -> str:
    """The YAML text from which `parsed` reads this value again; keys keep their order.

    Args:
        value: nested mappings, lists, texts, numbers, booleans and None.
        layout: further options of `yaml.dump`.
    """
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **layout)
    return text
