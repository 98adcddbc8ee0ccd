"""The sweep's command, noting when it gets where; run by `benchmarks.sweep_start`."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

FILE = "FOML_BENCHMARK_MARKS"


def mark(name: str) -> None:
    with open(os.environ[FILE], "a", encoding="utf-8") as file:
        file.write(f"{name}\t{time.time()}\n")


def marked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, with a mark once it has returned."""

    def call(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        mark(name)
        return result

    return call


def main() -> int:
    mark("the interpreter runs")
    from orchestrator import config, execution, ray_start, sweep, tracking_database

    mark("the command is imported")
    config.load = marked(config.load, "the configuration is checked (imports torch)")
    execution.open_store = marked(execution.open_store, "the store is open")
    ray_start._found = marked(ray_start._found, "Ray is up")
    tracking_database.prepare = marked(tracking_database.prepare, "MLflow has its database (imports mlflow)")
    run_trials = execution.run_trials

    def runs(*given: Any, **named: Any) -> None:
        from ray import tune

        from orchestrator import actors  # noqa: F401

        mark("Tune and the actors' code are imported")
        fit = tune.Tuner.fit

        def fitted(tuner: Any) -> Any:
            mark("trials are given to Tune")
            return fit(tuner)

        tune.Tuner.fit = fitted
        run_trials(*given, **named)

    execution.run_trials = runs
    return sweep.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
