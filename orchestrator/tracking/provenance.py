"""The origin of a result: code, versions, machine and command."""

import getpass
import hashlib
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from orchestrator.tracking.names import INTERNAL
from streams.errors import masked

STORE, STORE_PATH = f"{INTERNAL}store", "foml.store_path"
"""Tags: hash and path of the task store."""
COMMIT_FILE = "COMMIT"
"""In the package's folder if it was shipped to a cluster without its repository: commit, and whether dirty."""
CHANGES_FILE = "CHANGES.diff"
"""Beside it: the difference between the tree and the commit."""
PACKAGES = ("ray", "torch", "torchvision", "mlflow", "pyarrow", "numpy")
DIFF_BYTES = 1_000_000
"""The size at which the difference between tree and commit is cut off."""
_TREE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Provenance:
    """The origin of a sweep's results.

    Attributes:
        tags: of the sweep's run and of every run in it.
        files: artifacts of the sweep's run, path → text.
    """

    tags: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)


def collect(store_hash: str, store_path: Path, manifest: str) -> Provenance:
    """The origin of a sweep's results as far as it is known at the start.

    Args:
        store_hash: of the task store.
        store_path: its path on this machine.
        manifest: its manifest, as text.
    """
    commit, dirty = git_state()
    tags = {
        "foml.git_commit": commit,
        "foml.git_dirty": dirty,
        "foml.version": package_version("foml-orchestrator"),
        "foml.versions": versions(),
        "foml.python": platform.python_version(),
        "foml.platform": platform.platform(),
        "foml.hostname": socket.gethostname(),
        "foml.command": masked(command_line()),
        STORE: store_hash,
        STORE_PATH: str(store_path),
    }
    tags |= _of_mlflow(commit)
    files = {"provenance/packages.txt": _installed(), "provenance/store_manifest.json": manifest}
    changes = masked(git_changes()) if dirty == "true" else ""
    if changes:
        path = f"provenance/changes-{hashlib.sha256(changes.encode()).hexdigest()[:12]}.diff"
        tags["foml.git_diff"] = path  # named by its content: a sweep resumed with other changes has both
        files[path] = changes
    return Provenance(tags, files)


def _of_mlflow(commit: str) -> dict[str, str]:
    """The tags that MLflow's UI shows as source, version and user."""
    words = command_line().split()
    source = words[2] if words[:2] == ["python", "-m"] else words[0]
    tags = {"mlflow.source.name": source, "mlflow.source.type": "LOCAL"}
    if commit != "unknown":
        tags["mlflow.source.git.commit"] = commit
    with suppress(ImportError, KeyError, OSError):  # a container without a name for its user
        tags["mlflow.user"] = getpass.getuser()
    return tags


def command_line() -> str:
    """The command that started this process, as a line to paste into a shell."""
    if sys.orig_argv[1:2] == ["-m"]:
        return shlex.join(["python", *sys.orig_argv[1:]])
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def git_state(tree: Path = _TREE) -> tuple[str, str]:
    """The commit of this code, and "true", "false" or "unknown" for whether the tree differs from it."""
    if not (tree / ".git").exists():
        commit, _, dirty = _beside(COMMIT_FILE).partition(" ")
        return commit or "unknown", dirty or "unknown"
    try:
        return _git(tree, "rev-parse", "HEAD"), str(bool(_git(tree, "status", "--porcelain"))).lower()
    except (OSError, subprocess.SubprocessError):
        return "unknown", "unknown"


@cache
def code() -> str:
    """Commit, state of the tree and versions in one line, cached per process."""
    commit, dirty = git_state()
    changed = {"true": ", changed", "false": ""}.get(dirty, ", not known whether changed")
    return f"commit {commit[:12]}{changed}; {versions()}"


def git_changes(tree: Path = _TREE) -> str:
    """The difference between the tree and its commit as a patch with new files, cut off after `DIFF_BYTES`.

    Empty if there is none, or it cannot be determined.
    """
    if not (tree / ".git").exists():
        return _beside(CHANGES_FILE)
    try:
        with tempfile.TemporaryDirectory(prefix="foml-diff-") as scratch:
            index = Path(scratch) / "index"  # a copy, so that adding new files does not change the user's index
            original = tree / _git(tree, "rev-parse", "--git-path", "index")
            if original.is_file():
                shutil.copyfile(original, index)
            environment = {"GIT_INDEX_FILE": str(index)}
            _git(tree, "add", "--intent-to-add", "--all", **environment)
            return _head_of_output(tree, ["diff", "HEAD", "--no-color", "--no-ext-diff"], environment)
    except (OSError, subprocess.SubprocessError):
        return ""


def _head_of_output(tree: Path, words: list[str], environment: dict[str, str]) -> str:
    with subprocess.Popen(
        ["git", *words], cwd=tree, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        read = process.stdout.read(DIFF_BYTES + 1)
        process.kill()
    text = read[:DIFF_BYTES].decode(errors="replace")
    return text if len(read) <= DIFF_BYTES else f"{text}\n… cut off after {DIFF_BYTES} bytes\n"


def _beside(name: str) -> str:
    shipped = Path(__file__).parents[1] / name
    return shipped.read_text(encoding="utf-8") if shipped.is_file() else ""


def _git(folder: Path, *words: str, **more: str) -> str:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", **more}
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def versions() -> str:
    """The packages that results may depend on, each with its version."""
    return " ".join(f"{name}={package_version(name)}" for name in PACKAGES)


def package_version(package: str) -> str:
    """The installed version of a package, or "unknown"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _installed() -> str:
    """All installed packages, one per line."""
    lines = {f"{one.metadata['Name']}=={one.version}" for one in distributions() if one.metadata["Name"]}
    return "".join(f"{line}\n" for line in sorted(lines, key=str.lower))
