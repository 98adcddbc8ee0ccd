"""What `doctor` looks at, one check after the other."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from orchestrator.config.schema import Sweep
from orchestrator.doctor.nodes import Finding, check_nodes, gpus_agree, ill, torch_gpus, well
from orchestrator.execution.ray_session import local_gpus, prepare_environment
from orchestrator.storage.remote_folder import marker_file
from streams.errors import UserError
from streams.store.address import is_address, shown
from streams.store.cache import cache_folder

DISTRIBUTION = "foml-orchestrator"
_ROOM = 2 * 2**30
_SHARED_MEMORY = 2**30


def examine(sweep: Sweep, local: bool) -> Iterator[Finding]:
    """Everything that this sweep needs, one finding after the other as they come."""
    looks: list[Callable[[], Iterator[Finding]]] = [
        versions,
        lambda: machine(sweep),
        lambda: room(sweep),
        lambda: tracking(sweep),
        lambda: store(sweep),
        lambda: cluster(sweep, local),
    ]
    for look in looks:
        try:
            yield from look()
        except UserError as error:
            yield from map(ill, error.faults)


def versions() -> Iterator[Finding]:
    """Whether the packages installed are those that this one asks for."""
    from packaging.requirements import Requirement

    try:
        asked = [Requirement(text) for text in requires(DISTRIBUTION) or ()]
    except PackageNotFoundError:
        yield ill(f"{DISTRIBUTION} is not installed; run: pip install -e .")
        return
    shown = [f"Python {sys.version.split()[0]}"]
    for requirement in asked:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield ill(f"{requirement.name} is not installed; run: pip install -c constraints.txt -e .")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            yield ill(f"{requirement.name} must be {requirement.specifier} (got {found}); run: pip install -e .")
        shown.append(f"{requirement.name} {found}")
    yield well(", ".join(shown))


def machine(sweep: Sweep) -> Iterator[Finding]:
    """CPUs and GPUs of this machine."""
    wanted = sweep.document.resources
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield well(f"{cpus} CPUs here; a learner gets {wanted.cpus}, and torch as many threads")
    prepare_environment(local=True)  # how Ray counts is fixed when it is imported
    yield gpus_agree(torch_gpus(), local_gpus(), "here")
    folder = Path("/dev/shm")
    if folder.is_dir() and (there := shutil.disk_usage(folder).total) < _SHARED_MEMORY:
        yield ill(f"/dev/shm has {there / 2**20:.0f} MiB: Ray needs 1 GiB; in a container: --shm-size=2g")


def room(sweep: Sweep) -> Iterator[Finding]:
    """Whether there is room to write, where results and stores go."""
    storage = sweep.document.storage
    folders = {"cache": cache_folder()}
    if is_address(storage):
        with marker_file(storage):
            yield well(f"storage {shown(storage)}: can be written")
    else:
        folders = {"storage": Path(storage), **folders}
    for what, folder in folders.items():
        folder = folder.absolute()
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(there).free
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            yield ill(f"{what} {folder}: cannot be written ({error.strerror}); set {_setting(what)} to another folder")
            continue
        text = f"{what} {folder}: {free / 2**30:.0f} GiB free"
        yield well(text) if free >= _ROOM else ill(f"{text}; make room, or set {_setting(what)} to another folder")


def _setting(what: str) -> str:
    return "storage=" if what == "storage" else "FOML_CACHE"


def tracking(sweep: Sweep) -> Iterator[Finding]:
    """Whether MLflow answers, takes a run and a file, and gives them back."""
    from orchestrator.tracking import database

    uri = sweep.document.tracking.uri
    path = database.database_path(uri)
    if path is not None and not path.exists():
        yield well(f"MLflow {uri}: is made by the first sweep")
        return
    client = database.open_existing(uri)
    try:
        run = client.create_run("0", run_name="doctor").info.run_id
        try:
            client.log_metric(run, "doctor", 1.0)
            client.log_text(run, "doctor", "doctor.txt")
            back = client.get_run(run).data.metrics, client.list_artifacts(run)
        finally:
            client.delete_run(run)
    except Exception as error:
        line = database.first_line(error)
        yield ill(f"MLflow {uri}: cannot be written ({line}); look at the server's log, its disk and your rights")
        return
    if back[0] != {"doctor": 1.0} or len(back[1]) != 1:
        yield ill(f"MLflow {uri}: what was written did not come back; look at the server's log")
    else:
        yield well(f"MLflow {uri}: a run and a file were written and came back")


def store(sweep: Sweep) -> Iterator[Finding]:
    """Whether the task store, if the sweep names one, is whole."""
    from orchestrator.plan.task_store import open_store

    if sweep.store is None:
        yield well(f"task store: none named; {sweep.recipe.name} is built into the cache when it is first needed")
    else:
        opened = open_store(sweep)
        yield well(f"task store {sweep.store}: {opened.hash[:12]}, every byte as it was written; seeds {opened.seeds}")


def cluster(sweep: Sweep, local: bool) -> Iterator[Finding]:
    """Whether Ray works: one of our own, or the cluster of RAY_ADDRESS with every node of it."""
    yield from check_nodes(sweep, local or "RAY_ADDRESS" not in os.environ)
