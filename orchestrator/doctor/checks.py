"""The checks of `doctor` on this machine: packages, hardware, disks, MLflow, task store."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from orchestrator.config.schema import Sweep
from orchestrator.doctor.nodes import Check, check_nodes, gpus_agree, resources, torch_gpus
from orchestrator.errors import existing
from orchestrator.execution.ray_session import cluster_address, local_gpus, prepare_environment
from orchestrator.storage.remote_folder import marker_file
from streams.errors import UserError
from streams.store.address import is_address, without_keys
from streams.store.cache import cache_folder

DISTRIBUTION = "foml-orchestrator"
_FREE_SPACE = 2 * 2**30
_SHARED_MEMORY = 2**30


def examine(sweep: Sweep, local: bool) -> Iterator[Check]:
    """Yield the result of each check of what this sweep needs, as soon as it is known."""
    checks: list[Callable[[], Iterator[Check]]] = [
        versions,
        lambda: machine(sweep),
        lambda: disk_space(sweep),
        lambda: tracking(sweep),
        lambda: store(sweep),
        lambda: cluster(sweep, local),
    ]
    for check in checks:
        try:
            yield from check()
        except UserError as error:
            yield from map(Check.failed, error.faults)


def versions() -> Iterator[Check]:
    """Whether the installed packages meet the requirements of this one."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in requires(DISTRIBUTION) or ()]
    except PackageNotFoundError:
        yield Check.failed(f"{DISTRIBUTION} is not installed; run: pip install -e .")
        return
    names = [f"Python {sys.version.split()[0]}"]
    for requirement in requirements:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            yield Check.failed(f"{requirement.name} is not installed; run: pip install -c constraints.txt -e .")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield Check.failed(
                f"{requirement.name} must be {requirement.specifier} (got {installed}); run: pip install -e ."
            )
        names.append(f"{requirement.name} {installed}")
    yield Check.ok(", ".join(names))


def machine(sweep: Sweep) -> Iterator[Check]:
    """Whether this machine has the CPUs, GPUs and shared memory that Ray and torch need."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check.ok(f"{cpus} CPUs here; a learner gets {sweep.document.resources.cpus}, and torch as many threads")
    prepare_environment(local=True)  # Ray reads the environment when it is imported
    yield gpus_agree(torch_gpus(), local_gpus(), "here")
    folder = Path("/dev/shm")
    if folder.is_dir() and (size := shutil.disk_usage(folder).total) < _SHARED_MEMORY:
        yield Check.failed(f"/dev/shm has {size / 2**20:.0f} MiB: Ray needs 1 GiB; in a container: --shm-size=2g")


def disk_space(sweep: Sweep) -> Iterator[Check]:
    """Whether the folders of results and task stores can be written and have free space."""
    storage = sweep.document.storage
    folders = {"cache": (cache_folder(), "FOML_CACHE")}
    if is_address(storage):
        with marker_file(storage):
            yield Check.ok(f"storage {without_keys(storage)}: can be written")
    else:
        folders = {"storage": (Path(storage), "storage="), **folders}
    for name, (path, setting) in folders.items():
        folder = path.absolute()
        closest = existing(folder)
        free = shutil.disk_usage(closest).free
        remedy = f"set {setting} to another folder"
        try:
            with tempfile.TemporaryFile(dir=closest):
                pass
        except OSError as error:
            yield Check.failed(f"{name} {folder}: cannot be written ({error.strerror}); {remedy}")
            continue
        text = f"{name} {folder}: {free / 2**30:.0f} GiB free"
        yield Check.ok(text) if free >= _FREE_SPACE else Check.failed(f"{text}; free some space, or {remedy}")


def tracking(sweep: Sweep) -> Iterator[Check]:
    """Whether MLflow answers, and returns a run and a file that are written to it."""
    from orchestrator.tracking import database

    uri = sweep.document.tracking.uri
    path = database.database_path(uri)
    if path is not None and not path.exists():
        yield Check.ok(f"MLflow {uri}: the first sweep creates it")
        return
    client = database.open_existing(uri)
    try:
        run = client.create_run("0", run_name="doctor").info.run_id
        try:
            client.log_metric(run, "doctor", 1.0)
            client.log_text(run, "doctor", "doctor.txt")
            metrics, files = client.get_run(run).data.metrics, client.list_artifacts(run)
        finally:
            client.delete_run(run)
    except Exception as error:
        line = database.first_line(error)
        yield Check.failed(
            f"MLflow {uri}: cannot be written ({line}); check the server's log, its disk and your permissions"
        )
        return
    if metrics != {"doctor": 1.0} or len(files) != 1:
        yield Check.failed(f"MLflow {uri}: did not return what was written; check the server's log")
    else:
        yield Check.ok(f"MLflow {uri}: a run and a file were written and read back")


def store(sweep: Sweep) -> Iterator[Check]:
    """Whether every byte of the task store that the sweep names is as it was written."""
    from orchestrator.plan.task_store import open_store

    if sweep.store is None:
        yield Check.ok(f"task store: none named; {sweep.recipe.name} is built into the cache on first use")
    else:
        opened = open_store(sweep)
        yield Check.ok(
            f"task store {sweep.store}: {opened.hash[:12]}, every byte as it was written; seeds {opened.seeds}"
        )


def cluster(sweep: Sweep, local: bool) -> Iterator[Check]:
    """Whether Ray starts on this machine, or every node of RAY_ADDRESS's cluster is usable, and trials fit."""
    here = local or cluster_address() is None
    if here:
        yield from resources(sweep, os.cpu_count() or 1, local_gpus(), "this machine")
    yield from check_nodes(sweep, here)
