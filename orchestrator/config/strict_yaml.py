"""Strict YAML, from a file or after `key=`, and the `key=value` words that override parts of a file."""

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import ConfigError, fault
from streams.errors import Faults

COMMAND_LINE = "command line"


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


StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path, name: str) -> dict[str, Any]:
    """The keys and values of a YAML file, which messages call `name`.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or is not a mapping.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        document = parsed(text.decode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(fault(name, "", f"must be a readable YAML file ({reason})")) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(fault(name, line, f"must be YAML: {_problem(error)}")) from error
    if document is None:
        raise ConfigError(fault(name, "", "must hold keys and values, and is empty"))
    if not isinstance(document, dict):
        raise ConfigError(fault(name, "", "must hold keys and values", type(document).__name__))
    return document


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


def _problem(error: yaml.YAMLError) -> str:
    """The problem in at most 200 printable characters."""
    text = str(getattr(error, "problem", None) or error)
    if isinstance(error, yaml.reader.ReaderError):
        text = error.reason if isinstance(error.character, str) else f"{error.reason} (got U+{error.character:04X})"
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= 200 else f"{text[:197]}..."


class CommaSeparated(list[Any]):
    """The values of `foml.K=1,5,10`: a grid, unless the option takes a list."""


_LISTS = (["seeds"], ["search", "scheduler", "mutate"])
"""Keys outside of learners that take a list."""


def overridden(document: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A copy of the document with the values of `key=value` words.

    A key is written `search.samples`, `learners.0.alpha1` or `learners[0].alpha1`; `foml.alpha1` is an option of the
    only learner of that name. Values separated by commas are `CommaSeparated` for an option of a learner, and a list
    for a key that takes one.

    Raises:
        ConfigError: one line for each invalid word.
    """
    changed, faults = copy.deepcopy(dict(document)), Faults(COMMAND_LINE)
    keys: Counter[str] = Counter()
    for word in dict.fromkeys(words):
        if key := _override(changed, word, faults):
            keys[key] += 1
    for key, count in keys.items():
        if count > 1:
            faults.add(key, "must be given once")
    faults.check(ConfigError)
    return changed


_STEP = re.compile(r"([^.\[\]]+)|\[(\d{1,9})\]")


def _override(document: dict[str, Any], word: str, faults: Faults) -> str | None:
    """Write the value of one word into the document, and return its key; None, and a fault, if it is not valid."""
    key, equals, text = word.partition("=")
    steps = _steps(document, key, faults)
    if not equals or steps == []:
        faults.add(word, "must be written key=value, such as seeds=3 or foml.K=5")
        return None
    if steps is None:
        return None
    try:
        value = _value(steps, text)
    except yaml.YAMLError:
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        faults.add(key, "must be a YAML value", shown)
        return None
    part: Any = document
    for depth, (step, next_step) in enumerate(zip(steps, [*steps[1:], None], strict=True)):
        if isinstance(part, list) and isinstance(step, str) and step.isdecimal() and len(step) < 10:
            steps[depth] = step = int(step)
        if not _can_hold(part, step):
            parent = Faults("").at(*steps[:depth]).key or "the sweep"
            faults.add(key, f"{parent} has no such part", Faults("").at(*steps[: depth + 1]).key)
            return None
        if next_step is None:
            part[step] = value
        elif isinstance(step, int):
            part = part[step]
        else:
            if not isinstance(part.get(step), dict | list):
                part[step] = {}
            part = part[step]
    return Faults("").at(*steps).key


def _can_hold(part: Any, step: str | int) -> bool:
    """Whether a part of the document is a list with this index, or a mapping, for a key."""
    return isinstance(part, list) and step < len(part) if isinstance(step, int) else isinstance(part, dict)


def _value(steps: Sequence[str | int], text: str) -> Any:
    """The value of a word: of the text as YAML, or of each part between commas where the key takes several values.

    Raises:
        yaml.YAMLError: the text, or a part of it, is not YAML.
    """
    value = parsed(text)
    is_option = len(steps) == 3 and steps[0] == "learners" and steps[2] != "name"
    is_plain = isinstance(value, str) and not text.lstrip().startswith(("'", '"'))
    if not is_plain or "," not in text or not (is_option or list(steps) in _LISTS):
        return value
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise yaml.YAMLError("a value is missing beside a comma")
    values = map(parsed, parts)
    return CommaSeparated(values) if is_option else list(values)


def _steps(document: Mapping[str, Any], key: str, faults: Faults) -> list[str | int] | None:
    """The keys and indices of a word's key; None, and a fault, if it names a learner that stands there twice."""
    learners = document.get("learners")
    entries = learners if isinstance(learners, list) else ()
    names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in entries]
    for name in names:
        if isinstance(name, str) and name and key.startswith(f"{name}."):
            if names.count(name) > 1:
                rule = f"must name one learner, and {name} is {names.count(name)} of them"
                faults.add(key, rule, remedy=f"write learners.{names.index(name)}{key.removeprefix(name)}")
                return None
            key = f"learners.{names.index(name)}{key.removeprefix(name)}"
            break
    return [int(index) if index else step for step, index in _STEP.findall(key)]
