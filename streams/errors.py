"""Errors that a user can cause: one base class, one line per fault, all faults reported together."""

from collections.abc import Iterable, Iterator


class UserError(Exception):
    """Base of every error that a user can cause, in `streams` and in `orchestrator`.

    Args:
        faults: one complete line each (see `fault`); `str(error)` is these lines.
    """

    exit_code = 2

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.faults: tuple[str, ...] = faults

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
    return " ".join(line.split())


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
