"""Descendants of a killed process end; those of a process that ended normally are left running."""

import os
import signal
import subprocess
import sys

import psutil

from orchestrator.system.processes import command_line, descendants, is_alive
from tests.orchestrator import sweep_command
from tests.orchestrator.sweep_command import wait_for

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


def test_the_children_of_a_killed_process_end() -> None:
    process, child = start("hang")
    assert sweep_command.command_line(child) == "sleep 300"
    process.kill()
    process.wait()
    wait_for(lambda: None if sweep_command.command_line(child) == "sleep 300" else True, None, timeout=180)


def test_the_children_of_a_process_that_ended_normally_are_left_running() -> None:
    process, child = start("end")
    try:
        assert process.wait(timeout=180) == 0
        assert sweep_command.command_line(child) == "sleep 300"
    finally:
        os.kill(child, signal.SIGKILL)


def test_descendants_of_this_process() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 299 & echo; wait"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None and shell.stdout.readline() == b"\n"
        wait_for(
            lambda: "sleep 299" in map(command_line, descendants()) or None, None
        )  # the shell forked, then executed it
        processes = {command_line(process): process for process in descendants()}
        child, grandchild = processes["sh -c sleep 299 & echo; wait"], processes["sleep 299"]
        assert child.pid == shell.pid and is_alive(child) and is_alive(grandchild)
        child.kill()
        os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert psutil.pid_exists(shell.pid) and not is_alive(child)
        grandchild.kill()
    assert command_line(child) == ""
