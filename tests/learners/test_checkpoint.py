"""A saved and loaded learner predicts the same; a damaged or foreign file is refused in one line."""

import pickle
import re
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch

from learners import checkpoint, create, names
from learners.networks.build import build, write


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
    """Saved in the second task, so that the state contains the effects of a boundary."""
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


REFUSE_A_START = ("icarl", "moca", "tfs")


@pytest.mark.parametrize("name", names())
def test_a_learner_starts_from_the_weights_of_another_or_refuses(rainbow, saved: Path, name: str) -> None:
    source, learner = checkpoint.load(saved), rainbow.quick(name, (7, 0), full=True)
    assert learner.can_start == (name not in REFUSE_A_START)
    if not learner.can_start:
        with pytest.raises(ValueError, match=r"^\w+ cannot start from the weights of a learner$"):
            checkpoint.start(learner, saved, "rainbow")
        return
    x = rainbow.batch(77, (7, 0)).x
    before = learner.predict(x)
    checkpoint.start(learner, saved, "rainbow")
    after = learner.predict(x)
    assert not torch.equal(after, before)
    assert torch.equal(after, source.predict(x.flip(0)).flip(0)), "each seed has the weights of its seed"
    if name == "foml":
        assert torch.equal(learner.theta, source.theta.flip(0)) and not torch.equal(learner.theta, learner.phi)
    rainbow.drive(learner, 0, 4, predict=False)
    assert not torch.equal(learner.predict(x), after)


def test_one_saved_seed_serves_all(rainbow, tmp_path: Path) -> None:
    source, path = rainbow.quick("online", (3,), full=True), tmp_path / "learner.pt"
    rainbow.drive(source, 0, 2, predict=False)
    checkpoint.save(path, "online", source, "rainbow", rainbow.image_shape)
    learner = rainbow.quick("foml", (0, 7), full=True)
    checkpoint.start(learner, path, "rainbow")
    assert torch.equal(learner.phi, source.model.phi.expand(2, -1)) and torch.equal(learner.theta, learner.phi)


def test_a_checkpoint_that_does_not_fit_is_refused(rainbow, saved: Path) -> None:
    with pytest.raises(ValueError, match=r"must be of the network mlp \(got rainbow\)"):
        checkpoint.start(rainbow.quick("online", (0, 7), full=True), saved, "mlp")
    missing = r"must have one seed, or every seed of the sweep: \[5\] are not among \[0, 7\]"
    with pytest.raises(ValueError, match=missing):
        checkpoint.start(rainbow.quick("online", (0, 5), full=True), saved, "rainbow")


def test_a_users_network_is_imported_only_if_its_module_is_named(smooth, tmp_path: Path) -> None:
    path, own = tmp_path / "learner.pt", "tests.learners.networks.test_build"
    network = write({"class": f"{own}.Plain"})
    setting = replace(smooth.setting((0, 7)), network=build(network, smooth.image_shape, 3))
    learner = create("online", {}, setting)
    checkpoint.save(path, "online", learner, network, smooth.image_shape, images_per_datapoint=1)
    with pytest.raises(ValueError, match="the module of the network's class must be one that you name"):
        checkpoint.read(path)
    read = checkpoint.read(path, modules=[own])
    x = smooth.batch(70, (0, 7)).x.float()
    assert torch.equal(read.learner.predict(x), learner.predict(x))
    assert (read.network, read.images_per_datapoint) == (network, 1)


def test_a_loaded_learner_cannot_be_trained(saved: Path, rainbow) -> None:
    loaded = checkpoint.load(saved)
    with pytest.raises(ValueError, match="must have images and datapoints"):
        loaded.update(rainbow.batch(5, (0, 7)))


