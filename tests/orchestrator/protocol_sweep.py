"""A sweep's folder as the sweep command writes it, computed by the bare protocol without Ray."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np

from learners import checkpoint
from orchestrator.config.load import load_sweep
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import Trial, sweep_folder
from orchestrator.plan.task_store import open_store
from orchestrator.protocol import online
from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal

CHUNK = 4


def compute(
    folder: Path, until: Callable[[int], int | None] = lambda index: None
) -> tuple[Path, tuple[Trial, ...], dict[str, Curves]]:
    """Compute `sweep.yaml` in `folder`, its trial number i up to `until(i)` batches (None: the whole stream).

    Returns the sweep's folder, its trials, and for each the curves of the whole stream.
    """
    sweep = load_sweep(folder / "sweep.yaml")
    store = open_store(sweep)
    root = sweep_folder(folder / sweep.document.storage, sweep.name)
    journal = Journal.look(root, make_plan(sweep, store.hash))
    journal.take()
    whole = {}
    for index, trial in enumerate(journal.plan.trials):
        of = trial.configuration
        run = online.assemble(store, of.learner, of.options, list(trial.seeds), of.batch_size, of.network)
        attempt = chunk_files.claim(trial.folder(root))
        stop = until(index)
        while not run.finished:
            run.advance(CHUNK)
            if stop is None or run.batches <= stop:
                if run.finished:
                    path = trial.folder(root) / chunk_files.LEARNER_FILE
                    checkpoint.save(path, of.learner, run.learner, of.network, store.shape)
                chunk_files.write(trial.folder(root), attempt, run.state_dict(), run.curves, run.finished)
        whole[trial.key] = run.curves
    return root, journal.plan.trials, whole


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    """Replace the middle third by other bytes."""
    content = bytearray(path.read_bytes())
    first, last = len(content) // 3, 2 * len(content) // 3
    content[first:last] = bytes((7 * at + 13) % 251 for at in range(last - first))
    path.write_bytes(content)


def flip(path: Path) -> None:
    """Flip one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def spoil_a_value(path: Path) -> None:
    """Change a number in a metric's row, as a bad block would: MLflow itself does not notice."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        (value,) = database.execute(
            "SELECT value FROM metrics WHERE key = 'online_loss' ORDER BY value DESC"
        ).fetchone()
    content = path.read_bytes()
    sought = np.array([value], dtype=">f8").tobytes()
    at = content.index(sought)
    path.write_bytes(content[:at] + np.array([value / 2], dtype=">f8").tobytes() + content[at + 8 :])
