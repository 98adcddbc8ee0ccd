"""The sweep's command, writing down each estimate of the time left; run by `benchmarks.sweep_overhead`."""

import sys
from pathlib import Path
from typing import Any

from orchestrator.console.progress import Progress
from orchestrator.sweep import __main__, run


class Noted(Progress):
    """Into the file `etas`: seconds since the trials began, and those left by the estimate."""

    def advanced(self, *given: Any, **named: Any) -> None:
        super().advanced(*given, **named)
        self._note()

    def ended(self, *given: Any, **named: Any) -> None:
        super().ended(*given, **named)
        self._note()

    def _note(self) -> None:
        left = self.seconds_left()
        if left is not None:
            with Path("etas").open("a") as file:
                file.write(f"{self.seconds} {left}\n")


if __name__ == "__main__":
    run.Progress = Noted  # type: ignore[misc]
    sys.exit(__main__.main(sys.argv[1:]))
