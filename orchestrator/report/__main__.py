"""Write the report of a sweep: `python -m orchestrator.report [NAME]`.

The report is made from the content of MLflow, also while the sweep runs. Every number is over seeds, with its 95 %
t-interval. A configuration with a diverged or missing seed is shown with a note, and cannot be the best one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ExitCode, OrchestratorError, fault
from orchestrator.plan.plan import sweep_folder
from orchestrator.report import figures
from orchestrator.report.write import THRESHOLDS, write_report
from orchestrator.tracking import reader
from orchestrator.tracking.database import DEFAULT_URI
from streams.command_line import INTERRUPTED, CommandLine, command

_EXIT_CODES = {
    ExitCode.SUCCESS: "success",
    ExitCode.SOME_FAILED: "the report is written, its copy in MLflow is not",
    ExitCode.BAD_INPUT: "bad input, one line per fault",
    INTERRUPTED: "interrupted",
}


def _folder(name: str) -> Path:
    """The folder of the report that the sweep wrote, so that no older report is left there; else one in reports/."""
    folder = sweep_folder("results", name) / "report"
    return folder if folder.is_dir() else sweep_folder("reports", name)


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.report") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Write the report of a sweep: figures, tables and an HTML page.", _EXIT_CODES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the sweep (default: the newest one)")
    parser.add_argument("--tracking-uri", default=DEFAULT_URI, metavar="URI", help="where the sweep was tracked")
    parser.add_argument("--experiment", help="search in this experiment only")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="default: results/NAME/report if it exists, else reports/NAME"
    )
    parser.add_argument("--test", action="store_true", help="show the test errors; use it after all choices are made")
    parser.add_argument(
        "--points-to",
        type=float,
        nargs="+",
        default=THRESHOLDS,
        metavar="E",
        help=f"errors whose points_to is in the report (default: {' '.join(map(str, THRESHOLDS))})",
    )
    parser.add_argument("--dpi", type=int, default=figures.DPI, help="pixels per inch of the .png figures")
    options = parser.parse_args(argv)
    uri, experiment = options.tracking_uri, options.experiment
    faults = []
    if invalid := [error for error in options.points_to if not 0 <= error < 1]:
        faults.append(fault("--points-to", "", "must be errors from 0 to below 1", invalid))
    if not 30 <= options.dpi <= 1200:
        faults.append(fault("--dpi", "", "must be from 30 to 1200", options.dpi))
    if faults:
        raise OrchestratorError(*faults)
    name = options.name or reader.find_sweep(None, uri, experiment).name
    out = options.out or _folder(name)
    report = write_report(name, uri, out, experiment, options.test, options.points_to, options.dpi)
    print(f"{report.table}\n")
    if report.explanation:
        print(f"{report.explanation}\n")
    for path in report.paths:
        print(path)
    for line in report.problems:
        print(line, file=sys.stderr)
    return ExitCode.SOME_FAILED if report.problems else ExitCode.SUCCESS


if __name__ == "__main__":
    sys.exit(main())
