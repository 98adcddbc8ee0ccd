"""What signals do to a sweep's command, sent to this process."""

import os
import pty
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from orchestrator.system.signals import SIGNALS, StopRequest


@pytest.mark.parametrize("number", SIGNALS)
def test_before_and_after_the_trials_a_signal_interrupts(number: int) -> None:
    before, stop_request = signal.getsignal(number), StopRequest()
    with pytest.raises(KeyboardInterrupt), stop_request.signals():
        os.kill(os.getpid(), number)
    assert (stop_request.reason, stop_request.interrupted) == ("interrupted", True)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", SIGNALS)
def test_while_trials_run_the_first_signal_requests_a_stop_and_the_second_interrupts(number: int) -> None:
    stop_request, lines = StopRequest(), list[str]()
    with stop_request.signals(), stop_request.gracefully(lines.append):
        os.kill(os.getpid(), number)
        assert stop_request.requested and stop_request.interrupted
        assert lines == ["stopping: the chunks in flight are finished and kept (a second signal stops immediately)"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_an_interrupt_where_python_ignores_exceptions_is_raised_again(capfd: pytest.CaptureFixture[str]) -> None:
    """Here in a finalizer: the sweep must stop, and no traceback may appear."""

    class Owner:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    def run() -> None:
        with StopRequest().signals():
            Owner()
            threading.Event().wait(10)

    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        run()
    assert sys.unraisablehook is hook
    assert capfd.readouterr().err == ""


def test_the_first_reason_is_kept() -> None:
    stop_request = StopRequest()
    stop_request.request("2 trials failed")
    stop_request.request("interrupted", interrupted=True)
    assert (stop_request.reason, stop_request.interrupted) == ("2 trials failed", False)


@pytest.mark.timeout(60)
def test_a_signal_at_any_line_of_a_request_is_handled() -> None:
    """An event's lock, held by the interrupted line, would never be released."""

    def lines_until_interrupted_at(line: int) -> tuple[int, StopRequest]:
        stop_request, lines = StopRequest(), 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal lines
            if event == "line":
                lines += 1
                if lines == line:
                    os.kill(os.getpid(), signal.SIGTERM)
            return trace

        with stop_request.signals(), stop_request.gracefully(lambda _: None):
            sys.settrace(trace)
            try:
                stop_request.request("2 trials failed")
            except KeyboardInterrupt:  # the second reason to stop ends the command immediately
                pass
            finally:
                sys.settrace(None)
        return lines, stop_request

    count, _ = lines_until_interrupted_at(0)
    assert count >= 3
    for line in range(1, count + 1):
        _, stop_request = lines_until_interrupted_at(line)
        assert stop_request.requested and stop_request.signal == signal.SIGTERM


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As under `nohup`."""
    before, stop_request = signal.signal(signal.SIGHUP, signal.SIG_IGN), StopRequest()
    try:
        with stop_request.signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop_request.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_leaves_signal_handlers_unchanged() -> None:
    before, handlers = signal.getsignal(signal.SIGTERM), []

    def look() -> None:
        with StopRequest().signals():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [before]


def test_nothing_is_written_to_a_closed_terminal() -> None:
    """A write to it would raise, and end the sweep in the middle of a chunk."""
    child, terminal = pty.fork()
    if child == 0:
        code = 1
        try:
            stop_request = StopRequest()
            with stop_request.signals(), stop_request.gracefully(lambda line: os.write(2, line.encode()) and None):
                os.write(1, b"r")
                while not stop_request.requested:
                    time.sleep(0.01)
                os.write(1, b"the child still runs")
                code = 7
        finally:
            os._exit(code)
    assert os.read(terminal, 1) == b"r"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
