"""Run a sweep: `python -m orchestrator.sweep [FILE] [key=value ...]`, or `run_sweep` from Python.

Exit codes: 0 all is well; 1 some configurations failed (they are named); 2 bad input, nothing was started; 3 nothing
usable came out; 4 the budget was reached before all trials had ended; 130 interrupted, and the same command goes on
from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator import config
from orchestrator.disk import full_line, is_full
from orchestrator.ending import ALL_WELL, BAD_INPUT, INTERRUPTED, SweepResult
from orchestrator.errors import OrchestratorError
from orchestrator.execution import execute
from orchestrator.journal import Journal, given_before
from orchestrator.planning import make_plan
from orchestrator.specification import Sweep
from orchestrator.storage import open_folder
from orchestrator.strict_yaml import overridden
from orchestrator.sweep_store import open_store
from orchestrator.telling import Telling
from streams.errors import StreamsError

if TYPE_CHECKING:
    from orchestrator.forecast import Forecast


def run_sweep(
    sweep: Mapping[str, Any] | Path | str | None = None,
    overrides: Sequence[str] = (),
    local: bool = False,
    rerun: bool = False,
    resume: str | None = None,
    quiet: bool = False,
    at_loss: Callable[[SweepResult], None] | None = None,
) -> SweepResult:
    """Run a sweep to its end, and report on it.

    Args:
        sweep: the configuration as nested mappings or as a YAML file; the quickstart if None.
        overrides: `key=value` words, as on the command line (files only).
        local: start a Ray of our own even if `RAY_ADDRESS` names a cluster.
        rerun: forget what an earlier run of this sweep left, and run everything again.
        resume: the name of a sweep that was begun before; it goes on with the configuration it had.
        quiet: tell nothing on standard error while it runs.
        at_loss: what to do with the result if Ray itself is killed while trials run, after which the process ends with
            exit code 130 (what waits for an answer of Ray does not come back); its text is printed if None.

    Raises:
        OrchestratorError, StreamsError: bad input, one line for each fault; nothing was started.
    """
    if resume is not None:
        checked = _begun_before(resume, overrides)
    else:
        checked = config.check(sweep) if isinstance(sweep, Mapping) else config.load(sweep, overrides)
    return execute(checked, local, rerun, Telling(quiet, at_loss))


def _begun_before(name: str, overrides: Sequence[str]) -> Sweep:
    """The sweep of this name; `storage=…` says where to look, other words change it."""
    changes = overridden({}, [word for word in overrides if word.startswith("storage=")])
    storage = str(changes.get("storage", "results"))
    given = given_before(open_folder(storage, name)[0], name)
    return config.check(overridden(given, overrides), f"{storage}/{name}")


def forecast(sweep: Sweep, telling: Telling | None = None) -> Forecast:
    """What `--plan` tells: every trial with its hash, what is done of it, and what it will cost."""
    from orchestrator import forecast

    store = open_store(sweep, telling)
    journal = Journal.look(open_folder(sweep.document.storage, sweep.name)[0], make_plan(sweep, store.hash))
    return forecast.forecast(sweep, journal, store)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.sweep", description="Run a sweep; the quickstart if no FILE is given."
    )
    parser.add_argument("words", nargs="*", metavar="FILE or key=value", help="a sweep's YAML, and changes to it")
    parser.add_argument("--plan", action="store_true", help="print the trials and their cost, and start nothing")
    parser.add_argument("--local", action="store_true", help="start a Ray of our own, whatever RAY_ADDRESS says")
    parser.add_argument("--resume", metavar="NAME", help="go on with a sweep that was begun before")
    parser.add_argument("--rerun", action="store_true", help="forget earlier results of this sweep")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="run it on the cluster of this file for `ray up`")
    parser.add_argument("--detach", action="store_true", help="with --cluster: come back once it runs there")
    parser.add_argument("--attach", metavar="NAME", help="with --cluster: follow a sweep that runs there")
    parser.add_argument("--quiet", action="store_true", help="errors and the final line alone")
    parser.add_argument("--json", action="store_true", help="the result as one JSON document on standard output")
    arguments = parser.parse_intermixed_args(argv)  # words may stand before and after options
    files = [word for word in arguments.words if "=" not in word]
    if arguments.resume is not None and (files or arguments.plan or arguments.rerun):
        parser.error("--resume takes the sweep from its folder: no FILE, --plan or --rerun beside it")
    if arguments.cluster is None and (arguments.detach or arguments.attach):
        parser.error("--detach and --attach go with --cluster FILE")
    if arguments.cluster is not None and (arguments.local or arguments.plan or arguments.resume):
        allowed = "FILE, key=value, --rerun, --detach, --attach, --json or --quiet"
        parser.error(f"--cluster goes with {allowed}; it resumes what was begun")
    if arguments.attach and (arguments.words or arguments.detach or arguments.rerun):
        parser.error("--attach takes no other words")
    if len(files) > 1:
        parser.error(f"one sweep at a time (got {', '.join(files)})")
    arguments.file = files[0] if files else None
    arguments.overrides = [word for word in arguments.words if "=" in word]
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    arguments = _arguments(argv)
    show = partial(_show, as_json=arguments.json, quiet=arguments.quiet, out=sys.stdout)
    try:
        if arguments.cluster is not None:
            from orchestrator import remote

            cluster, manner = arguments.cluster, remote.Manner(arguments.quiet, arguments.json)
            if arguments.attach:
                return remote.attach(cluster, arguments.attach, manner)
            file, words = arguments.file, arguments.overrides
            return remote.submit(cluster, file, words, arguments.rerun, arguments.detach, manner)
        if arguments.plan:
            with redirect_stdout(sys.stderr):
                planned = forecast(config.load(arguments.file, arguments.overrides), Telling(arguments.quiet))
            print(planned.json if arguments.json else planned.line if arguments.quiet else planned.text)
            return ALL_WELL
        with redirect_stdout(sys.stderr):  # standard output is for the result
            result = run_sweep(
                arguments.file,
                arguments.overrides,
                arguments.local,
                arguments.rerun,
                arguments.resume,
                arguments.quiet,
                show,
            )
    except (OrchestratorError, StreamsError) as error:
        print(error, file=sys.stderr)
        return _refused(getattr(error, "exit_code", BAD_INPUT), str(error).splitlines(), arguments.json)
    except OSError as error:
        if not is_full(error):
            raise
        line = full_line(Path(error.filename or "."))
        print(line, file=sys.stderr)
        return _refused(INTERRUPTED, [line], arguments.json)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return _refused(INTERRUPTED, ["interrupted"], arguments.json)
    show(result)
    return result.exit_code


def _show(result: SweepResult, as_json: bool, quiet: bool, out: TextIO) -> None:
    """What the command prints at its end."""
    if quiet or as_json:
        for line in result.problems:
            print(f"problem: {line}", file=sys.stderr)
    print(result.json if as_json else result.line if quiet else result.text, file=out, flush=True)


def _refused(code: int, faults: list[str], as_json: bool) -> int:
    """The end of a command that came to nothing; its faults have been told."""
    if as_json:
        from orchestrator.document import document

        print(document(None, code, problems=faults))
    return code


if __name__ == "__main__":
    sys.exit(main())
