"""What signals do to a sweep's command, sent to this process."""

import os
import pty
import signal
import threading

import pytest

from orchestrator.system.signals import SIGNALS, Halt


@pytest.mark.parametrize("number", SIGNALS)
def test_before_and_after_the_trials_a_signal_interrupts(number: int) -> None:
    before, halt = signal.getsignal(number), Halt()
    with pytest.raises(KeyboardInterrupt), halt.signals():
        os.kill(os.getpid(), number)
    assert (halt.reason, halt.interrupted) == ("interrupted", True)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", SIGNALS)
def test_while_trials_run_the_first_asks_and_the_second_interrupts(number: int) -> None:
    halt, said = Halt(), list[str]()
    with halt.signals(), halt.gently(said.append):
        os.kill(os.getpid(), number)
        assert halt.asked.is_set() and halt.interrupted
        assert said == ["stopping: the chunks in flight are finished and kept (once more to stop at once)"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_a_hangup_that_is_ignored_stays_so() -> None:
    """As `nohup` has it."""
    before, halt = signal.signal(signal.SIGHUP, signal.SIG_IGN), Halt()
    try:
        with halt.signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not halt.asked.is_set()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_signals_are_left_alone() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def look() -> None:
        with Halt().signals():
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
            halt = Halt()
            with halt.signals(), halt.gently(lambda line: os.write(2, line.encode()) and None):
                os.write(1, b"r")
                halt.asked.wait(60)
                os.write(1, b"it goes on")
                code = 7
        finally:
            os._exit(code)
    assert os.read(terminal, 1) == b"r"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
