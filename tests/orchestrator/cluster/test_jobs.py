"""`--cluster`: faults that are refused before anything is sent, and the result in each form.

tests/cluster runs sweeps on a real cluster by ssh. Here the head is this machine: a short script replaces Ray's launcher.
"""

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TextIO

import pytest
import yaml

from orchestrator import ship
from orchestrator.cluster import jobs
from orchestrator.console.output import Output
from orchestrator.plan.plan import sweep_folder
from orchestrator.report.json_document import SweepDocument
from orchestrator.sweep import __main__
from streams.yaml_values import parsed
from tests.orchestrator.protocol_sweep import compute
from tests.orchestrator.sweep_command import REPORTED, folder_with

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = """#!/bin/bash
case $1 in
rsync-down) [[ $3 =~ ^[A-Za-z0-9/._%-]+$ ]] || exit 1 ;; # what versions of rsync quote differently
esac
case $1 in
exec) exec bash -c "$3" ;;
rsync-up | rsync-down) mkdir -p "$(dirname "$4")" && cp -rT "$3" "$4" ;;
esac
"""
PYTHON = f"""#!/bin/bash
unset RAY_ADDRESS RAY_AUTH_MODE
export PYTHONPATH={ROOT}
exec {sys.executable} "$@"
"""


def test_faults_of_a_cluster_file_are_printed_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--cluster", str(ROOT / "deploy/gcp.yaml")]) == 2
    errors = capsys.readouterr().err
    assert "provider.project_id: must be filled in (got FILL-IN)" in errors
    assert "Traceback" not in errors


