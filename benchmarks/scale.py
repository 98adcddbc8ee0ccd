"""The load of a sweep on its driver, MLflow and the database, with learners that cost nothing; see docs/scale.md.

    python -m benchmarks.scale --gpus 8 --trials 16              the writer and SQLite
    python -m benchmarks.scale --gpus 8 --trials 16 --ray        a whole sweep, Ray and Tune included
    python -m benchmarks.scale --stream-actor                    one stream actor, and the bytes of a result

A synthetic trial reports the curves of FOML with ten seeds on a GPU (5,040 batches at 150 batches a second, eight
curves by batch, 56 tasks) in chunks of the length that `chunk: auto` has at that pace, and writes the same chunk files.
The first command plays the trials of all GPUs to the sweep's writer at the pace of the GPUs. The second runs them under
Tune with at most eight actors; where there are more GPUs than actors, an actor is as fast as several GPUs, and the
writer's pause between two writes of a trial is shorter by the same factor, so that a trial has as many writes.

All numbers are processor time, of threads of the driver and of the processes in `--processes` with their children (a
PostgreSQL, an MLflow server), divided by the time that the GPUs take for these trials. Other work on the machine
lengthens processor time less than wall time; the loop that is timed meanwhile shows by how much.
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

PACE, BATCHES, TASKS, SEEDS, BATCH = 150, 5_040, 56, 10, 10
"""FOML with ten seeds on one H200: batches a second; of a trial: batches, tasks, seeds, datapoints in a batch."""
CURVES = ("online_error", "online_loss", *(f"diagnostic_{number}" for number in range(6)))
ACTORS = 8
_REFERENCE = "reference"
_THREADS = {"mlflow-writer": "writer", "MainThread": "loop", _REFERENCE: _REFERENCE}


@dataclass(frozen=True)
class Load:
    """What a benchmark measures.

    Attributes:
        gpus: how many GPUs the trials stand for.
        trials: how many.
        uri: of MLflow.
        processes: whose CPU time counts as the database's, with their children.
        tracking: more options of the sweep's section `tracking`.
    """

    gpus: int
    trials: int
    uri: str
    processes: tuple[int, ...] = ()
    tracking: tuple[tuple[str, Any], ...] = ()

    @property
    def seconds(self) -> float:
        """The time that the GPUs take for the trials."""
        return self.trials * BATCHES / PACE / self.gpus

    def document(self) -> dict[str, Any]:
        """The configuration of the sweep, whose stream is never read."""
        return {
            "name": "scale",
            "stream": {"name": "rainbow_digits", "tasks": 1, "train": 100, "validation": 10, "test": 10},
            "learners": [{"name": "online", "alpha1": {"grid": [0.001 * (1 + i) for i in range(self.trials)]}}],
            "seeds": SEEDS,
            "resources": {"cpus": (os.cpu_count() or 1) / ACTORS},
            "tracking": {"uri": self.uri, **dict(self.tracking)},
        }


class Meter:
    """CPU seconds of the driver's threads and of the database's processes since it was created."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._roots, self._this = [psutil.Process(pid) for pid in processes], psutil.Process()
        self._loops: list[float] = []
        threading.Thread(target=self._time_loops, name=_REFERENCE, daemon=True).start()
        self._start, self._began = self._sample(), time.monotonic()

    def used(self) -> dict[str, float]:
        """CPU seconds by name, the `wall` seconds, and the mean CPU seconds of the reference loop."""
        used = self._sample()
        used.subtract(self._start)
        return dict(used) | {"wall": time.monotonic() - self._began, "reference": float(np.mean(self._loops))}

    def _time_loops(self) -> None:
        while True:
            began, texts = time.thread_time(), {}
            for number in range(100_000):
                texts[number % 1_000] = str(number)
            self._loops.append(time.thread_time() - began)
            time.sleep(2.0)

    def _sample(self) -> Counter[str]:
        out: Counter[Any] = Counter({"writer": 0.0, "loop": 0.0, "database": 0.0})
        names, times = {each.native_id: each.name for each in threading.enumerate()}, self._this.cpu_times()
        out["other threads"] = times.user + times.system  # also of those that have ended
        for thread in self._this.threads():
            if (kind := _THREADS.get(names.get(thread.id, ""))) is not None:
                out[kind] += thread.user_time + thread.system_time
                out["other threads"] -= thread.user_time + thread.system_time
        for root in self._roots:
            times = root.cpu_times()
            out["database"] += times.children_user + times.children_system  # of those that have ended
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    out["database"] += times.user + times.system
        return out


