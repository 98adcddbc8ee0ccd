"""Wall time of a command, and the processor time of it and of all processes that it starts.

    python -m benchmarks.processor_time python -m orchestrator.sweep --local

Processor time depends less than wall time on other work of the machine. Half of it is a lower bound of the wall time on
two cores. Processes are sampled twice a second: one that lives shorter is not counted.
"""

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress

import psutil

EVERY_S = 0.5
KINDS = ("ray::LearnerActor", "ray::StreamActor", "ray::", "raylet", "gcs_server", "ray/", "the command itself")
"""Parts of a command line; the first that is found names the kind, and the last stands for none."""


def kind(command: list[str]) -> str:
    """What a process is, by its command line."""
    line = " ".join(command)
    return next((each for each in KINDS if each in line), KINDS[-1])


def sample(root: psutil.Process, seen: dict[int, tuple[str, float]]) -> None:
    """Update pid → (kind, processor seconds so far) with the processes that are alive."""
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            times, name = process.cpu_times(), kind(process.cmdline())
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
        # A worker of Ray is named after its actor only once it has one, and loses the name when the actor ends.
        if process.pid in seen and KINDS.index(seen[process.pid][0]) <= KINDS.index(name):
            name = seen[process.pid][0]
        seen[process.pid] = name, times.user + times.system


def main() -> int:
    """Run the command, print the times on standard error, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processor_time", description=__doc__.split("\n")[0])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    command = parser.parse_args().command
    if not command:
        parser.error("a command is missing")
    seen: dict[int, tuple[str, float]] = {}
    start = time.monotonic()
    with subprocess.Popen(command) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with suppress(KeyboardInterrupt):  # the command receives it, too
                sample(root, seen)
                time.sleep(EVERY_S)
    wall = time.monotonic() - start
    by_kind: dict[str, float] = defaultdict(float)
    for name, seconds in seen.values():
        by_kind[name] += seconds
    total = sum(by_kind.values())
    print(f"wall {wall:.0f} s; processor {total:.0f} s, on two cores at least {total / 2:.0f} s", file=sys.stderr)
    for name, seconds in sorted(by_kind.items(), key=lambda pair: -pair[1]):
        print(f"  {seconds:6.1f} s  {name}", file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
