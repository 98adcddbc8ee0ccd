"""What all tests share: one thread for torch, so that several tests may run at once and sums keep their order."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    try:
        import torch
    except ImportError:  # the tests of streams run without it
        return
    torch.set_num_threads(1)
