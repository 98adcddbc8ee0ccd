"""YAML as people mean it, from a file or behind `key=`, and the `key=value` words that change what a file holds."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import ConfigError, fault

COMMAND_LINE = "command line"


class StrictLoader(yaml.SafeLoader):
    """YAML as people mean it: `1e-3` is a number, and a key written twice is a mistake."""

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
    """A file's keys and values; messages call the file `name`.

    Raises:
        ConfigError: it cannot be read, is no YAML, or holds something else.
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
    """A value as it is read behind `key=`: YAML. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=StrictLoader)


def overridden(document: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A copy of the document, changed by `a.b[0].c=value` words.

    Raises:
        ConfigError: one line for every word that does not fit.
    """
    changed = copy.deepcopy(dict(document))
    faults = [problem for word in words if (problem := _override(changed, word))]
    keys = Counter(word.partition("=")[0] for word in dict.fromkeys(words) if "=" in word)
    faults += [fault(COMMAND_LINE, key, "must be given once") for key, times in keys.items() if times > 1]
    if faults:
        raise ConfigError(*faults)
    return changed


_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def _override(document: dict[str, Any], word: str) -> str | None:
    """Write one `a.b[0].c=value` into the document; the fault's line if that cannot be."""
    key, equals, text = word.partition("=")
    steps = [int(index) if index else name for name, index in _STEP.findall(key)]
    if not equals or not steps:
        return fault(COMMAND_LINE, word, "must be written key=value, such as seeds=3 or learners[0].K=5")
    try:
        value = parsed(text)
    except yaml.YAMLError:
        return fault(COMMAND_LINE, key, "must be a YAML value", text)
    place: Any = document
    for done, (step, following) in enumerate(zip(steps, [*steps[1:], None], strict=True)):
        if isinstance(step, int) != isinstance(place, list) or (isinstance(step, int) and step >= len(place)):
            so_far = _dotted(steps[:done]) or "the sweep"
            return fault(COMMAND_LINE, key, f"{so_far} has no such part", _dotted(steps[: done + 1]))
        if following is None:
            place[step] = value
        elif isinstance(step, int):
            place = place[step]
        else:
            if not isinstance(place.get(step), dict | list):
                place[step] = {}
            place = place[step]
    return None


def _dotted(steps: Sequence[int | str]) -> str:
    out = ""
    for step in steps:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if out else step
    return out
