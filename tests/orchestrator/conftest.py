"""One small store for all tests of the orchestrator."""

from pathlib import Path

import pytest
import torch

from streams import recipes
from streams.build import build
from streams.store import TaskStore


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    """Rainbow-Digits with 3 tasks of 25 + 12 + 12 digits, seeds 0, 1 and 2: batches of 10 straddle the tasks."""
    recipe = recipes()["rainbow_digits"](tasks=3, train=25, validation=12, test=12)  # type: ignore[call-arg]
    return build(recipe, [0, 1, 2], Path(tmp_path_factory.mktemp("store")) / "digits")
