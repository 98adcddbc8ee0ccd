"""`--cluster`: what is refused before anything is sent. A sweep on a real cluster's head is in tests/cluster."""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator import sweep

ROOT = Path(__file__).resolve().parents[2]


def test_a_cluster_file_with_faults_is_told_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main(["--cluster", str(ROOT / "cluster.yaml")]) == 2
    told = capsys.readouterr().err
    assert "metadata.image: must be filled in (got FILL-IN)" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--detach"], "--detach and --attach go with --cluster FILE"),
        (["--attach", "x"], "--detach and --attach go with --cluster FILE"),
        (["--cluster", "c.yaml", "--local"], "--cluster goes with FILE, key=value, --rerun, --detach or --attach"),
        (["--cluster", "c.yaml", "--attach", "x", "seeds=1"], "--attach takes no other words"),
    ],
)
def test_words_that_do_not_go_together(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sweep.main(words)
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
