"""One configuration from Python, in this process and without Ray: `run_one`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from orchestrator.config.load import check_sweep
from orchestrator.config.schema import Sweep
from orchestrator.errors import ConfigError, fault
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import Configuration, label_with
from orchestrator.plan.task_store import objective_of, open_store
from orchestrator.protocol import metrics
from orchestrator.protocol.curves import Curves
from orchestrator.sweep.starts import with_starts
from orchestrator.system import hardware
from orchestrator.tracking import points, tables
from orchestrator.tracking.reader import COLUMNS
from streams.options import plain_values
from streams.recipe import Progress, silent

if TYPE_CHECKING:
    import learners
    from orchestrator.protocol.online import OnlineProtocol
    from streams.store.task_store import TaskStore

_WHERE = "run_one"
_STEPS = 100
"""Times that the progress is reported, at most."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of `run_one`.

    Attributes:
        configuration: the learner with all its options, and the stream; its hash is that of the same configuration in a
            sweep.
        curves: every point of every seed, in the columns of `load_curves` (those that every sweep has).
        measured: the same measurements as arrays, with the losses and the test errors.
        objective: the metric of the objective.
        values: the objective of each seed, [R]; NaN for a seed that diverged.
        learner: after the last batch, all seeds together; `learner.predict` takes images [R, B, C, H, W].
        store: the task store that it learned from.
    """

    configuration: Configuration
    curves: pd.DataFrame
    measured: Curves
    objective: str
    values: Any
    learner: learners.Learner
    store: TaskStore

    @property
    def seeds(self) -> list[int]:
        return self.measured.seeds

    @property
    def summary(self) -> pd.DataFrame:
        """One row per metric: its mean over seeds, `low` and `high` of the 95 % t-interval, and `n` seeds.

        Errors by task, and the metrics of past tasks, are each seed's after its last task; the online error is the mean
        over all batches. A seed that diverged is in no mean.
        """
        diverged = [metrics.diverged_at(self.measured, row) >= 0 for row in range(len(self.seeds))]
        rows = []
        for name in dict.fromkeys((self.objective, "cumulative_error", "validation_error", "online_error")):
            values = self.values if name == self.objective else metrics.objective(self.measured, name)
            if values is not None:
                rows.append({"metric": name, **vars(metrics.interval(values))})
        for name, by_task in metrics.past_curves(self.measured).items():
            if name != self.objective:
                last = np.where(diverged, np.nan, metrics.last_values(by_task))
                rows.append({"metric": name, **vars(metrics.interval(last))})
        return pd.DataFrame(rows, columns=["metric", "mean", "low", "high", "n"])

    def save(self, path: Path | str) -> None:
        """Write the learner as a checkpoint, which `orchestrator.predict` reads.

        Raises:
            ConfigError: the file cannot be written.
        """
        from learners import checkpoint

        store = self.store
        described = store.shape, store.label_names, store.background, store.images_per_datapoint
        target, configuration = Path(path), self.configuration
        try:
            checkpoint.save(target, configuration.learner, self.learner, configuration.network, *described)
        except OSError as error:
            rule = f"must be a file that can be written ({error.strerror})"
            raise ConfigError(fault(str(target), "", rule, remedy="choose a file in a folder that exists")) from error

    @property
    def _heading(self) -> str:
        stream = self.configuration.stream["name"]
        return f"{self.configuration.label} on {stream}, {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"

    @property
    def _diverged(self) -> str:
        seeds = [seed for row, seed in enumerate(self.seeds) if metrics.diverged_at(self.measured, row) >= 0]
        return f"diverged: seeds {seeds}" if seeds else ""

    def __repr__(self) -> str:
        text = f"{self._heading}: {self.objective} {metrics.interval(self.values)}"
        return f"<RunResult {'; '.join(filter(None, [text, self._diverged]))}>"

    def _repr_html_(self) -> str:
        """The summary as a table, for notebooks."""
        table = self.summary.rename(columns={"low": "95 % low", "high": "95 % high"})
        lines = [self._heading, self._diverged]
        heading = "<br>".join(f"<b>{html.escape(line)}</b>" for line in lines if line)
        return f"<div>{heading}{table.to_html(index=False, border=0, na_rep='–', float_format='{:.4f}'.format)}</div>"


def run_one(
    learner: str = "foml",
    *,
    stream: str | Mapping[str, Any] = "rainbow_digits",
    seeds: int | Iterable[int] = 3,
    batch_size: int = 10,
    network: str | Mapping[str, Any] | None = None,
    objective: str | Mapping[str, Any] | None = None,
    evaluate_past: int | str | None = None,
    start: Path | str | None = None,
    threads: int = 1,
    device: str = "cpu",
    progress: Progress | bool = True,
    **options: Any,
) -> RunResult:
    """Run one learner on one stream, in this process: without Ray, MLflow and files, except for the cached task store.

    On a CPU, the curves equal those of the same configuration in a sweep bit for bit, if the sweep's learner actors
    have as many threads.

    Args:
        learner: its name, or a module of your own.
        stream: its name, or a mapping with `name`, options, `schedule` and `store`, as in a sweep's YAML.
        seeds: a number, or a list; all are trained together.
        batch_size: datapoints of an online update, N.
        network: as in a sweep's YAML; the stream's default if None.
        objective: as in a sweep's YAML, or the name of a metric; the cumulative error if None.
        evaluate_past: as in a sweep's YAML: `end`, or every n tasks; never if None.
        start: a checkpoint, such as one that `RunResult.save` wrote, whose weights the learner starts from.
        threads: threads of torch while it runs.
        device: `cpu`, `cuda` or `cuda:N`. On a GPU, the whole process computes deterministically from here on.
        progress: True for a bar of tqdm (a widget in a notebook), False for none, or a function that is called with a
            description, the batches done, and all batches.
        options: those of the learner, such as `K=5`; one value each.

    Raises:
        OrchestratorError, StreamsError: bad input, one line for each fault.
    """
    threads, seeds = plain_values(threads), plain_values(seeds)
    document = {
        "name": _WHERE,
        "stream": stream if isinstance(stream, Mapping) else {"name": stream},
        "learners": [{"name": learner, **({} if start is None else {"start": str(start)}), **options}],
        "seeds": list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str | Mapping) else seeds,
        "batch_size": batch_size,
        "network": network,
        "evaluate_past": evaluate_past,
    }
    if objective is not None:
        document["objective"] = objective if isinstance(objective, Mapping) else {"metric": objective}
    sweep = with_starts(check_sweep(plain_values(document), _WHERE))
    if sweep.learners[0].spaces:
        first = next(iter(sweep.learners[0].spaces))
        raise ConfigError(fault(_WHERE, first, "must be one value", options[first], "run_sweep searches over values"))
    report = progress if callable(progress) else _ProgressBar() if progress else silent
    if faults := [*_thread_faults(threads), *_device_faults(device)]:
        raise ConfigError(*faults)
    store = open_store(sweep, report, any_objective=True)  # without a value it is NaN
    with _torch_threads(threads):
        return _result(sweep, store, _advanced(sweep, store, device, report))


def _advanced(sweep: Sweep, store: TaskStore, device: str, report: Progress) -> OnlineProtocol:
    """The protocol at the end of its stream."""
    from orchestrator.protocol import online

    spec = sweep.learners[0]
    run = online.assemble(
        store, spec.name, spec.fixed, sweep.seeds, sweep.document.batch_size, sweep.network, sweep.schedule,
        device=device, evaluate_past=sweep.document.evaluate_past,
        start=None if spec.start is None else spec.start.path,
    )  # fmt: skip
    chunk = max(1, run.total_batches // _STEPS)
    while not run.finished:
        run.advance(chunk)
        report(f"{spec.name}, seeds {sweep.seeds}", run.batches, run.total_batches)
    return run


def _result(sweep: Sweep, store: TaskStore, run: OnlineProtocol) -> RunResult:
    (trial,) = make_plan(sweep, store.hash).trials
    options = {key: value for key, value in sweep.source["learners"][0].items() if key not in ("name", "start")}
    if (first := sweep.learners[0].start) is not None:
        options["start"] = first.label
    configuration = replace(trial.configuration, label=label_with(trial.configuration.learner, options))
    curves = run.curves
    objective = objective_of(sweep)
    finals = points.end_points(curves, run.datapoints, objective, configuration.batch_size)
    frame = tables.of_configuration([curves], [finals])[tables.CURVES_FILE]
    frame = frame.sort_values(["seed", "metric", "step"], kind="stable", ignore_index=True)
    frame = frame.assign(configuration=configuration.hash, label=configuration.label, learner=configuration.learner)
    values = objective(curves)
    if values is None:  # such as backward transfer on a stream of one task
        values = np.full(len(curves.seeds), np.nan)
    return RunResult(configuration, frame[list(COLUMNS)], curves, objective.name, values, run.learner, store)


def _thread_faults(count: Any) -> list[str]:
    if isinstance(count, int) and not isinstance(count, bool) and count >= 1:
        return []
    got = f"'{count}'" if isinstance(count, str) else count
    return [fault(_WHERE, "threads", "must be a whole number of at least 1", got)]


def _device_faults(name: Any) -> list[str]:
    import torch

    if not isinstance(name, str | torch.device):
        return [fault(_WHERE, "device", "must be cpu, cuda or cuda:N", name)]
    try:
        if torch.device(name).type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("torch finds no GPU")
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        return [fault(_WHERE, "device", f"must be cpu, cuda or cuda:N ({line})", name)]
    return []


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Torch computes with this number of threads inside the block."""
    import torch

    before = torch.get_num_threads()
    hardware.set_threads(count)
    try:
        yield
    finally:
        hardware.set_threads(before)


class _ProgressBar:
    """A bar of tqdm for each description."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        from tqdm.auto import tqdm

        if self._bar is None or what != self._what:
            self.close()
            self._bar, self._what = tqdm(desc=what, total=total), what
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
