"""Tables that are kept with runs in MLflow, each with its SHA-256 in a tag of its run: a damaged one is never read."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

CURVES_FILE = "curves.parquet"
TEST_FILE = "test_error.parquet"
HINDSIGHT_FILE = "hindsight.parquet"
"""Of the sweep's own run: what `orchestrator.hindsight.reference` came to."""
_DIGEST = "foml.sha256."
"""Before a table's name: the tag that holds its SHA-256."""


class DamagedTable(ValueError):  # noqa: N818
    """A table is not as it was written, or is not there; the text says which."""


def keep(client: Any, run_id: str, tables: Mapping[str, pd.DataFrame], tags: Mapping[str, str] | None = None) -> None:
    """Keep tables (name → table) with a run, in the place of those that may be there, and set its `tags`.

    The tags come first: whoever is cut off between the two leaves tables that are not as they should be, which is seen.
    """
    from mlflow.entities import RunTag

    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / name for name in tables}
        for name, path in paths.items():
            tables[name].to_parquet(path, index=False)
        every = dict(tags or {}) | {_DIGEST + name: _sha256(path) for name, path in paths.items()}
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in every.items()])
        for path in paths.values():
            client.log_artifact(run_id, str(path))


def digests(tags: Mapping[str, str], names: Iterable[str] = (CURVES_FILE, TEST_FILE, HINDSIGHT_FILE)) -> dict[str, str]:
    """Table → SHA-256, as a run's tags have them; runs of earlier versions have none."""
    return {name: tags[_DIGEST + name] for name in names if _DIGEST + name in tags}


def read(client: Any, run_id: str, name: str, digest: str | None) -> pd.DataFrame | None:
    """A table of a run; None if it has none of this name, and is not known to have had one.

    Args:
        client: of MLflow.
        run_id: the run.
        name: of the table.
        digest: its SHA-256; None if it is not known.

    Raises:
        DamagedTable: it is not as it was written, or no longer there.
        MlflowException, OSError: it is out of reach.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = _fetched(client, run_id, name, folder)
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


def damaged(client: Any, run_id: str, known: Mapping[str, str]) -> dict[str, str]:
    """Which of these tables (name → SHA-256) are not as they were written, and what is the matter with them.

    Raises:
        MlflowException, OSError: they are out of reach.
    """
    found = {}
    for name, digest in known.items():
        try:
            read(client, run_id, name, digest)
        except DamagedTable as error:
            found[name] = str(error)
    return found


def _fetched(client: Any, run_id: str, name: str, folder: str) -> Path | None:
    """The file, fetched into the folder; None if the run has none of this name."""
    from mlflow.exceptions import MlflowException

    try:
        return Path(client.download_artifacts(run_id, name, folder))
    except (MlflowException, OSError):
        if name in {file.path for file in client.list_artifacts(run_id)}:
            raise
        return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
