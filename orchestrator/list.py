"""List the sweeps of a storage folder with their states: `python -m orchestrator.list`.

Only the sweeps' folders are read; no file changes, and neither MLflow nor Ray is needed.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.errors import OrchestratorError, fault
from orchestrator.storage import journal, trial_log
from orchestrator.storage.chunk_files import LEARNER_FILE
from orchestrator.storage.journal import RecordedSweep
from streams.command_line import CommandLine, command
from streams.store.address import is_address

FORMAT = 1
"""Of the JSON document: increased when a key is removed or changes its meaning."""
_COLUMNS = ("sweep", "state", "finished", "stopped", "failed", "last change", "learners")


@dataclass(frozen=True)
class SweepState:
    """What the folder of a sweep shows.

    Attributes:
        name: of the sweep.
        folder: its path.
        state: running, finished (every trial has ended), or interrupted.
        trials: the number of the present plan's trials, with those that a search has yet to draw.
        finished: trials at the end of the stream.
        stopped: trials that the scheduler stopped.
        failed: trials that failed for good.
        changed: the time of the last change, in ISO 8601 and UTC.
        learners: the names of the learners.
    """

    name: str
    folder: str
    state: str
    trials: int
    finished: int
    stopped: int
    failed: int
    changed: str
    learners: tuple[str, ...]


def sweep_states(storage: Path) -> tuple[list[SweepState], list[str]]:
    """The sweeps of a storage folder, the last started first, and one line for each that cannot be read.

    Raises:
        ConfigError: the folder may not be read.
    """
    recorded = journal.recorded_sweeps(storage)
    damaged = sorted({*journal.sweep_folders(storage)} - {sweep.root for sweep in recorded})
    problems = [
        fault(str(root), "", "its journal cannot be read", remedy=f"foml sweep --resume {root.name} says why")
        for root in damaged
    ]
    return [_state(sweep) for sweep in recorded], problems


def _state(sweep: RecordedSweep) -> SweepState:
    folders = [sweep.root / key for key in sweep.trials]
    fates = Counter(map(_fate, folders))
    changed = max(path.stat().st_mtime for path in (sweep.root, *folders) if path.exists())
    ended = fates["finished"] + fates["failed"] + fates["stopped"] >= sweep.size
    state = "finished" if ended else "running" if journal.is_running(sweep.root) else "interrupted"
    return SweepState(
        name=sweep.resolved["name"],
        folder=str(sweep.root),
        state=state,
        trials=sweep.size,
        finished=fates["finished"],
        stopped=fates["stopped"],
        failed=fates["failed"],
        changed=datetime.fromtimestamp(changed, UTC).isoformat(timespec="seconds"),
        learners=tuple(dict.fromkeys(learner["name"] for learner in sweep.resolved["learners"])),
    )


def _fate(trial: Path) -> str:
    """How a trial has ended; empty if it has not, or if its folder may not be searched."""
    if os.path.isfile(trial / LEARNER_FILE):
        return "finished"
    if trial_log.has_failed(trial):
        return "failed"
    return "stopped" if os.path.isfile(trial / journal.STOPPED) else ""


def _table(states: Sequence[SweepState]) -> str:
    rows = [
        _COLUMNS,
        *(
            (
                *(each.name, each.state, f"{each.finished}/{each.trials}", str(each.stopped), str(each.failed)),
                *(f"{each.changed[:10]} {each.changed[11:16]} UTC", ", ".join(each.learners)),
            )
            for each in states
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.list") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "List the sweeps of a storage folder with their states.")
    parser.add_argument("--storage", default="results", metavar="DIR", help="the folder in which they ran")
    parser.add_argument("--json", action="store_true", help="the list as one JSON document on standard output")
    options = parser.parse_args(argv)
    if is_address(options.storage):
        raise OrchestratorError(fault("--storage", "", "must be a folder of this machine", options.storage))
    states, problems = sweep_states(Path(options.storage))
    for line in problems:
        print(line, file=sys.stderr)
    if options.json:
        document = {"format": FORMAT, "sweeps": [asdict(each) for each in states], "problems": problems}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print(_table(states) if states else f"no sweep was started in {options.storage}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
