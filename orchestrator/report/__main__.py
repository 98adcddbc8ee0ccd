"""What a sweep came to, as figures, tables and a page: `python -m orchestrator.report [NAME]`.

Made from what MLflow holds, also while the sweep runs. Every number is over seeds, with its 95 % t-interval. A
configuration with a seed that diverged or is missing is shown as such, and is not the best one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ExitCode, OrchestratorError, fault
from orchestrator.report import figures
from orchestrator.report.write import THRESHOLDS, write_report
from orchestrator.tracking import reader
from orchestrator.tracking.database import DEFAULT_URI


def _folder(name: str) -> Path:
    """Where the sweep itself has written its report, if it was run here: an old one is not to lie beside a new one."""
    from orchestrator.plan.plan import sweep_folder

    own = sweep_folder("results", name) / "report"
    return own if own.is_dir() else sweep_folder("reports", name)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code: 0, 1 if a copy could not be kept in MLflow, 2 for what the user must mend."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.report", description="What a sweep came to.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the sweep (the newest if there is no name)")
    parser.add_argument("--tracking-uri", default=DEFAULT_URI, metavar="URI", help=f"default: {DEFAULT_URI}")
    parser.add_argument("--experiment", help="look in this experiment only")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="default: results/NAME/report if it is there, else reports/NAME"
    )
    parser.add_argument("--test", action="store_true", help="show the test errors, too: once all is chosen")
    parser.add_argument(
        "--points-to",
        type=float,
        nargs="+",
        default=THRESHOLDS,
        metavar="E",
        help=f"errors whose points_to is in the report; default: {' '.join(map(str, THRESHOLDS))}",
    )
    parser.add_argument("--dpi", type=int, default=figures.DPI, help=f"of the .png figures; default: {figures.DPI}")
    arguments = parser.parse_args(argv)
    uri, experiment = arguments.tracking_uri, arguments.experiment
    faults = []
    wrong = [error for error in arguments.points_to if not 0 <= error < 1]
    if wrong:
        faults.append(fault("--points-to", "", "must be errors from 0 to below 1", wrong))
    if not 30 <= arguments.dpi <= 1200:
        faults.append(fault("--dpi", "", "must be from 30 to 1200", arguments.dpi))
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return ExitCode.BAD_INPUT
    try:
        name = arguments.name or reader.find_sweep(None, uri, experiment).name
        out = arguments.out or _folder(name)
        report = write_report(name, uri, out, experiment, arguments.test, arguments.points_to, arguments.dpi)
    except OrchestratorError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(report.table)
    print()
    if report.explained:
        print(report.explained + "\n")
    for path in report.paths:
        print(path)
    for line in report.problems:
        print(line, file=sys.stderr)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
