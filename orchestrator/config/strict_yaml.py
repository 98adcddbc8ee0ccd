"""Strict YAML, from a file or after `key=`, and the `key=value` words that override parts of a file."""

from __future__ import annotations

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


class StrictLoader(yaml.SafeLoader):
    """YAML in which `1e-3` is a number and a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key} is written twice", key_node.start_mark)
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path, name: str) -> dict[str, Any]:
    """The keys and values of a YAML file, which messages call `name`.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or is not a mapping.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(fault(name, "", f"must be a readable YAML file ({reason})")) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(fault(name, line, f"must be YAML: {getattr(error, 'problem', error)}")) from error
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
    return yaml.load(text, Loader=StrictLoader)


def overridden(document: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A copy of the document with the values of `a.b[0].c=value` words.

    Raises:
        ConfigError: one line for each invalid word.
    """
    changed, faults = copy.deepcopy(dict(document)), Faults(COMMAND_LINE)
    for word in words:
        _override(changed, word, faults)
    keys = Counter(word.partition("=")[0] for word in dict.fromkeys(words) if "=" in word)
    for key, count in keys.items():
        if count > 1:
            faults.add(key, "must be given once")
    faults.check(ConfigError)
    return changed


_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def _override(document: dict[str, Any], word: str, faults: Faults) -> None:
    """Write one `a.b[0].c=value` into the document, or add a fault."""
    key, equals, text = word.partition("=")
    steps = [int(index) if index else name for name, index in _STEP.findall(key)]
    if not equals or not steps:
        faults.add(word, "must be written key=value, such as seeds=3 or learners[0].K=5")
        return
    try:
        value = parsed(text)
    except yaml.YAMLError:
        faults.add(key, "must be a YAML value", text)
        return
    part: Any = document
    for depth, (step, next_step) in enumerate(zip(steps, [*steps[1:], None], strict=True)):
        if isinstance(step, int) != isinstance(part, list) or (isinstance(step, int) and step >= len(part)):
            parent = Faults("").at(*steps[:depth]).key or "the sweep"
            faults.add(key, f"{parent} has no such part", Faults("").at(*steps[: depth + 1]).key)
            return
        if next_step is None:
            part[step] = value
        elif isinstance(step, int):
            part = part[step]
        else:
            if not isinstance(part.get(step), dict | list):
                part[step] = {}
            part = part[step]
