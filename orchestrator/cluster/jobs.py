"""A sweep on a cluster, given from a laptop: `python -m orchestrator.sweep --cluster FILE ...`.

It runs on the head, whatever becomes of the laptop; this end starts it, follows its log and fetches its report. All
goes through Ray's launcher, by ssh: no port has to be open.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import yaml

from orchestrator.cluster.launcher_file import read_cluster_file
from orchestrator.config.load import load_sweep
from orchestrator.errors import OrchestratorError, fault
from orchestrator.plan.plan import sweep_folder
from orchestrator.system.signals import StopRequest
from orchestrator.tracking import provenance
from streams.store.address import is_address

SHARED = "/srv/foml"
_CODE = re.compile(r"^exit code (\d+|unknown)\s*$")
_LAUNCHERS = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\t[A-Z]+ ")
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
            try:
                for line in process.stdout:
                    lines.append(line.rstrip())
                    if tell is not None:
                        tell(line.rstrip())
            except KeyboardInterrupt:
                process.terminate()  # of a SIGTERM it has not heard
                raise
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

    def read(self, there: str) -> str:
        """The text of a file on the head."""
        with tempfile.TemporaryDirectory() as scratch:
            self._copy("rsync-down", there, f"{scratch}/file")
            return (Path(scratch) / "file").read_text(encoding="utf-8", errors="replace")

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


@dataclass(frozen=True)
class Manner:
    """How a command tells what it came to: as text; with `quiet`, in one line; with `as_json`, as one document."""

    quiet: bool = False
    as_json: bool = False

    @property
    def words(self) -> list[str]:
        """The options that ask for it."""
        return ["--json"] * self.as_json + ["--quiet"] * self.quiet

    def say(self, line: str) -> None:
        """A line about what is going on."""
        if not self.quiet:
            print(line, file=sys.stderr)


@dataclass(frozen=True)
class RemoteResult:
    """The result of a command that was given to a cluster.

    Attributes:
        name: the sweep.
        exit_code: of the command.
        text: what standard output has to show; empty if it has shown everything.
        document: the JSON document that the command on the head printed; None if there is none.
        problems: one line each.
        resume: the command that follows the sweep; None if it is over.
    """

    name: str
    exit_code: int
    text: str = ""
    document: str | None = None
    problems: tuple[str, ...] = ()
    resume: str | None = None


def submit(
    cluster: Path,
    file: str | None,
    overrides: Sequence[str],
    rerun: bool = False,
    detach: bool = False,
    manner: Manner = Manner(),
) -> RemoteResult:
    """Start a sweep on the cluster's head, and follow it to its end unless `detach`. Returns its result.

    Args:
        cluster: a file for `ray up`.
        file: the sweep; the quickstart if None.
        overrides: `key=value` words.
        rerun: forget earlier results of the sweep.
        detach: come back as soon as it runs.
        manner: of the command here and there.

    Raises:
        OrchestratorError: a fault in either file, a head that does not answer or that has another state of the project.
    """
    read_cluster_file(cluster)
    sweep = load_sweep(file, overrides)
    head = Head(cluster)
    job = sweep_folder("", sweep.name).name.replace(" ", "%20")
    _same_state(head, manner)
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(scratch) / "sweep.yaml"
        given.write_text(yaml.safe_dump(dict(sweep.source), sort_keys=False, allow_unicode=True), encoding="utf-8")
        head.put(given, f"{SHARED}/jobs/{job}.yaml")
    storage = sweep.document.storage
    elsewhere = [f"storage={storage}"] if is_address(storage) else []
    rest = shlex.join([f"jobs/{job}.yaml", *elsewhere, *["--rerun"] * rerun, *manner.words])
    state = head.run(f"bash ~/foml/job.sh start {shlex.quote(job)} {rest}")
    manner.say(f"{sweep.name}: {'runs already' if 'runs already' in state else 'started'} on the cluster")
    if detach:
        again = _attach_command(cluster, sweep.name, manner)
        return RemoteResult(sweep.name, 0, f"look at it: {again}", resume=again)
    return attach(cluster, sweep.name, manner)


def attach(cluster: Path, name: str, manner: Manner = Manner()) -> RemoteResult:
    """Follow a sweep of this name to its end, and fetch its report into `results/NAME/report`. Returns its result.

    Standard output has all that the command there says; with a `manner` that asks for one line or one document,
    standard error has it, and the line or document is in the result.

    Raises:
        OrchestratorError: there is no such sweep, it was not started in this manner, or the head does not answer.
    """
    head, folder = Head(cluster), sweep_folder("results", name)
    job = folder.name.replace(" ", "%20")
    tell = partial(_tell, out=sys.stderr if manner.words else sys.stdout)
    stop_request = StopRequest()
    try:
        with stop_request.signals():
            lines = head.run(f"bash ~/foml/job.sh follow {shlex.quote(job)} {' '.join(manner.words)}".rstrip(), tell)
    except KeyboardInterrupt:
        return _leave(head, cluster, name, job, manner, there=stop_request.signal == signal.SIGINT)
    codes = [match[1] for line in lines if (match := _CODE.match(line))]
    if not codes or codes[-1] == "unknown":
        raise OrchestratorError(f"{name}: ended without an exit code; go on with the same command")
    code, report = int(codes[-1]), None
    if code not in (2, 130):
        report = folder / "report"
        head.get(f"{SHARED}/results/{shlex.quote(folder.name)}/report", report)
    if manner.words:
        said = head.read(f"{SHARED}/jobs/{job}.out").strip()
        there = f"{SHARED}/results/{folder.name}/report"
        if manner.as_json:
            return _with_local_report(said, name, code, report)
        return RemoteResult(name, code, said.replace(there, str(report)))
    return RemoteResult(name, code, "" if report is None else f"report: {report}")


def _with_local_report(said: str, name: str, code: int, report: Path | None) -> RemoteResult:
    """The document that the command on the head has printed, with the place of the report here."""
    try:
        told = json.loads(said)
    except ValueError:  # it was killed, and said nothing
        return RemoteResult(name, code, problems=(f"{name}: ended without a result; go on with the same command",))
    if report is not None:
        told["report"] = str(report.absolute())
    return RemoteResult(name, code, document=json.dumps(told, indent=2, ensure_ascii=False))


def _attach_command(cluster: Path, name: str, manner: Manner) -> str:
    words = ["--cluster", str(cluster), "--attach", name, *manner.words]
    return f"python -m orchestrator.sweep {shlex.join(words)}"


def _tell(line: str, out: TextIO) -> None:
    if _is_said(line) and not _CODE.match(line):
        print(line, file=out, flush=True)


def _is_said(line: str) -> bool:
    """Whether a line is the command's and not the launcher's own (without a terminal it begins with a time)."""
    own = ("Shared connection", "Loaded cached provider", "If you experience", " To ensure this mount updates")
    return bool(line.strip()) and not line.startswith(own) and not _LAUNCHERS.match(line)


def _leave(head: Head, cluster: Path, name: str, job: str, manner: Manner, there: bool) -> RemoteResult:
    """After Ctrl-C: ask whether the sweep shall run on; with nobody `there` to ask, as after a SIGHUP, it does."""
    again = _attach_command(cluster, name, manner)
    asks = there and sys.stdin.isatty() and not manner.as_json  # the question would be on standard output
    if (input("leave it running? [Y/n] ") if asks else "").strip().lower().startswith("n"):
        head.run(f"bash ~/foml/job.sh stop {shlex.quote(job)}")
        told = f"stopping; its chunks in flight are finished. Look at it: {again}"
    else:
        told = f"it runs on. Look at it: {again}"
    print(told, file=sys.stderr)
    return RemoteResult(name, 130, problems=(told,), resume=again)


def _same_state(head: Head, manner: Manner) -> None:
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
        manner.say("note: changes that are not committed run on the cluster as they were shipped")