def synthetic_chunks(seeds: Sequence[int]) -> Iterator[Any]:
    """The curves of a trial's chunks, with random values."""
    from orchestrator.execution.chunk_length import ChunkLength
    from orchestrator.protocol.curves import Curves

    rng, length, first, rows = np.random.default_rng(0), ChunkLength("auto"), 0, len(seeds)
    while first < BATCHES:
        stop = min(first + length.batches, BATCHES)
        length.measured(stop - first, (stop - first) / PACE)
        tasks = np.arange(first * TASKS // BATCHES, stop * TASKS // BATCHES)
        evaluations = {
            "seed": np.tile(np.arange(rows), len(tasks)),
            "task": np.repeat(tasks, rows),
            "batch": np.repeat((tasks + 1) * BATCHES // TASKS - 1, rows),
            **{name: rng.random(rows * len(tasks)) for name in ("error", "loss", "test_error")},
        }
        chunk = {
            "batches": np.array([stop]),
            "time_ms": np.array([time.time_ns() // 1_000_000]),
            "seconds": np.array([(stop - first) / PACE]),
            "gradient_evaluations": np.array([3.0 * (stop - first) * BATCH]),
            "peak_memory": np.array([1e9]),
            "peak_gpu_memory": np.array([1e9]),
        }
        by_batch = {name: rng.random((rows, stop - first)) for name in CURVES}
        yield Curves(list(seeds), first, by_batch, evaluations, chunk, total_batches=BATCHES, total_tasks=TASKS)
        first = stop


def play(load: Load, pace: float = 1.0) -> dict[str, float]:
    """Play the trials to a writer at `pace` times the pace of the GPUs.

    Returns:
        What `Meter.used` has, and the seconds `left` from the last result until everything is written.
    """
    from orchestrator.plan.expand import make_plan
    from orchestrator.sweep.api import checked_sweep
    from orchestrator.tracking import writer as tracking

    sweep = checked_sweep(load.document(), (), None)
    plan, root = make_plan(sweep, "0" * 64), Path("scale")  # no store: nothing is read from the stream
    tracking.prepare(load.uri)
    writer = tracking.Writer(load.uri, sweep.experiment, plan, root, {}, time.time_ns() // 1_000_000)
    writer.start()
    if problems := writer.drain():
        raise SystemExit(f"{problems}")
    meter, began = Meter(load.processes), time.monotonic()
    slots = [list(plan.trials)[gpu :: load.gpus] for gpu in range(load.gpus)]
    playing = [_trials_of_a_gpu(root, trials, writer) for trials in slots if trials]
    due = [(gpu / len(playing) * BATCHES / PACE, gpu) for gpu in range(len(playing))]  # trials do not end together
    with _pauses(pace):
        while due:
            at, gpu = min(due)
            due.remove((at, gpu))
            time.sleep(max(0.0, began + at / pace - time.monotonic()))
            if (seconds := next(playing[gpu], None)) is not None:
                due.append((at + seconds, gpu))
    last = time.monotonic()
    if problems := [problem.text for problem in writer.drain() if not problem.resolved]:
        raise SystemExit("\n".join(problems))
    left, used = time.monotonic() - last, meter.used()
    writer.close("FINISHED")
    return used | {"left": left}


def _pauses(pace: float) -> Any:
    """A context in which the writer's pauses are shorter by this factor, so that a trial has as many writes."""
    from orchestrator.tracking import writer

    return patch.multiple(writer, PAUSE_S=writer.PAUSE_S / pace, LONGEST_PAUSE_S=writer.LONGEST_PAUSE_S / pace)


def _trials_of_a_gpu(root: Path, trials: Sequence[Any], writer: Any) -> Iterator[float]:
    """Report one trial after the other; yields the seconds until the next result."""
    from orchestrator.protocol.curves import Curves

    for trial in trials:
        folder, chunks = trial.folder(root), synthetic_chunks(trial.seeds)
        curves, save = Curves(list(trial.seeds)), _saver(folder)
        for chunk in chunks:
            yield float(chunk.chunks["seconds"][0])
            curves.extend(chunk)
            save(curves)
            writer.results(trial.key, chunk)
        writer.finished(trial.key)


def _saver(folder: Path) -> Any:
    """Writes the chunk files of a trial without a learner."""
    import torch

    from orchestrator.storage import chunk_files

    writer = chunk_files.ChunkWriter(folder, chunk_files.claim(folder))

    def save(curves: Any) -> None:
        finished = curves.batches == BATCHES
        if finished:
            torch.save({}, folder / chunk_files.LEARNER_FILE)
        writer.write({"position": curves.batches * BATCH}, curves, finished)

    return save


def synthetic_actor(pace: float) -> Any:
    """A learner actor without a learner, which advances by `pace` batches a second."""
    from orchestrator.execution.learner_actor import LearnerActor
    from orchestrator.execution.messages import ChunkResult, to_tune
    from orchestrator.protocol import metrics
    from orchestrator.protocol.curves import Curves

    class SyntheticActor(LearnerActor):
        def step(self) -> dict[str, Any]:
            if not self._started:
                seeds, folder = list(self._spec.trial.seeds), Path(self._spec.folder)
                self._save_curves, self._parts = _saver(folder), synthetic_chunks(seeds)
                self._measured, self._due, self._started = Curves(seeds), time.monotonic(), True
            part = next(self._parts)
            self._measured.extend(part)
            self._save_curves(self._measured)
            self._due += (part.batches - part.first_batch) / pace
            time.sleep(max(0.0, self._due - time.monotonic()))
            by_metric = {name: metrics.objective(self._measured, name) for name in ("online_error", "cumulative_error")}
            objectives = {name: values for name, values in by_metric.items() if values is not None}
            seconds, batches = float(self._measured.chunks["seconds"].sum()), part.batches
            finished = batches == BATCHES
            return to_tune([ChunkResult(batches, BATCHES, seconds, part, objectives, finished, None, (), 10**9, 10**9)])

    return SyntheticActor


def run_under_ray(load: Load) -> dict[str, float]:
    """Run the trials as a sweep; returns what `play` does, from the first result to the last run's end."""
    from orchestrator.execution import run_trials
    from orchestrator.sweep import api
    from orchestrator.tracking import writer as tracking

    faster = load.gpus / min(ACTORS, load.gpus)
    meters: list[Meter] = []
    used: dict[str, float] = {}
    writer: Any = tracking.Writer
    real_results, real_drain = writer.results, writer.drain

    def results(self: Any, key: str, curves: Any) -> None:
        if not meters:
            meters.append(Meter(load.processes))
        real_results(self, key, curves)

    def drain(self: Any, *args: Any) -> Any:
        began = time.monotonic()
        problems = real_drain(self, *args)
        if meters:  # none if every trial failed
            used.update(meters[0].used() | {"left": time.monotonic() - began})
        return problems

    writer.results, writer.drain = results, drain
    run_trials.LearnerActor = synthetic_actor(PACE * faster)  # type: ignore[misc]
    document = load.document()
    document["resources"] = {"cpus": (os.cpu_count() or 1) / min(ACTORS, load.gpus)}
    with _pauses(faster):
        result = api.run_sweep(document, local=True, quiet=True)
    if result.exit_code:
        raise SystemExit(result.text)
    return used


def table(load: Load, used: dict[str, float]) -> Iterator[str]:
    """The lines that the benchmark prints."""
    settings = "".join(f", {key}: {value}" for key, value in load.tracking)
    kind = load.uri.partition(":")[0]
    yield f"{load.trials} trials of {load.gpus} GPUs, {load.seconds:.0f} s there; {SEEDS} seeds, {kind}{settings}"
    for name in ("loop", "writer", "other threads", "database"):
        cores, each = used[name] / load.seconds, used[name] / load.trials
        yield f"{name}: {cores:.2f} cores, {1e3 * each:.0f} ms of CPU a trial"
    yield f"written {used['left']:.1f} s after the last result; {used['wall']:.0f} s of wall time in all"
    yield f"reference: {1e3 * used['reference']:.1f} ms of CPU for a loop of Python"


def stream_actor() -> Iterator[str]:
    """The rate of one stream actor in wall time, and the bytes of a chunk of datapoints and of a result."""
    import ray

    from orchestrator.execution.ray_session import ray_running
    from orchestrator.execution.stream_actor import StreamActors, node_stream_actor
    from streams import build
    from streams.rainbow import RainbowDigits
    from streams.schedule import Sequential
    from streams.store.task_store import TaskStore

    seeds, batches, readers = list(range(SEEDS)), 40, 8
    count = batches * BATCH
    store = TaskStore.open(build.cached(RainbowDigits(tasks=20, train=200), seeds).path)
    with (
        tempfile.TemporaryDirectory() as folder,
        ray_running(local=True),
        StreamActors(store, seeds, None, Path(folder), print),
    ):
        actor = node_stream_actor(store.hash)

        def read(at: int) -> Any:
            return actor.read.remote(seeds, Sequential(), at * count % (20 * 200 - count), count)

        weight = len(pickle.dumps(ray.get(read(0))))
        waiting, done, began = [read(at) for at in range(readers)], 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < 5:
            (ready, *_), waiting = ray.wait(waiting)
            ray.get(ready)
            done += 1
            waiting.append(read(done))
    yield f"stream actor: {done / elapsed:.0f} chunks/s of {batches} batches of {BATCH}, {SEEDS} seeds, {weight} bytes"
    *_, result = synthetic_chunks(seeds)
    yield f"result: {len(pickle.dumps(result)) / (result.batches - result.first_batch):.0f} bytes a batch"


def _setting(text: str) -> tuple[str, Any]:
    import yaml

    key, _, value = text.partition("=")
    return key, yaml.safe_load(value)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--uri", help="of MLflow (default: a new SQLite file)")
    parser.add_argument("--processes", type=int, nargs="+", default=[], metavar="PID", help="of the database")
    parser.add_argument("--set", type=_setting, nargs="+", default=[], metavar="KEY=VALUE", help="of `tracking`")
    parser.add_argument("--ray", action="store_true", help="a whole sweep instead of the writer alone")
    parser.add_argument("--stream-actor", action="store_true")
    arguments = parser.parse_args()
    if arguments.stream_actor:
        print(*stream_actor(), sep="\n")
        return
    with tempfile.TemporaryDirectory(prefix="foml-scale-") as folder:
        os.chdir(folder)
        uri = arguments.uri or f"sqlite:///{folder}/mlflow.db"
        load = Load(arguments.gpus, arguments.trials, uri, tuple(arguments.processes), tuple(arguments.set))
        print(*table(load, (run_under_ray if arguments.ray else play)(load)), sep="\n")


if __name__ == "__main__":
    main()
