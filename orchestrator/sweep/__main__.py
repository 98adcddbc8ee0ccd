"""Run a sweep: `python -m orchestrator.sweep [FILE] [key=value ...]`, or `run_sweep` from Python.

`--help` lists the exit codes.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from orchestrator.console.output import Output
from orchestrator.errors import ExitCode, disk_full_line, is_disk_full
from orchestrator.sweep import arguments, result_cache
from streams.errors import UserError

if TYPE_CHECKING:  # these modules take a second or more to import: a finished sweep does not need them
    from orchestrator.config.schema import Sweep
    from orchestrator.sweep.forecast import Forecast
    from orchestrator.sweep.result import SweepResult
    from orchestrator.sweep.result_cache import CachedResult


def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.sweep") -> int:
    """Run the command, and return its exit code."""
    options = arguments.read(argv, prog)
    output = Output(options.quiet, options.json)
    show = partial(_show, output=output, out=sys.stdout)
    sweep: Sweep | None = None
    try:
        if options.cluster is not None:
            return _run_on_cluster(options, output)
        if (cached := result_cache.recall(options)) is not None:
            output.say(cached.headline)
            show(cached)
            return cached.exit_code
        with redirect_stdout(sys.stderr):  # standard output is for the result
            with output.step("loading the libraries"):
                from orchestrator.sweep.api import checked_sweep, forecast
                from orchestrator.sweep.run import execute
            sweep = checked_sweep(options.file, options.overrides, options.resume)
            if options.plan:
                result: SweepResult | Forecast = forecast(sweep, output, options.rerun)
            else:
                result = execute(sweep, options.local, options.rerun, output, on_ray_lost=show)
    except UserError as error:
        print(error, file=sys.stderr)
        return _failed(ExitCode(error.exit_code), list(error.faults), error, sweep, output)
    except OSError as error:
        if not is_disk_full(error):
            _unexpected(error, sweep, output)
            raise
        line = disk_full_line(Path(error.filename or "."))
        print(line, file=sys.stderr)
        return _failed(ExitCode.INTERRUPTED, [line], error, sweep, output)
    except KeyboardInterrupt as error:
        resume = getattr(error, "resume", None)
        remedy = "the same command resumes the sweep" if resume is None else f"resume with: {resume}"
        print(f"interrupted: {remedy}", file=sys.stderr)
        return _failed(ExitCode.INTERRUPTED, ["interrupted"], error, sweep, output)
    except Exception as error:
        _unexpected(error, sweep, output)
        raise
    show(result)
    return result.exit_code


def _run_on_cluster(options: Namespace, output: Output) -> int:
    """Start or follow a sweep on a cluster, and print its result. Returns the exit code."""
    from orchestrator.cluster import jobs
    from orchestrator.report.json_document import SweepDocument

    if options.attach:
        result = jobs.attach(options.cluster, options.attach, output)
    else:
        file, overrides = options.file, options.overrides
        result = jobs.submit(options.cluster, file, overrides, options.rerun, options.detach, output)
    for line in result.problems:
        print(line, file=sys.stderr)
    if output.as_json:
        document = SweepDocument(result.name, result.exit_code, problems=result.problems, resume=result.resume)
        print(document.to_json() if result.document is None else result.document)
    elif result.text:
        print(result.text)
    return result.exit_code


def _show(result: SweepResult | Forecast | CachedResult, output: Output, out: TextIO) -> None:
    """Print the result in the form that the user asked for."""
    if output.quiet or output.as_json:
        for line in result.problems:
            print(f"problem: {line}", file=sys.stderr)
    print(result.json if output.as_json else result.line if output.quiet else result.text, file=out, flush=True)


def _unexpected(error: Exception, sweep: Sweep | None, output: Output) -> None:
    """Print the JSON document of an error that is a fault of this package; its traceback follows on standard error."""
    _failed(ExitCode.SOME_FAILED, [f"unexpected error: {type(error).__name__}: {error}"], error, sweep, output)


def _failed(code: ExitCode, faults: list[str], error: BaseException, sweep: Sweep | None, output: Output) -> int:
    """Print the JSON document of a command without a result; its faults are on standard error already."""
    if output.as_json:
        from orchestrator.report.json_document import SweepDocument

        name, resume = None if sweep is None else sweep.name, getattr(error, "resume", None)
        print(SweepDocument(name, code, problems=faults, resume=resume).to_json())
    return code


if __name__ == "__main__":
    sys.exit(main())
