"""Reading a sweep back from MLflow: `load_curves` for notebooks, `find_sweep` for the report."""

import logging
import math
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.errors import OrchestratorError, fault
from orchestrator.tracking.database import DEFAULT_URI, first_line, in_one_line, open_existing
from orchestrator.tracking.names import (
    CONFIGURATION,
    PARENT,
    RUN_KEY,
    charts_page,
    earlier_tags,
    fates_from_text,
    from_text,
    sweep_key,
    to_text,
    unlisted,
)
from orchestrator.tracking.points import metric_name
from orchestrator.tracking.requests import CUT, joined, search
from orchestrator.tracking.runs import (
    COMPLETE_FOR,
    LABEL,
    POPULATION,
    POSITION,
    REMOVED,
    SEED_FATES,
    SEEDS,
    STOPPED_AT,
)
from orchestrator.tracking.tables import CURVES_FILE, HINDSIGHT_FILE, TEST_FILE, DamagedTable, digests, read

COLUMNS = ("configuration", "label", "learner", "seed", "metric", "step", "value")
_THREADS = 8

logger = logging.getLogger(__name__)


class SweepNotFound(OrchestratorError):  # noqa: N818
    """No sweep has this name; the line lists the existing names."""


@dataclass(frozen=True)
class SeedRun:
    """A seed's run, or how the seed ended where it has none (`tracking.seed_runs: false`).

    Attributes:
        run_id: in MLflow; empty if it has none.
        seed: the seed.
        status: of MLflow: RUNNING, FINISHED, FAILED or KILLED.
        diverged_at: the batch; None if the seed did not diverge.
        metrics: names of its metrics.
        stopped_at: batches after which the scheduler stopped it, else None.
    """

    run_id: str
    seed: int
    status: str
    diverged_at: int | None
    metrics: tuple[str, ...]
    stopped_at: int | None = None


@dataclass(frozen=True)
class ConfigurationRuns:
    """A configuration's run and those of its seeds.

    Attributes:
        run_id: of the configuration's run.
        hash: of the configuration.
        label: the readable name.
        learner: its name.
        needs_boundaries: whether the learner receives task boundaries.
        complete: whether every seed has reached the end of its stream and everything is written.
        planned: the seeds of the plan.
        parameters: name → value.
        metrics: the numbers that exist once (objective, seconds, …).
        seeds: runs of the seeds, ascending.
        population: the hash of its population; empty if it has none.
        digests: table → SHA-256.
        artifacts: the URI of the run's artifacts.
        removed: whether the sweep, as last started, no longer contains it.
        running: whether it is being written.
    """

    run_id: str
    hash: str
    label: str
    learner: str
    needs_boundaries: bool
    complete: bool
    planned: tuple[int, ...]
    parameters: dict[str, Any]
    metrics: dict[str, float]
    seeds: tuple[SeedRun, ...]
    population: str = ""
    digests: dict[str, str] = field(default_factory=dict)
    artifacts: str = ""
    removed: bool = False
    running: bool = False


@dataclass(frozen=True)
class SweepRuns:
    """A sweep in MLflow.

    Attributes:
        client: of MLflow.
        run_id: of the sweep's own run.
        name: of the sweep.
        objective: the metric that it optimises.
        mode: "min" or "max".
        configurations: in the order of the plan, and last those that were removed from it.
        status: of the sweep's run.
        tags: of the sweep's run.
        artifacts: the URI of the artifacts of the sweep's run.
        charts: the page of MLflow's UI that overlays its configurations, below the server's address.
        started_ms: when the sweep was first started, in milliseconds of the Unix time.
        ended_ms: when it last ended; None while it runs.
    """

    client: Any
    run_id: str
    name: str
    objective: str
    mode: str
    configurations: tuple[ConfigurationRuns, ...]
    status: str = "FINISHED"
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: str = ""
    charts: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None


