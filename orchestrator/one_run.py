"""Finding the run that a user names by its id."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import OrchestratorError, fault
from orchestrator.run_tree import PARENT, search

_LISTED = 5


def find(client: Any, run: str, uri: str) -> Any:
    """The run of this id, a configuration's or a seed's.

    Raises:
        OrchestratorError: one line: there is none, or it is another kind of run.
    """
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_run(run)
    except MlflowException as error:
        rule = f"{uri} has none of this id"
        raise OrchestratorError(fault("run", "", rule, run, "the table of runs in MLflow's UI shows ids")) from error
    if "foml.kind" not in found.data.tags:
        raise OrchestratorError(fault("run", "", "must be a run of a sweep", run))
    if found.data.tags["foml.kind"] == "sweep":
        raise OrchestratorError(_is_a_sweep(client, found))
    return found


def _is_a_sweep(client: Any, found: Any) -> str:
    """The line about a sweep's run, with the runs that could have been meant."""
    runs = [
        f"{run.info.run_id} ({run.data.tags['foml.label']})"
        for run in search(client, [found.info.experiment_id], "tags.`foml.kind` = 'configuration'")
        if run.data.tags.get(PARENT) == found.info.run_id
    ]
    more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
    remedy = f"there are: {', '.join(runs[:_LISTED])}{more}" if runs else ""
    return fault("run", "", "must be a configuration's or a seed's, not a sweep's", found.info.run_id, remedy)
