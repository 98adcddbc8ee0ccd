"""Tables that are kept with runs in MLflow, each with its SHA-256 in a tag of its run: a damaged one is never read."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

CURVES_FILE = "curves.parquet"
TEST_FILE = "test_error.parquet"
HINDSIGHT_FILE = "hindsight.parquet"
"""Of the sweep's own run: what `orchestrator.protocol.hindsight.reference` came to."""
_DIGEST = "foml.sha256."
"""Before a table's name: the tag that holds its SHA-256."""


class DamagedTable(ValueError):  # noqa: N818
    """A table is not as it was written, or is not there; the text says which."""


def keep(client: Any, run_id: str, tables: Mapping[str, pd.DataFrame], tags: Mapping[str, str] | None = None) -> None:
    """Keep tables (name → table) with a run, in the place of those that may be there, and set its `tags`.

    The tags come first: whoever is cut off between the two leaves tables that are not as they should be, which is seen.
    """
    from mlflow.entities import RunTag

    with written(tables) as (paths, made):
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in (dict(tags or {}) | made).items()])
        for path in paths:
            client.log_artifact(run_id, str(path))


@contextmanager
def written(tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[list[Path], dict[str, str]]]:
    """Tables (name → table) as files, for this block, and the tags that a run which gets them must have before."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in tables]
        for path in paths:
            tables[path.name].to_parquet(path, index=False)
        yield paths, {_DIGEST + path.name: _sha256(path) for path in paths}


def digests(tags: Mapping[str, str], names: Iterable[str] = (CURVES_FILE, TEST_FILE, HINDSIGHT_FILE)) -> dict[str, str]:
    """Table → SHA-256, as a run's tags have them; runs of earlier versions have none."""
    return {name: tags[_DIGEST + name] for name in names if _DIGEST + name in tags}


def read(client: Any, run_id: str, artifacts: str, name: str, digest: str | None) -> pd.DataFrame | None:
    """A table of a run; None if it has none of this name, and is not known to have had one.

    Args:
        client: of MLflow.
        run_id: the run.
        artifacts: the URI of its artifacts.
        name: of the table.
        digest: its SHA-256; None if it is not known.

    Raises:
        DamagedTable: it is not as it was written, or no longer there.
        MlflowException, OSError: it is out of reach.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = _fetched(client, run_id, artifacts, name, folder)
        if path is None:
            if digest is None:
                return None
            raise DamagedTable("missing")
        if digest not in (None, _sha256(path)):
            raise DamagedTable("damaged (it is not as it was written)")
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise DamagedTable(f"damaged ({' '.join(str(error).split())[:200]})") from error


def damaged(client: Any, run_id: str, artifacts: str, known: Mapping[str, str]) -> dict[str, str]:
    """Which of these tables (name → SHA-256) are not as they were written, and what is the matter with them.

    Raises:
        MlflowException, OSError: they are out of reach.
    """
    found = {}
    for name, digest in known.items():
        try:
            read(client, run_id, artifacts, name, digest)
        except DamagedTable as error:
            found[name] = str(error)
    return found


def _fetched(client: Any, run_id: str, artifacts: str, name: str, folder: str) -> Path | None:
    """The file: where it lies if that is on this machine, else fetched into the folder. None if the run has none of
    this name.

    By the URI of the run's artifacts: asked by the run's id, MLflow looks the run up three times for each file.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException
    from mlflow.utils.uri import is_local_uri

    into = None if is_local_uri(artifacts) else folder
    try:
        return Path(download_artifacts(f"{artifacts}/{name}", dst_path=into, tracking_uri=client.tracking_uri))
    except (MlflowException, OSError):
        if name in {file.path for file in client.list_artifacts(run_id)}:
            raise
        return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
