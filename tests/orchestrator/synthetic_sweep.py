"""A sweep without a run: a plan, random curves, and the chunk files that trials would write."""

import atexit
import math
import random
import shutil
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from orchestrator.plan.plan import Configuration, Plan, Trial
from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files
from orchestrator.tracking import writer as tracking
from streams.store.canonical_json import digest

BATCHES, BATCHES_PER_TASK, CHUNK, BATCH_SIZE = 60, 10, 20, 10
POINTS, DIAGNOSTICS_EVERY = 100, 7
START_MS = 1_700_000_000_000


@dataclass
class SyntheticSweep:
    """A plan with the curves of its trials.

    Attributes:
        root: The sweep's folder.
        plan: The trials.
        whole: Trial's key → curves of the whole stream, from which parts are cut.
    """

    root: Path
    plan: Plan
    whole: dict[str, Curves] = field(default_factory=dict)

    def part(self, trial: Trial, start: int, stop: int) -> Curves:
        """The slice from batch `start` to before batch `stop`."""
        whole = self.whole[trial.key]
        at, ends = whole.evaluations["batch"], whole.chunks["batches"]
        chunked = (ends > start) & (np.append(0, ends[:-1]) < stop)
        return Curves(
            list(trial.seeds),
            start,
            {name: curve[:, start:stop] for name, curve in whole.by_batch.items()},
            {name: column[(at >= start) & (at < stop)] for name, column in whole.evaluations.items()},
            {name: column[chunked] for name, column in whole.chunks.items()},
            [batch if batch < stop else -1 for batch in whole.diverged],
            total_batches=whole.total_batches,
            total_tasks=whole.total_tasks,
        )

    def write_chunk(self, trial: Trial, stop: int | None = None) -> None:
        """The chunk file after `stop` batches, or the last one, with the learner beside it."""
        folder = trial.folder(self.root)
        whole = self.whole[trial.key]
        stop = whole.batches if stop is None else stop
        attempt = chunk_files.claim(folder)
        finished = stop == whole.batches
        if finished:
            (folder / chunk_files.LEARNER_FILE).write_bytes(b"learner of " + trial.key.encode())
        chunk_files.write(folder, attempt, {"position": stop * BATCH_SIZE}, self.part(trial, 0, stop), finished)

    def slices(self, trial: Trial) -> list[Curves]:
        """The curves chunk by chunk, as the trial reports them."""
        stop = self.whole[trial.key].batches
        return [self.part(trial, at, min(at + CHUNK, stop)) for at in range(0, stop, CHUNK)]


def configuration(learner: str, **options: object) -> Configuration:
    varying = " ".join(f"{key}={value}" for key, value in options.items())
    stream = {"name": "rainbow_digits", "options": {"tasks": 6}, "schedule": {"name": "sequential"}, "store": "0" * 64}
    return Configuration(
        learner=learner,
        options={"alpha1": 0.001, **options},
        network="rainbow",
        batch_size=BATCH_SIZE,
        stream=stream,
        label=f"{learner} {varying}".strip(),
    )


def curves_of(trial: Trial, batches: int = BATCHES, level: float = 0.5) -> Curves:
    """Random curves of a trial, the same for each call."""
    seeds, tasks = len(trial.seeds), batches // BATCHES_PER_TASK
    rng = np.random.default_rng(int(digest([trial.key, batches], 12), 16))
    ends = np.minimum(np.arange(CHUNK, batches + CHUNK, CHUNK), batches)
    falling = level * (0.4 + 0.6 * np.exp(-np.arange(tasks) / 3))
    distance = rng.standard_normal((seeds, batches))
    distance[:, 0] = math.nan  # a diagnostic without a first value
    online = rng.integers(0, 11, (seeds, batches)) / 10
    online_loss = rng.random((seeds, batches))
    error = np.clip(falling + 0.04 * rng.standard_normal((seeds, tasks)), 0, 1).T.ravel()
    return Curves(
        list(trial.seeds),
        0,
        {
            "online_error": online,
            "online_loss": online_loss,
            "distance": distance,
        },
        {
            "seed": np.tile(np.arange(seeds), tasks),
            "task": np.repeat(np.arange(tasks), seeds),
            "batch": np.repeat(np.arange(1, tasks + 1) * BATCHES_PER_TASK - 1, seeds),
            "error": error,
            "loss": rng.random(seeds * tasks),
            "test_error": np.minimum(1, error + 0.03),
        },
        {
            "batches": ends,
            "time_ms": START_MS + 1_000 * (1 + np.arange(len(ends))),
            "seconds": np.full(len(ends), 0.5),
            "gradient_evaluations": np.diff(ends, prepend=0) * BATCH_SIZE * 3,
        },
        total_batches=batches,
        total_tasks=tasks,
    )


def make_sweep(root: Path, name: str, *trials: Trial, batches: int = BATCHES) -> SyntheticSweep:
    resolved = {
        "name": name,
        "objective": {"metric": "cumulative_error", "mode": "min"},
        "seeds": [0, 1, 2],
        "tracking": {"points": POINTS, "diagnostics_every": DIAGNOSTICS_EVERY},
    }
    return SyntheticSweep(
        root, Plan(name, trials, resolved), {trial.key: curves_of(trial, batches) for trial in trials}
    )


def write_all(sweep: SyntheticSweep, uri: str, experiment: str = "experiment") -> str:
    """Send the whole sweep through a writer. Returns the id of its run."""
    writer = tracking.Writer(uri, experiment, sweep.plan, sweep.root, {"foml.git_commit": "abc"}, START_MS)
    writer.start()
    for trial in sweep.plan.trials:
        sweep.write_chunk(trial)
        for part in sweep.slices(trial):
            writer.results(trial.key, part)
        writer.finished(trial.key)
    assert writer.drain() == []
    return writer.close("FINISHED")


@cache
def empty_database() -> Path:
    """MLflow's database without runs, to copy: MLflow takes seconds to create its tables."""
    folder = tempfile.mkdtemp(prefix="foml-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tracking.prepare(f"sqlite:///{folder}/mlflow.db")
    return Path(folder, "mlflow.db")


def new_database(tmp_path: Path) -> str:
    """The URI of a new MLflow database in tmp_path/store."""
    (tmp_path / "store").mkdir()
    shutil.copy(empty_database(), tmp_path / "store" / "mlflow.db")
    return f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}"


def free_port() -> int:
    """An unused port below the system's ephemeral range, from which other tests get theirs."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(20_000, max(20_001, first))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
