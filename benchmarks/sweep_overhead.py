"""Overhead of a sweep beyond its trials: `python -m benchmarks.sweep_overhead [--minutes 2] [--K 5]`.

The same configurations on the same streams, once as a sweep (Ray, stream actors, checkpoints, MLflow, report), and once
by a bare script in the same number of parallel processes, which call the protocol and store nothing. Goal: at most 5 %
more. Also prints the sweep's estimates of the time left against the actual time left (goal: within 20 % from a tenth of
the time on).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STREAM = {"tasks": 8, "train": 500, "validation": 25, "test": 25}
SEEDS = [0, 1, 2]
WAYS = (0.1, 0.25, 0.5, 0.75)
_BARE = """
import sys, torch
from orchestrator.protocol import online
from streams import recipes
from streams.build import cached
torch.set_num_threads(1)
store = cached(recipes()["rainbow_digits"](**{stream}), {seeds})
for options in {options}:
    run = online.assemble(store, "foml", options, {seeds})
    while not run.finished:
        run.advance(40)
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep_overhead", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of work for each core (default 2)")
    parser.add_argument(
        "--K", type=int, default=5, help="FOML's; the paper's is the default, 1 learns three times as fast"
    )
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    count = _rounds(arguments.minutes, arguments.K) * cores
    learners = [{"K": arguments.K, "beta1": 0.001 * (1 + number)} for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="foml-overhead-") as folder:
        os.chdir(folder)
        bare = _bare(learners, cores)
        total, trials, estimates = _sweep(learners)
    print(f"{len(learners)} configurations of FOML, K = {arguments.K}, {len(SEEDS)} seeds, on {cores} cores")
    print(f"bare script: {bare:.1f} s; sweep: {total:.1f} s, {total / bare - 1:+.1%} (goal: at most +5 %)")
    print(f"  of which its trials, from the first's start to the last's end: {trials:.1f} s, {trials / bare - 1:+.1%}")
    print("\n| of the time | estimated time left | actual | |\n|---|---|---|---|")
    for way in WAYS:
        estimated, was = _at(way, estimates)
        print(f"| {way:.0%} | {estimated:.1f} s | {was:.1f} s | {estimated / was - 1:+.0%} |")


def _rounds(minutes: float, K: int) -> int:
    """The number of configurations that take `minutes` minutes, one after the other."""
    from orchestrator.protocol import online
    from streams import recipes
    from streams.build import cached

    run = online.assemble(cached(recipes()["rainbow_digits"](**STREAM), SEEDS), "foml", {"K": K}, SEEDS)
    run.advance(10)
    began = time.monotonic()
    run.advance(40)
    return max(2, round(60 * minutes / ((time.monotonic() - began) / 40 * run.total_batches)))


def _bare(options: list[dict[str, Any]], cores: int) -> float:
    began = time.monotonic()
    scripts = [
        _BARE.format(stream=STREAM, seeds=SEEDS, options=json.dumps(options[core::cores])) for core in range(cores)
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([sys.executable, "-c", script], env=environment) for script in scripts]
    if any(process.wait() for process in running):
        raise SystemExit("the bare script failed")
    return time.monotonic() - began


def _sweep(options: list[dict[str, Any]]) -> tuple[float, float, list[tuple[float, float]]]:
    """Seconds of the command; of its trials; and (seconds since their start, estimate of the time left), often."""
    sweep = {
        "name": "overhead",
        "stream": {"name": "rainbow_digits", **STREAM},
        "learners": [{"name": "foml", **one} for one in options],
        "seeds": SEEDS,
    }
    Path("sweep.yaml").write_text(json.dumps(sweep))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.sweep_overhead_eta", "--local", "sweep.yaml"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    total = time.monotonic() - began
    estimates = [tuple(map(float, line.split())) for line in Path("etas").read_text().splitlines()]
    return total, estimates[-1][0], [(at, seconds) for at, seconds in estimates]


def _at(way: float, estimates: list[tuple[float, float]]) -> tuple[float, float]:
    """The estimate after the share `way` of the time, and the actual time left then."""
    end = estimates[-1][0]
    at, estimated = next((at, seconds) for at, seconds in estimates if at >= way * end)
    return estimated, end - at


if __name__ == "__main__":
    main()
