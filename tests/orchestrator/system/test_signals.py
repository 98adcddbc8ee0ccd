"""What signals do to a sweep's command, sent to this process."""

import os
import pty
import signal
import threading

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
def test_while_trials_run_the_first_asks_and_the_second_interrupts(number: int) -> None:
    stop_request, said = StopRequest(), list[str]()
    with stop_request.signals(), stop_request.gracefully(said.append):
        os.kill(os.getpid(), number)
        assert stop_request.requested.is_set() and stop_request.interrupted
        assert said == ["stopping: the chunks in flight are finished and kept (once more to stop at once)"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_a_hangup_that_is_ignored_stays_so() -> None:
    """As `nohup` has it."""
    before, stop_request = signal.signal(signal.SIGHUP, signal.SIG_IGN), StopRequest()
    try:
        with stop_request.signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop_request.requested.is_set()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_signals_are_left_alone() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def look() -> None:
        with StopRequest().signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_terminal_that_is_gone_is_written_to_no_more() -> None:
    """Each word there would be an error, and end the sweep in the middle of a chunk."""
    child, terminal = pty.fork()
    if child == 0:
        code = 1
        try:
            stop_request = StopRequest()
            with stop_request.signals(), stop_request.gracefully(lambda line: os.write(2, line.encode()) and None):
                os.write(1, b"r")
                stop_request.requested.wait(60)
                os.write(1, b"it goes on")
                code = 7
        finally:
            os._exit(code)
    assert os.read(terminal, 1) == b"r"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