def test_a_refusal_is_also_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--cluster", str(ROOT / "deploy/gcp.yaml"), "--json"]) == 2
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["exit_code"] == 2 and document["problems"] == captured.err.splitlines()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--detach"], "--detach and --attach need --cluster FILE"),
        (["--attach", "x"], "--detach and --attach need --cluster FILE"),
        (
            ["--cluster", "c.yaml", "--local"],
            "--cluster goes with FILE, key=value, --rerun, --detach, --attach, --json",
        ),
        (["--cluster", "c.yaml", "--plan"], "--cluster goes with FILE, key=value, --rerun, --detach, --attach, --json"),
        (["--cluster", "c.yaml", "--attach", "x", "seeds=1"], "--attach takes no other arguments"),
    ],
)
def test_options_that_exclude_each_other(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        __main__.main(words)
    assert exit_.value.code == 2
    assert line in capsys.readouterr().err


def test_of_two_simultaneous_starts_of_a_job_one_wins(tmp_path: Path) -> None:
    """The script of a cluster's head, with `sleep` in place of the sweep."""
    shutil.copy(ROOT / "deploy/job.sh", tmp_path)
    (tmp_path / "foml.sh").write_text("exec sleep 300\n")
    jobs = tmp_path / "shared" / "jobs"
    jobs.mkdir(parents=True)
    words = ["bash", str(tmp_path / "job.sh"), "start", "mine", "mine.yaml"]
    environment = os.environ | {"FOML_SHARED": str(jobs.parent)}
    with (jobs / "mine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another call that is starting the job
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        time.sleep(1)
        assert process.poll() is None and not (jobs / "mine.pid").exists()
    assert process.communicate(timeout=180)[0] == "started\n"
    pid = int((jobs / "mine.pid").read_text())
    try:
        second = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, timeout=180)
        assert second.stdout == "runs already\n"
        assert int((jobs / "mine.pid").read_text()) == pid
    finally:
        while os.getpgid(pid) != pid:  # until it has its own session
            time.sleep(0.01)
        os.killpg(pid, signal.SIGKILL)


def test_a_job_whose_number_another_process_has_is_not_running(tmp_path: Path) -> None:
    """As after a restart of the head, during which the job had no time to write its exit code."""
    shutil.copy(ROOT / "deploy/job.sh", tmp_path)
    (tmp_path / "foml.sh").write_text("echo finished\n")
    jobs = tmp_path / "shared" / "jobs"
    jobs.mkdir(parents=True)

    def job(*words: str) -> str:
        words = ("bash", str(tmp_path / "job.sh"), *words)
        environment = os.environ | {"FOML_SHARED": str(jobs.parent)}
        return subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=30).stdout

    with subprocess.Popen(["sleep", "300"]) as other:
        try:
            (jobs / "mine.pid").write_text(f"{other.pid}\n")
            (jobs / "mine.log").write_text("before the restart\n")
            assert job("follow", "mine").splitlines()[-2:] == ["before the restart", "exit code unknown"]
            assert job("start", "mine", "jobs/mine.yaml") == "started\n"
            assert job("follow", "mine").splitlines()[-2:] == ["finished", "exit code 0"]
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("line", "is_output"),
    [
        ("2026-11-28 13:13:36,270\tVWARN commands.py:388 -- Loaded cached provider configuration from /tmp/x", False),
        ("2026-11-28 13:13:36,270\tWARN docker.py:20 -- File Mount: (~/.ray/auth_token:/x) refers to a file.", False),
        (" To ensure this mount updates properly, please use a directory.", False),
        ("2026-11-28 13:13:36,280\tVINFO command_runner.py:383 -- Running `bash ~/foml/job.sh follow x`", False),
        ("Shared connection to 10.0.0.1 closed.", False),
        ("", False),
        ("[0:13] 0/3 trials done · ETA 0:03", True),
        ("best: foml K=1", True),
        ("problem: foml (abc): failed: 2026-11-28", True),
    ],
)
def test_lines_of_the_launcher_are_not_shown(line: str, is_output: bool) -> None:
    assert jobs._is_output(line) == is_output


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The head's shared folder; the working directory is the laptop's."""
    laptop, home, shared = (tmp_path / name for name in ("laptop", "home", "shared"))
    (laptop / "deploy").mkdir(parents=True)
    (home / "foml-venv/bin").mkdir(parents=True)
    (home / "mlflow").mkdir()
    monkeypatch.setenv("FOML_SHARED", str(shared))
    shared.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(laptop)
    ship.make_token(laptop / "token")
    for name in ("job.sh", "foml.sh"):
        (home / "foml").mkdir(exist_ok=True)
        shutil.copy(ROOT / "deploy" / name, home / "foml")
    (home / "mlflow/env").write_text(f"MLFLOW_TRACKING_URI=sqlite:///{tmp_path}/mlflow.db\n")
    for path, text in ((home / "foml-venv/bin/python", PYTHON), (tmp_path / "launcher", LAUNCHER)):
        path.write_text(text)
        path.chmod(0o755)
    document = yaml.safe_load((ROOT / "deploy/onprem.yaml").read_text(encoding="utf-8"))
    document["provider"] |= {"head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2"]}
    document["auth"] = {"ssh_user": "me", "ssh_private_key": "token"}
    document["file_mounts"] = {"~/foml": "deploy", "~/.ray/auth_token": "token"}
    (laptop / "cluster.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (laptop / "sweep.yaml").write_text(REPORTED, encoding="utf-8")
    monkeypatch.setattr(jobs, "SHARED", str(shared))
    monkeypatch.setattr(jobs, "Head", partial(jobs.Head, launch=[str(tmp_path / "launcher")]))
    return shared


def test_the_result_of_the_head_is_printed_in_each_form(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--cluster", "cluster.yaml"]
    assert __main__.main([*options, "sweep.yaml", "report=false"]) == 2
    rule = "must be true on a cluster, from which the report is fetched (got false); leave it out"
    assert capsys.readouterr().err == f"sweep.yaml: report: {rule}\n"
    compute(folder_with(shared, REPORTED))
    capsys.readouterr()
    assert __main__.main([*options, "sweep.yaml", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["sweep"], document["exit_code"], document["problems"]) == ("tiny", 0, [])
    assert document["folder"] == str(shared / "results/tiny")
    assert document["report"] == str(Path.cwd() / "results/tiny/report")
    assert Path(document["report"], "report.html").stat().st_size > 100_000
    assert len(document["configurations"]) == 4 and document["winner"] in document["configurations"]
    assert "tiny: started on the cluster" in captured.err and "4 of them ended before" in captured.err
    assert __main__.main([*options, "--attach", "tiny"]) == 0  # the same output again
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    first = lines.index("{")
    assert json.loads("\n".join(lines[first:-1])) == document | {"report": str(shared / "results/tiny/report")}
    assert (lines[first - 1], lines[-1]) == ("tiny: 4 trials, 4 of them ended before", "report: results/tiny/report")
    assert __main__.main([*options, "--attach", "tiny", "--quiet"]) == 2
    assert "the job was started without --quiet: leave this option out" in capsys.readouterr().err

    assert __main__.main([*options, "sweep.yaml", "--quiet"]) == 0
    captured = capsys.readouterr()
    best = f"best: {document['winner']['label']}"
    assert captured.out == f"tiny: {best}; exit code 0; report: results/tiny/report\n"
    assert captured.err == ""
    assert __main__.main([*options, "sweep.yaml", "--json", "--quiet", "chunk=0"]) == 2  # refused here
    assert json.loads(capsys.readouterr().out)["problems"][0].startswith("sweep.yaml: chunk: must be")


def test_a_sweep_that_is_killed_or_left_has_a_document(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--cluster", "cluster.yaml"]
    (shared.parent / "home/foml-venv/bin/python").write_text("#!/bin/bash\nsleep 1\nkill -KILL $$\n")
    assert __main__.main([*options, "sweep.yaml", "--detach", "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    follow = "python -m orchestrator.sweep --cluster cluster.yaml --attach tiny --json --quiet"
    assert (document["sweep"], document["exit_code"], document["resume"], captured.err) == ("tiny", 0, follow, "")
    assert __main__.main(follow.split()[3:]) == 137
    document = json.loads(capsys.readouterr().out)
    assert (document["sweep"], document["exit_code"]) == ("tiny", 137)
    assert document["problems"] == ["tiny: ended without a result; the same command resumes it"]


def test_the_head_receives_the_secrets_that_it_needs_in_a_file_of_its_user_only(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command on the head writes its arguments down instead of running a sweep."""
    (shared.parent / "home/foml-venv/bin/python").write_text(f'#!/bin/bash\necho "$@" >{shared}/arguments\nexit 2\n')
    words = ["tracking.uri=http://me:geheim@host:5000", "tracking.experiment=mine"]
    for address in ("s3://id:schluessel@bucket/results", "results"):
        (shared / "arguments").unlink(missing_ok=True)
        assert __main__.main(["--cluster", "cluster.yaml", "sweep.yaml", *words, f"storage={address}"]) == 2
        file = shared / "jobs/tiny.yaml"
        document = yaml.safe_load(file.read_text())
        assert file.stat().st_mode & 0o777 == 0o600
        assert document["tracking"] == {"experiment": "mine"}
        assert document["storage"] == (address if "s3" in address else str(shared / "results"))
        arguments = (shared / "arguments").read_text()
        assert arguments.startswith("-m orchestrator.sweep jobs/tiny.yaml tracking.uri=sqlite:")
        shown = [arguments, *capsys.readouterr(), *(path.read_text() for path in shared.glob("jobs/tiny.[!y]*"))]
        assert not any("geheim" in text or "schluessel" in text for text in shown)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_here_leaves_the_sweep_on_the_head_running(
    shared: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    (shared.parent / "home/foml-venv/bin/python").write_text("#!/bin/bash\necho started >&2\nexec sleep 300\n")
    show = jobs._show

    def show_and_send_signal(line: str, stream: TextIO) -> None:
        show(line, stream)
        if line == "started":
            os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(jobs, "_show", show_and_send_signal)
        code = __main__.main(["--cluster", "cluster.yaml", "sweep.yaml", "--json"])
    try:
        os.kill(int((shared / "jobs/tiny.pid").read_text()), 0)  # it still runs
        document = json.loads(capsys.readouterr().out)
        follow = "python -m orchestrator.sweep --cluster cluster.yaml --attach tiny --json"
        assert (code, document["exit_code"], document["sweep"], document["resume"]) == (130, 130, "tiny", follow)
        assert document["problems"] == [f"it continues to run. Follow it: {follow}"]
    finally:
        os.killpg(int((shared / "jobs/tiny.pid").read_text()), signal.SIGKILL)


def _head_that_prints(shared: Path, name: str, output: str, code: int, has_report: bool) -> None:
    folder = sweep_folder(shared / "results", name)
    write = f"mkdir -p {shlex.quote(str(folder))}/report; echo page >{shlex.quote(str(folder))}/report/report.html"
    lines = ["#!/bin/bash", write if has_report else "", f"echo {shlex.quote(output)}", f"exit {code}"]
    (shared.parent / "home/foml-venv/bin/python").write_text("\n".join(lines))


def test_a_report_that_does_not_exist_or_cannot_be_copied_changes_no_result(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "MLflow does not answer"
    document = SweepDocument("tiny", 1, problems=[problem], resume="foml sweep --resume tiny")
    options = ["--cluster", "cluster.yaml", "sweep.yaml"]
    _head_that_prints(shared, "tiny", document.to_json(), 1, has_report=False)
    assert __main__.main([*options, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(document.to_json())
    assert __main__.main(options) == 1
    assert "report: " not in capsys.readouterr().out.replace('"report": null', "")

    content = json.loads(document.to_json()) | {"report": str(shared / "results/tiny/report")}
    _head_that_prints(shared, "tiny", json.dumps(content), 1, has_report=True)
    (shared.parent / "launcher").write_text(LAUNCHER.replace("[[", "[[ $3 != *.report/ && "))
    assert __main__.main([*options, "--json"]) == 1
    captured = capsys.readouterr()
    copy = f"{shared}/jobs/tiny.report/ cannot be copied to results/tiny/report/ (got nothing)"
    fetch = "fetch it with: python -m orchestrator.sweep --cluster cluster.yaml --attach tiny --json"
    problems = [problem, f"cluster.yaml: {copy}; {fetch}"]
    assert json.loads(captured.out) == content | {"report": None, "problems": problems}
    assert captured.err.splitlines()[-1] == problems[-1]
    assert not Path("results/tiny/report").exists()


@pytest.mark.parametrize("name", ["my sweep", "-x", "it's $HOME", "1e3"])
def test_the_report_of_any_name_and_of_an_interrupted_sweep_is_fetched(
    shared: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    remote, local = (sweep_folder(results, name) / "report" for results in (shared / "results", "results"))
    _head_that_prints(shared, name, f"{name}: best: foml; exit code 130; report: {remote}", 130, has_report=True)
    options = ["--cluster", "cluster.yaml"]
    assert __main__.main([*options, "sweep.yaml", f"name={json.dumps(name)}", "--detach", "--quiet"]) == 0
    words = shlex.split(capsys.readouterr().out.partition("orchestrator.sweep ")[2])
    assert __main__.main(words) == 130
    assert capsys.readouterr().out == f"{name}: best: foml; exit code 130; report: {local}\n"
    assert (local / "report.html").read_text() == "page\n"
    assert [parsed(file.read_text())["name"] for file in shared.glob("jobs/*.yaml")] == [name]


LOSES_CONNECTION = """#!/bin/bash
case $1 in
exec) ;;
rsync-up) mkdir -p "$(dirname "$4")" && exec cp -T "$3" "$4" ;;
esac
[[ $3 == *"job.sh follow"* ]] || exec bash -c "$3"
[ -f alive ] || exit 1
while read -r line; do
    echo "$line"
    if [[ $line == *trials* ]]; then exit 1; fi
done < <(bash -c "$3")
"""
"""The launcher while the connection ends after the first line of the sweep, or before any if there is no file `alive`."""


def test_a_lost_connection_is_no_bad_input_since_the_sweep_continues(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = "#!/bin/bash\necho '[0:03] 0/3 trials done' >&2\nexec sleep 300\n"
    (shared.parent / "home/foml-venv/bin/python").write_text(python)
    (shared.parent / "launcher").write_text(LOSES_CONNECTION)
    follow = "python -m orchestrator.sweep --cluster cluster.yaml --attach tiny --json"
    line = f"the connection to the head was lost, and the sweep continues to run there. Follow it: {follow}"
    try:
        for words in (["sweep.yaml", "--json"], ["--attach", "tiny", "--json"]):
            Path("alive").touch()
            assert __main__.main(["--cluster", "cluster.yaml", *words]) == 130
            captured = capsys.readouterr()
            document = json.loads(captured.out)
            assert (document["sweep"], document["exit_code"], document["resume"]) == ("tiny", 130, follow)
            assert document["problems"] == [line]
            assert captured.err.splitlines()[-2:] == ["[0:03] 0/3 trials done", line]
            os.kill(int((shared / "jobs/tiny.pid").read_text()), 0)  # it still runs
            Path("alive").unlink()
        assert __main__.main(["--cluster", "cluster.yaml", "sweep.yaml"]) == 130  # runs already
        assert "the connection to the head was lost" in capsys.readouterr().err
        assert __main__.main(["--cluster", "cluster.yaml", "--attach", "tiny"]) == 2  # whether it runs is not known
        assert "cluster.yaml: the head cannot be reached" in capsys.readouterr().err
    finally:
        os.killpg(int((shared / "jobs/tiny.pid").read_text()), signal.SIGKILL)


def test_a_job_without_an_exit_code_was_interrupted(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As after a restart of the head."""
    (shared / "jobs").mkdir()
    (shared / "jobs/tiny.pid").write_text(f"{2**22 + 1}\n")
    (shared / "jobs/tiny.log").write_text("[0:03] 0/3 trials done\n")
    assert __main__.main(["--cluster", "cluster.yaml", "--attach", "tiny"]) == 130
    rule = "ended without an exit code, as when the head restarts; the command that started it resumes it"
    assert capsys.readouterr() == ("[0:03] 0/3 trials done\n", f"tiny: {rule}\n")
    assert __main__.main(["--cluster", "cluster.yaml", "--attach", "other"]) == 2
    assert capsys.readouterr() == ("", "cluster.yaml: other: no such job; there are: tiny\n")


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("", "it continues to run"),
        (EOFError, "it continues to run"),
        (KeyboardInterrupt, "it continues to run"),
        ("n", "stopping; its chunks in flight are finished"),
        ("no", "it could not be stopped, and may continue to run"),
    ],
)
def test_each_answer_after_ctrl_c_has_a_result(
    shared: Path, monkeypatch: pytest.MonkeyPatch, answer: str | type[BaseException], state: str
) -> None:
    def question(text: str) -> str:
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr("builtins.input", question)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    cluster = Path("cluster.yaml")
    head = jobs.Head(cluster, launch=["false"]) if answer == "no" else jobs.Head(cluster)
    result = jobs._leave(head, cluster, "tiny", "tiny", Output(), ask=True)
    follow = "python -m orchestrator.sweep --cluster cluster.yaml --attach tiny"
    assert (result.exit_code, result.resume, result.problems[-1]) == (130, follow, f"{state}. Follow it: {follow}")
