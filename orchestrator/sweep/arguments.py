"""The arguments of the sweep command, and which of them exclude each other."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from orchestrator.errors import EXIT_CODES, ExitCode
from streams.command_line import CommandLine


class _SweepCommandLine(CommandLine):
    """Prints a usage error as a JSON document, too, where `as_json`."""

    as_json = False

    def error(self, message: str) -> NoReturn:
        if self.as_json:
            from orchestrator.report.json_document import SweepDocument  # pandas

            print(SweepDocument(None, ExitCode.BAD_INPUT, problems=[message]).to_json(), flush=True)
        super().error(message)


def read(argv: Sequence[str] | None, prog: str = "python -m orchestrator.sweep") -> argparse.Namespace:
    """The options, `file` (None for the quickstart) and `overrides`, the `key=value` arguments.

    Arguments that exclude each other exit the process as an unknown option does.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _SweepCommandLine(prog, "Run a sweep; the quickstart if no FILE is given.", EXIT_CODES)
    what = "a YAML file or the name of a ready sweep, and changes such as seeds=3"
    parser.add_argument("words", nargs="*", metavar="FILE or key=value", help=what)
    parser.add_argument("--plan", action="store_true", help="print the trials and their cost, and start nothing")
    parser.add_argument("--local", action="store_true", help="start a new Ray, whatever RAY_ADDRESS says")
    parser.add_argument("--resume", metavar="NAME", help="continue a sweep that was started before")
    parser.add_argument("--rerun", action="store_true", help="delete earlier results of this sweep")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="run it on the cluster of this file for `ray up`")
    parser.add_argument("--detach", action="store_true", help="with --cluster: return once it runs there")
    parser.add_argument("--attach", metavar="NAME", help="with --cluster: follow a sweep that runs there")
    parser.add_argument("--quiet", action="store_true", help="print only errors and the final line")
    parser.add_argument("--json", action="store_true", help="the result as one JSON document on standard output")
    parser.as_json = any(len(word) > 2 and "--json".startswith(word) for word in words)  # abbreviated, too
    arguments: argparse.Namespace = parser.parse_args(words)
    files = [word for word in arguments.words if "=" not in word]
    if arguments.resume is not None and (files or arguments.plan or arguments.rerun):
        parser.error("--resume takes the sweep from its folder: no FILE, --plan or --rerun beside it")
    if arguments.cluster is None and (arguments.detach or arguments.attach):
        parser.error("--detach and --attach need --cluster FILE")
    if arguments.cluster is not None and (arguments.local or arguments.plan or arguments.resume):
        allowed = "FILE, key=value, --rerun, --detach, --attach, --json or --quiet"
        parser.error(f"--cluster goes with {allowed}; it resumes a sweep that was started before")
    if arguments.attach and (arguments.words or arguments.detach or arguments.rerun):
        parser.error("--attach takes no other arguments")
    if len(files) > 1:
        parser.error(f"one sweep at a time (got {', '.join(files)})")
    arguments.file = files[0] if files else None
    arguments.overrides = [word for word in arguments.words if "=" in word]
    return arguments
