"""Is all there that a sweep needs? `python -m orchestrator.doctor [FILE] [key=value ...]` looks, and says what to do.

FILE is a sweep or a cluster file. Exit codes: 0 all is well; 1 there is something to do, one line each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.cluster.launcher_file import check_cluster_file, is_cluster_file
from orchestrator.config.load import load_sweep
from orchestrator.doctor.checks import examine
from orchestrator.doctor.nodes import Finding, ill
from orchestrator.errors import OrchestratorError


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.doctor", description="Look whether all is there that a sweep needs."
    )
    parser.add_argument("words", nargs="*", metavar="FILE or key=value", help="a sweep or a cluster file, and changes")
    parser.add_argument("--local", action="store_true", help="leave the cluster of RAY_ADDRESS alone")
    arguments = parser.parse_args(argv)
    files = [Path(word) for word in arguments.words if "=" not in word]
    arguments.clusters = [path for path in files if is_cluster_file(path)]
    sweeps = [path for path in files if path not in arguments.clusters]
    if len(sweeps) > 1:
        parser.error(f"one sweep at a time (got {', '.join(map(str, sweeps))})")
    arguments.sweep = sweeps[0] if sweeps else None
    arguments.overrides = [word for word in arguments.words if "=" in word]
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    arguments = _arguments(argv)
    faults = 0
    for finding in _findings(arguments):
        faults += not finding.well
        print(f"{'ok   ' if finding.well else 'FAULT'}  {finding.text}", flush=True)
    print("all is well" if not faults else f"{faults} {'fault' if faults == 1 else 'faults'}")
    return 1 if faults else 0


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    if arguments.clusters:  # the files alone: what this machine has is another matter
        for path in arguments.clusters:
            yield from map(ill, check_cluster_file(path))
        return
    try:
        sweep = load_sweep(arguments.sweep, arguments.overrides)
    except OrchestratorError as error:
        yield from map(ill, error.faults)
        return
    yield from examine(sweep, arguments.local)


if __name__ == "__main__":
    sys.exit(main())
