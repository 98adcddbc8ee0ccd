"""Where a result comes from: code, versions, machine and command."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COMMIT_FILE = "COMMIT"
"""Beside this file where the package was shipped to a cluster without its repository: commit, and whether dirty."""
PACKAGES = ("ray", "torch", "torchvision", "mlflow", "pyarrow", "numpy")


def collect(store_hash: str) -> dict[str, str]:
    """Tags for the sweep's run: git commit and whether the tree was dirty, versions, host, command line, store."""
    commit, dirty = git_state()
    return {
        "foml.git_commit": commit,
        "foml.git_dirty": dirty,
        "foml.version": package_version("foml-orchestrator"),
        "foml.versions": " ".join(f"{name}={package_version(name)}" for name in PACKAGES),
        "foml.python": platform.python_version(),
        "foml.platform": platform.platform(),
        "foml.hostname": socket.gethostname(),
        "foml.command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "foml.store": store_hash,
    }


def git_state() -> tuple[str, str]:
    """The commit of this code, and "true", "false" or "unknown" for whether the tree differs from it."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        shipped = Path(__file__).with_name(COMMIT_FILE)
        commit, _, dirty = (shipped.read_text(encoding="utf-8") if shipped.is_file() else "").partition(" ")
        return commit or "unknown", dirty or "unknown"
    try:
        return _git(folder, "rev-parse", "HEAD"), str(bool(_git(folder, "status", "--porcelain"))).lower()
    except (OSError, subprocess.SubprocessError):
        return "unknown", "unknown"


def _git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
