"""Errors that a user can cause: one base class, one line per fault, all faults reported together, without secrets."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

MASK = "***"
"""What `masked` puts where a secret was."""
_SCHEME = re.compile(r"(?<![\w+.-])[A-Za-z][\w+.-]*://")
_SECRET = "(?:secret|key|token|pass|pwd|sig|cred|auth)"
_SURROGATE = re.compile("[\ud800-\udfff]")
_OPTION = re.compile(rf"([?&;][^=&;?\s]{{0,40}}{_SECRET}[^=&;?\s]{{0,40}}=)[^&;\s\"']+", re.IGNORECASE)


def _without_user(word: re.Match[str]) -> str:
    head, at, rest = word[0].rpartition("@")  # the last one: a password may hold an unquoted "@" or "/"
    scheme = _SCHEME.search(head) if at else None
    return word[0] if scheme is None else f"{head[: scheme.end()]}{MASK}@{rest}"


def masked(text: str, address: str = "") -> str:
    """The text without the secrets of addresses in it: user, password, keys and tokens are replaced by `***`.

    Everything that is shown, logged or stored passes through this function.

    >>> masked("use tracking.uri=postgresql://me:pw@host/runs")
    'use tracking.uri=postgresql://***@host/runs'
    >>> masked("s3://bucket/results?secret_key=abc&region=eu-west-1")
    's3://bucket/results?secret_key=***&region=eu-west-1'

    Args:
        text: any text.
        address: an address whose password is replaced also where a library quotes it alone.
    """
    for user in re.findall(r"://(.*)@", address):
        for part in re.split(r"[:/@?#]", user.partition(":")[2] or user):
            for secret in {part, unquote(part)} - {""}:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
    return _OPTION.sub(rf"\1{MASK}", re.sub(r"\S+", _without_user, text))


def masked_values(value: Any) -> Any:
    """A copy of nested mappings and lists in which every text is `masked`."""
    if isinstance(value, Mapping):
        return {key: masked_values(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(part) for part in value]
    return masked(value) if isinstance(value, str) else value


def readable(text: str) -> str:
    """The text with `\\xe9` for each byte of a file's name that is not UTF-8, which Python keeps as half a character.

    >>> readable("caf\\udce9.png")
    'caf\\\\xe9.png'
    """
    return _SURROGATE.sub(lambda half: rf"\x{ord(half[0]) & 0xFF:02x}" if half[0] > "\udc7f" else "?", text)


class UserError(Exception):
    """Base of every error that a user can cause, in `streams` and in `orchestrator`.

    Args:
        faults: one complete line each (see `fault`), which is `masked`; `str(error)` is these lines.
    """

    exit_code = 2

    def __init__(self, *faults: str) -> None:
        self.faults: tuple[str, ...] = tuple(map(masked, faults))
        super().__init__(*self.faults)

    def __str__(self) -> str:
        return "\n".join(self.faults)


class StreamsError(UserError):
    """Base of every error that a user of `streams` can cause."""


class StoreError(StreamsError):
    """A task store is missing, damaged, of another version, or not the expected one."""


class SourceError(StreamsError):
    """Source data cannot be read, or is too small for the tasks."""


class OptionError(StreamsError):
    """An option of a recipe or schedule is unknown, has an invalid value, or contradicts another."""


def fault(where: object, rule: str, got: object = ..., remedy: str = "") -> str:
    """One line: the place, the rule, the value that breaks the rule, the remedy.

    >>> fault("store/manifest.json: format_version", "must be at most 1", 2, "update this package")
    'store/manifest.json: format_version: must be at most 1 (got 2); update this package'
    """
    line = f"{where}: {rule}"
    if got is not ...:
        line += f" (got {got})"
    if remedy:
        line += f"; {remedy}"
    return readable(masked(" ".join(line.split())))


class Faults:
    """Collects the faults below one dotted key of a file, to report all of them together.

    >>> faults = Faults("mine.yaml")
    >>> faults.at("learners", 0).add("bta1", "unknown key", 0.01)
    >>> list(faults)
    ['mine.yaml: learners[0].bta1: unknown key (got 0.01)']

    Args:
        file: what the lines call the file; empty for options on a command line.
        key: the dotted key; empty for the whole file.
        lines: the collection that faults are added to; a new one if None.
    """

    def __init__(self, file: str = "", key: str = "", lines: dict[str, None] | None = None) -> None:
        self.file, self.key = file, key
        self._lines: dict[str, None] = {} if lines is None else lines

    def at(self, *steps: str | int) -> "Faults":
        """The same collection, with `key` extended by keys and list indices."""
        key = self.key
        for step in steps:
            key += f"[{step}]" if isinstance(step, int) else f".{step}" if key else step
        return Faults(self.file, key, self._lines)

    def add(self, key: str, rule: str, got: object = ..., remedy: str = "") -> None:
        """Add the fault of a key below this one; of this one if `key` is empty."""
        where = (self.file, self.at(key).key if key else self.key)
        self._lines[fault(": ".join(filter(None, where)), rule, got, remedy)] = None

    def extend(self, lines: Iterable[str]) -> None:
        """Add complete lines."""
        self._lines.update(dict.fromkeys(lines))

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def check(self, error: type[UserError]) -> None:
        """Raise an error with all lines, if any."""
        if self._lines:
            raise error(*self._lines)
