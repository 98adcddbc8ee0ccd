"""The checkpoints of a learner: of a configuration's run in MLflow, or beside a checkpoint file."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.errors import OrchestratorError, fault
from orchestrator.storage import retention
from orchestrator.tracking.reader import artifact_files, history, tags, whole_curves
from orchestrator.tracking.runs import BATCHES

_FOLDER = "checkpoint"
LAST = None
"""The step of the checkpoint at the end of the stream."""


def artifacts(client: Any, run_id: str, step: int | None) -> list[str]:
    """The artifacts that hold a learner, one for each stack of seeds; empty before the end of the stream.

    Args:
        client: of MLflow.
        run_id: A configuration's run.
        step: the number of batches that the learner has seen; `LAST` for the whole stream.

    Raises:
        ArtifactError: the run is out of reach.
        OrchestratorError: no checkpoint of this step was kept.
    """
    stacks: dict[PurePosixPath, dict[int | None, str]] = {}
    for file in artifact_files(client, run_id, _FOLDER):
        path = PurePosixPath(file)
        if path.suffix == ".pt":
            stacks.setdefault(path.parent, {})[retention.step(path.name)] = file
    if step is not LAST and stacks:
        last = _batches(client, run_id)
        if step == last:
            step = LAST
        else:
            _check_kept(step, set.intersection(*map(set, stacks.values())), last or None)
    return sorted(files[step] for files in stacks.values() if step in files)


def _batches(client: Any, run_id: str) -> int:
    """The batches of a configuration's stream; 0 if not known."""
    if batches := tags(client, run_id).get(BATCHES):
        return int(batches)
    # A run of an earlier version: the mean curve ends where the first seed diverged, that of another seed does not.
    table = whole_curves(client, run_id)
    steps = history(client, run_id, "online_error") if table is None else table[table.metric == "online_error"].step
    return int(max(steps, default=-1)) + 1


def beside(path: Path, step: int | None) -> Path:
    """The checkpoint file of a step in the folder of another checkpoint file.

    Raises:
        OrchestratorError: there is none.
    """
    if step is None or retention.step(path.name) == step:
        return path
    files = {retention.step(each.name): each for each in path.parent.glob("learner-*.pt")}
    _check_kept(step, files, None)
    return files[step]


def _check_kept(step: int, checkpoints: Mapping[int | None, Path] | set[int | None], last: int | None) -> None:
    if step in checkpoints:
        return
    steps = sorted(each for each in checkpoints if each is not LAST)
    names: Sequence[str] = [*map(str, steps), *([] if last is None else [f"{last} (the last)"])]
    rule = f"must be a checkpoint that was kept: {', '.join(names) or 'only the last, which needs no --step'}"
    remedy = "" if steps else "a sweep with keep_checkpoints: all keeps one of every task"
    raise OrchestratorError(fault("--step", "", rule, step, remedy))
