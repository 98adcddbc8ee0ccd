"""Online-CIFAR100: faults on synthetic pickles, the rules of its tasks on the real data set."""

import os
import pickle
import runpy
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams.build import build
from streams.errors import SourceError
from streams.online_cifar100 import OnlineCifar100
from streams.recipe import TEST, TRAIN, VALIDATION
from streams.store.task_store import TaskStore

SMALL: dict[str, Any] = {"tasks": 6, "train": 40, "validation": 10, "test": 10, "validation_images": 8}


@pytest.fixture
def copy(made_cifar: Path, tmp_path: Path) -> Path:
    shutil.copytree(made_cifar, tmp_path / "cifar")
    return tmp_path / "cifar"


def change(copy: Path, name: str, **values: object) -> Path:
    path = copy / "cifar-100-python" / name
    path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), **values}))
    return path


def faults_of(data: Path) -> tuple[str, ...]:
    with pytest.raises(SourceError) as caught:
        OnlineCifar100(data=str(data)).collect()
    return caught.value.faults


def assert_pairs(store: TaskStore, seed: int, keep: int = 2) -> None:
    """Check the pairs of a seed in each task and split."""
    table = store.table(seed)
    names = store.manifest["class_names"]
    left, right = table.image_ids.T
    assert (left != right).all()
    assert set(left) | set(right) <= set(range(store.count))
    same = store.classes_of[left] == store.classes_of[right]
    np.testing.assert_array_equal(table.label, same)
    for split in (TRAIN, VALIDATION, TEST):
        assert set(store.splits_of[table.image_ids[table.split == split]].ravel()) == {split}
        starts = table.starts[split]
        labels = table.label[starts[0] : starts[-1]].reshape(len(table.manifest["tasks"]), -1)
        assert (labels.sum(axis=1) * 2 == labels.shape[1]).all()
    present = [{names.index(name) for name in about["classes"]} for about in table.manifest["tasks"]]
    assert {len(each) for each in present} == {5}
    assert {len(a & b) for a, b in pairwise(present)} <= {keep}
    allowed = np.zeros((len(present), len(names)), dtype=bool)
    for task, each in enumerate(present):
        allowed[task, list(each)] = True
    assert allowed[table.task, store.classes_of[left]].all()
    assert allowed[table.task, store.classes_of[right]].all()


def test_labels_match_the_classes_of_pairs(made_cifar: Path, tmp_path: Path) -> None:
    store = build(OnlineCifar100(data=str(made_cifar), **SMALL), range(3), tmp_path / "store")
    assert (store.shape, store.classes, store.images_per_datapoint, store.views) == ((3, 32, 32), 2, 2, None)
    assert np.bincount(store.splits_of).tolist() == [12 * 52, 12 * 8, 12 * 10]
    for seed in range(3):
        assert_pairs(store, seed)
    # pixels and classes belong together: red is the class, blue the split of the source
    np.testing.assert_array_equal(store.pixels[:, 0, 5, 5], store.classes_of)
    np.testing.assert_array_equal(store.pixels[:, 2, 5, 5], store.splits_of == TEST)
    assert store.draw([[3, 4]]).shape == (1, 2, 3, 32, 32)
    assert store.draw([700])[0, 0, 0, 0] == np.float32(store.classes_of[700]) / np.float32(255)


def test_another_md5_is_accepted_with_a_notice(made_cifar: Path, tmp_path: Path) -> None:
    source = build(OnlineCifar100(data=str(made_cifar), **SMALL), [0], tmp_path / "store").manifest["source"]
    assert source["notices"][0] == "train: its md5 differs from the published one, 16019d7e3df5f24257cddd939b257f8d"
    assert len(source["notices"]) == 3
    assert sorted(source["files"]) == ["meta", "test", "train"]
    assert all(len(digest) == 64 for digest in source["files"].values())


def test_the_inner_folder_may_be_named_too(made_cifar: Path) -> None:
    outer, inner = (OnlineCifar100(data=str(made_cifar / name)).collect() for name in ("", "cifar-100-python"))
    np.testing.assert_array_equal(outer.pixels, inner.pixels)


def test_torchvision_downloads_into_the_cache(
    made_cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision's class is replaced by one that copies the synthetic files and records its calls."""
    datasets = pytest.importorskip("torchvision.datasets")
    calls = []

    def bring(root: str, download: bool) -> None:
        calls.append((root, download))
        shutil.copytree(made_cifar, root, dirs_exist_ok=True)

    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets, "CIFAR100", bring)
    assert len(OnlineCifar100(**SMALL).collect().pixels) == len(OnlineCifar100(**SMALL).collect().pixels) == 840
    assert calls == [(str(tmp_path / "downloads"), True)]


