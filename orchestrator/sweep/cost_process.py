"""Processes that measure the cost of trials side by side, as many as a sweep runs.

Trials that run simultaneously slow each other down: they share memory bandwidth and caches, and two of them often share
a physical core. So this process and others measure the same batches at the same time.
"""

import json
import os
import pickle
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO, Any

from orchestrator.config.schema import Sweep
from orchestrator.plan.plan import Trial
from orchestrator.sweep import cost
from orchestrator.sweep.cost import Cost, Counts
from streams.store.task_store import TaskStore

_COMMAND = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from orchestrator.sweep import cost_process
cost_process.main()
"""


@dataclass(frozen=True)
class Contention:
    """How much trials that run simultaneously slow each other down.

    Attributes:
        processes: the number that was measured side by side, at most one for each core.
        slowdown: the time of one of them, divided by its time alone.
    """

    processes: int = 1
    slowdown: float = 1.0

    def factor(self, running: int) -> float:
        """The time of one of `running` simultaneous trials, divided by its time alone.

        It is interpolated up to the number that was measured; beyond it, trials take turns on the cores.

        >>> [Contention(3, 1.5).factor(running) for running in (1, 2, 3, 6)]
        [1.0, 1.25, 1.5, 3.0]
        """
        if running > self.processes:
            return self.slowdown * running / self.processes
        return 1 + (self.slowdown - 1) * (running - 1) / max(1, self.processes - 1)


def estimate(sweep: Sweep, trials: list[Trial], store: TaskStore, running: int) -> tuple[dict[str, Cost], Contention]:
    """The cost of each trial by key while `running` trials run simultaneously, and how that number changes it."""
    processes = max(1, min(running, (os.cpu_count() or 1) // cost.threads_here(sweep)))
    with ExitStack() as stack:
        others = [stack.enter_context(_process(sweep, trials, store)) for _ in range(processes - 1)]
        counts = cost.count_gradients(sweep, trials, store)  # meanwhile the others start
        for other in others:
            other.wait()
        for other in others:
            other.start(counts)
        measured = [cost.measure(sweep, trials, store, counts)]
        measured += [costs for other in others if (costs := other.result()) is not None]
    costs = {trial.key: _mean([each[trial.key] for each in measured]) for trial in trials}
    contention = Contention()
    if len(measured) > 1:
        costliest = max(trials, key=lambda trial: costs[trial.key].seconds)
        alone = cost.measure(sweep, [costliest], store, counts)[costliest.key].seconds
        contention = Contention(len(measured), max(1.0, costs[costliest.key].seconds / alone) if alone else 1.0)
    share = contention.factor(running) / contention.slowdown
    return {key: replace(each, seconds=each.seconds * share) for key, each in costs.items()}, contention


def _mean(costs: list[Cost]) -> Cost:
    """The cost that this process measured, with the mean seconds of all processes."""
    return replace(
        costs[0], seconds=statistics.fmean(each.seconds for each in costs if each.problem == costs[0].problem)
    )


class _Process:
    """A process that measures the same trials as this one, at the same time."""

    def __init__(self, requests: IO[bytes], results: IO[bytes]) -> None:
        self._requests, self._results = requests, results

    def wait(self) -> None:
        """Wait until it is ready, or has ended."""
        self._results.readline()

    def start(self, counts: Counts) -> None:
        _send(self._requests, counts)

    def result(self) -> dict[str, Cost] | None:
        """The costs that it measured; None if it has ended without any."""
        try:
            costs: dict[str, Cost] = pickle.load(self._results)
        except EOFError:
            return None
        return costs


@contextmanager
def _process(sweep: Sweep, trials: list[Trial], store: TaskStore) -> Iterator[_Process]:
    command = [sys.executable, "-c", _COMMAND, json.dumps(sys.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            _send(process.stdin, (sweep, trials, store.path, cost.MEASURED_SECONDS))
            yield _Process(process.stdin, process.stdout)
        finally:
            process.kill()


def _send(pipe: Any, message: object) -> None:
    """Send a message to a process, which may have ended."""
    with suppress(BrokenPipeError):
        pickle.dump(message, pipe)
        pipe.flush()


def main() -> None:
    """Measure the trials of the other process when it starts to."""
    requests, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a learner prints is no result
    sweep, trials, path, cost.MEASURED_SECONDS = pickle.load(requests)
    store = TaskStore.open(path)
    results.write(b"ready\n")
    results.flush()
    pickle.dump(cost.measure(sweep, trials, store, pickle.load(requests)), results)
    results.flush()
