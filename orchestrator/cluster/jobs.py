"""Sweeps on a cluster, started from another machine: `python -m orchestrator.sweep --cluster FILE ...`.

The sweep runs on the head, independent of this machine, which starts it, follows its log and fetches its report through
Ray's launcher: ssh is the only open port. docs/cluster.md says why Ray Jobs are not used.
"""

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
from typing import Any, TextIO

from orchestrator.cluster.launcher_file import read_cluster_file
from orchestrator.config.load import load_sweep
from orchestrator.config.schema import Sweep
from orchestrator.console.output import Output
from orchestrator.errors import ExitCode, OrchestratorError, fault
from orchestrator.plan.plan import sweep_folder
from orchestrator.system.signals import StopRequest
from orchestrator.tracking import provenance
from streams.store.address import is_address
from streams.yaml_values import as_yaml

SHARED = "/srv/foml"
"""The folder that all nodes share."""
_CODE = re.compile(r"^exit code (\d+|unknown)\s*$")
_FOLLOWING, _REFUSED = "job.sh: following", "job.sh: refused: "
"""Lines of `job.sh follow`: a lost connection and a refusal have the same exit status."""
_LAUNCHER = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\t[A-Z]+ ")
_COMMIT = re.compile(r"^([0-9a-f]{40}) (true|false)\s*$")


class HeadError(OrchestratorError):
    """A command on the head failed, or the connection to the head was lost.

    Attributes:
        lines: the standard output up to then.
    """

    def __init__(self, message: str, lines: Sequence[str]) -> None:
        super().__init__(message)
        self.lines = lines


class Head:
    """The head of a cluster.

    Args:
        file: the cluster file.
        launch: the command that runs `ray`.
    """

    def __init__(self, file: Path, launch: Sequence[str] = (sys.executable, "-m", "ray.scripts.scripts")) -> None:
        self.file, self._launch = file, launch

    def run(self, command: str, report: Callable[[str], None] | None = None) -> list[str]:
        """Run a command on the head, and pass each line to `report` immediately. Returns the lines.

        Raises:
            HeadError: the head cannot be reached, or the command fails.
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
                    if report is not None:
                        report(line.rstrip())
            except KeyboardInterrupt:
                process.terminate()  # a SIGTERM reached only this process
                raise
            errors = process.stderr.read()
        if process.returncode:
            output = [line for line in lines if _is_output(line)] or errors.splitlines() or ["nothing"]
            rule = "the head cannot be reached, or the command failed there"
            raise HeadError(fault(str(self.file), "", rule, output[-1], "is the cluster up? ray up"), lines)
        return lines

    def put(self, local: Path, remote: str) -> None:
        """Copy a file to the head."""
        self._copy("rsync-up", str(local), remote)

    def get(self, remote: str, local: Path) -> None:
        """Copy a folder from the head."""
        local.parent.mkdir(parents=True, exist_ok=True)
        self._copy("rsync-down", f"{remote}/", f"{local}/")

    def read(self, remote: str) -> str:
        """The text of a file on the head."""
        with tempfile.TemporaryDirectory() as scratch:
            self._copy("rsync-down", remote, f"{scratch}/file")
            return (Path(scratch) / "file").read_text(encoding="utf-8", errors="replace")

    def _copy(self, direction: str, source: str, target: str) -> None:
        done = subprocess.run(
            [*self._launch, direction, str(self.file), source, target],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            output = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
            raise OrchestratorError(fault(str(self.file), "", f"{source} cannot be copied to {target}", output))


@dataclass(frozen=True)
class RemoteResult:
    """The result of a command that ran on a cluster.

    Attributes:
        name: the sweep.
        exit_code: of the command.
        text: the rest of standard output; may be empty.
        document: the JSON document that the command on the head printed; None if there is none.
        problems: one line each.
        resume: the command that follows the sweep; None if it has ended.
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
    rerun: bool,
    detach: bool,
    output: Output,
) -> RemoteResult:
    """Start a sweep on the cluster's head, and follow it to its end unless `detach`.

    Args:
        cluster: a file for `ray up`.
        file: the sweep; the quickstart if None.
        overrides: `key=value` words.
        rerun: forget earlier results of the sweep.
        detach: return as soon as it runs.
        output: of the command here and on the head.

    Raises:
        OrchestratorError: a fault in either file, or a head that does not answer or has another state of the project.
    """
    read_cluster_file(cluster)
    sweep = load_sweep(file, overrides)
    if not sweep.document.report:
        rule = "must be true on a cluster, from which the report is fetched"
        raise OrchestratorError(fault(sweep.file, "report", rule, "false", "leave it out"))
    head = Head(cluster)
    job = sweep_folder("", sweep.name).name.replace(" ", "%20")
    _same_state(head, output)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "sweep.yaml"
        copy.touch(mode=0o600)  # addresses in it may hold keys; rsync keeps the mode
        copy.write_text(as_yaml(_for_head(sweep)), encoding="utf-8")
        head.put(copy, f"{SHARED}/jobs/{job}.yaml")
    words = shlex.join([f"jobs/{job}.yaml", *["--rerun"] * rerun, *output.options])
    state = head.run(f"bash ~/foml/job.sh start {shlex.quote(job)} {words}")
    output.say(f"{sweep.name}: {'runs already' if 'runs already' in state else 'started'} on the cluster")
    if detach:
        follow = _attach_command(cluster, sweep.name, output)
        return RemoteResult(sweep.name, 0, f"follow it: {follow}", resume=follow)
    return attach(cluster, sweep.name, output, started=True)


