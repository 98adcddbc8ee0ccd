"""Tables that are stored with runs in MLflow, each with its SHA-256 in a tag of the run: a damaged one is never read.

Parquet's own page checksums do not replace the tag: they do not cover the file's footer (one flipped bit there
can rename a column), a missing file, or a table of an earlier upload.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from orchestrator.protocol import metrics
from orchestrator.protocol.curves import Curves
from orchestrator.tracking.names import INTERNAL
from orchestrator.tracking.points import TRANSFER, Point, metric_name, seed_curves

CURVES_FILE = "curves.parquet"
TEST_FILE = "test_error.parquet"
SEEDS_FILE = "seeds.csv"
"""With a configuration whose seeds have no runs, as MLflow's UI shows such a file as a table."""
HINDSIGHT_FILE = "hindsight.parquet"
"""With the sweep's own run: the result of `orchestrator.protocol.hindsight.reference`."""
_DIGEST = f"{INTERNAL}sha256."
"""Prefix of the tag with a table's SHA-256; the table's name follows."""


_Piece = tuple[int, str, Any, Any]  # seed, metric, steps, values
_COLUMNS = ["seed", "metric", "step", "value"]
_REPEATED = ("seed", "metric")
"""Columns with few values, which are stored as a dictionary; of the others a dictionary costs half of the time."""
ROW_GROUP = 262_144
"""Rows of a row group, about one megabyte compressed: a reader of some rows skips the other groups."""


class DamagedTable(ValueError):  # noqa: N818
    """A table is damaged or missing; the text says which."""


def keep(
    client: Any, run_id: str, tables: Mapping[str, pd.DataFrame], write_tags: Callable[[Mapping[str, str]], None]
) -> None:
    """Store tables (name → table) with a run in place of earlier ones.

    The tags with their SHA-256 are written first: after an interruption between the two the tables do not match, which
    readers notice.

    Args:
        client: of MLflow.
        run_id: the run.
        tables: by name.
        write_tags: writes tags of the run before it returns.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in tables]
        for path in paths:
            repeated = [name for name in _REPEATED if name in tables[path.name]]
            tables[path.name].to_parquet(
                path, index=False, compression="zstd", row_group_size=ROW_GROUP, use_dictionary=repeated or False
            )
        write_tags({_DIGEST + path.name: _sha256(path) for path in paths})
        for path in paths:
            client.log_artifact(run_id, str(path))


def digests(tags: Mapping[str, str], names: Iterable[str] = (CURVES_FILE, TEST_FILE, HINDSIGHT_FILE)) -> dict[str, str]:
    """Table → SHA-256, from a run's tags; runs of early versions have none."""
    return {name: digest for name in names if (digest := tags.get(_DIGEST + name))}


def without(name: str) -> dict[str, str]:
    """The tags of a run whose table of this name is out of date."""
    return {_DIGEST + name: ""}