def load_curves(name: str, tracking_uri: str = DEFAULT_URI, experiment: str | None = None) -> pd.DataFrame:
    """Every point of every seed of a sweep, as a tidy table.

    A configuration that still runs has at most `tracking.points` points of each curve, as in MLflow.

    Args:
        name: the sweep's name; the newest one if several experiments have it.
        tracking_uri: of MLflow.
        experiment: the experiment to search; all if None.

    Returns:
        One row per point, with the columns configuration (its hash), label, learner, seed, metric, step, value, and one
        for each hyper-parameter that varies (missing where a learner does not have it; lists and mappings as JSON).
        Configurations of earlier versions of the sweep are included: `find_sweep` says which are `removed`.

    Raises:
        SweepNotFound: one line, with the existing names.
        TrackingError: MLflow cannot be read at this URI.
    """
    return curves_of(find_sweep(name, tracking_uri, experiment))


def find_sweep(name: str | None, tracking_uri: str = DEFAULT_URI, experiment: str | None = None) -> SweepRuns:
    """The newest sweep of this name, or of any name if None; raises what `load_curves` raises."""
    client = open_existing(tracking_uri)
    with in_one_line(tracking_uri):
        parent = _sweep_run(client, name, tracking_uri, experiment)
        tags = parent.data.tags
        return SweepRuns(
            client,
            parent.info.run_id,
            tags["foml.sweep"],
            tags.get("foml.objective", "cumulative_error"),
            tags.get("foml.mode", "min"),
            tuple(_configurations(client, parent)),
            parent.info.status,
            dict(tags),
            parent.info.artifact_uri,
            _charts(parent),
            parent.info.start_time,
            parent.info.end_time,
        )


def find_charts(name: str | None, tracking_uri: str = DEFAULT_URI, experiment: str | None = None) -> tuple[str, str]:
    """The name of a sweep, and its `SweepRuns.charts`; takes and raises what `find_sweep` does."""
    client = open_existing(tracking_uri)
    with in_one_line(tracking_uri):
        parent = _sweep_run(client, name, tracking_uri, experiment)
    return parent.data.tags["foml.sweep"], _charts(parent)


def _charts(parent: Any) -> str:
    return charts_page(parent.info.experiment_id, parent.info.run_id, parent.data.tags.get("foml.mode", "min") == "min")


def _sweep_run(client: Any, name: str | None, tracking_uri: str, experiment: str | None) -> Any:
    ids = {each.name: each.experiment_id for each in _experiments(client)}
    if experiment is not None and experiment not in ids:
        others = ", ".join(name for name in ids if name != "Default") or "none"
        raise SweepNotFound(
            fault("--experiment", "", f"{tracking_uri} has none of this name", experiment, f"there are: {others}")
        )
    selected = [id_ for name, id_ in ids.items() if experiment in (None, name)]
    sweeps = list(search(client, selected, "tags.`foml.kind` = 'sweep'")) if selected else []
    sweeps.sort(key=lambda run: run.info.start_time, reverse=True)
    parent = next((run for run in sweeps if name in (None, run.data.tags["foml.sweep"])), None)
    if parent is None:
        names = list(dict.fromkeys(run.data.tags["foml.sweep"] for run in sweeps))
        raise SweepNotFound(_not_found(name, names, tracking_uri))
    return parent


def whole_curves(client: Any, run_id: str) -> pd.DataFrame | None:
    """Every point of a configuration's run, from its table; None while it runs, and where the table is missing.

    Raises:
        ArtifactError: the run is missing or out of reach.
    """
    with _as_artifact_error():
        run = client.get_run(run_id)
    digest = digests(run.data.tags | earlier_tags(run.data.tags)).get(CURVES_FILE)
    if run.info.status == "RUNNING" or digest is None:
        return None
    try:
        with _as_artifact_error():
            return read(client, run_id, run.info.artifact_uri, CURVES_FILE, digest)
    except DamagedTable:
        return None


