"""Pack this working tree for the nodes of a cluster: `python -m orchestrator.ship`.

The folder `deploy/ship` then holds one wheel with its commit, the tested versions, and the scripts that set up a node;
cluster files mount it on every node. The first run creates the cluster's token in `~/.foml/auth_token`.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import OrchestratorError, fault
from orchestrator.tracking import provenance
from streams.command_line import CommandLine, command

TREE = Path(__file__).resolve().parent.parent
PACKED = ("pyproject.toml", "README.md", "LICENSE", "learners", "streams", "orchestrator", "tune_configs")
BESIDE = ("constraints.txt", "deploy/node.sh", "deploy/mlflow.sh", "deploy/foml.sh", "deploy/job.sh")
TOKEN = Path("~/.foml/auth_token")


def ship(out: Path, tree: Path = TREE) -> Path:
    """Fill the folder `out`, create a token if none exists, and return the path of the wheel.

    Raises:
        OrchestratorError: `tree` is not a working tree, or no wheel can be built from it.
    """
    if not (tree / "pyproject.toml").is_file():
        rule = "must be a working tree of this project"
        raise OrchestratorError(fault(str(tree), "", rule, remedy="ship from a clone, not from an installed package"))
    with tempfile.TemporaryDirectory(prefix="foml-ship-") as scratch:
        copy = Path(scratch) / "tree"
        for name in _files(tree):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, copy / name)
        (copy / "orchestrator" / provenance.COMMIT_FILE).write_text(" ".join(provenance.git_state()), encoding="utf-8")
        (copy / "orchestrator" / provenance.CHANGES_FILE).write_text(provenance.git_changes(), encoding="utf-8")
        built = Path(scratch) / "wheel"
        words = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--wheel-dir", str(built), str(copy)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise OrchestratorError(fault(str(tree), "", "no wheel can be built", done.stderr.strip()[-300:]))
        (wheel,) = built.glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("*.whl"):
            old.unlink()
        shutil.copy2(wheel, out / wheel.name)
    for name in BESIDE:
        shutil.copy2(tree / name, out / Path(name).name)
    make_token(TOKEN.expanduser())
    return out / wheel.name


def _files(tree: Path) -> list[str]:
    """The files to pack: those that git tracks or does not ignore; every file if git is missing."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *PACKED]
    try:
        listed = subprocess.run(words, cwd=tree, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        paths = [path for name in PACKED for path in (tree / name, *(tree / name).rglob("*"))]
        listed = [str(path.relative_to(tree)) for path in paths if "__pycache__" not in path.parts]
    return [name for name in listed if name and (tree / name).is_file()]


def make_token(path: Path) -> None:
    """Write a token to `path`, readable by its owner only, unless one exists."""
    if path.is_file() and path.stat().st_size:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.ship") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Pack this working tree for the nodes of a cluster.")
    parser.add_argument("--out", type=Path, default=TREE / "deploy" / "ship", help="the folder (default: deploy/ship)")
    wheel = ship(parser.parse_args(argv).out)
    commit, dirty = provenance.git_state()
    changes = ", with changes that are not committed" if dirty == "true" else ""
    print(f"{wheel}: commit {commit[:12]}{changes}\ntoken: {TOKEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
