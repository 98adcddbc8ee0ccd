"""What goes wrong in `streams`: one base exception, one line per fault, every fault at once."""


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
    """A task store that is missing, damaged, of another version, or not the one asked for."""


class SourceError(StreamsError):
    """Source data that cannot be read, or that cannot give the tasks asked for."""


class OptionError(StreamsError):
    """An option of a recipe or schedule that is unknown or has a value out of its range."""


def fault(where: object, rule: str, got: object = ..., remedy: str = "") -> str:
    """One line: where it is, the rule, the value that breaks it, the remedy.

    >>> fault("store/manifest.json: format_version", "must be at most 1", 2, "update this package")
    'store/manifest.json: format_version: must be at most 1 (got 2); update this package'
    """
    line = f"{where}: {rule}"
    if got is not ...:
        line += f" (got {got})"
    if remedy:
        line += f"; {remedy}"
    return " ".join(line.split())