def _for_head(sweep: Sweep) -> dict[str, Any]:
    """The configuration as the head needs it: results in the shared folder or at an address, and no `tracking.uri`.

    The head has an MLflow of its own, so the password of another one stays here. Keys in the addresses of storage and
    task store are needed there; in the file they are on no command line.
    """
    document, storage = dict(sweep.source), sweep.document.storage
    tracking = {key: value for key, value in dict(document.pop("tracking", None) or {}).items() if key != "uri"}
    document["storage"] = storage if is_address(storage) else f"{SHARED}/results"
    return document | ({"tracking": tracking} if tracking else {})


def attach(cluster: Path, name: str, output: Output, started: bool = False) -> RemoteResult:
    """Follow a sweep of this name to its end, and fetch its report into `results/NAME/report`.

    The lines of the command on the head go to standard output. If `output` asks for one line or one document, they go
    to standard error, and the line or document is in the result. A connection that is lost meanwhile is as an
    interruption here: the sweep continues.

    Args:
        cluster: a file for `ray up`.
        name: the sweep.
        output: of the command here and on the head.
        started: this command has started the sweep, so that it runs even if the head cannot be reached any more.

    Raises:
        OrchestratorError: no such sweep exists, it was started with other options, or the head does not answer.
    """
    head, folder = Head(cluster), sweep_folder("results", name)
    job = folder.name.replace(" ", "%20")
    report = partial(_show, stream=sys.stderr if output.options else sys.stdout)
    stop_request = StopRequest()
    try:
        with stop_request.signals():
            words = shlex.join(["follow", job, *output.options])
            lines = head.run(f"bash ~/foml/job.sh {words}", report)
    except KeyboardInterrupt:
        return _leave(head, cluster, name, job, output, ask=stop_request.signal == signal.SIGINT)
    except HeadError as error:
        refusals = [line.removeprefix(_REFUSED) for line in error.lines if line.startswith(_REFUSED)]
        if refusals:
            raise OrchestratorError(fault(str(cluster), name, refusals[-1])) from None
        if not started and _FOLLOWING not in error.lines:
            raise
        return _left(cluster, name, output, "the connection to the head was lost, and the sweep continues to run there")
    codes = [match[1] for line in lines if (match := _CODE.match(line))]
    if not codes or codes[-1] == "unknown":
        line = f"{name}: ended without an exit code, as when the head restarts; the command that started it resumes it"
        return RemoteResult(name, ExitCode.INTERRUPTED, problems=(line,))
    return _fetched(head, name, job, int(codes[-1]), output)


def _fetched(head: Head, name: str, job: str, code: int, output: Output) -> RemoteResult:
    """The result of a sweep that has ended, with its report on this machine; a failed copy is a problem."""
    folder, text, local_report = sweep_folder("results", name), "", None
    problems: list[str] = []
    remote_report = f"{SHARED}/results/{folder.name}/report"
    try:
        if output.options:
            text = head.read(f"{SHARED}/jobs/{job}.out").strip()
        if code != ExitCode.BAD_INPUT and (link := _link_to_report(head, job, remote_report)) is not None:
            head.get(link, folder / "report")
            local_report = folder / "report"
    except OrchestratorError as error:
        problems.append(f"{error}; fetch it with: {_attach_command(head.file, name, output)}")
    if output.as_json:
        return _with_local_report(text, name, code, local_report, problems)
    if output.quiet:
        text = text if local_report is None else text.replace(remote_report, str(local_report))
    elif local_report is not None:
        text = f"report: {local_report}"
    return RemoteResult(name, code, text, problems=tuple(problems))


