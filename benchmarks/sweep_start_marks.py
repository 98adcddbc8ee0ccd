"""The sweep command, with the time of each phase; run by `benchmarks.sweep_start`."""

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
    """The function, followed by a mark when it has returned."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        mark(name)
        return result

    return call


def main() -> int:
    mark("the interpreter runs")
    from orchestrator.execution import ray_session
    from orchestrator.sweep import __main__, api, run
    from orchestrator.tracking import database

    mark("the command is imported")
    api.load_sweep = marked(api.load_sweep, "the configuration is checked (imports torch)")
    run.open_store = marked(run.open_store, "the store is open")
    database.prepare = marked(database.prepare, "MLflow has its database (imports mlflow)")
    ray_session._cluster = marked(ray_session._cluster, "Ray is up")
    start = run._ray

    def session(*args: Any) -> Any:
        from ray import tune

        mark("Tune and the actors' code are imported")
        fit = tune.Tuner.fit

        def fitted(tuner: Any) -> Any:
            mark("trials are given to Tune")
            return fit(tuner)

        tune.Tuner.fit = fitted
        return start(*args)

    run._ray = session
    return __main__.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
