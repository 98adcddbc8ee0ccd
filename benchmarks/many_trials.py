"""A sweep of many trials with almost no work: `python -m benchmarks.many_trials [--trials 300] [--slots 8]`.

Three seeds each, several slots on this machine, everything in MLflow. Prints the cost of a trial and of a result, the
writer's delay at the end, the growth of the driver's memory with each trial (goal: at most 50 KB), and whether
MLflow has every run and every step once. Exit code 1 if it does not, or if memory grows more over 300 trials or more:
what Python and its libraries allocate at the start hides the growth over fewer.
"""

import argparse
import os
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

import learners

SEEDS, BATCHES, CHUNK = 3, 20, 5
GROWTH_GOAL_KB, FEWEST = 50, 300
LEARNERS = Path(__file__).resolve().parent / "idle"
learners.__path__.append(str(LEARNERS))  # a learner's file is its name; this one is outside the package


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_trials", description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--slots", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="foml-many-") as folder:
        os.chdir(folder)
        return _measure(options.trials, options.slots)


def _measure(trials: int, slots: int) -> int:
    from orchestrator.execution import callbacks, run_trials
    from orchestrator.sweep import api
    from orchestrator.tracking import writer as tracking

    memory: list[float] = []  # the driver's KB at each trial's end
    ends: list[float] = []
    results: list[float] = []
    drains: list[float] = []
    callback: Any = callbacks.ResultCallback
    callback.on_trial_complete = _after(
        callback.on_trial_complete, lambda: (memory.append(_held()), ends.append(_now()))
    )
    callback.on_trial_result = _after(callback.on_trial_result, lambda: results.append(_now()))
    writer: Any = tracking.Writer
    for name in ("drain", "close"):
        setattr(writer, name, _timed(getattr(writer, name), drains))
    run_trials.LearnerActor = _with_idle(run_trials.LearnerActor)  # type: ignore[misc]

    began, cpu = _now(), resource.getrusage(resource.RUSAGE_SELF)
    result = api.run_sweep(
        {
            "name": "many",
            "stream": {"name": "rainbow_digits", "tasks": 2, "train": 100, "validation": 12, "test": 12},
            "learners": [{"name": "idle", "number": {"grid": [float(number) for number in range(trials)]}}],
            "seeds": SEEDS,
            "chunk": CHUNK,
            "resources": {"cpus": (os.cpu_count() or 1) / slots},
        },
        local=True,
        quiet=True,
    )
    total, after = _now() - began, resource.getrusage(resource.RUSAGE_SELF)
    busy = ends[-1] - results[0]
    settled = trials // 5  # from then on everything is imported, and every slot busy
    growth = float(np.polyfit(np.arange(len(memory))[settled:], memory[settled:], 1)[0])
    used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    missing = _missing(Path("mlflow.db"), trials)
    print(f"{trials} trials of {SEEDS} seeds, {slots} slots, {os.cpu_count()} cores: {total:.0f} s in all")
    each, per_result = 1e3 * busy / trials, 1e3 * busy / len(results)
    print(f"first to last result: {busy:.1f} s, {each:.0f} ms a trial, {per_result:.1f} ms a result")
    print(f"driver: {1e3 * used / trials:.0f} ms of processor time a trial, writer and report included")
    print(f"writer: {sum(drains):.1f} s from the last trial's end to the last run's")
    goal = f"goal: at most {GROWTH_GOAL_KB}"
    print(f"memory of the driver: {growth:.0f} KB a trial ({goal}), {memory[-1] / 1e3:.0f} MB at the end")
    print(f"MLflow: {missing or 'every run and every step, once'}")
    print(f"exit code of the sweep: {result.exit_code}")
    grows = trials >= FEWEST and growth > GROWTH_GOAL_KB
    return int(bool(missing) or grows or result.exit_code != 0)


def _with_idle(actor: Any) -> Any:
    """The learner actor, which also finds the idle learner."""
    folder = str(LEARNERS)

    class LearnerActor(actor):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            import learners
            from learners import registry

            if folder not in learners.__path__:
                learners.__path__.append(folder)
                registry.names.cache_clear()  # the process may have cached them before
            super().setup(config)

    return LearnerActor


def _after(method: Callable[..., None], then: Callable[[], object]) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        method(*args, **kwargs)
        then()

    return call


def _timed(method: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        began = _now()
        try:
            return method(*args, **kwargs)
        finally:
            seconds.append(_now() - began)

    return call


def _now() -> float:
    return time.monotonic()


def _held() -> float:
    """Resident set of this process in KB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024


def _missing(database: Path, trials: int) -> str:
    """What MLflow should contain and does not; empty if it is complete."""
    with closing(sqlite3.connect(database)) as connection:
        statuses = dict(connection.execute("select status, count(*) from runs group by status"))
        steps = connection.execute(
            "select count(*), count(distinct run_uuid || '/' || step) from metrics where key = 'online_loss'"
        ).fetchone()
        objectives = connection.execute("select count(*) from metrics where key = 'objective'").fetchone()[0]
    expected = {
        "runs": ({"FINISHED": 1 + trials * (1 + SEEDS)}, statuses),
        "steps of online_loss": ((trials * SEEDS * BATCHES,) * 2, tuple(steps)),
        "objectives": (trials, objectives),
    }
    return "; ".join(f"{name}: {actual} instead of {due}" for name, (due, actual) in expected.items() if due != actual)


if __name__ == "__main__":
    sys.exit(main())