def _link_to_report(head: Head, job: str, report: str) -> str | None:
    """A symbolic link on the head to the report's folder, whose name may have spaces; None if there is no such folder.

    Depending on rsync's version the remote shell splits a path at spaces. A job's name has none.
    """
    link = f"{SHARED}/jobs/{job}.report"
    folder, quoted = shlex.quote(report), shlex.quote(link)
    lines = head.run(f"if [ -d {folder} ]; then ln -sfn {folder} {quoted} && echo {quoted}; fi")
    return link if link in lines else None


def _with_local_report(text: str, name: str, code: int, report: Path | None, problems: list[str]) -> RemoteResult:
    """The document that the command on the head has printed, with the path of the report on this machine."""
    try:
        document = json.loads(text)
    except ValueError:  # the command was killed and printed nothing, or its output cannot be copied
        problems = problems or [f"{name}: ended without a result; the same command resumes it"]
        return RemoteResult(name, code, problems=tuple(problems))
    if document.get("report") is not None:
        document["report"] = None if report is None else str(report.absolute())
    document["problems"] = [*document.get("problems", ()), *problems]
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return RemoteResult(name, code, document=text, problems=tuple(problems))


def _attach_command(cluster: Path, name: str, output: Output) -> str:
    attached = [f"--attach={name}"] if name.startswith("-") else ["--attach", name]
    words = ["--cluster", str(cluster), *attached, *output.options]
    return f"python -m orchestrator.sweep {shlex.join(words)}"


def _show(line: str, stream: TextIO) -> None:
    if _is_output(line) and not _CODE.match(line) and not line.startswith((_FOLLOWING, _REFUSED)):
        print(line, file=stream, flush=True)


def _is_output(line: str) -> bool:
    """Whether the command, not the launcher, printed a line; without a terminal the launcher's start with a time."""
    launcher = ("Shared connection", "Loaded cached provider", "If you experience", " To ensure this mount updates")
    return bool(line.strip()) and not line.startswith(launcher) and not _LAUNCHER.match(line)


def _leave(head: Head, cluster: Path, name: str, job: str, output: Output, ask: bool) -> RemoteResult:
    """After a signal: leave the sweep running, unless the user is asked and wants it stopped."""
    ask = ask and sys.stdin.isatty() and not output.as_json  # the question would be on standard output
    try:
        stop = ask and input("leave it running? [Y/n] ").strip().lower().startswith("n")
    except (EOFError, KeyboardInterrupt):  # Ctrl-D, or Ctrl-C again
        print()
        stop = False
    if not stop:
        return _left(cluster, name, output, "it continues to run")
    try:
        head.run(f"bash ~/foml/job.sh stop {shlex.quote(job)}")
    except HeadError as error:
        return _left(cluster, name, output, "it could not be stopped, and may continue to run", error.faults)
    return _left(cluster, name, output, "stopping; its chunks in flight are finished")


def _left(cluster: Path, name: str, output: Output, state: str, problems: Sequence[str] = ()) -> RemoteResult:
    """The result of a command that ends before the sweep does."""
    follow = _attach_command(cluster, name, output)
    return RemoteResult(
        name, ExitCode.INTERRUPTED, problems=(*problems, f"{state}. Follow it: {follow}"), resume=follow
    )


def _same_state(head: Head, output: Output) -> None:
    """Refuse to run another state of the project than the local one.

    Raises:
        OrchestratorError: the head has another one.
    """
    local = provenance.git_state()
    commit = "~/foml-venv/lib/python3*/site-packages/orchestrator/COMMIT"
    lines = head.run(f"mkdir -p {SHARED}/jobs; cat {commit}; echo")  # one call for both: each takes seconds
    remote = next(((match[1], match[2]) for line in lines if (match := _COMMIT.match(line))), ("unknown", "unknown"))
    if "unknown" not in (local[0], remote[0]) and local[0] != remote[0]:
        rule = f"the cluster has commit {remote[0][:12]} of this project, you have {local[0][:12]}"
        remedy = f"python -m orchestrator.ship && ray up -y {head.file}"
        raise OrchestratorError(fault(str(head.file), "", rule, remedy=remedy))
    if "true" in (local[1], remote[1]):
        output.say("note: changes that are not committed run on the cluster as they were shipped")
