"""Check everything that a sweep needs: `python -m orchestrator.doctor [FILE] [key=value ...]`.

FILE is a sweep or a cluster file. Each failed check is one line that says what to do.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.cluster.images import fill_images
from orchestrator.cluster.launcher_file import check_cluster_file, is_cluster_file, unreachable_hosts
from orchestrator.config.load import load_sweep
from orchestrator.doctor.checks import examine
from orchestrator.doctor.nodes import Check
from orchestrator.errors import ConfigError, OrchestratorError
from streams.command_line import CommandLine, command
from streams.errors import masked

_EXIT_CODES = {0: "all checks passed", 1: "a check failed, one line each", 2: "bad usage"}


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.doctor") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Check everything that a sweep needs.", _EXIT_CODES)
    what = "the YAML file of a sweep or of a cluster, and changes such as seeds=3"
    parser.add_argument("words", nargs="*", metavar="FILE or key=value", help=what)
    parser.add_argument("--local", action="store_true", help="ignore the cluster of RAY_ADDRESS")
    parser.add_argument("--offline", action="store_true", help="do not try to reach the hosts of a cluster file")
    parser.add_argument("--fill", action="store_true", help="write the id of AWS's image into a cluster file first")
    arguments = parser.parse_args(argv)
    files = [Path(word) for word in arguments.words if "=" not in word]
    clusters = [path for path in files if is_cluster_file(path)]
    sweeps = [path for path in files if path not in clusters]
    if len(sweeps) > 1:
        parser.error(f"one sweep at a time (got {', '.join(map(str, sweeps))})")
    if arguments.fill and not clusters:
        parser.error("--fill needs a cluster file")
    if clusters:  # only the files: this machine need not be able to run a sweep
        checks: Iterator[Check] = _check_clusters(clusters, arguments.offline, arguments.fill)
    else:
        overrides = [word for word in arguments.words if "=" in word]
        checks = _check_sweep(sweeps[0] if sweeps else None, overrides, arguments.local)
    faults = 0
    for check in checks:
        faults += not check.passed
        print(f"{'ok   ' if check.passed else 'FAULT'}  {masked(check.text)}", flush=True)
    print(f"{faults} {'fault' if faults == 1 else 'faults'}" if faults else "all checks passed")
    return 1 if faults else 0


def _check_clusters(files: list[Path], offline: bool, fill: bool) -> Iterator[Check]:
    for path in files:
        if fill:
            try:
                yield from map(Check.ok, fill_images(path))
            except ConfigError as error:
                yield from map(Check.failed, error.faults)
        yield from map(Check.failed, check_cluster_file(path))
        if not offline:
            yield from map(Check.failed, unreachable_hosts(path))


def _check_sweep(file: Path | None, overrides: list[str], local: bool) -> Iterator[Check]:
    try:
        sweep = load_sweep(file, overrides)
    except OrchestratorError as error:
        yield from map(Check.failed, error.faults)
    else:
        yield from examine(sweep, local)


if __name__ == "__main__":
    sys.exit(main())
