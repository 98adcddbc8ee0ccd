"""A sweep from Python: `run_sweep`, and the forecast of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.load import check_sweep, load_sweep
from orchestrator.config.schema import Sweep
from orchestrator.config.strict_yaml import COMMAND_LINE, overridden
from orchestrator.console.output import Output
from orchestrator.errors import ConfigError, fault
from orchestrator.plan.expand import make_plan
from orchestrator.plan.task_store import open_store
from orchestrator.storage.journal import Journal, given_before
from orchestrator.storage.mirror import open_folder
from orchestrator.sweep.result import SweepResult
from orchestrator.sweep.run import execute
from orchestrator.sweep.starts import with_starts
from orchestrator.tracking.database import database_path
from streams.options import plain_values

if TYPE_CHECKING:
    from orchestrator.sweep.forecast import Forecast


def run_sweep(
    sweep: Mapping[str, Any] | Path | str | None = None,
    overrides: Sequence[str] = (),
    local: bool = False,
    rerun: bool = False,
    resume: str | None = None,
    quiet: bool = False,
    on_ray_lost: Callable[[SweepResult], None] | None = None,
) -> SweepResult:
    """Run a sweep to its end, and report on it.

    Args:
        sweep: the configuration as nested mappings, as a YAML file, or as the name of a ready sweep; the quickstart if
            None.
        overrides: `key=value` arguments, as on the command line.
        local: start a new Ray even if `RAY_ADDRESS` names a cluster.
        rerun: delete the results of earlier runs of this sweep, and run everything again.
        resume: the name of a sweep that was started before; it continues with its configuration.
        quiet: write nothing to standard error while it runs.
        on_ray_lost: called with the result if Ray dies while trials run, after which the process ends with exit code
            130 (calls that wait for Ray never return); the result's text is printed if None.

    Raises:
        OrchestratorError, StreamsError: bad input, one line for each fault; nothing was started. So do arguments that
            exclude each other: `sweep` beside `resume`.
        KeyboardInterrupt: A signal came before there was anything to report on, or while the report was written.
    """
    return execute(checked_sweep(sweep, overrides, resume), local, rerun, Output(quiet), on_ray_lost)


def checked_sweep(sweep: Mapping[str, Any] | Path | str | None, overrides: Sequence[str], resume: str | None) -> Sweep:
    """The checked sweep that these arguments of `run_sweep` describe."""
    overrides = _checked_words(overrides)
    if resume is not None:
        if sweep is not None:
            rule = f"resume={resume!r} takes the sweep from its folder"
            raise ConfigError(fault("run_sweep", "sweep", rule, "a sweep beside it", "leave one of the two out"))
        return with_starts(_earlier_sweep(resume, overrides))
    if isinstance(sweep, Mapping):
        return with_starts(check_sweep(overridden(plain_values(sweep), overrides)))
    if sweep is not None and not isinstance(sweep, str | Path):
        rule = "must be nested mappings, a YAML file, or the name of a ready sweep"
        raise ConfigError(fault("run_sweep", "sweep", rule, sweep))
    return with_starts(load_sweep(sweep, overrides))


def _checked_words(overrides: Any) -> list[str]:
    """The overrides, which are a list of texts: the letters of a single text are none."""
    words = list(overrides) if isinstance(overrides, Iterable) and not isinstance(overrides, str) else None
    if words is None or not all(isinstance(word, str) for word in words):
        remedy = f"write {[overrides]}" if isinstance(overrides, str) else ""
        rule = "must be a list of key=value texts, such as ['seeds=2']"
        raise ConfigError(fault("run_sweep", "overrides", rule, overrides, remedy))
    return words


def _earlier_sweep(name: str, overrides: Sequence[str]) -> Sweep:
    """The sweep of this name; `storage=…` says where its folder is, other overrides change the sweep.

    Raises:
        ConfigError: there is none, or an override is not allowed, such as another name.
    """
    changes = overridden({}, [override for override in overrides if override.startswith("storage=")])
    storage = str(changes.get("storage", "results"))
    document, folder = given_before(open_folder(storage, name)[0], name)
    sweep = check_sweep(overridden(document, overrides), f"{storage}/{name}", folder)
    if sweep.name != name:
        rule = f"must be that of the sweep that is resumed, {name}"
        remedy = "another sweep is started with a file and no --resume"
        raise ConfigError(fault(COMMAND_LINE, "name", rule, sweep.name, remedy))
    return sweep


def forecast(sweep: Sweep, output: Output | None = None, rerun: bool = False) -> Forecast:
    """What `--plan` prints: each trial with its hash and what is done of it (with `rerun` nothing), and the cost.

    Raises:
        OrchestratorError, StreamsError: what a run would refuse, except what only MLflow or Ray can know.
    """
    from orchestrator.sweep import forecast  # torch: it measures a few batches

    database_path(sweep.document.tracking.uri)  # checks its form: no file is created, and no server is asked
    store = open_store(sweep, (output or Output()).build_progress())
    root = open_folder(sweep.document.storage, sweep.name)[0]
    journal = Journal.look(root, make_plan(sweep, store.hash), rerun=rerun)
    return forecast.forecast(sweep, journal, store)
