"""Strict YAML, from a file or after `key=`, and the `key=value` words that override parts of a file."""

import copy
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import ConfigError, fault
from streams.errors import Faults
from streams.yaml_values import MAX_BYTES, parsed

COMMAND_LINE = "command line"


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


def _problem(error: yaml.YAMLError) -> str:
    """The problem in at most 200 printable characters."""
    text = str(getattr(error, "problem", None) or error)
    if isinstance(error, yaml.reader.ReaderError):
        text = error.reason if isinstance(error.character, str) else f"{error.reason} (got U+{error.character:04X})"
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= 200 else f"{text[:197]}..."


class CommaSeparated(list[Any]):
    """The values of `foml.K=1,5,10`: a grid, unless the option takes a list."""


def with_grids(
    document: Mapping[str, Any], lists: Callable[[Mapping[str, Any]], Collection[str]] = lambda learner: ()
) -> dict[str, Any]:
    """The document with a grid for each `CommaSeparated` value, or a list for an option that takes one.

    Args:
        document: the content of a sweep's file.
        lists: the options of a learner of the document that take lists.
    """
    learners = document.get("learners")
    if not isinstance(learners, list):
        return dict(document)
    return {**document, "learners": [_with_grid(each, lists) for each in learners]}


def _with_grid(learner: Any, lists: Callable[[Mapping[str, Any]], Collection[str]]) -> Any:
    if not isinstance(learner, Mapping) or not any(isinstance(value, CommaSeparated) for value in learner.values()):
        return learner
    takes_list = lists(learner)
    return {
        key: value if not isinstance(value, CommaSeparated) else [*value] if key in takes_list else {"grid": [*value]}
        for key, value in learner.items()
    }


_LISTS = (["seeds"], ["search", "scheduler", "mutate"])
"""Keys outside of learners that take a list."""


def overridden(document: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A copy of the document with the values of `key=value` words.

    A key is written `search.samples`, `learners.0.alpha1` or `learners[0].alpha1`; `foml.alpha1` is an option of the
    only learner of that name. Values separated by commas are `CommaSeparated` for an option of a learner, and a list
    for a key that takes one. A part that is the name alone, such as `network: mlp`, stays so named when an option of it
    is given. The order of the words does not matter.

    Raises:
        ConfigError: one line for each invalid word.
    """
    changed, faults = copy.deepcopy(dict(document)), Faults(COMMAND_LINE)
    keys: Counter[str] = Counter()
    # A part before its own parts, which it would replace.
    for word in sorted(dict.fromkeys(words), key=lambda word: len(_STEP.findall(word.partition("=")[0]))):
        if key := _override(changed, word, faults):
            keys[key] += 1
    for key, count in keys.items():
        if count > 1:
            faults.add(key, "must be given once")
    faults.check(ConfigError)
    return changed


_NAMES = {"objective": "metric"}
"""Part of a sweep → the key of its name, if it is not `name`."""
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
            present = part.get(step)
            if not isinstance(present, dict | list):
                part[step] = {_NAMES.get(step, "name"): present} if isinstance(present, str) else {}
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
