"""`--cluster`: what is refused before anything is sent, and how results come back in each form.

A sweep on a real cluster's head, by ssh, is in tests/cluster. Here the head is this machine: commands and copies go
through the project's own scripts, and only the way there is shorter.
"""

import fcntl
import json
import os
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
from orchestrator.cluster import jobs as remote
from orchestrator.sweep import __main__
from tests.orchestrator.protocol_sweep import compute
from tests.orchestrator.sweep_command import TINY, folder_with

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = """#!/bin/bash
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


def test_a_cluster_file_with_faults_is_told_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--cluster", str(ROOT / "cluster.yaml")]) == 2
    told = capsys.readouterr().err
    assert "metadata.image: must be filled in (got FILL-IN)" in told
    assert "Traceback" not in told


def test_such_a_refusal_has_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--cluster", str(ROOT / "cluster.yaml"), "--json"]) == 2
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["exit_code"] == 2 and told["problems"] == said.err.splitlines()


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
def test_words_that_do_not_go_together(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        __main__.main(words)
    assert ended.value.code == 2
    assert line in capsys.readouterr().err


def test_of_two_that_start_a_job_at_once_one_does(tmp_path: Path) -> None:
    """The script of a cluster's head, with something that only sleeps in the place of the sweep."""
    shutil.copy(ROOT / "deploy/job.sh", tmp_path)
    (tmp_path / "foml.sh").write_text("exec sleep 300\n")
    jobs = tmp_path / "shared" / "jobs"
    jobs.mkdir(parents=True)
    words = ["bash", str(tmp_path / "job.sh"), "start", "mine", "mine.yaml"]
    environment = os.environ | {"FOML_SHARED": str(jobs.parent)}
    with (jobs / "mine.lock").open("w") as another:
        fcntl.flock(another, fcntl.LOCK_EX)  # which is just starting it
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        time.sleep(1)
        assert process.poll() is None and not (jobs / "mine.pid").exists()
    assert process.communicate(timeout=180)[0] == "started\n"
    started = int((jobs / "mine.pid").read_text())
    try:
        again = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, timeout=180)
        assert again.stdout == "runs already\n"
        assert int((jobs / "mine.pid").read_text()) == started
    finally:
        while os.getpgid(started) != started:  # it makes a session of its own first
            time.sleep(0.01)
        os.killpg(started, signal.SIGKILL)


@pytest.mark.parametrize(
    ("line", "said"),
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
def test_the_launchers_own_lines_are_not_told(line: str, said: bool) -> None:
    assert remote._is_said(line) == said


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The head's shared folder, with a sweep that was computed there; the working directory is the laptop's."""
    laptop, home, shared = (tmp_path / name for name in ("laptop", "home", "shared"))
    (laptop / "deploy").mkdir(parents=True)
    (home / "foml-venv/bin").mkdir(parents=True)
    (home / "mlflow").mkdir()
    monkeypatch.setenv("FOML_SHARED", str(shared))
    compute(folder_with(shared, TINY))  # with the cache that other tests have
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
    (laptop / "sweep.yaml").write_text(TINY, encoding="utf-8")
    monkeypatch.setattr(remote, "SHARED", str(shared))
    monkeypatch.setattr(remote, "Head", partial(remote.Head, launch=[str(tmp_path / "launcher")]))
    return shared


def test_what_a_cluster_says_at_its_end_is_the_last_word_here(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--cluster", "cluster.yaml"]
    assert __main__.main([*there, "sweep.yaml", "--json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["sweep"], told["exit_code"], told["problems"]) == ("tiny", 0, [])
    assert told["folder"] == str(shared / "results/tiny")
    assert told["report"] == str(Path.cwd() / "results/tiny/report")
    assert Path(told["report"], "report.html").stat().st_size > 100_000
    assert len(told["configurations"]) == 4 and told["winner"] in told["configurations"]
    assert "tiny: started on the cluster" in said.err and "4 of them ended before" in said.err
    assert __main__.main([*there, "--attach", "tiny"]) == 0  # what it said is shown again, as it was said
    said = capsys.readouterr()
    shown = said.out.splitlines()
    begins = shown.index("{")
    assert json.loads("\n".join(shown[begins:-1])) == told | {"report": str(shared / "results/tiny/report")}
    assert (shown[begins - 1], shown[-1]) == ("tiny: 4 trials, 4 of them ended before", "report: results/tiny/report")
    assert __main__.main([*there, "--attach", "tiny", "--quiet"]) == 2
    assert "it was started without --quiet: look at it without" in capsys.readouterr().err

    assert __main__.main([*there, "sweep.yaml", "--quiet"]) == 0
    said = capsys.readouterr()
    best = f"best: {told['winner']['label']}"
    assert said.out == f"tiny: {best}; exit code 0; report: results/tiny/report\n"
    assert said.err == ""
    assert __main__.main([*there, "sweep.yaml", "--json", "--quiet", "chunk=0"]) == 2  # refused here
    assert json.loads(capsys.readouterr().out)["problems"][0].startswith("sweep.yaml: chunk: must be")


def test_one_that_is_killed_or_left_has_a_document(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--cluster", "cluster.yaml"]
    (shared.parent / "home/foml-venv/bin/python").write_text("#!/bin/bash\nsleep 1\nkill -KILL $$\n")
    assert __main__.main([*there, "sweep.yaml", "--detach", "--json", "--quiet"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    again = "python -m orchestrator.sweep --cluster cluster.yaml --attach tiny --json --quiet"
    assert (told["sweep"], told["exit_code"], told["resume"], said.err) == ("tiny", 0, again, "")
    (shared / "results/tiny/report").mkdir()  # of an earlier command
    assert __main__.main(again.split()[3:]) == 137
    told = json.loads(capsys.readouterr().out)
    assert (told["sweep"], told["exit_code"]) == ("tiny", 137)
    assert told["problems"] == ["tiny: ended without a result; go on with the same command"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_here_that_is_ended_says_that_the_sweep_there_runs_on(
    shared: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    (shared.parent / "home/foml-venv/bin/python").write_text("#!/bin/bash\necho begins >&2\nexec sleep 300\n")
    follows = remote._tell

    def end(line: str, out: TextIO) -> None:
        follows(line, out)
        if line == "begins":
            os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(remote, "_tell", end)
        code = __main__.main(["--cluster", "cluster.yaml", "sweep.yaml", "--json"])
    try:
        os.kill(int((shared / "jobs/tiny.pid").read_text()), 0)  # it does
        told = json.loads(capsys.readouterr().out)
        again = "python -m orchestrator.sweep --cluster cluster.yaml --attach tiny --json"
        assert (code, told["exit_code"], told["sweep"], told["resume"]) == (130, 130, "tiny", again)
        assert told["problems"] == [f"it runs on. Look at it: {again}"]
    finally:
        os.killpg(int((shared / "jobs/tiny.pid").read_text()), signal.SIGKILL)
