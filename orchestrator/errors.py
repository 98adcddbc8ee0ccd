"""What goes wrong in `orchestrator`: one base exception, one line per fault, every fault at once."""


class OrchestratorError(Exception):
    """Base of every error that a user can cause.

    Args:
        faults: one complete line each; `str(error)` is these lines.
    """

    exit_code = 2

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.faults: tuple[str, ...] = faults

    def __str__(self) -> str:
        return "\n".join(self.faults)


class ConfigError(OrchestratorError):
    """A sweep's configuration that is not one: file, dotted key, rule, value and remedy in each line."""


def fault(file: str, key: str, rule: str, got: object = ..., remedy: str = "") -> str:
    """One line about one wrong value.

    >>> fault("mine.yaml", "learners[0].bta1", "unknown key", 0.01, "did you mean beta1?")
    'mine.yaml: learners[0].bta1: unknown key (got 0.01); did you mean beta1?'
    """
    line = f"{file}: {key}: {rule}" if key else f"{file}: {rule}"
    if got is not ...:
        line += f" (got {got})"
    if remedy:
        line += f"; {remedy}"
    return " ".join(line.split())
