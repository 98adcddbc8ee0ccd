"""The sweep command, with a record of each estimate of the time left; run by `benchmarks.sweep_overhead`."""

import sys
from pathlib import Path
from typing import Any

from orchestrator.console.progress import Progress
from orchestrator.sweep import __main__, run


class RecordedProgress(Progress):
    """Progress that writes the file `etas`: seconds since the trials began, and the estimated seconds left."""

    def advanced(self, *args: Any, **kwargs: Any) -> None:
        super().advanced(*args, **kwargs)
        self._note()

    def ended(self, *args: Any, **kwargs: Any) -> None:
        super().ended(*args, **kwargs)
        self._note()

    def _note(self) -> None:
        seconds = self.seconds_left()
        if seconds is not None:
            with Path("etas").open("a") as file:
                file.write(f"{self.seconds} {seconds}\n")


if __name__ == "__main__":
    run.Progress = RecordedProgress  # type: ignore[misc]
    sys.exit(__main__.main(sys.argv[1:]))
