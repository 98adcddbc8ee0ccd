"""Run a sweep: `python -m orchestrator.sweep [FILE] [key=value ...]`, or `run_sweep` from Python.

Exit codes: 0 all is well; 1 some configurations failed (they are named); 2 bad input, nothing was started; 3 nothing
usable came out; 4 the budget was reached before all trials had ended; 130 interrupted, and the same command goes on
from there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from orchestrator.config.schema import Sweep
from orchestrator.errors import ExitCode, disk_full_line, is_disk_full
from orchestrator.sweep import arguments as words
from orchestrator.sweep.api import _asked_for, forecast
from orchestrator.sweep.arguments import Telling
from orchestrator.sweep.result import SweepResult
from orchestrator.sweep.run import execute
from streams.errors import UserError

if TYPE_CHECKING:
    from orchestrator.cluster.jobs import RemoteResult
    from orchestrator.sweep.forecast import Forecast


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    arguments = words.read(argv)
    show = partial(_show, as_json=arguments.json, quiet=arguments.quiet, out=sys.stdout)
    refused = partial(_refused, as_json=arguments.json)
    sweep: Sweep | None = None
    try:
        if arguments.cluster is not None:
            from orchestrator.cluster import jobs

            cluster, manner = arguments.cluster, jobs.Manner(arguments.quiet, arguments.json)
            if arguments.attach:
                return _show_remote(jobs.attach(cluster, arguments.attach, manner), arguments.json)
            file, overrides = arguments.file, arguments.overrides
            there = jobs.submit(cluster, file, overrides, arguments.rerun, arguments.detach, manner)
            return _show_remote(there, arguments.json)
        with redirect_stdout(sys.stderr):  # standard output is for the result
            sweep = _asked_for(arguments.file, arguments.overrides, arguments.resume)
            if arguments.plan:
                result: SweepResult | Forecast = forecast(sweep, Telling(arguments.quiet), arguments.rerun)
            else:
                result = execute(sweep, arguments.local, arguments.rerun, Telling(arguments.quiet, show))
    except UserError as error:
        print(error, file=sys.stderr)
        return refused(error.exit_code, str(error).splitlines(), error, sweep)
    except OSError as error:
        if not is_disk_full(error):
            raise
        line = disk_full_line(Path(error.filename or "."))
        print(line, file=sys.stderr)
        return refused(ExitCode.INTERRUPTED, [line], error, sweep)
    except KeyboardInterrupt as error:
        resume = getattr(error, "resume", None)
        goes_on = "the same command goes on from here" if resume is None else f"go on with: {resume}"
        print(f"interrupted: {goes_on}", file=sys.stderr)
        return refused(ExitCode.INTERRUPTED, ["interrupted"], error, sweep)
    show(result)
    return result.exit_code


def _show(result: SweepResult | Forecast, as_json: bool, quiet: bool, out: TextIO) -> None:
    """What the command prints at its end."""
    if quiet or as_json:
        for line in result.problems:
            print(f"problem: {line}", file=sys.stderr)
    print(result.json if as_json else result.line if quiet else result.text, file=out, flush=True)


def _show_remote(result: RemoteResult, as_json: bool) -> int:
    """What the command prints at the end of a sweep on a cluster. Returns the exit code."""
    if as_json:
        from orchestrator.report.json_document import document

        own = document(result.name, result.exit_code, problems=result.problems, resume=result.resume)
        print(own if result.document is None else result.document)
    elif result.text:
        print(result.text)
    return result.exit_code


def _refused(code: int, faults: list[str], error: BaseException, sweep: Sweep | None, as_json: bool) -> int:
    """The end of a command that came to nothing; its faults have been told."""
    if as_json:
        from orchestrator.report.json_document import document

        name, resume = None if sweep is None else sweep.name, getattr(error, "resume", None)
        print(document(name, code, problems=faults, resume=resume))
    return code


if __name__ == "__main__":
    sys.exit(main())
