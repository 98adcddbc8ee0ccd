"""Common settings of all tests: torch uses one thread, so that tests may run in parallel and sums keep their order."""

import gc
import os
import signal

import pytest

LONGEST = (
    "test_main.py",
    "test_interruptions.py",
    "test_writer.py",
    "test_mirror.py",
    "test_screen.py",
    "test_ledger.py",
    "test_hindsight.py",
    "test_population.py",
    "test_examples.py",
    "test_write.py",
    "test_contract.py",
)
"""The slowest test files: they run first, so that two processes end at about the same time."""

# Waiting threads sleep, also in the commands that tests start: with more threads than free processors, as when two tests
# run in parallel, busy waiting stops the threads that compute (10 to 100 times as slow).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Ray's workers have niceness 15 by default: a sweep would hardly advance beside a test that computes.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Set torch to one thread, independent of the previous test."""
    try:
        import torch
    except ImportError:  # the tests of streams run without it
        return
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _signals() -> None:
    """Reset the signal handlers to those of a command in a terminal.

    A Ray that a test started leaves handlers behind, and the process that started the tests may ignore SIGHUP, which all
    commands would inherit.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def pytest_configure() -> None:
    """Collect garbage less often: with Python's settings, half of the time of importing all tests is spent on it."""
    gc.set_threshold(10_000)


def pytest_collection_finish() -> None:
    """Exclude the modules, which stay until the end, from later collections."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