def read(client: Any, run_id: str, artifacts: str, name: str, digest: str | None) -> pd.DataFrame | None:
    """A table of a run, or None if the run never had one of this name.

    Args:
        client: of MLflow.
        run_id: the run.
        artifacts: the URI of its artifacts.
        name: of the table.
        digest: the table's SHA-256; None if the run has no tag with it.

    Raises:
        DamagedTable: it is damaged or missing.
        MlflowException, OSError: it cannot be reached.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = _fetched(client, run_id, artifacts, name, folder)
        if path is None:
            if digest is None:
                return None
            raise DamagedTable("missing")
        if digest not in (None, _sha256(path)):
            raise DamagedTable("damaged (its SHA-256 differs)")
        try:
            table = pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise DamagedTable(f"damaged ({' '.join(str(error).split())[:200]})") from error
    if name == CURVES_FILE:
        table["metric"] = table.metric.map({name: metric_name(name) for name in table.metric.unique()})
    return table


def damaged(client: Any, run_id: str, artifacts: str, digests: Mapping[str, str]) -> dict[str, str]:
    """Name → fault, of those tables (name → SHA-256) that are damaged or missing.

    Raises:
        MlflowException, OSError: they cannot be reached.
    """
    faults = {}
    for name, digest in digests.items():
        try:
            read(client, run_id, artifacts, name, digest)
        except DamagedTable as error:
            faults[name] = str(error)
    return faults


def _fetched(client: Any, run_id: str, artifacts: str, name: str, folder: str) -> Path | None:
    """The path of a file on this machine, downloaded into `folder` if need be; None if the run has none of this name.

    The URI of the run's artifacts is used because MLflow would look the run's id up three times for each file.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException
    from mlflow.utils.uri import is_local_uri

    target = None if is_local_uri(artifacts) else folder
    try:
        return Path(download_artifacts(f"{artifacts}/{name}", dst_path=target, tracking_uri=client.tracking_uri))
    except (MlflowException, OSError):
        if name in {file.path for file in client.list_artifacts(run_id)}:
            raise
        return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def of_configuration(curves: Sequence[Curves], finals: Sequence[Sequence[Sequence[Point]]]) -> dict[str, pd.DataFrame]:
    """The tables of a configuration: every point of every seed, and the test errors, which have tasks as steps.

    Test errors are not metrics, so that nothing is selected by them.

    Args:
        curves: of each stack.
        finals: by stack and seed, the points that exist only at the end.
    """
    points, test_errors = list[_Piece](), list[_Piece]()
    for part, of_seeds in zip(curves, finals, strict=True):
        for seed, final, of_seed in zip(part.seeds, of_seeds, seed_curves(part), strict=True):
            points += [(seed, each.metric, each.steps, each.values) for each in of_seed]
            for metric, of_metric in groupby(final, lambda point: point.metric):
                steps, values = zip(*((point.step, point.value) for point in of_metric), strict=True)
                points.append((seed, metric, steps, values))
        if "test_error" in part.evaluations:
            for seed, by_task in zip(part.seeds, metrics.held_out(part, "test_error"), strict=True):
                tasks = np.flatnonzero(np.isfinite(by_task))
                test_errors.append((seed, "test_error", tasks, by_task[tasks]))
    return {CURVES_FILE: _joined(points), TEST_FILE: _joined(test_errors)}


def final_values(curves: Sequence[Curves]) -> pd.DataFrame:
    """One row per seed: the last value of each curve by task, and the means of the curves by batch.

    Forward transfer is the mean over tasks from the second one, as in the report.
    """
    rows = []
    for part in curves:
        by_task = metrics.held_out(part)
        ends = {"validation_error": by_task, "cumulative_error": metrics.cumulative(by_task)}
        ends |= metrics.past_curves(part)
        for row, seed in enumerate(part.seeds):
            diverged = metrics.diverged_at(part, row)
            values: dict[str, Any] = {"seed": seed, "batches": part.batches, "diverged_at": None}
            if diverged >= 0:
                values["diverged_at"] = diverged
            for name, curve in ends.items():
                finite = curve[row][np.isfinite(curve[row])]
                values[name] = finite[-1] if len(finite) else None
            for name, curve in part.by_batch.items():
                finite = curve[row][np.isfinite(curve[row])][1 if name == TRANSFER else 0 :]
                values[metric_name(name)] = finite.mean() if len(finite) else None
            rows.append(values)
    return pd.DataFrame(rows)


def _joined(pieces: Sequence[_Piece]) -> pd.DataFrame:
    """One table of all pieces.

    A pandas frame for each piece, or names as objects of Python, would take most of the time of a finished trial.
    """
    if not pieces:
        return pd.DataFrame(columns=_COLUMNS)
    seeds, names, steps, values = zip(*pieces, strict=True)
    lengths = [len(of_piece) for of_piece in steps]
    different = list(dict.fromkeys(names))
    indices = np.array([different.index(name) for name in names], dtype=np.int32)
    columns = (
        np.repeat(np.array(seeds), lengths),
        pa.DictionaryArray.from_arrays(np.repeat(indices, lengths), different).dictionary_decode(),
        np.concatenate([np.asarray(of_piece, dtype=np.int64) for of_piece in steps]),
        np.concatenate([np.asarray(of_piece, dtype=float) for of_piece in values]),
    )
    table: pd.DataFrame = pa.table(dict(zip(_COLUMNS, columns, strict=True))).to_pandas()
    return table
