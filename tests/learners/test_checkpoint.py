"""One file that predicts again; a damaged or foreign file is refused in one line."""

import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch

from learners import checkpoint, names


@pytest.fixture
def saved(rainbow, tmp_path: Path) -> Path:
    learner = rainbow.quick("foml", (0, 7), full=True)
    rainbow.drive(learner, 0, 4, predict=False)
    path = tmp_path / "learner.pt"
    checkpoint.save(path, "foml", learner, "rainbow", rainbow.image_shape)
    return path


@pytest.mark.parametrize("network", ["rainbow", "siamese"])
@pytest.mark.parametrize("name", names())
def test_saved_and_loaded_predicts_equal(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, network: str
) -> None:
    """In the second task, so that whatever a boundary made is there too."""
    world = replace(request.getfixturevalue(network), dtype=torch.float32)
    learner = world.quick(name, (0, 7), full=True)
    world.drive(learner, 0, 5, predict=False)
    path = tmp_path / "learner.pt"
    checkpoint.save(path, name, learner, network, world.image_shape)
    read = checkpoint.read(path)
    assert (read.name, read.network, read.image_shape) == (name, network, tuple(world.image_shape))
    loaded = read.learner
    x = world.batch(77, (0, 7)).x
    assert type(loaded) is type(learner)
    assert loaded.options == learner.options
    assert list(loaded.setting.seeds) == [0, 7]
    assert torch.equal(loaded.predict(x), learner.predict(x))
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_loaded_cannot_go_on_learning(saved: Path, rainbow) -> None:
    loaded = checkpoint.load(saved)
    with pytest.raises(ValueError, match="must have images and datapoints"):
        loaded.update(rainbow.batch(5, (0, 7)))


def test_damaged_files(saved: Path) -> None:
    whole = saved.read_bytes()
    for kept in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:kept])
        with pytest.raises(
            ValueError, match=r"learner\.pt: must be an intact file written by learners\.checkpoint\.save"
        ):
            checkpoint.load(saved)


def test_a_flipped_bit_never_makes_another_learner(saved: Path, rainbow) -> None:
    """`torch.load` would take nearly all of these for whole. What is not refused is padding, or a date."""
    whole = saved.read_bytes()
    x = rainbow.batch(77, (0, 7)).x
    expected = checkpoint.load(saved).predict(x)
    refused = 0
    for place in range(0, len(whole), len(whole) // 60):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        saved.write_bytes(flipped)
        if checkpoint.is_intact(saved):
            assert torch.equal(checkpoint.load(saved).predict(x), expected)
            continue
        refused += 1
        with pytest.raises(ValueError, match=r"learner\.pt: must be an intact file"):
            checkpoint.load(saved)
    assert refused > 40


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "foreign.pt"
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    for content in (b"hello, world\n", image, pickle.dumps({"a": Path("b")}, 2), pickle.dumps([1, 2], 2)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"foreign\.pt: "):
            checkpoint.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"no pickle")
    with pytest.raises(ValueError, match=r"foreign\.pt: "):
        checkpoint.load(path)
    np.savez(path.open("wb"), a=np.zeros(3))
    with pytest.raises(ValueError, match=r"foreign\.pt: "):
        checkpoint.load(path)


@pytest.mark.parametrize("content", [{"weights": torch.zeros(2)}, torch.zeros(3), [1, 2], {"format": 2}])
def test_torch_files_of_another_kind(tmp_path: Path, content: object) -> None:
    path = tmp_path / "other.pt"
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"other\.pt: format must be 1 \(got (None|2)\)"):
        checkpoint.load(path)


def test_a_learner_or_a_part_that_is_not_there(saved: Path) -> None:
    content = torch.load(saved, weights_only=True)
    for changed in ({"learner": "nobody"}, {"network": "resnet"}, {"options": {"gamma": 1}}, {"state": {}}):
        torch.save(content | changed, saved)
        with pytest.raises(ValueError, match=r"learner\.pt: must describe a known learner"):
            checkpoint.load(saved)
    torch.save({"format": 1}, saved)
    with pytest.raises(ValueError, match=r"learner\.pt: must describe .* \('image_shape'\)"):
        checkpoint.load(saved)


def test_a_file_that_is_not_there_is_said_as_such(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt"):
        checkpoint.load(tmp_path / "nowhere.pt")


def test_a_failed_save_leaves_the_file_before_it(saved: Path, rainbow, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()
    learner = rainbow.quick("online", full=True)

    def full_disk(content: object, file: BinaryIO) -> None:
        file.write(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(saved, "online", learner, "rainbow", rainbow.image_shape)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