def curves_of(sweep: SweepRuns) -> pd.DataFrame:
    """`load_curves` of a sweep from `find_sweep`."""
    with in_one_line(sweep.client.tracking_uri), ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(lambda runs: _points(sweep, runs), sweep.configurations))
    varying = _varying(sweep.configurations)
    frames = []
    for runs, part in zip(sweep.configurations, parts, strict=True):
        part = part.sort_values(["seed", "metric", "step"], kind="stable")
        part = part.assign(configuration=runs.hash, label=runs.label, learner=runs.learner)
        frames.append(part.assign(**{column: _cell(runs.parameters.get(key)) for key, column in varying.items()}))
    columns = [*COLUMNS, *varying.values()]
    frames = [frame for frame in frames if len(frame)]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def _cell(value: Any) -> Any:
    """A parameter as a cell: pandas would spread the items of a list over the rows, and not find those of a mapping."""
    return to_text(value) if isinstance(value, list | dict) else value


def test_errors_of(sweep: SweepRuns) -> pd.DataFrame:
    """The test error after each task of every complete configuration, in the columns `COLUMNS`.

    Configurations without test errors (incomplete, or of an early version) are left out, and so are those whose table
    is damaged, with a warning in the log.
    """
    frames = []
    for runs in sweep.configurations:
        points = _table(sweep, runs, TEST_FILE) if runs.complete else None
        if points is not None and len(points):
            frames.append(points.assign(configuration=runs.hash, label=runs.label, learner=runs.learner)[list(COLUMNS)])
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=COLUMNS)


def hindsight_of(sweep: SweepRuns) -> pd.DataFrame | None:
    """The reference of regret that is stored with a sweep; None if it is missing, damaged or out of reach."""
    table = f"{HINDSIGHT_FILE} of the sweep (run {sweep.run_id})"
    remedy = f"regret is left out; python -m orchestrator.regret {shlex.quote(sweep.name)} fits it again"
    return _read_or_warn(sweep.client, sweep, HINDSIGHT_FILE, digests(sweep.tags), table, remedy)


