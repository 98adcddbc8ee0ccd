"""What all tests share: one thread for torch, so that several tests may run at once and sums keep their order."""

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
)
"""Files of tests that take longest: they come first, so that of two files at a time none is left over at the end."""

# Threads that wait for each other do so asleep, in the commands that tests start as well: with more of them than free
# processors, as when two tests run at once, those that wait awake stop those that compute (10 to 100 times as slow).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Ray's workers would give way to everything else (niceness 15): a sweep would stand still beside a test that computes.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Whatever the test before has left."""
    try:
        import torch
    except ImportError:  # the tests of streams run without it
        return
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _signals() -> None:
    """As a command has them that is started from a terminal: a Ray that a test started leaves handlers behind, and whoever
    started the tests may have had hang-ups ignored, which all commands would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