def test_a_folder_that_is_not_cifar(tmp_path: Path) -> None:
    assert faults_of(tmp_path / "no") == (
        f"{tmp_path / 'no'}: data: must be a folder that exists; name the folder that holds cifar-100-python",
    )
    (line,) = faults_of(tmp_path)
    assert line.startswith(f"{tmp_path}: data: must hold cifar-100-python with the files train, test, meta")


def test_each_bad_file_is_reported(copy: Path) -> None:
    folder = copy / "cifar-100-python"
    (folder / "train").write_bytes((folder / "train").read_bytes()[:-50])
    (folder / "test").unlink()
    lines = faults_of(copy)
    assert len(lines) == 2
    assert lines[0].startswith(f"{folder / 'train'}: cannot be read as a pickle of arrays")
    assert lines[1] == f"{folder / 'test'}: is missing; copy all of cifar-100-python there"


class Command:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("false",)


def test_a_pickle_that_would_run_code_is_refused(copy: Path) -> None:
    path = change(copy, "test", filenames=Command())
    (line,) = faults_of(copy)
    assert line.startswith(f"{path}: cannot be read as a pickle of arrays")
    assert "system, which is not an array" in line


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": np.zeros((720, 3072))}, "data must be uint8 [n, 3072] (got float64 [720, 3072])"),
        ({"data": np.zeros((720, 784), dtype=np.uint8)}, "data must be uint8 [n, 3072] (got uint8 [720, 784])"),
        ({"fine_labels": [0] * 719}, "must hold fine_labels of 720 images (got 719)"),
        ({"fine_labels": [0.5] * 720}, "fine_labels: labels must be of one kind that names classes (got float)"),
        ({"fine_labels": [0] * 700 + [1.0] * 20}, "labels must be of one kind that names classes (got float, int)"),
        ({"fine_labels": ["apple"] * 720}, "fine_labels must be whole numbers within 0..11 (got 'apple' to 'apple')"),
        ({"fine_labels": ["0", "11"] * 360}, "fine_labels must be whole numbers within 0..11 (got '0' to '11')"),
        (
            {"fine_labels": np.eye(12)[[0] * 720]},
            "fine_labels: labels must be one value for each image, [n] (got [720, 12])",
        ),
        ({"fine_labels": [12] * 720}, "fine_labels must be whole numbers within 0..11 (got 12 to 12)"),
    ],
)
def test_other_content_is_one_line(copy: Path, values: dict[str, object], message: str) -> None:
    path = change(copy, "train", **values)
    (line,) = faults_of(copy)
    assert line.startswith(str(path))
    assert message in line


def test_each_class_too_small_for_tasks_is_reported(copy: Path, tmp_path: Path) -> None:
    labels = [label % 4 for label in pickle.loads((copy / "cifar-100-python" / "train").read_bytes())["fine_labels"]]
    change(copy, "train", fine_labels=labels)
    with pytest.raises(SourceError) as caught:
        build(OnlineCifar100(data=str(copy), **SMALL), [0], tmp_path / "store")
    assert len(caught.value.faults) == 16
    assert caught.value.faults[0] == (
        "class class 04: must have at least 2 train images (got 0); add images or leave it out"
    )


@pytest.fixture(scope="session")
def real_cifar(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-100's pickles: from the data folder, or written from its strips by the tool beside it."""
    if (real_data / "cifar-100-python").is_dir():
        return real_data
    tool = real_data.parent / "tools" / "expand_cifar100.py"
    if not tool.is_file():
        pytest.skip(f"no cifar-100-python in {real_data}, and no {tool}")
    out = tmp_path_factory.mktemp("real") / "cifar"
    arguments, sys.argv = sys.argv, [str(tool), str(out)]
    try:
        runpy.run_path(str(tool), run_name="__main__")
    finally:
        sys.argv = arguments
    return out


def test_real_cifar100_in_full(real_cifar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = build(OnlineCifar100(data=str(real_cifar)), range(3), tmp_path / "store")
    assert store.count == 60_000
    counts = np.zeros((3, 100), dtype=int)
    np.add.at(counts, (store.splits_of, store.classes_of), 1)
    assert (counts == [[450], [50], [100]]).all()
    for seed in range(3):
        assert np.diff(store.table(seed).starts, axis=1).tolist() == [[400] * 1_200, [100] * 1_200, [100] * 1_200]
        assert_pairs(store, seed)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "online_cifar100: 12 images are copies of one in another pool, as in the source"
    # the data set's well known channel means
    means = store.pixels[store.splits_of != TEST].mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.5071, 0.4865, 0.4409], atol=1e-4)