def _experiments(client: Any) -> Iterable[Any]:
    token = None
    while True:
        page = client.search_experiments(max_results=1_000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _not_found(name: str | None, names: Sequence[str], uri: str) -> str:
    if not names:
        return fault("sweep", "", f"there is none in {uri}", remedy="run one: python -m orchestrator.sweep")
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return fault("sweep", "", f"{uri} has none of this name", name, f"there are: {shown}")


def _configurations(client: Any, parent: Any) -> list[ConfigurationRuns]:
    prefix = sweep_key(parent.data.tags["foml.sweep"]) + "/"
    runs = [
        run
        for kind in ("configuration", "seed")
        for run in search(client, [parent.info.experiment_id], f"tags.`foml.kind` = '{kind}'")
        if run.data.tags[RUN_KEY].startswith(prefix)
    ]
    seeds: dict[str, list[SeedRun]] = {}
    for run in runs:
        tags = run.data.tags
        if tags["foml.kind"] == "seed":
            diverged, stopped = (int(at) if (at := tags.get(key)) else None for key in ("foml.diverged_at", STOPPED_AT))
            status, metrics = run.info.status, tuple(run.data.metrics)
            seed = SeedRun(run.info.run_id, int(tags["foml.seed"]), status, diverged, metrics, stopped)
            seeds.setdefault(tags[PARENT], []).append(seed)
    configurations = [run for run in runs if run.data.tags["foml.kind"] == "configuration"]
    configurations.sort(key=_place)
    return [_configuration(run, seeds.get(run.info.run_id, [])) for run in configurations]


def _place(run: Any) -> tuple[float, int]:
    """The key by which configurations are ordered; an earlier version of this package recorded no position."""
    position = "" if run.data.tags.get(REMOVED) else run.data.tags.get(POSITION, "")
    return float(position or math.inf), run.info.start_time


def _configuration(run: Any, seeds: list[SeedRun]) -> ConfigurationRuns:
    tags, planned = run.data.tags, _planned(run)
    if text := joined(tags, SEED_FATES):
        fates, ongoing = fates_from_text(text), (run.info.status, None, None)
        by_seed = fates if text.endswith(CUT) else {seed: fates.get(seed, ongoing) for seed in planned}
        seeds = [SeedRun("", seed, fate[0], fate[1], (), fate[2]) for seed, fate in by_seed.items()]
        if len(seeds) < len(planned):
            number = f"how {len(planned) - len(seeds)} of its seeds ended"
            line = "%s (run %s): an earlier version cut off %s, which are in no mean; %s"
            logger.warning(line, tags[LABEL], run.info.run_id, number, _again(tags["foml.sweep"]))
    return ConfigurationRuns(
        run_id=run.info.run_id,
        hash=tags[CONFIGURATION],
        label=tags[LABEL],
        learner=tags["foml.learner"],
        needs_boundaries=tags["foml.needs_boundaries"] == "true",
        complete=run.info.status == "FINISHED" and joined(tags, COMPLETE_FOR) == joined(tags, SEEDS),
        planned=planned,
        parameters={key: from_text(text) for key, text in run.data.params.items()},
        metrics=dict(run.data.metrics),
        seeds=tuple(sorted(seeds, key=lambda each: each.seed)),
        population=tags.get(POPULATION, ""),
        digests=digests(tags),
        artifacts=run.info.artifact_uri,
        removed=bool(tags.get(REMOVED)),
        running=run.info.status == "RUNNING",
    )


def _planned(run: Any) -> tuple[int, ...]:
    """The seeds that the plan has for a configuration."""
    text = str(joined(run.data.tags, SEEDS))
    if text.endswith(CUT):
        rule = f"an earlier version cut off the seeds of run {run.info.run_id}"
        raise OrchestratorError(fault("tracking", SEEDS, rule, text[-20:], _again(run.data.tags["foml.sweep"])))
    return tuple(unlisted(text))


def _again(sweep: str) -> str:
    return f"python -m orchestrator.sweep --resume {shlex.quote(sweep)} writes it again from the chunk files"


def _points(sweep: SweepRuns, runs: ConfigurationRuns) -> pd.DataFrame:
    """The points of a configuration's seeds: all of them, from its table, once its trials have ended.

    Before, and in runs of earlier versions, those that MLflow has.
    """
    ended = runs.complete or (CURVES_FILE in runs.digests and not runs.running)
    if ended and (table := _table(sweep, runs, CURVES_FILE)) is not None:
        return table
    rows = [
        (run.seed, name, step, value)
        for run in runs.seeds
        for name, curve in curves_of_run(sweep.client, run.run_id, run.metrics).items()
        for step, value in curve.items()
    ]
    return pd.DataFrame(rows, columns=["seed", "metric", "step", "value"])


def curves_of_run(client: Any, run_id: str, names: Iterable[str]) -> dict[str, dict[int, float]]:
    """Metric → step → value, of these metrics of a seed's run; those of an earlier version under their present names.

    A run that an earlier version began can have a diagnostic under both names.
    """
    curves: dict[str, dict[int, float]] = {}
    for name in sorted(names):
        curve = curves.setdefault(metric_name(name), {})
        curve.update((point.step, point.value) for point in client.get_metric_history(run_id, name))
    return curves


def _table(sweep: SweepRuns, runs: ConfigurationRuns, name: str) -> pd.DataFrame | None:
    """A configuration's table; None if it is missing, damaged or out of reach."""
    table = f"{name} of {runs.label} (run {runs.run_id})"
    instead = "its test errors are left out" if name == TEST_FILE else "its curves are read from the metrics"
    return _read_or_warn(sweep.client, runs, name, runs.digests, table, f"{instead}; {_again(sweep.name)}")


def _read_or_warn(
    client: Any, runs: SweepRuns | ConfigurationRuns, name: str, digests: Mapping[str, str], table: str, remedy: str
) -> pd.DataFrame | None:
    """A table; None, with a warning in the log, if it is damaged."""
    from mlflow.exceptions import MlflowException

    try:
        return read(client, runs.run_id, runs.artifacts, name, digests.get(name))
    except (MlflowException, OSError):
        return None
    except DamagedTable as error:
        logger.warning("%s: %s; %s", table, error, remedy)
        return None


def _varying(configurations: Sequence[ConfigurationRuns]) -> dict[str, str]:
    """Parameter → column, for parameters of which two configurations have different values."""
    values: dict[str, list[Any]] = {}
    for runs in configurations:
        for key, value in runs.parameters.items():
            if key != "learner" and value not in values.setdefault(key, []):
                values[key].append(value)
    varying = [key for key, different in values.items() if len(different) > 1]
    return {key: f"{key} (option)" if key in COLUMNS else key for key in sorted(varying)}


class ArtifactError(OrchestratorError):
    """A run, a metric or an artifact that is missing or out of reach; the message is MLflow's reason in one line."""


@contextmanager
def _as_artifact_error() -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise ArtifactError(first_line(error)) from error


def tags(client: Any, run_id: str) -> dict[str, str]:
    """The tags of a run.

    Raises:
        ArtifactError: the run is missing or out of reach.
    """
    with _as_artifact_error():
        return dict(client.get_run(run_id).data.tags)


def artifact(client: Any, run_id: str, path: str, folder: str) -> Path:
    """Download an artifact of a run into a folder, and return the path of the file.

    Raises:
        ArtifactError: the artifact is missing or out of reach.
    """
    with _as_artifact_error():
        return Path(client.download_artifacts(run_id, path, folder))


def artifact_text(client: Any, run_id: str, path: str) -> str:
    """The content of a text file among a run's artifacts.

    Raises:
        ArtifactError: the artifact is missing or out of reach.
        UnicodeDecodeError: the file is not UTF-8.
    """
    with tempfile.TemporaryDirectory() as folder:
        return artifact(client, run_id, path, folder).read_text(encoding="utf-8")


def artifact_files(client: Any, run_id: str, folder: str) -> list[str]:
    """The paths of all files below a folder of a run's artifacts.

    Raises:
        ArtifactError: the run is missing, or its artifacts are out of reach.
    """
    with _as_artifact_error():
        entries = client.list_artifacts(run_id, folder)
    files = [entry.path for entry in entries if not entry.is_dir]
    return files + [file for entry in entries if entry.is_dir for file in artifact_files(client, run_id, entry.path)]


def history(client: Any, run_id: str, metric: str) -> dict[int, float]:
    """A metric of a run: step → value.

    Raises:
        ArtifactError: the run is missing or out of reach.
    """
    with _as_artifact_error():
        return {point.step: point.value for point in client.get_metric_history(run_id, metric)}


_LISTED = 5


def find(client: Any, run: str, uri: str) -> Any:
    """The run with this id, of a configuration or a seed.

    Raises:
        OrchestratorError: one line: it does not exist, or is another kind of run.
    """
    from mlflow.exceptions import MlflowException

    try:
        result = client.get_run(run)
    except MlflowException as error:
        rule = f"{uri} has none of this id"
        raise OrchestratorError(fault("run", "", rule, run, "the table of runs in MLflow's UI shows ids")) from error
    if "foml.kind" not in result.data.tags:
        raise OrchestratorError(fault("run", "", "must be a run of a sweep", run))
    if result.data.tags["foml.kind"] == "sweep":
        raise OrchestratorError(_is_a_sweep(client, result))
    return result


def _is_a_sweep(client: Any, sweep: Any) -> str:
    """The line about the run of a sweep, with ids of its configurations."""
    runs = [
        f"{run.info.run_id} ({run.data.tags[LABEL]})"
        for run in search(client, [sweep.info.experiment_id], "tags.`foml.kind` = 'configuration'")
        if run.data.tags.get(PARENT) == sweep.info.run_id
    ]
    more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
    remedy = f"there are: {', '.join(runs[:_LISTED])}{more}" if runs else ""
    return fault("run", "", "must be a configuration's or a seed's, not a sweep's", sweep.info.run_id, remedy)
