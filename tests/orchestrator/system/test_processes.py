"""What a killed process leaves behind is ended; what outlives a block that ended well is left alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.sweep_command import command_line, wait_for

SCRIPT = """
import subprocess, sys, time
from orchestrator.system.processes import watched
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
with watched():
    print(child.pid, flush=True)
    if sys.argv[1] == "hang":
        time.sleep(300)
"""


def start(how: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the watcher needs /proc")
def test_the_children_of_a_killed_process_end() -> None:
    process, child = start("hang")
    assert command_line(child) == "sleep 300"
    process.kill()
    process.wait()
    wait_for(lambda: None if command_line(child) == "sleep 300" else True, None, timeout=180)


def test_the_children_of_one_that_ended_well_are_left_alone() -> None:
    process, child = start("end")
    try:
        assert process.wait(timeout=180) == 0
        assert command_line(child) == "sleep 300"
    finally:
        os.kill(child, signal.SIGKILL)