def test_truncated_files_are_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for length in (0, 1, 100, len(content) // 2, len(content) - 1):
        saved.write_bytes(content[:length])
        with pytest.raises(
            ValueError, match=r"learner\.pt: must be an intact file written by learners\.checkpoint\.save"
        ):
            checkpoint.load(saved)


def test_a_flipped_bit_never_results_in_another_learner(saved: Path, rainbow) -> None:
    """`torch.load` would accept nearly all of these files; a flipped bit that is not refused is in padding or in a date."""
    content = saved.read_bytes()
    x = rainbow.batch(77, (0, 7)).x
    expected = checkpoint.load(saved).predict(x)
    refused = 0
    for place in range(0, len(content), len(content) // 60):
        flipped = bytearray(content)
        flipped[place] ^= 1
        saved.write_bytes(flipped)
        if checkpoint.is_intact(saved):
            assert torch.equal(checkpoint.load(saved).predict(x), expected)
            continue
        refused += 1
        with pytest.raises(ValueError, match=r"learner\.pt: must be an intact file"):
            checkpoint.load(saved)
    assert refused > 40


def test_a_flipped_bit_in_the_archives_directory_is_found_or_harmless(tmp_path: Path) -> None:
    """Python's zipfile and `torch.load` read different parts of it; the second refuses some files that the first reads."""
    path, numbers = tmp_path / "numbers.pt", torch.arange(5.0)
    torch.save({"numbers": numbers}, path)
    content = path.read_bytes()
    refused = 0
    for place in range(content.index(b"PK\x01\x02"), len(content), 3):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        if checkpoint.is_intact(path):
            assert torch.equal(torch.load(path, weights_only=True)["numbers"], numbers)
            continue
        refused += 1
    assert refused > 100


def test_foreign_files_are_refused(tmp_path: Path) -> None:
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


class Touches:
    """An object that creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_file_that_would_run_code_is_refused_and_runs_none(saved: Path, tmp_path: Path) -> None:
    """Unpickled without `weights_only`, the file calls a function of its own choice."""
    touched, path = tmp_path / "touched", tmp_path / "code.pt"
    torch.save(torch.load(saved, weights_only=True) | {"more": Touches(touched)}, path)
    with pytest.raises(ValueError, match=r"must be an intact file written by learners\.checkpoint\.save"):
        checkpoint.load(path)
    assert not touched.exists()
    torch.load(path, weights_only=False)
    assert touched.exists(), "the file has such code"


@pytest.mark.parametrize("content", [{"weights": torch.zeros(2)}, torch.zeros(3), [1, 2], {"format": 2}])
def test_torch_files_without_a_learner_are_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "other.pt"
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"other\.pt: format must be 1 \(got (None|2)\)"):
        checkpoint.load(path)


def test_an_unknown_learner_and_missing_parts_are_refused(saved: Path) -> None:
    content = torch.load(saved, weights_only=True)
    for changed in ({"learner": "unknown"}, {"network": "resnet"}, {"options": {"gamma": 1}}, {"state": {}}):
        torch.save(content | changed, saved)
        with pytest.raises(ValueError, match=r"learner\.pt: must describe a known learner"):
            checkpoint.load(saved)
    torch.save({"format": 1}, saved)
    with pytest.raises(ValueError, match=r"learner\.pt: must describe .* \('image_shape'\)"):
        checkpoint.load(saved)


def test_a_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt"):
        checkpoint.load(tmp_path / "nowhere.pt")


def test_a_failed_save_leaves_the_previous_file(saved: Path, rainbow, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"classes": 1_000_000_000}, "classes must be a whole number from 1 to 100,000 (got 1000000000)"),
        ({"classes": "10"}, "classes must be a whole number from 1 to 100,000 (got '10')"),
        ({"image_shape": [3, 10**6, 10**6]}, "image_shape must be three numbers from 1 to 4,096 (got [3, 1000000, 1000000])"),
        ({"dtype": "load"}, "dtype must be float32 or float64 (got 'load')"),
        ({"seeds": []}, "seeds must be 1 to 10,000 (got 0)"),
    ],
)  # fmt: skip
def test_numbers_that_no_sweep_writes_are_one_line(saved: Path, change: dict[str, object], line: str) -> None:
    torch.save(torch.load(saved) | change, saved)
    with pytest.raises(ValueError, match=re.escape(f"{saved}: must describe a known learner ({line})")):
        checkpoint.load(saved)


def test_a_file_does_not_decide_which_module_is_imported(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_stranger").mkdir()
    (tmp_path / "of_a_stranger/learner.py").write_text("print('imported')\nfrom learners.foml import FOML, Options\n")
    monkeypatch.syspath_prepend(tmp_path)
    torch.save(torch.load(saved) | {"learner": "of_a_stranger.learner"}, saved)
    with pytest.raises(
        ValueError,
        match=r"the learner's module must be one that you name \(got 'of_a_stranger\.learner'\); name it only if",
    ):
        checkpoint.load(saved, modules=["another.module"])
    assert "of_a_stranger" not in sys.modules
    with pytest.raises(ValueError, match="must define exactly one Learner"):
        checkpoint.load(saved, modules=["of_a_stranger.learner"])
    assert "of_a_stranger.learner" in sys.modules
