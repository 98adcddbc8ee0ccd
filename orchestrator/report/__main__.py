"""Write the report of a sweep, or of two: `python -m orchestrator.report [NAME [NAME]]`.

The report is made from the content of MLflow, also while the sweep runs. Every number is over seeds, with its 95 %
t-interval. A configuration with a diverged or missing seed is shown with a note, and cannot be the best one.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ExitCode, OrchestratorError, fault
from orchestrator.plan.plan import sweep_folder
from orchestrator.report import figures
from orchestrator.report.figures import FigureStyle
from orchestrator.report.write import THRESHOLDS, write_comparison, write_report
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


def _size(text: str | None) -> tuple[float, float] | None:
    """Width and height of a text as 3.25x2.5; None if it is not one."""
    try:
        width, height = map(float, (text or "").split("x"))
    except ValueError:
        return None
    return (width, height) if 1 <= width <= 40 and 1 <= height <= 40 else None


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.report") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Write the report of a sweep, or of two: figures, tables and an HTML page.", _EXIT_CODES)
    what = "the sweep (default: the newest one), or two sweeps to compare"
    parser.add_argument("names", nargs="*", metavar="NAME", help=what)
    parser.add_argument("--earlier", action="store_true", help="compare the sweep with its earlier version")
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
        help="errors for which the report has the datapoints of a task that it takes to reach them "
        f"(default: {' '.join(map(str, THRESHOLDS))})",
    )
    parser.add_argument("--dpi", type=int, default=figures.DPI, help="pixels per inch of the .png figures")
    parser.add_argument("--paper", action="store_true", help="figures without titles, also as .pdf")
    parser.add_argument("--size", metavar="WxH", help="width and height of each figure in inches, as in 3.25x2.5")
    parser.add_argument("--font", metavar="NAME", help="the figures' font, as in serif or 'Times New Roman'")
    parser.add_argument("--font-size", type=float, default=8.0, metavar="PT", help="in points (default: 8)")
    options = parser.parse_args(argv)
    uri, experiment = options.tracking_uri, options.experiment
    faults = []
    compares = options.earlier or len(options.names) == 2
    if len(options.names) > 2 - options.earlier:
        most = "one sweep with --earlier" if options.earlier else "at most two sweeps"
        faults.append(fault("NAME", "", f"must be {most}", " ".join(options.names)))
    if len(set(options.names)) < len(options.names):
        faults.append(fault("NAME", "", "must be two sweeps", " ".join(options.names), "or one, with --earlier"))
    if compares and options.test:
        faults.append(fault("--test", "", "shows the test errors of one sweep", "a comparison", "leave it out"))
    if invalid := [error for error in options.points_to if not 0 <= error < 1]:
        faults.append(fault("--points-to", "", "must be errors from 0 to below 1", invalid))
    if not 30 <= options.dpi <= 1200:
        faults.append(fault("--dpi", "", "must be from 30 to 1200", options.dpi))
    size = _size(options.size)
    if options.size and size is None:
        faults.append(fault("--size", "", "must be width x height in inches, each from 1 to 40", options.size))
    if options.font is not None and not figures.has_font(options.font):
        faults.append(fault("--font", "", "must be a font of this machine", options.font, "serif is one on all"))
    if not 4 <= options.font_size <= 40:
        faults.append(fault("--font-size", "", "must be from 4 to 40", options.font_size))
    if faults:
        raise OrchestratorError(*faults)
    style = FigureStyle(options.dpi, not options.paper, size, options.font, options.font_size)
    if compares:
        first, second = [*options.names, None, None][:2]
        text, paths = write_comparison(first, second, uri, options.out, experiment, options.points_to, style)
        print("\n".join([text, "", *map(str, paths)]))
        return ExitCode.SUCCESS
    name = next(iter(options.names), None) or reader.find_sweep(None, uri, experiment).name
    out = options.out or _folder(name)
    report = write_report(name, uri, out, experiment, options.test, options.points_to, style)
    print(f"{report.table}\n\n{report.sentence}\n")
    if report.explanation:
        print(f"{report.explanation}\n")
    for path in report.paths:
        print(path)
    for line in report.problems:
        print(line, file=sys.stderr)
    return ExitCode.SOME_FAILED if report.problems else ExitCode.SUCCESS


if __name__ == "__main__":
    sys.exit(main())
