"""A sweep from Python: `run_sweep`, and the forecast of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.load import check_sweep, load_sweep
from orchestrator.config.schema import Sweep
from orchestrator.config.strict_yaml import COMMAND_LINE, overridden
from orchestrator.errors import ConfigError, fault
from orchestrator.plan.expand import make_plan
from orchestrator.plan.task_store import open_store
from orchestrator.storage.journal import Journal, given_before
from orchestrator.storage.mirror import open_folder
from orchestrator.sweep.arguments import Telling
from orchestrator.sweep.result import SweepResult
from orchestrator.sweep.run import execute
from orchestrator.tracking.database import database_path

if TYPE_CHECKING:
    from orchestrator.sweep.forecast import Forecast


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
        overrides: `key=value` words, as on the command line, for a file or a sweep that is resumed.
        local: start a Ray of our own even if `RAY_ADDRESS` names a cluster.
        rerun: forget what an earlier run of this sweep left, and run everything again.
        resume: the name of a sweep that was begun before; it goes on with the configuration it had.
        quiet: tell nothing on standard error while it runs.
        at_loss: what to do with the result if Ray itself is killed while trials run, after which the process ends with
            exit code 130 (what waits for an answer of Ray does not come back); its text is printed if None.

    Raises:
        UserError: bad input, one line for each fault; nothing was started. So do arguments that
            do not go together: `overrides` beside nested mappings, `sweep` beside `resume`.
        KeyboardInterrupt: a signal came before there was anything to report on, or while the report was written.
    """
    return execute(_asked_for(sweep, overrides, resume), local, rerun, Telling(quiet, at_loss))


def _asked_for(sweep: Mapping[str, Any] | Path | str | None, overrides: Sequence[str], resume: str | None) -> Sweep:
    """The sweep that the arguments of `run_sweep` describe, checked."""
    if resume is not None:
        if sweep is not None:
            rule = f"resume={resume!r} takes the sweep from its folder"
            raise ConfigError(fault("run_sweep", "sweep", rule, "a sweep beside it", "leave one of the two out"))
        return _begun_before(resume, overrides)
    if not isinstance(sweep, Mapping):
        return load_sweep(sweep, overrides)
    if overrides:
        rule = "go with a file, or with resume, and not with a mapping"
        raise ConfigError(fault("run_sweep", "overrides", rule, list(overrides), "change the mapping"))
    return check_sweep(sweep)


def _begun_before(name: str, overrides: Sequence[str]) -> Sweep:
    """The sweep of this name; `storage=…` says where to look, other words change it.

    Raises:
        ConfigError: there is none, or words that do not fit, such as another name.
    """
    changes = overridden({}, [word for word in overrides if word.startswith("storage=")])
    storage = str(changes.get("storage", "results"))
    given = given_before(open_folder(storage, name)[0], name)
    checked = check_sweep(overridden(given, overrides), f"{storage}/{name}")
    if checked.name != name:
        rule = f"must be that of the sweep that is resumed, {name}"
        remedy = "another sweep is started with a file and no --resume"
        raise ConfigError(fault(COMMAND_LINE, "name", rule, checked.name, remedy))
    return checked


def forecast(sweep: Sweep, telling: Telling | None = None, rerun: bool = False) -> Forecast:
    """What `--plan` tells: every trial with its hash, what is done of it (with `rerun` nothing), and its cost.

    Raises:
        UserError: what a run would be refused for, but for what only MLflow or Ray can tell.
    """
    from orchestrator.sweep import forecast

    database_path(sweep.document.tracking.uri)  # its form alone: nothing is made, and no server is asked
    store = open_store(sweep, None if telling is None else telling.building())
    journal = Journal.look(open_folder(sweep.document.storage, sweep.name)[0], make_plan(sweep, store.hash))
    return forecast.forecast(sweep, journal, store, rerun)
