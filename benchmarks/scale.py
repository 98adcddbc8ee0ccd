"""The load that one driver, one stream actor and one MLflow can carry; docs/scale.md has the consequences.

    python -m benchmarks.scale

- **Driver**: real sweeps on this machine, each in a new process, whose CPU time is measured without its children (the
  learners). Two sweeps differ only in the number of results, two in the number of trials; the difference in time
  divided by the difference in number is the cost of one. MLflow on SQLite is included, the report at the end is not.
- **Stream actor**: chunks of 40 batches of ten, ten seeds, eight concurrent requests.
- **MLflow**: points by `log_batch`, a thousand a call, on SQLite in this process, and over HTTP to a server on SQLite.

Except for the stream actor's, which is a rate in wall time, all values are CPU times of the process in question, so
that other load on the machine changes them little.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SWEEPS: dict[str, dict[str, int]] = {
    "many results": {"trials": 2, "train": 3800, "chunk": 1},
    "few results": {"trials": 2, "train": 3800, "chunk": 380},
    "many trials": {"trials": 42, "train": 400, "chunk": 40},
    "few trials": {"trials": 2, "train": 400, "chunk": 40},
}
"""`train`: datapoints in the only task of the stream, learned ten at a time."""
BATCH = 10
LEARNERS_A_NODE = 8
CHUNK, SEEDS = 40, 10


def sweep(trials: int, train: int, chunk: int) -> dict[str, int]:
    """Run one sweep here; return the resources used, and the numbers of trials, results and points."""
    from orchestrator.report import write as report_write
    from orchestrator.tracking import writer

    used: dict[str, int] = {}
    results = points = 0
    real_send, real_report = writer.Writer.results, report_write.write_report

    def counted(self: writer.Writer, key: str, curves: Any) -> None:
        nonlocal results, points
        results += 1
        points += sum(curve.size for curve in curves.by_batch.values()) + 2 * len(curves.evaluations.get("error", ()))
        real_send(self, key, curves)

    def before_report(*args: Any, **kwargs: Any) -> Any:
        used["cpu_us"] = int(1e6 * sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
        status = Path("/proc/self/status").read_text()  # ru_maxrss would include the process that started this one
        used["memory"] = 1024 * int(status.partition("VmHWM:")[2].split()[0])
        return real_report(*args, **kwargs)

    writer.Writer.results = counted  # type: ignore[method-assign]
    report_write.write_report = before_report
    from orchestrator.sweep import api as sweeps

    sweeps.run_sweep(
        {
            "name": "scale",
            "stream": {"name": "rainbow_digits", "tasks": 1, "train": train, "validation": 10, "test": 10},
            "learners": [{"name": "online", "alpha1": {"grid": [0.001 * (1 + i) for i in range(trials)]}}],
            "seeds": 1,
            "chunk": chunk,
            "tracking": {"diagnostics_every": 1},
        },
        local=True,
    )
    return used | {"trials": trials, "results": results, "points": points}


def driver() -> Iterator[str]:
    """CPU time of the driver, by result and by trial."""
    measured = {}
    for name, size in SWEEPS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.scale", "--sweep", json.dumps(size)]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
            done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        measured[name] = json.loads(done.stdout.splitlines()[-1])
        yield f"sweep {name}: {measured[name]}"
    for what in ("results", "trials"):
        many, few = measured[f"many {what}"], measured[f"few {what}"]
        more = many[what] - few[what]
        yield f"driver: {(many['cpu_us'] - few['cpu_us']) / more / 1e3:.1f} ms of CPU for each of {more} more {what}"
    few = measured["few trials"]
    yield f"driver: {few['cpu_us'] / 1e6:.1f} s of CPU and {few['memory'] / 1e6:.0f} MB at most for the smallest sweep"


def stream_actor() -> Iterator[str]:
    """The rate of one stream actor, and the size of a chunk."""
    import ray

    from orchestrator.execution.ray_session import ray_running
    from orchestrator.execution.stream_actor import StreamActors, node_stream_actor
    from streams import build
    from streams.rainbow import RainbowDigits
    from streams.schedule import Sequential
    from streams.store.task_store import TaskStore

    seeds, count = list(range(SEEDS)), CHUNK * BATCH
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
        waiting, done, began = [read(at) for at in range(LEARNERS_A_NODE)], 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < 5:
            (ready, *_), waiting = ray.wait(waiting)
            ray.get(ready)
            done += 1
            waiting.append(read(done))
    yield (
        f"stream actor: {done / elapsed:.0f} chunks/s of {CHUNK} batches of {BATCH} and {SEEDS} seeds to one reader, "
        f"{done / elapsed * count * SEEDS:.0f} datapoints/s, {weight} bytes a chunk (on the node, not on the network)"
    )


def result_weight() -> Iterator[str]:
    """The bytes that a learner sends to the driver with each result."""
    from orchestrator.protocol import online
    from streams import build
    from streams.rainbow import RainbowDigits
    from streams.store.task_store import TaskStore

    store = TaskStore.open(build.cached(RainbowDigits(tasks=20, train=200), list(range(SEEDS))).path)
    run = online.assemble(store, "foml", {}, list(range(SEEDS)))
    run.advance(4)
    weight = len(pickle.dumps(run.advance(CHUNK)))
    curves = len(run.curves.by_batch)
    yield f"network: {weight} bytes a result ({CHUNK} batches, {SEEDS} seeds, {curves} curves of foml)"


def mlflow_rate(uri: str, name: str, server: int | None = None) -> Iterator[str]:
    """The CPU time of a point, in batches of a thousand, here and in the server's process (and its children)."""
    from orchestrator.tracking.database import connect, experiment_id, prepare
    from orchestrator.tracking.points import Point
    from orchestrator.tracking.requests import write

    prepare(uri)
    client = connect(uri)
    experiment = experiment_id(client, uri, f"scale-{os.getpid()}")
    run = client.create_run(experiment).info.run_id
    write(client, run, [Point("warm", 0, 1.0, 1)])
    servers = [] if server is None else [server, *children(server)]
    before, start, sent = sum(map(cpu_of, servers)), time.process_time(), 0
    while sent < 20_000:
        write(client, run, [Point(f"m{sent % 7}", sent + step, 0.5, 1_700_000_000_000) for step in range(1_000)])
        sent += 1_000
    local, remote = time.process_time() - start, sum(map(cpu_of, servers)) - before
    client.delete_run(run)
    yield f"MLflow, {name}: {1e6 * local / sent:.0f} us for a point here, {1e6 * remote / sent:.0f} us in the server"


def cpu_of(process: int) -> float:
    """The CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(parent: int) -> list[int]:
    """The descendants of a process."""
    direct = [
        int(each) for path in Path(f"/proc/{parent}/task").glob("*/children") for each in path.read_text().split()
    ]
    return direct + [grandchild for child in direct for grandchild in children(child)]


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, int]]:
    """An MLflow server on SQLite: its address and its process id."""
    port = 5_071
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/server.db"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process:
        try:
            import urllib.request

            for _ in range(900):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sweep:
        print(json.dumps(sweep(**json.loads(arguments.sweep))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        with server(Path(scratch)) as (uri, process):
            for line in mlflow_rate(uri, "a server on SQLite, by HTTP", process):
                print(line, flush=True)
        sqlite = mlflow_rate(f"sqlite:///{scratch}/here.db", "SQLite")
        for look in [sqlite, result_weight(), stream_actor(), driver()]:
            for line in look:
                print(line, flush=True)


if __name__ == "__main__":
    main()
