"""The checkpoints that learners start from: files, or those of runs in MLflow, copied to the sweep's folder."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

from orchestrator.config.schema import LearnerSpec, Start, Sweep
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.plan.plan import start_file
from orchestrator.tracking import checkpoints
from orchestrator.tracking.database import first_line, open_existing
from orchestrator.tracking.names import PARENT
from orchestrator.tracking.reader import artifact, find
from streams.errors import Faults, UserError
from streams.store.address import is_address
from streams.store.cache import cache_folder

_NO_OTHER = "a learner of your own starts only entries of itself"  # no other entry may import its module


def with_starts(sweep: Sweep) -> Sweep:
    """The sweep in which every `start` has its file and the file's digest.

    Raises:
        ConfigError: one line for each `start` that is not a checkpoint that the learner can start from.
    """
    if all(spec.start is None for spec in sweep.learners):
        return sweep
    faults = Faults(sweep.file)
    specs = [_with_start(sweep, spec, faults.at("learners", index)) for index, spec in enumerate(sweep.learners)]
    if is_address(sweep.document.storage):
        faults.add("storage", "must be a folder where a learner has a start", sweep.document.storage)
    faults.check(ConfigError)
    return replace(sweep, learners=tuple(specs))


def keep_starts(sweep: Sweep, root: Path) -> None:
    """Copy the checkpoints into the sweep's folder, from which every node reads them."""
    for spec in sweep.learners:
        if spec.start is not None and not (target := start_file(root, spec.start.digest)).exists():
            temporary = target.with_suffix(".tmp")
            shutil.copyfile(spec.start.path, temporary)
            temporary.replace(target)


def _with_start(sweep: Sweep, spec: LearnerSpec, faults: Faults) -> LearnerSpec:
    if spec.start is None:
        return spec
    from learners import checkpoint  # imports torch

    source, path = spec.start.source, Path(spec.start.source)
    try:
        path = _file(source, sweep)
        modules = checkpoint.modules_of(spec.name, sweep.network)
        saved = checkpoint.read(path, modules=modules, remedy=_NO_OTHER)
        checkpoint.check_start(saved, sweep.network, sweep.seeds)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        faults.add("start", f"must be a readable checkpoint ({error.strerror})", source)
    except ValueError as error:  # names the path, which may be that of a copy
        faults.add("start", first_line(ValueError(str(error).removeprefix(f"{path}: "))), source)
    except UserError as error:
        faults.add("start", "; ".join(error.faults), source)
    else:
        return replace(spec, start=Start(source, str(path), digest))
    return spec


def _file(source: str, sweep: Sweep) -> Path:
    """The checkpoint of a source: a path ending in .pt, from the current folder, or a run in MLflow."""
    if source.endswith(".pt"):
        return Path(source).expanduser().absolute()
    uri = sweep.document.tracking.uri
    client = open_existing(uri)
    run = find(client, source, uri)
    configuration = run.data.tags[PARENT] if "foml.seed" in run.data.tags else source
    files = checkpoints.artifacts(client, configuration, checkpoints.LAST)
    if len(files) != 1:
        rule = (
            "must be a run with one checkpoint" if files else "must be a run whose seeds are at the end of the stream"
        )
        raise OrchestratorError(f"{rule} (it has {len(files)})")
    folder = cache_folder() / "starts" / configuration
    folder.mkdir(parents=True, exist_ok=True)
    return artifact(client, configuration, files[0], str(folder))
