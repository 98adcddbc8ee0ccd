"""A sweep on a cluster, given from a laptop: `python -m orchestrator.sweep --cluster FILE ...`.

It runs on the head, whatever becomes of the laptop; this end starts it, follows its log and fetches its report. All
goes through Ray's launcher, by ssh: no port has to be open.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from orchestrator import config, provenance
from orchestrator.cluster_file import read_cluster_file
from orchestrator.errors import OrchestratorError, fault
from orchestrator.plan import sweep_folder
from streams.address import is_address

SHARED = "/srv/foml"
_CODE = re.compile(r"^exit code (\d+|unknown)\s*$")
_COMMIT = re.compile(r"^([0-9a-f]{40}) (true|false)\s*$")


class Head:
    """The head of the cluster that a file describes. `launch`: what `ray` is called by."""

    def __init__(self, file: Path, launch: Sequence[str] = (sys.executable, "-m", "ray.scripts.scripts")) -> None:
        self.file, self._launch = file, launch

    def run(self, command: str, tell: Callable[[str], None] | None = None) -> list[str]:
        """Run a command there. Each line is told as it comes, if `tell` is given.

        Raises:
            OrchestratorError: the head cannot be reached, or the command fails.
        """
        lines = []
        words = [*self._launch, "exec", str(self.file), command]
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                lines.append(line.rstrip())
                if tell is not None:
                    tell(line.rstrip())
            errors = process.stderr.read()
        if process.returncode:
            said = [line for line in lines if _is_said(line)] or errors.splitlines() or ["nothing"]
            rule = "the head cannot be reached, or does not do as asked"
            raise OrchestratorError(fault(str(self.file), "", rule, said[-1], "is the cluster up? ray up"))
        return lines

    def put(self, here: Path, there: str) -> None:
        """Copy a file to the head."""
        self._copy("rsync-up", str(here), there)

    def get(self, there: str, here: Path) -> None:
        """Copy a folder from the head."""
        here.mkdir(parents=True, exist_ok=True)
        self._copy("rsync-down", f"{there}/", f"{here}/")

    def _copy(self, way: str, source: str, target: str) -> None:
        done = subprocess.run(
            [*self._launch, way, str(self.file), source, target],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
            raise OrchestratorError(fault(str(self.file), "", f"{source} cannot be copied to {target}", said))


def submit(cluster: Path, file: str | None, overrides: Sequence[str], words: Sequence[str], detach: bool) -> int:
    """Start a sweep on the cluster's head, and follow it to its end unless `detach`. Returns its exit code.

    Args:
        cluster: a file for `ray up`.
        file: the sweep; the quickstart if None.
        overrides: `key=value` words.
        words: further words for the command there, such as `--rerun`.
        detach: come back as soon as it runs.

    Raises:
        OrchestratorError: a fault in either file, a head that does not answer or that has another state of the project.
    """
    read_cluster_file(cluster)
    sweep = config.load(file, overrides)
    head = Head(cluster)
    job = sweep_folder("", sweep.name).name.replace(" ", "%20")
    _same_state(head)
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(scratch) / "sweep.yaml"
        given.write_text(yaml.safe_dump(dict(sweep.given), sort_keys=False, allow_unicode=True), encoding="utf-8")
        head.put(given, f"{SHARED}/jobs/{job}.yaml")
    storage = sweep.document.storage
    elsewhere = [f"storage={storage}"] if is_address(storage) else []
    rest = shlex.join([f"jobs/{job}.yaml", *elsewhere, *words])
    state = head.run(f"bash ~/foml/job.sh start {shlex.quote(job)} {rest}")
    print(f"{sweep.name}: {'runs already' if 'runs already' in state else 'started'} on the cluster", file=sys.stderr)
    if detach:
        print(f"look at it: python -m orchestrator.sweep --cluster {cluster} --attach {shlex.quote(sweep.name)}")
        return 0
    return attach(cluster, sweep.name)


def attach(cluster: Path, name: str) -> int:
    """Follow a sweep of this name to its end, and fetch its report into `results/NAME/report`. Returns its exit code.

    Raises:
        OrchestratorError: there is no such sweep, or the head does not answer.
    """
    head, folder = Head(cluster), sweep_folder("results", name)
    job = folder.name.replace(" ", "%20")
    try:
        lines = head.run(f"bash ~/foml/job.sh follow {shlex.quote(job)}", _tell)
    except KeyboardInterrupt:
        return _leave(head, cluster, name, job)
    codes = [match[1] for line in lines if (match := _CODE.match(line))]
    if not codes or codes[-1] == "unknown":
        raise OrchestratorError(f"{name}: ended without an exit code; go on with the same command")
    code = int(codes[-1])
    if code not in (2, 130):
        head.get(f"{SHARED}/results/{shlex.quote(folder.name)}/report", folder / "report")
        print(f"report: {folder / 'report'}")
    return code


def _tell(line: str) -> None:
    if _is_said(line) and not _CODE.match(line):
        print(line, flush=True)


def _is_said(line: str) -> bool:
    """Whether a line is the command's and not the launcher's own."""
    return bool(line.strip()) and not line.startswith(
        ("Shared connection", "Loaded cached provider", "If you experience")
    )


def _leave(head: Head, cluster: Path, name: str, job: str) -> int:
    """After Ctrl-C: ask whether the sweep shall run on; with nobody to ask, it does."""
    again = f"python -m orchestrator.sweep --cluster {cluster} --attach {shlex.quote(name)}"
    answer = input("leave it running? [Y/n] ") if sys.stdin.isatty() else ""
    if answer.strip().lower().startswith("n"):
        head.run(f"bash ~/foml/job.sh stop {shlex.quote(job)}")
        print(f"stopping; its chunks in flight are finished. Look at it: {again}", file=sys.stderr)
    else:
        print(f"it runs on. Look at it: {again}", file=sys.stderr)
    return 130


def _same_state(head: Head) -> None:
    """Refuse to run another state of the project than the one here.

    Raises:
        OrchestratorError: the head has another one.
    """
    here = provenance.git_state()
    commit = "~/foml-venv/lib/python3*/site-packages/orchestrator/COMMIT"
    said = head.run(f"mkdir -p {SHARED}/jobs; cat {commit}; echo")  # a call costs seconds: the folder comes along
    there = next(((match[1], match[2]) for line in said if (match := _COMMIT.match(line))), ("unknown", "unknown"))
    if "unknown" not in (here[0], there[0]) and here[0] != there[0]:
        rule = f"the cluster has commit {there[0][:12]} of this project, you have {here[0][:12]}"
        remedy = f"python -m orchestrator.ship && ray up -y {head.file}"
        raise OrchestratorError(fault(str(head.file), "", rule, remedy=remedy))
    if "true" in (here[1], there[1]):
        print("note: changes that are not committed run on the cluster as they were shipped", file=sys.stderr)
