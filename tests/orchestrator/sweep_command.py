"""The sweep command as a user starts it: in a folder of its own, with a real Ray and a real MLflow."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import numpy as np
import pandas as pd
from mlflow.tracking import MlflowClient

from orchestrator.protocol import online as protocol
from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files
from orchestrator.sweep import __main__
from orchestrator.tracking.reader import load_curves
from streams import recipes
from streams.build import cached
from tests.orchestrator.synthetic_sweep import empty_database

LEARNERS = "[{name: foml, K: {grid: [1, 2]}}, {name: online}, {name: tfs, updates_per_task: 5}]"
"""Of the sweep TINY. With its 50 updates per task, TFS would take as long as the other three together."""
REPORTED = f"""
name: tiny
stream: {{name: rainbow_digits, tasks: 3, train: 50, validation: 12, test: 12}}
learners: {LEARNERS}
seeds: 2
chunk: 4
"""
TINY = f"{REPORTED}report: false\n"
"""Without the report, which takes longer than the trials."""
LONG = """
name: long
stream: {name: rainbow_digits, tasks: 4, train: 150, validation: 12, test: 12}
learners: [{name: foml, K: 3}]
seeds: 2
chunk: 2
report: false
"""
PATIENCE_S = 540
"""Seconds for a command that takes half a minute on an idle machine."""
Value = TypeVar("Value")


def command(*words: str, local: bool = True) -> list[str]:
    return [sys.executable, "-m", "orchestrator.sweep", *(["--local"] if local else []), *words]


def with_database(folder: Path) -> None:
    """Copy an empty database into a folder without one."""
    if not (folder / "mlflow.db").exists():
        shutil.copy(empty_database(), folder)


def environment(slots: int) -> dict[str, str]:
    """The environment of a command whose own Ray has this number of processors, and so of simultaneous trials.

    Each learner actor starts Python and torch, which takes longer than trials as short as those of the tests.
    """
    return os.environ | {"RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": slots})}


def run(
    folder: Path, *words: str, timeout: float = PATIENCE_S, fresh: bool = False, slots: int = 1
) -> subprocess.CompletedProcess[str]:
    """The command, to its end.

    Args:
        fresh: it creates the database of MLflow.
        slots: see `environment`.
    """
    if not fresh:
        with_database(folder)
    return subprocess.run(
        command(*words), cwd=folder, capture_output=True, text=True, timeout=timeout, env=environment(slots)
    )


def run_here(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in this process, which saves a start of Python and its imports.

    Only for a command that starts no Ray, and opens no database or one with an absolute path: MLflow caches connections
    by URI.
    """
    out, errors, argv = io.StringIO(), io.StringIO(), [__main__.__file__, *command(*words)[3:]]
    patches = patch.object(sys, "argv", argv), patch.object(sys, "orig_argv", command(*words))
    with chdir(folder), redirect_stdout(out), redirect_stderr(errors), patches[0], patches[1]:
        try:
            code = __main__.main()
        except SystemExit as ended:  # a usage error
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(command(*words), code, out.getvalue(), errors.getvalue())


@contextmanager
def running(
    folder: Path, *words: str, fresh: bool = False, local: bool = True, slots: int = 1
) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, which is killed at the end of the block.

    Args:
        fresh: see `run`.
        local: start a Ray, instead of joining that of `RAY_ADDRESS`.
        slots: see `environment`.
    """
    if not fresh:
        with_database(folder)
    with subprocess.Popen(
        command(*words, local=local),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(slots),
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def folder_with(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    return folder


def trials(folder: Path, name: str) -> list[Path]:
    return sorted(path for path in (folder / "results" / name).iterdir() if list(path.glob("chunk-*")))


def curves_of(folder: Path, name: str) -> dict[str, Curves]:
    newest = {path.name: chunk_files.newest(path) for path in trials(folder, name)}
    return {key: chunk.curves for key, chunk in newest.items() if chunk is not None and chunk.finished}


def assert_same(one: Curves, two: Curves) -> None:
    assert one.by_batch.keys() == two.by_batch.keys()
    for name in one.by_batch:
        assert np.array_equal(one.by_batch[name], two.by_batch[name], equal_nan=True), name
    for name in one.evaluations:
        assert np.array_equal(one.evaluations[name], two.evaluations[name], equal_nan=True), name


def uri(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


def statuses(folder: Path) -> list[str]:
    client = MlflowClient(uri(folder))
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return [run.info.status for run in client.search_runs(experiments, max_results=1000)]


def points(folder: Path, name: str, metric: str) -> pd.DataFrame:
    frame = load_curves(name, uri(folder))
    return frame[frame["metric"] == metric]


def assert_long_is_whole(folder: Path, train: int = 150) -> None:
    """The sweep LONG is as if it had never been interrupted: the bare protocol's curves, each step once, nothing RUNNING."""
    (trial,) = trials(folder, "long")
    recipe = recipes()["rainbow_digits"](tasks=4, train=train, validation=12, test=12)  # type: ignore[call-arg]
    bare = protocol.assemble(cached(recipe, [0, 1]), "foml", {"K": 3}, [0, 1])
    bare.advance(1_000)
    assert_same(curves_of(folder, "long")[trial.name], bare.curves)
    online = points(folder, "long", "online_error")
    online = online[online["seed"].notna()]
    for row, seed in enumerate((0, 1)):
        own = online[online["seed"] == seed].sort_values("step")
        assert own["step"].tolist() == list(range(4 * train // 10))
        assert np.array_equal(own["value"].to_numpy(), bare.curves.by_batch["online_error"][row])
    assert statuses(folder) == ["FINISHED"] * (1 + 1 + 2)


def reached(folder: Path, name: str, batches: int) -> Path | None:
    """The newest attempt's file, once the trial has a chunk of that attempt with at least this number of batches."""
    root = folder / "results" / name
    for attempt in sorted(root.glob("*/attempt-*"), reverse=True)[:1]:
        number = attempt.name.removeprefix("attempt-")
        if any(int(path.name[6:14]) >= batches for path in attempt.parent.glob(f"chunk-*-{number}.pt")):
            return attempt
    return None


def wait_for(
    condition: Callable[[], Value | None], process: subprocess.Popen[str] | None, timeout: float = PATIENCE_S
) -> Value:
    """The condition's first value that is not None; the process, if any, must live until then."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if (value := condition()) is not None:
            return value
        assert process is None or process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    if process is not None:
        process.kill()
    raise AssertionError("the condition was not met in time")


def family(pid: int) -> dict[int, str]:
    """Process id → command line, of a process and all that come from it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it ended meanwhile
            children.setdefault(parent, []).append(int(path.name))
    found, waiting = {}, [pid]
    while waiting:
        one = waiting.pop()
        found[one] = command_line(one)
        waiting += children.get(one, [])
    return found


def command_line(pid: int) -> str:
    """Empty for a process that is no more, or waits to be buried."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
